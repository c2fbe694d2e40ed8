"""The pipelines of passes, and the functions that run and verify them.

Each pass ensures: the graph is valid, no node is dead, and outputs keep their names, data types
and shapes. It returns the same graph object if it changes nothing.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable

from webnn_py.ir import Descriptor, Graph, verify
from webnn_py.ops.operand import infer_node
from webnn_py.passes.cached_attention import attend_in_parts
from webnn_py.passes.convolve_products import convolve_products
from webnn_py.passes.convolve_transposed import convolve_transposed
from webnn_py.passes.decompose import decompose
from webnn_py.passes.filter_layouts import lay_out_filters, transpose_float16_matrices
from webnn_py.passes.fold import fold_constants
from webnn_py.passes.fuse_batch_norm import fuse_batch_norm
from webnn_py.passes.fuse_hard_swish import fuse_hard_swish
from webnn_py.passes.join_products import join_products
from webnn_py.passes.merge_duplicates import merge_duplicates
from webnn_py.passes.multiply_integers import multiply_integers
from webnn_py.passes.nhwc import to_nhwc
from webnn_py.passes.pool_before_concat import pool_before_concat
from webnn_py.passes.pool_channels import pool_channels
from webnn_py.passes.scale_channels import scale_channels, scale_channels_by_convolutions
from webnn_py.passes.simplify import simplify
from webnn_py.passes.sink_into_concat import sink_into_concat
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
"""The passes for every engine, in order. `decompose` creates new constant nodes, no-ops, duplicates
and scaled products, so the first passes run again after it."""


def _before_layouts(*passes: Pass) -> tuple[Pass, ...]:
    """Insert passes before `cancel_transposes`, which would change the patterns they match."""
    place = PIPELINE.index(cancel_transposes)
    return (*PIPELINE[:place], *passes, *PIPELINE[place:])


PRODUCTS = _before_layouts(pool_channels, pool_before_concat, attend_in_parts)
"""The passes for engines whose convolutions cost less than passes through memory."""

BLOCKS = (
    *_before_layouts(
        fuse_hard_swish,
        scale_channels_by_convolutions,
        pool_channels,
        pool_before_concat,
    ),
    convolve_products,
)
"""The passes for engines with the NCHWc layout, which stores channels in blocks."""

LOOPS: tuple[Pass, ...] = (*PIPELINE, convolve_transposed)
"""The passes for software GPUs, whose convolution kernels loop over registers."""

TILES: tuple[Pass, ...] = (
    *PIPELINE,
    sink_into_concat,
    convolve_transposed,
    to_nhwc,
    join_products,
    lay_out_filters,
    transpose_float16_matrices,
)
"""The passes for hardware GPUs, whose kernels multiply tiles in shared memory."""

SIZE_INDEPENDENT_PASSES = frozenset(
    {
        widen_halves,
        fold_constants,
        simplify,
        merge_duplicates,
        fuse_batch_norm,
        fuse_hard_swish,
        multiply_integers,
    }
)
"""Passes that also accept graphs with open dimensions."""


def debug_level() -> int:
    """Return WEBNN_DEBUG: 1 prints the final graph, 2 every pass, 3 the steps, 4 the code."""
    text = os.environ.get("WEBNN_DEBUG", "0")
    return int(text) if text.isdecimal() else 0


def verify_types(graph: Graph) -> None:
    """Verify a graph's structure, and that each node's outputs and attributes match its inference.

    Raises:
        AssertionError: A node differs from what its declaration infers from `Node.given`.
    """
    verify(graph)
    for node in graph.nodes:
        expected = infer_node(node)
        made = tuple(map(Descriptor.__str__, node.outputs))
        inferred = tuple(map(Descriptor.__str__, expected.outputs))
        assert made == inferred, f"{node.op} makes {made}, its declaration says {inferred}"
        # Compare text: NaN is not equal to itself, and 0.0 equals -0.0.
        attrs, complete = repr(dict(node.attrs)), repr({**node.given, **expected.attrs})
        assert attrs == complete, f"{node.op} has {attrs}, its declaration says {complete}"


def optimize(graph: Graph, target: Target, pipeline: tuple[Pass, ...] = PIPELINE) -> Graph:
    """Run the passes; skip a pass that already left this same graph unchanged.

    WEBNN_VERIFY=1, which the tests set, verifies the graph after each pass.
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
    """Run the pipeline's leading passes that accept open dimensions."""
    first = itertools.takewhile(SIZE_INDEPENDENT_PASSES.__contains__, pipeline)
    return optimize(graph, target, tuple(first))


def report(steps: Callable[[], str], code: Callable[[], str]) -> None:
    """Print a compiled graph's steps at debug level 3, and also its code at level 4."""
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
    "multiply_integers",
    "optimize",
    "optimize_open",
    "report",
    "verify_types",
    "widen_halves",
]
