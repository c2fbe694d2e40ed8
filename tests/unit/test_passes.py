"""Each pass, by the listing of a graph before and after it."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from textwrap import dedent

import numpy as np
import pytest

from tests.graphs import ONES, build
from tests.internals import built_from, recipe_of
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Graph, without_dead_nodes
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.passes import PIPELINE, Target, optimize
from webnn_py.passes.decompose import decompose
from webnn_py.passes.fold import MAX_GROWTH_FACTOR, fold_constants
from webnn_py.passes.pipeline import Pass, verify_types
from webnn_py.passes.simplify import simplify

EVERY_KERNEL = Target(lambda node: True, evaluate)
NO_COMPOSITES = Target(lambda node: node.op not in DECOMPOSITIONS, evaluate)

Record = Callable[[MLGraphBuilder, MLOperand], dict[str, MLOperand]]


def recorded(context: MLContext, body: Record) -> Graph:
    """The graph of `body` on a float32[2,3] input, before any pass."""
    builder = MLGraphBuilder(context)
    return recipe_of(builder.build_sync(body(builder, builder.input("x", "float32", [2, 3]))))


def assert_prints(graph: Graph, listing: str) -> None:
    verify_types(graph)
    assert str(graph) == dedent(listing).strip()


def test_without_dead_nodes(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        kept = b.mul(x, b.constant(2.0, "float32"))
        return {"y": b.relu(kept), "dead": b.add(kept, b.constant(ONES))}

    graph = recorded(cpu, body)
    only_y = graph.replace(outputs=graph.outputs[:1])
    assert [node.op for node in only_y.nodes] == ["mul", "relu", "add"]
    assert_prints(
        without_dead_nodes(only_y),
        """
        graph(%x: float32[2,3]) {
          %c0: float32[] constant = 2.0
          %0: float32[2,3] = mul(%x, %c0)
          %1: float32[2,3] = relu(%0)
          return y=%1
        }
        """,
    )
    assert without_dead_nodes(graph) is graph


def test_inputs_outlive_their_uses(cpu: MLContext) -> None:
    graph = recorded(cpu, lambda b, x: {"y": b.relu(b.constant(ONES)), "z": b.relu(x)})
    left = without_dead_nodes(graph.replace(outputs=graph.outputs[:1]))
    assert [value.name for value in left.inputs] == ["x"]


def test_fold_constants(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        two = b.constant(2.0, "float32")
        scale = b.add(b.mul(two, two), two, label="scale")
        return {"y": b.mul(x, scale), "constant": b.relu(b.neg(scale))}

    graph = recorded(cpu, body)
    assert_prints(
        graph,
        """
        graph(%x: float32[2,3]) {
          %c0: float32[] constant = 2.0
          %0: float32[] = mul(%c0, %c0)
          %1: float32[] = add(%0, %c0)  "scale"
          %2: float32[2,3] = mul(%x, %1)
          %3: float32[] = neg(%1)
          %4: float32[] = relu(%3)
          return y=%2, constant=%4
        }
        """,
    )
    folded = fold_constants(graph, EVERY_KERNEL)
    assert_prints(
        folded,
        """
        graph(%x: float32[2,3]) {
          %c0: float32[] constant = 6.0
          %c1: float32[] constant = 0.0
          %0: float32[2,3] = mul(%x, %c0)
          %1: float32[] = identity(%c1)
          return y=%0, constant=%1
        }
        """,
    )


def test_folding_keeps_the_bits_of_integers(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        big = b.constant(2**53 + 1, "int64")
        return {"y": b.identity(b.sub(big, b.constant(1, "int64"))), "x": b.relu(x)}

    folded = fold_constants(recorded(cpu, body), EVERY_KERNEL)
    assert [int(array) for array in folded.constants.values()][-1] == 2**53


@pytest.mark.parametrize(("limit", "left"), [(0, ["expand", "add"]), (1 << 20, ["add"])])
def test_folding_does_not_make_weights_larger(cpu: MLContext, limit: int, left: list[str]) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        return {"y": b.add(x, b.expand(b.constant(2.0, "float32"), [2, 3]))}

    target = Target(lambda node: True, evaluate, fold_limit=limit)
    folded = fold_constants(recorded(cpu, body), target)
    assert [node.op for node in folded.nodes] == left


def grown(cpu: MLContext, body: Record) -> int:
    """The bytes of all constants behind the folding."""
    folded = fold_constants(recorded(cpu, body), EVERY_KERNEL)
    return sum(array.nbytes for array in folded.constants.values())


def test_folding_does_not_double_a_constant_without_end(cpu: MLContext) -> None:
    """Both operands are the same weight: what stands in its place is twice as large."""

    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        made = b.constant(np.ones(1, np.float32))
        for _ in range(25):
            made = b.concat([made, made], 0)
        return {"y": b.reduce_max(b.add(b.reduce_max(x), made))}

    assert grown(cpu, body) <= 8 * EVERY_KERNEL.fold_limit


def test_folding_makes_a_bounded_amount_in_all(cpu: MLContext) -> None:
    count, each = 2 * MAX_GROWTH_FACTOR, EVERY_KERNEL.fold_limit // 4

    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        parts = [b.expand(b.constant(float(i), "float32"), [each]) for i in range(count)]
        return {"y": b.add(b.concat(parts, 0), b.reduce_max(x))}

    assert grown(cpu, body) <= (MAX_GROWTH_FACTOR + 1) * EVERY_KERNEL.fold_limit


def test_decompose(cpu: MLContext) -> None:
    graph = recorded(cpu, lambda b, x: {"y": b.softmax(b.relu(x), 1, label="probabilities")})
    assert_prints(
        graph,
        """
        graph(%x: float32[2,3]) {
          %0: float32[2,3] = relu(%x)
          %1: float32[2,3] = softmax(%0, axis=1)  "probabilities"
          return y=%1
        }
        """,
    )
    assert_prints(
        decompose(graph, NO_COMPOSITES),
        """
        graph(%x: float32[2,3]) {
          %0: float32[2,3] = relu(%x)
          %1: float32[2,1] = reduce_max(%0, axes=[1], keep_dimensions=true)  "probabilities"
          %2: float32[2,3] = sub(%0, %1)  "probabilities"
          %3: float32[2,3] = exp(%2)  "probabilities"
          %4: float32[2,1] = reduce_sum(%3, axes=[1], keep_dimensions=true)  "probabilities"
          %5: float32[2,3] = div(%3, %4)  "probabilities"
          return y=%5
        }
        """,
    )


def test_a_kernel_of_the_backend_keeps_a_composite_whole(cpu: MLContext) -> None:
    graph = recorded(cpu, lambda b, x: {"y": b.softmax(x, 1)})
    assert str(decompose(graph, EVERY_KERNEL)) == str(graph)


def test_the_pipeline_leaves_the_result_as_it_was(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        w = b.add(b.constant(np.eye(3, 4, dtype=np.float32)), b.constant(0.5, "float32"))
        head = b.gemm(x, w, alpha=2.0, c=b.constant(np.arange(4, dtype=np.float32)))
        return {"y": b.softmax(head, 1), "n": b.layer_normalization(head, axes=[1])}

    graph = recorded(cpu, body)
    optimized = optimize(graph, NO_COMPOSITES)
    assert not [node.op for node in optimized.nodes if node.op in DECOMPOSITIONS]
    given = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    for name, expected in run(cpu, graph, given).items():
        np.testing.assert_allclose(run(cpu, optimized, given)[name], expected, rtol=1e-6, atol=1e-6)


def run(context: MLContext, graph: Graph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Results of a graph of the intermediate representation."""
    return MLExecution(context).compute(built_from(context, graph), inputs)


