"""Graphs compiled for a device that need not be there."""

from __future__ import annotations

from tests.graphs import Build, build
from tests.internals import recipe_of
from webnn_py import ml
from webnn_py.engines.reference import evaluate
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_list import kernels_of
from webnn_py.engines.webgpu.compiler.legalize.attention import is_faster_whole
from webnn_py.engines.webgpu.compiler.legalize.legalize import has_own_operator, legalize
from webnn_py.engines.webgpu.compiler.lower import has_lowering
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Node
from webnn_py.passes import PIPELINE, Pass, Target, optimize


def legal(what: Build, features: Features) -> Graph:
    """A graph after the passes that the engine asks for, and after `legalize`."""
    with ml.create_context_sync(device_type="cpu") as context:
        return legalized(recipe_of(build(context, what)), features)


def legalized(recipe: Graph, features: Features) -> Graph:
    """The same of a graph as it was recorded."""
    return legalize(optimized(recipe, features), features)


def optimized(recipe: Graph, features: Features, passes: tuple[Pass, ...] = PIPELINE) -> Graph:
    """A graph after the passes alone."""

    def has_kernel(node: Node) -> bool:
        supported = has_lowering(node.op) or has_own_operator(node, features)
        return supported and is_faster_whole(node, features)

    return optimize(recipe, Target(has_kernel, evaluate), passes)


def kernels(what: Build, features: Features) -> list[Kernel]:
    """The kernels of a graph."""
    return list(kernels_of(legal(what, features), features))
