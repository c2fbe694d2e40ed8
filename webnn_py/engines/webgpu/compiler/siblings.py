"""Products that may run beside others: known before their kernels, as tiles follow from it."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.fusion import Fusion
from webnn_py.ir import Value

PRODUCTS = ("matmul", "conv2d")
"""Operators whose kernels have tiles."""

NEAR = 12
"""Stored values among which others are looked for: about as many as `abreast.WINDOW` kernels."""


def products_beside(fusion: Fusion) -> set[Value]:
    """The results of products that depend on as many kernels in a row as products nearby do."""
    depths: dict[Value, int] = {}
    last: dict[int, tuple[int, Value]] = {}
    found: set[Value] = set()
    for number, root in enumerate(fusion.roots):
        depth = max((depths.get(leaf, 0) for leaf in fusion.leaves_of(root)), default=0)
        # The kernels of its operands write a concat of which nothing is left.
        depths[root] = depth + (fusion.places.left.get(root) != ())
        anchor = fusion.anchor_of(root)
        if anchor is None or anchor.op not in PRODUCTS:
            continue
        before = last.get(depths[root])
        if before is not None and number - before[0] < NEAR:
            found |= {before[1], root}
        last[depths[root]] = number, root
    return found
