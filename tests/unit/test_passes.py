"""The pipeline of passes: what is folded, taken apart and left out, and what that takes."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import ONES, build
from tests.unit.passes.listings import Built, assert_prints, context, nodes, operators
from webnn_py import MLContext, MLExecution, MLGraphBuilder, MLOperand

FOLD_LIMIT = 1 << 20
"""The most bytes by which one node that is folded may make constants larger."""


def test_nodes_that_no_output_needs_are_left_out() -> None:
    builder = MLGraphBuilder(context("reference"))
    x = builder.input("x", "float32", [2, 3])
    kept = builder.mul(x, builder.constant(2.0, "float32"))
    builder.add(kept, builder.constant(ONES))
    assert_prints(
        str(builder.build_sync({"y": builder.relu(kept)})),
        """
        graph(%x: float32[2,3]) {
          %c0: float32[] constant = 2.0
          %0: float32[2,3] = mul(%x, %c0)
          %1: float32[2,3] = relu(%0)
          return y=%1
        }
        """,
    )


def test_fold_constants() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        two = b.constant(2.0, "float32")
        scale = b.add(b.mul(two, two), two, label="scale")
        return {"y": b.mul(x, scale), "constant": b.relu(b.neg(scale))}

    assert_prints(
        Built(body).after("fold_constants"),
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


def test_folding_keeps_the_bits_of_integers() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        big = b.constant(2**53 + 1, "int64")
        return {"y": b.identity(b.sub(big, b.constant(1, "int64"))), "x": b.relu(x)}

    assert f"int64[] constant = {2**53}" in Built(body).after("fold_constants")


def grown(body: Callable[[MLGraphBuilder, MLOperand], MLOperand]) -> int:
    """The bytes of all constants behind the folding."""
    sizes = [
        np.prod([int(size) for size in line.split("[")[1].split("]")[0].split(",") if size])
        for line in Built(body).after("fold_constants").splitlines()
        if " constant" in line
    ]
    return 4 * int(sum(sizes))


def test_folding_does_not_double_a_constant_without_end() -> None:
    """Both operands are the same weight: what stands in its place is twice as large."""

    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        made = b.constant(np.ones(1, np.float32))
        for _ in range(25):
            made = b.concat([made, made], 0)
        return b.reduce_max(b.add(b.reduce_max(x), made))

    assert grown(body) <= 8 * FOLD_LIMIT


def test_folding_makes_a_bounded_amount_in_all() -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        parts = [b.expand(b.constant(float(i), "float32"), [FOLD_LIMIT // 4]) for i in range(128)]
        return b.add(b.concat(parts, 0), b.reduce_max(x))

    assert FOLD_LIMIT <= grown(body) <= 65 * FOLD_LIMIT


def test_decompose(gpu: MLContext) -> None:
    body = lambda b, x: b.softmax(b.relu(x), 1, label="probabilities")  # noqa: E731
    assert_prints(
        Built(body, engine="gpu").after("decompose"),
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
    assert operators(Built(body).after("decompose")) == ["relu", "softmax"]


def test_the_pipeline_leaves_the_result_as_it_was(gpu: MLContext) -> None:
    def body(b: MLGraphBuilder, x: MLOperand) -> dict[str, MLOperand]:
        w = b.add(b.constant(np.eye(3, 4, dtype=np.float32)), b.constant(0.5, "float32"))
        head = b.gemm(x, w, alpha=2.0, c=b.constant(np.arange(4, dtype=np.float32)))
        return {"y": b.softmax(head, 1), "n": b.layer_normalization(head, axes=[1])}

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for engine in ("reference", "gpu"):
        Built(body, engine=engine).assert_computes(x, rtol=1e-5, atol=1e-5)


def deep(b: MLGraphBuilder, x: MLOperand, count: int) -> dict[str, MLOperand]:
    y = b.transpose(x)
    for number in range(count):
        y = [b.relu, b.softplus, b.exp, b.neg, b.identity][number % 5](y)
    return {"y": b.transpose(y)}


def wide(b: MLGraphBuilder, x: MLOperand, count: int) -> dict[str, MLOperand]:
    rows = [b.linear(x, alpha=float(number)) for number in range(count)]
    return {"y": b.concat(b.split(b.concat(rows, 0), count), 1)}


@pytest.mark.parametrize("body", [deep, wide])
def test_building_takes_time_in_proportion_to_the_nodes(
    body: Callable[[MLGraphBuilder, MLOperand, int], dict[str, MLOperand]],
) -> None:
    """Counted in calls of functions."""

    def calls(count: int) -> int:
        builder = MLGraphBuilder(context("reference"))
        outputs = body(builder, builder.input("x", "float32", [2, 3]), count)
        profile = cProfile.Profile()
        profile.runcall(builder.build_sync, outputs)
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


def test_debug_prints_every_stage() -> None:
    listings = Built(lambda b, x: b.relu(x)).listings
    assert len(listings) > 5
    assert all(nodes(listing) == ["%0: float32[2,3] = relu(%x)"] for _, listing in listings)
