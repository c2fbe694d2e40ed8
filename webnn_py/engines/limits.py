"""The bounds of an engine's tensors."""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.core.shapes import MAX_BYTE_LENGTH, MAX_RANK


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of every tensor of an engine.

    Attributes:
        max_rank: Highest rank.
        max_tensor_bytes: Largest size in bytes.
    """

    max_rank: int = MAX_RANK
    max_tensor_bytes: int = MAX_BYTE_LENGTH
