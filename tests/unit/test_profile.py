"""Profiles on the CPU: rows, figures, table, trace."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.public import OPERATORS
from tests.toy_engines import Partial, context_on, running
from webnn_py import InvalidStateError, MLContext, MLGraph, MLGraphBuilder, ValidationError, ml

X = {"x": np.ones((4, 6), np.float32)}


def chain(context: MLContext) -> MLGraph:
    """matmul, relu, sum."""
    b = MLGraphBuilder(context)
    x = b.input("x", "float32", [4, 6])
    h = b.relu(b.matmul(x, b.constant(np.ones((6, 5), np.float32)), label="head"))
    return b.build_sync({"y": b.reduce_sum(h, axes=[1])})


@pytest.fixture
def reference() -> MLContext:
    return ml.create_context_sync(engine="reference")


def test_the_reference_has_a_row_for_each_node(reference: MLContext) -> None:
    profile = chain(reference).profile(X, runs=2)
    assert [row.operator for row in profile] == ["matmul [head]", "relu", "reduce_sum"]
    assert [row.step for row in profile] == [0, 1, 2]
    assert [row.flop for row in profile] == [2 * 4 * 5 * 6, 4 * 5, 4 * 5]
    assert [row.bytes for row in profile] == [4 * (24 + 30 + 20), 4 * 40, 4 * (20 + 4)]
    assert sum(row.share for row in profile) == pytest.approx(1)
    assert all(row.milliseconds > 0 and row.roof >= 0 for row in profile)
    assert profile.clock == "host"
    assert profile.peak_flops > 1e6
    assert profile.peak_bytes > 1e6
    assert len(profile) == 3
    assert profile[1] is profile.rows[1]


def test_the_table_has_a_line_for_each_row(reference: MLContext) -> None:
    profile = chain(reference).profile(X)
    head, *lines, last = str(profile).splitlines()
    assert head.split()[:3] == ["step", "operator", "kernel"]
    assert len(lines) == len(profile)
    assert "matmul [head]" in lines[0]
    assert "clock: host" in last


def test_labels_do_not_break_the_table(reference: MLContext) -> None:
    b = MLGraphBuilder(reference)
    y = b.relu(b.input("x", "float32", [2]), label="two\nlines")
    profile = b.build_sync({"y": y}).profile({"x": np.zeros(2, np.float32)}, runs=1)
    assert "relu [two\\nlines]" in str(profile).splitlines()[1]
    assert profile[0].operator == "relu [two\nlines]"


def test_the_trace_has_the_steps_one_after_the_other(reference: MLContext, tmp_path: Path) -> None:
    profile = chain(reference).profile(X)
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == [row.operator for row in profile]
    for before, after in itertools.pairwise(events):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"])


def test_an_engine_that_tells_no_steps_has_one_row() -> None:
    with context_on(Partial("rest", running(*OPERATORS))) as context:
        (row,) = chain(context).profile(X)
    assert row.kernel == "rest"
    assert row.operator == "matmul, relu, reduce_sum [head]"
    assert row.flop == 280
    assert row.bytes == 4 * (24 + 30 + 4)


def test_parts_of_several_engines_have_their_rows() -> None:
    with context_on(Partial("some", running("relu"))) as context:
        profile = chain(context).profile(X)
    assert [row.kernel for row in profile] == ["matmul", "some", "reduce_sum"]


def test_open_sizes_follow_from_the_inputs(reference: MLContext) -> None:
    b = MLGraphBuilder(reference)
    x = b.input("x", "float32", ["n", 8])
    graph = b.build_sync({"y": b.relu(x)})
    for n in (1, 5):
        (row,) = graph.profile({"x": np.ones((n, 8), np.float32)}, runs=1)
        assert row.flop == 8 * n


async def test_the_awaited_form_does_not_block(reference: MLContext) -> None:
    graph = chain(reference)
    with pytest.raises(InvalidStateError, match="profile_async"):
        graph.profile(X)
    assert len(await graph.profile_async(X, runs=1)) == 3


@pytest.mark.parametrize("runs", [0, -1, 10_001, "many"])
def test_numbers_of_runs_that_are_refused(reference: MLContext, runs: Any) -> None:
    with pytest.raises(ValidationError, match="runs: got"):
        chain(reference).profile(X, runs=runs)


def test_a_destroyed_graph(reference: MLContext) -> None:
    graph = chain(reference)
    graph.destroy()
    with pytest.raises(InvalidStateError, match="destroyed"):
        graph.profile(X)


@pytest.mark.parametrize(
    ("op", "shapes", "options", "expected"),
    [
        ("conv2d", [(1, 4, 5, 5), (6, 2, 3, 3)], {"groups": 2}, 2 * 6 * 9 * 2 * 9),
        ("conv_transpose2d", [(1, 4, 3, 3), (4, 6, 2, 2)], {}, 2 * 36 * 24),
        ("gemm", [(2, 3), (3, 4), (4,)], {}, 2 * 8 * 3 + 8),
        ("max_pool2d", [(1, 1, 4, 4)], {"window_dimensions": [2, 2]}, 9 * 4),
        ("transpose", [(2, 3)], {}, 0),
        ("reduce_max", [(2, 3)], {}, 6),
        ("add", [(2, 3), (3,)], {}, 6),
    ],
)
def test_counted_arithmetic(
    reference: MLContext, op: str, shapes: list[tuple[int, ...]], options: Any, expected: int
) -> None:
    b = MLGraphBuilder(reference)
    operands = [b.input(f"x{i}", "float32", shape) for i, shape in enumerate(shapes)]
    if op == "gemm":
        options = {"c": operands.pop()}
    graph = b.build_sync({"y": getattr(b, op)(*operands, **options)})
    inputs = {f"x{i}": np.ones(shape, np.float32) for i, shape in enumerate(shapes)}
    (row,) = graph.profile(inputs, runs=1)
    assert row.flop == expected
