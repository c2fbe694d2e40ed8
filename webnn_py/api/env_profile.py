"""Profiles of graphs at compile time, enabled by the environment variable WEBNN_PROFILE.

The value 1 prints their tables on stderr. The path of a folder also writes their traces there.
Unset or 0 disables it.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from webnn_py.api.profile import measure
from webnn_py.api.session import Session
from webnn_py.api.signature import Signature
from webnn_py.core.errors import MLError
from webnn_py.core.messages import LOG, shown
from webnn_py.engines.base import Executable
from webnn_py.engines.initialization import BoundInputs
from webnn_py.ir import Array, Shape
from webnn_py.memory.allocation import new_array

RUNS = 5
MAX_NAMES = 8
"""Maximum number of output names in the title of a profile."""
FRACTIONS = np.linspace(-1, 1, 9973, dtype=np.float32)
"""Values of float inputs; their count is prime, so that rows differ."""
_NUMBERS = itertools.count(1)


def profile_built(
    session: Session, signature: Signature, sizes: Mapping[str, int], executable: Executable
) -> None:
    """Profile a newly compiled executable on synthetic inputs, if WEBNN_PROFILE is set.

    This reads and writes none of the program's data. A failure is logged, and the program goes on.

    Args:
        session: Session of the context.
        signature: Signature of the graph.
        sizes: Sizes of its open dimensions.
        executable: Executable for these sizes.
    """
    wanted = os.environ.get("WEBNN_PROFILE", "0")
    if wanted in ("", "0"):
        return
    number = next(_NUMBERS)
    made = ", ".join(map(shown, list(signature.outputs)[:MAX_NAMES]))
    title = f"profile {number}, engine {session.engine.name}, of the graph that makes {made}"
    try:
        fixed = signature.at(sizes)
        inputs = {name: _made_up(*end) for name, end in fixed.read.items()}
        measured = measure(session, fixed, executable, BoundInputs(), inputs, RUNS)
        given = [f"#   {shown(name)}: {descriptor}" for name, descriptor in fixed.inputs.items()]
        print("\n".join([f"# {title}", *given, str(measured)]), file=sys.stderr)
        if wanted != "1":
            path = Path(wanted, f"profile-{os.getpid()}-{number}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            measured.save_trace(path)
    except (MLError, MemoryError, OSError) as error:
        LOG.warning("WEBNN_PROFILE: no %s: %s", title, error)


def _made_up(shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return a synthetic input: fractions for floats, ones for integers.

    Zeros would take less power than real data, and integers may be divisors.

    Raises:
        OperationError: There is no memory left.
    """
    array = new_array(shape, dtype)
    array[...] = 1
    if dtype.kind == "f":
        array[...] = np.resize(FRACTIONS, shape)
    return array