def test_a_pass_that_breaks_the_graph_is_caught(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop_first(graph: Graph, target: Target) -> Graph:
        return graph.replace(nodes=graph.nodes[1:])

    graph = recorded(cpu, lambda b, x: {"y": b.relu(b.neg(x))})
    monkeypatch.setenv("WEBNN_VERIFY", "1")
    with pytest.raises(AssertionError, match=r"relu reads .* before it is made"):
        optimize(graph, EVERY_KERNEL, (drop_first,))


@pytest.mark.parametrize("stage", dict.fromkeys(PIPELINE), ids=lambda stage: stage.__name__)
def test_a_pass_that_finds_nothing_returns_the_graph_itself(cpu: MLContext, stage: Pass) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        left, right = b.split(b.matmul(b.constant(np.eye(2, dtype=np.float32)), x), [1, 2], axis=1)
        return {"y": b.sub(b.transpose(b.relu(left)), b.softmax(right, 1))}

    graph = recorded(cpu, body)
    assert stage(graph, EVERY_KERNEL) is graph


def test_a_pass_is_not_run_again_on_a_graph_in_which_it_found_nothing(cpu: MLContext) -> None:
    runs: list[str] = []

    def idle(graph: Graph, target: Target) -> Graph:
        runs.append("idle")
        return graph

    def busy(graph: Graph, target: Target) -> Graph:
        runs.append("busy")
        return graph.replace()

    graph = recorded(cpu, lambda b, x: {"y": b.relu(x)})
    optimize(graph, EVERY_KERNEL, (idle, idle, busy, busy, idle, idle))
    assert runs == ["idle", "busy", "busy", "idle"]


def test_what_a_pass_does_not_change_stays_the_same_object(cpu: MLContext) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        return {"y": b.tanh(b.sin(b.relu(b.relu(b.cos(x)))))}

    graph = recorded(cpu, body)
    cos, relu, _, sin, tanh = graph.nodes
    made = simplify(graph, EVERY_KERNEL)
    assert (made.nodes[:2], made.nodes[3:]) == ((cos, relu), (tanh,))
    assert made.nodes[2].outputs == sin.outputs


def deep(b: MLGraphBuilder, x: MLOperand, count: int) -> dict[str, MLOperand]:
    y = b.transpose(x)
    for number in range(count):
        y = [b.relu, b.softplus, b.exp, b.neg, b.identity][number % 5](y)
    return {"y": b.transpose(y)}


def wide(b: MLGraphBuilder, x: MLOperand, count: int) -> dict[str, MLOperand]:
    rows = [b.linear(x, alpha=float(number)) for number in range(count)]
    return {"y": b.concat(b.split(b.concat(rows, 0), count), 1)}


@pytest.mark.parametrize("body", [deep, wide])
def test_passes_take_time_in_proportion_to_the_nodes(
    cpu: MLContext, body: Callable[[MLGraphBuilder, MLOperand, int], dict[str, MLOperand]]
) -> None:
    """Counted in calls of functions."""

    def calls(count: int) -> int:
        graph = recorded(cpu, lambda b, x: body(b, x, count))
        profile = cProfile.Profile()
        profile.runcall(optimize, graph, NO_COMPOSITES)
        return int(pstats.Stats(profile).total_calls)

    assert calls(800) < 2.2 * calls(400)


def test_a_chain_of_20_000_nodes_builds_and_runs(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBNN_VERIFY", "0")

    def body(b: MLGraphBuilder) -> dict[str, MLOperand]:
        y = b.input("x", "float32", [3])
        for number in range(20_000):
            y = b.relu(y) if number % 2 else b.abs(y)
        return {"y": y}

    results = MLExecution(cpu).compute(build(cpu, body), {"x": np.float32([-1, 0, 2])})
    assert results["y"].tolist() == [1, 0, 2]


def test_debug_prints_every_stage(
    cpu: MLContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = recorded(cpu, lambda b, x: {"y": b.relu(x)})
    monkeypatch.setenv("WEBNN_DEBUG", "2")
    optimize(graph, EVERY_KERNEL)
    printed = capsys.readouterr().err
    assert [f"# after {stage.__name__}" in printed for stage in PIPELINE] == [True] * len(PIPELINE)
    assert printed.count("relu(%x)") == len(PIPELINE)
