"""Products that may run beside others: known before their kernels, as tiles follow from it."""

from __future__ import annotations

from webnn_py.engines.webgpu.compiler.fusion import Fusion
from webnn_py.ir import Value

PRODUCTS = ("matmul", "conv2d")
"""Operators whose kernels have tiles."""

NEAR = 12
"""Stored values among which others are looked for: about as many as `abreast.WINDOW` kernels."""


def products_beside(fusion: Fusion) -> dict[Value, int]:
    """The results of products that depend on as many kernels in a row as products nearby do.

    Returns:
        For each the elements of these results together.
    """
    depths: dict[Value, int] = {}
    groups: dict[int, list[Value]] = {}
    last: dict[int, int] = {}
    found: dict[Value, int] = {}
    for number, root in enumerate(fusion.roots):
        depth = max((depths.get(leaf, 0) for leaf in fusion.leaves_of(root)), default=0)
        # The kernels of its operands write a concat of which nothing is left.
        depths[root] = depth + (fusion.places.left.get(root) != ())
        anchor = fusion.anchor_of(root)
        if anchor is None or anchor.op not in PRODUCTS:
            continue
        depth = depths[root]
        if depth not in last or number - last[depth] >= NEAR:
            groups[depth] = []
        last[depth] = number
        group = groups[depth]
        group.append(root)
        if len(group) > 1:
            found |= dict.fromkeys(group, sum(value.size for value in group))
    return found
