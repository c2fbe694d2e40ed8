"""What a declaration says in WGSL, as it must be written for each data type."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler import floats, int64
from webnn_py.engines.webgpu.compiler.storage import PAIR, Storage


def adapted(expression: str, storage: Storage) -> str:
    """A declared expression as it must be written for operands of this storage."""
    if storage.compute == PAIR:
        return int64.adapted(expression, storage)
    return (
        floats.EXPRESSIONS.get(expression, expression) if storage.compute == "f32" else expression
    )


def express(expression: str, storage: Storage, **names: str) -> str:
    """A declared expression for this storage, with names filled in."""
    return adapted(expression, storage).format(T=storage.compute, **names)
