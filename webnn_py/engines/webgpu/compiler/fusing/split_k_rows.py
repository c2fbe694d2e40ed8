"""Products whose parts' sums the kernel of rows behind them adds up, as it reads them."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.fusing.fusion import Fusion
from webnn_py.ir import Value


def rows_behind(fusion: Fusion) -> dict[Value, Value]:
    """By products that one kernel of rows alone reads, with what is fused: what that one writes."""
    readers: dict[Value, list[Value]] = {}
    for root in fusion.roots:
        for leaf in fusion.leaves_of(root):
            readers.setdefault(leaf, []).append(root)
    found: dict[Value, Value] = {}
    for value in fusion.roots:
        anchor = fusion.anchor_of(value)
        if anchor is None or anchor.op != "matmul" or fusion.is_needed_whole(value):
            continue
        (*others, reader) = readers.get(value, [None])
        if reader is None or others or reader in found.values():
            continue
        rows = fusion.rows_at(reader)
        if rows is not None and rows.shape == value.shape == anchor.output.shape:
            found[value] = reader
    return found
