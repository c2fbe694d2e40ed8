"""Recurrent networks, which a GPU context runs as one kernel that is dispatched many times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend.compared import Array, applied, assert_like_reference
from tests.internals import executable_of
from webnn_py import MLContext, MLGraphBuilder
from webnn_py.engines.webgpu.compiler.kernels import sequence_kernel

pytestmark = pytest.mark.kernels

BATCHES, FEATURES = 3, 5

DIRECTIONS = {"forward": 1, "backward": 1, "both": 2}
CASES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("lstm", {}, ()),
    ("lstm", {"direction": "backward", "layout": "ifgo", "return_sequence": True}, ("bias",)),
    (
        "lstm",
        {"direction": "both", "return_sequence": True, "activations": ["tanh", "sigmoid", "relu"]},
        (
            "bias",
            "recurrent_bias",
            "peephole_weight",
            "initial_hidden_state",
            "initial_cell_state",
        ),
    ),
    ("gru", {}, ("recurrent_bias",)),
    ("gru", {"direction": "backward", "layout": "rzn", "return_sequence": True}, ()),
    (
        "gru",
        {"direction": "both", "return_sequence": True, "activations": ["relu", "sigmoid"]},
        ("bias", "recurrent_bias", "initial_hidden_state"),
    ),
    ("gru", {"reset_after": False, "layout": "rzn"}, ()),
    (
        "gru",
        {"reset_after": False, "direction": "both", "return_sequence": True},
        ("bias", "recurrent_bias", "initial_hidden_state"),
    ),
]


def operands(
    name: str, given: tuple[str, ...], directions: int, steps: int, hidden: int, data_type: str
) -> dict[str, Array]:
    """Random contents, small enough that no state grows without bounds."""
    rng = np.random.default_rng(5)
    rows = (4 if name == "lstm" else 3) * hidden
    shapes: dict[str, tuple[int, ...]] = {
        "input": (steps, BATCHES, FEATURES),
        "weight": (directions, rows, FEATURES),
        "recurrent_weight": (directions, rows, hidden),
        "bias": (directions, rows),
        "recurrent_bias": (directions, rows),
        "peephole_weight": (directions, 3 * hidden),
        "initial_hidden_state": (directions, BATCHES, hidden),
        "initial_cell_state": (directions, BATCHES, hidden),
    }
    names = [*list(shapes)[:3], *given]
    return {n: rng.uniform(-0.5, 0.5, shapes[n]).astype(data_type) for n in names}


@pytest.fixture
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many invocations share the sums of a unit, whatever the device."""
    monkeypatch.setattr(sequence_kernel, "LANES", dict.fromkeys(("cpu", "gpu"), request.param))


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize(("lanes", "hidden"), [(1, 6), (1, 24), (16, 24)], indirect=["lanes"])
@pytest.mark.usefixtures("lanes")
def test_a_sequence(gpu: MLContext, reference: MLContext, case: int, hidden: int) -> None:
    name, options, given = CASES[case]
    contents = operands(
        name, given, DIRECTIONS[options.get("direction", "forward")], 7, hidden, "float32"
    )
    call = applied(name, contents, steps=7, hidden_size=hidden, **options)
    assert_like_reference(gpu, reference, call)


@pytest.mark.parametrize(("name", "lanes"), [("lstm", 1), ("gru", 16)], indirect=["lanes"])
@pytest.mark.usefixtures("lanes")
def test_half_precision(each_device: MLContext, reference: MLContext, name: str) -> None:
    given = ("bias", "recurrent_bias", "initial_hidden_state")
    contents = operands(name, given, 2, 9, 12, "float16")
    options = {"steps": 9, "hidden_size": 12, "direction": "both", "return_sequence": True}
    assert_like_reference(each_device, reference, applied(name, contents, **options))


@pytest.mark.parametrize(
    ("name", "options", "runs"), [("lstm", {}, 400), ("gru", {"reset_after": False}, 800)]
)
def test_many_steps_take_few_kernels(
    gpu: MLContext, reference: MLContext, name: str, options: dict[str, Any], runs: int
) -> None:
    contents = operands(name, ("bias",), 1, 400, 16, "float32")
    call = applied(name, contents, steps=400, hidden_size=16, return_sequence=True, **options)
    builder = MLGraphBuilder(gpu)
    graph = builder.build_sync({"y": call(builder)[-1]})
    lines = executable_of(graph).describe().splitlines()
    assert len(lines) < 8
    assert sum(line.endswith(f", {runs} times") for line in lines) == 1
    assert_like_reference(gpu, reference, call)
