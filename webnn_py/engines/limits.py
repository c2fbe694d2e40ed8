"""What bounds every operator of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.core.shapes import MAX_BYTE_LENGTH, MAX_RANK


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What bounds every operator of an engine.

    Attributes:
        max_rank: Highest rank of a tensor.
        max_tensor_bytes: Largest tensor in bytes.
    """

    max_rank: int = MAX_RANK
    max_tensor_bytes: int = MAX_BYTE_LENGTH
