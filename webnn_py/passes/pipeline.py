"""The order of the passes, and their verification."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable

from webnn_py.ir import Descriptor, Graph, verify
from webnn_py.ops.apply import infer_node
from webnn_py.passes.convolve_parts import convolve_parts
from webnn_py.passes.convolve_products import convolve_products
from webnn_py.passes.convolve_transposed import convolve_transposed
from webnn_py.passes.decompose import decompose
from webnn_py.passes.dedupe import merge_duplicates
from webnn_py.passes.filter_layouts import put_channels_last, turn_matrices_of_halves
from webnn_py.passes.fold import fold_constants
from webnn_py.passes.fuse_batch_norm import fuse_batch_norm
from webnn_py.passes.hard_swishes import join_hard_swishes
from webnn_py.passes.mean_to_pool import average_images_by_poolings
from webnn_py.passes.multiply_rows import multiply_rows_by_convolutions
from webnn_py.passes.nhwc import interleave_channels
from webnn_py.passes.pool_before_concat import shrink_images_first
from webnn_py.passes.pool_channels import pool_channels_by_products
from webnn_py.passes.scale_channels import scale_channels, scale_channels_by_convolutions
from webnn_py.passes.simplify import simplify
from webnn_py.passes.sink_into_concat import compute_parts_first
from webnn_py.passes.target import Target
from webnn_py.passes.transposes import cancel_transposes
from webnn_py.passes.widen_halves import widen_halves

Pass = Callable[[Graph, Target], Graph]

PIPELINE: tuple[Pass, ...] = (
    fold_constants,
    simplify,
    merge_duplicates,
    fuse_batch_norm,
    cancel_transposes,
    scale_channels,
    decompose,
    fold_constants,
    simplify,
    merge_duplicates,
    fuse_batch_norm,
)
"""Every pass, in order. Decomposing makes new constant nodes, nodes that change nothing, equal ones
and scaled products, hence the second round. No pass leaves dead nodes (see `Rewriter.run`)."""


def _with_products(*passes: Pass) -> tuple[Pass, ...]:
    """The pipeline with passes before layouts are chosen: those know patterns as they are given."""
    place = PIPELINE.index(cancel_transposes)
    return (*PIPELINE[:place], *passes, *PIPELINE[place:])


PRODUCTS = _with_products(pool_channels_by_products, shrink_images_first)
"""The passes for engines whose convolutions take less than walks through memory."""

BLOCKS = (
    *_with_products(
        join_hard_swishes,
        average_images_by_poolings,
        scale_channels_by_convolutions,
        pool_channels_by_products,
        shrink_images_first,
        convolve_parts,
    ),
    multiply_rows_by_convolutions,
    convolve_products,
)
"""The same for those that lay out channels in blocks for them."""

LOOPS: tuple[Pass, ...] = (*PIPELINE, convolve_transposed)
"""The passes for software adapters, whose convolutions are loops over registers."""

TILES: tuple[Pass, ...] = (
    *PIPELINE,
    compute_parts_first,
    convolve_transposed,
    interleave_channels,
    put_channels_last,
    turn_matrices_of_halves,
)
"""The passes for hardware that multiplies through tiles in shared memory."""

SIZE_INDEPENDENT = frozenset(
    {
        widen_halves,
        fold_constants,
        simplify,
        merge_duplicates,
        fuse_batch_norm,
        join_hard_swishes,
    }
)
"""Passes for graphs with open dimensions, too."""


def debug_level() -> int:
    """WEBNN_DEBUG: 1 prints the final graph, 2 every pass, 3 the steps, 4 the generated code."""
    text = os.environ.get("WEBNN_DEBUG", "0")
    return int(text) if text.isdecimal() else 0


def verify_types(graph: Graph) -> None:
    """The structure, and that outputs and attributes are what declarations infer from `given`."""
    verify(graph)
    for node in graph.nodes:
        expected = infer_node(node)
        made = tuple(map(Descriptor.__str__, node.outputs))
        inferred = tuple(map(Descriptor.__str__, expected.outputs))
        assert made == inferred, f"{node.op} makes {made}, its declaration says {inferred}"
        # As text: NaN is not equal to itself, and 0.0 is to -0.0.
        attrs, complete = repr(dict(node.attrs)), repr({**node.given, **expected.attrs})
        assert attrs == complete, f"{node.op} has {attrs}, its declaration says {complete}"


def optimize(graph: Graph, target: Target, pipeline: tuple[Pass, ...] = PIPELINE) -> Graph:
    """Run the passes. WEBNN_VERIFY=1 (set by the tests) verifies the graph after each.

    A pass that found nothing in a graph is not run on the same graph again.
    """
    checked = os.environ.get("WEBNN_VERIFY") == "1"
    level = debug_level()
    idle: set[Pass] = set()
    for stage in pipeline:
        made = graph if stage in idle else stage(graph, target)
        if made is graph:
            idle.add(stage)
        else:
            idle, graph = set(), made
            if checked:
                verify_types(graph)
        if level >= 2:
            print(f"# after {stage.__name__}\n{graph}", file=sys.stderr)
    if level == 1:
        print(graph, file=sys.stderr)
    return graph


def optimize_open(graph: Graph, target: Target, pipeline: tuple[Pass, ...] = PIPELINE) -> Graph:
    """Run the passes of the beginning that need not know sizes; `optimize` runs all of them."""
    first = itertools.takewhile(SIZE_INDEPENDENT.__contains__, pipeline)
    return optimize(graph, target, tuple(first))


def report(steps: Callable[[], str], code: Callable[[], str]) -> None:
    """Print a compiled graph's steps at level 3, and the generated code too at level 4."""
    level = debug_level()
    if level >= 3:
        print(f"# steps\n{steps()}", file=sys.stderr)
    if level >= 4 and (text := code()):
        print(f"# code\n{text}", file=sys.stderr)


__all__ = [
    "BLOCKS",
    "LOOPS",
    "PIPELINE",
    "PRODUCTS",
    "TILES",
    "Pass",
    "Target",
    "debug_level",
    "optimize",
    "optimize_open",
    "report",
    "verify_types",
    "widen_halves",
]
