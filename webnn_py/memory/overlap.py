"""Where outputs are written: no two of one run share memory, in any mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.core.errors import DataError, MLError
from webnn_py.ir import Array

WORK: Any = 10_000
"""Steps of NumPy's search for an element that two strided arrays share."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of something that is no host memory.

    Attributes:
        owner: Whose part it is, a buffer or a texture.
        begin: Its first byte.
        end: The byte after its last.
    """

    owner: object
    begin: int = 0
    end: int = 1


Target = Array | Span


def check_apart(targets: Mapping[str, Target], error: type[MLError] = DataError) -> None:
    """Raise a DataError (or `error`) if two outputs share memory, naming both.

    Args:
        targets: What is written, by the outputs' names.
        error: What to raise.
    """
    if len(targets) < 2:
        return
    given = list(targets.items())
    for i, (name, target) in enumerate(given):
        for other, before in given[:i]:
            if _overlap(before, target):
                raise error(
                    f"outputs {other!r} and {name!r} share memory; give each one of its own"
                )


def _overlap(a: Target, b: Target) -> bool:
    if isinstance(a, Span):
        if not isinstance(b, Span) or a.owner != b.owner:
            return False
        return a.begin < b.end and b.begin < a.end
    if isinstance(b, Span) or not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=WORK)
    except np.exceptions.TooHardError:  # interleaved in a way that takes long to tell apart
        return True
