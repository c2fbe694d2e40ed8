"""Products that may run beside others: known before their kernels, as tiles follow from it."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.fusing.fusion import Fusion
from webnn_py.ir import Value

PRODUCTS = ("matmul", "conv2d")
"""Operators whose kernels have tiles."""

NEAR = 12
"""Stored values among which others are looked for: about as many as `abreast.WINDOW` kernels."""


def products_beside(fusion: Fusion) -> list[list[Value]]:
    """Results of products that depend on as many kernels in a row as others nearby, with these."""
    depths: dict[Value, int] = {}
    last: dict[int, tuple[int, list[Value]]] = {}
    found: list[list[Value]] = []
    for number, root in enumerate(fusion.roots):
        depth = max((depths.get(leaf, 0) for leaf in fusion.leaves_of(root)), default=0)
        # The kernels of its operands write a concat of which nothing is left.
        depths[root] = depth + (fusion.places.left.get(root) != ())
        anchor = fusion.anchor_of(root)
        if anchor is None or anchor.op not in PRODUCTS:
            continue
        before = last.get(depths[root])
        if before is None or number - before[0] >= NEAR:
            found.append([])
            before = number, found[-1]
        before[1].append(root)
        last[depths[root]] = number, before[1]
    return [group for group in found if len(group) > 1]
