"""Concats that the kernels of their operands write, and what keeps them from it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.compiled import legal
from tests.graphs import Build, normal
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.compiler import horizontal_fusion
from webnn_py.engines.webgpu.compiler.compiled import Compiled, compile_graph
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Value

Outputs = dict[str, MLOperand]
CHANNELS = 4


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that could run side by side stay apart."""
    monkeypatch.setattr(horizontal_fusion, "MAX_INVOCATIONS", 0)


def compiled(what: Build, **features: Any) -> Compiled:
    made = compile_graph(legal(what, Features(**features)), Features(**features))
    for kernel in made.kernels:  # what WebGPU refuses
        assert not {p.value for p in kernel.writes} & {p.value for p in kernel.reads}
    return made


def names(what: Build, **features: Any) -> list[str]:
    return [kernel.name for kernel in compiled(what, **features).kernels]


def buffers(made: Compiled) -> list[Value]:
    return list(dict.fromkeys(p.value for kernel in made.kernels for p in kernel.writes))


def image(b: MLGraphBuilder, name: str = "x", channels: int = 2) -> MLOperand:
    return b.input(name, "float32", [1, channels, 6, 6])


def layer(b: MLGraphBuilder, x: MLOperand, window: int = 3, seed: int = 0) -> MLOperand:
    weights = b.constant(normal(CHANNELS, x.shape[1], window, window, seed=seed))
    edge = window // 2
    return b.relu(b.conv2d(x, weights, padding=[edge] * 4))


def expanded(b: MLGraphBuilder) -> Outputs:
    x = image(b)
    return {"y": layer(b, b.concat([layer(b, x), layer(b, x, 1)], 1))}


def test_kernels_write_their_parts() -> None:
    made = compiled(expanded)
    one, two, last = made.kernels
    assert {kernel.name for kernel in made.kernels} == {"conv2d"}
    (joined,) = (node.output for node in made.graph.nodes if node.op == "concat")
    assert [p.value for p in one.writes + two.writes] == [joined, joined]
    assert joined in [part.value for part in last.reads]
    assert made.describe().splitlines()[0].endswith(" in " + made.graph.names[joined])


def test_parts_are_read_where_they_lie() -> None:
    def network(b: MLGraphBuilder) -> Outputs:
        x = image(b)
        one, two = layer(b, x), layer(b, x, 1)
        return {"y": layer(b, b.concat([one, two], 1)), "z": layer(b, two)}

    made = compiled(network)
    assert names(network) == ["conv2d"] * 4
    assert len(buffers(made)) == 3
    assert [len(kernel.reads) for kernel in made.kernels] == [2] * 4


def dense(b: MLGraphBuilder, layers: int = 5, lists: bool = False) -> Outputs:
    """Layers that read all before them, through a bottleneck."""
    made = [layer(b, image(b), 1)]
    x = made[0]
    for number in range(layers):
        made.append(layer(b, layer(b, x, 1, number), 3, number))
        x = b.concat(made if lists else [x, made[-1]], 1)
    return {"y": b.max_pool2d(x)}


@pytest.mark.parametrize("lists", [False, True])
def test_a_dense_block_has_one_buffer(lists: bool) -> None:
    made = compiled(lambda b: dense(b, lists=lists))
    assert [kernel.name for kernel in made.kernels] == ["conv2d"] * 11 + ["max_pool2d"]
    block = (5 + 1) * CHANNELS * 36 * 4
    bottleneck = CHANNELS * 36 * 4
    assert made.plan.total == block + bottleneck


def test_kernels_do_not_read_the_block_that_they_write() -> None:
    """Without bottlenecks: only what is new is copied."""

    def network(b: MLGraphBuilder) -> Outputs:
        x = layer(b, image(b), 1)
        for number in range(3):
            x = b.concat([x, layer(b, x, 3, number)], 1)
        return {"y": b.max_pool2d(x)}

    made = compiled(network)
    assert [kernel.name for kernel in made.kernels].count("concat") == 3
    copies = [kernel for kernel in made.kernels if kernel.name == "concat"]
    assert {kernel.workgroups for kernel in copies} == {(-(-CHANNELS * 36 // 64), 1, 1)}
    assert len({kernel.writes[0].value for kernel in copies}) == 1


def test_what_reads_another_part_is_copied() -> None:
    def network(b: MLGraphBuilder) -> Outputs:
        one = layer(b, image(b))
        return {"y": b.concat([one, b.neg(one)], 1)}

    made = compiled(network)
    first, other, copied = made.kernels
    assert (first.name, other.name, copied.name) == ("conv2d", "neg", "concat")
    assert first.writes[0].value is copied.writes[0].value is not other.writes[0].value
    assert [part.value for part in copied.reads] == [other.writes[0].value]


def _given(b: MLGraphBuilder, x: MLOperand) -> list[MLOperand]:
    return [x, image(b, "z", 3)]


def _constant(b: MLGraphBuilder, x: MLOperand) -> list[MLOperand]:
    return [b.constant(normal(1, 2, 6, 6)), x]


def _repeated(b: MLGraphBuilder, x: MLOperand) -> list[MLOperand]:
    y = layer(b, image(b, "z"), 3, 1)
    return [y, x, y]


def _computed(b: MLGraphBuilder, x: MLOperand) -> list[MLOperand]:
    return [x, b.neg(image(b, "z", 2 * CHANNELS))]


@pytest.mark.parametrize("others", [_given, _constant, _repeated, _computed])
def test_the_rest_is_written_by_one_kernel(others: Any) -> None:
    made = compiled(lambda b: {"y": b.concat(others(b, layer(b, image(b))), 1)})
    *layers, rest = made.kernels
    assert {kernel.name for kernel in layers} == {"conv2d"}
    assert rest.name == "concat"
    assert [kernel.writes[0].value for kernel in layers].count(rest.writes[0].value) == 1


def test_what_stays_where_it_is() -> None:
    def result(b: MLGraphBuilder) -> Outputs:
        one = layer(b, image(b))
        return {"x": one, "y": b.concat([one, image(b, "z")], 1)}

    def packed(b: MLGraphBuilder) -> Outputs:
        x = b.input("x", "uint8", [3, 5])
        return {"y": b.concat([b.reduce_max(x, axes=[0]), b.reduce_min(x, axes=[0])], 0)}

    for network in (result, packed):
        made = compiled(network)
        assert len(buffers(made)) == len(made.kernels)


def test_halves_without_a_type_of_their_own_stay() -> None:
    def halves(b: MLGraphBuilder) -> Outputs:
        x = b.input("x", "float16", [1, 2, 6, 6])
        return {"y": b.concat([b.max_pool2d(x), b.average_pool2d(x)], 1)}

    assert "concat" in names(halves, f16=False)
    assert "concat" not in names(halves)


def test_large_values_stay() -> None:
    assert "concat" in names(expanded, binding_bytes=1024)


def test_layers_share_their_code_wherever_they_write() -> None:
    def network(b: MLGraphBuilder) -> Outputs:
        x = image(b, channels=2 * CHANNELS)
        for number in range(4):
            x = b.concat([layer(b, x, 1, number), layer(b, x, 3, number)], 1)
        return {"y": b.max_pool2d(x)}

    made = compiled(network, kind="cpu")
    assert len(made.kernels) == 9
    assert len({kernel.code for kernel in made.kernels}) == 3


def _normalized(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    scale, shift = (b.constant(normal(x.shape[1], 1, 1, seed=n)) for n in range(2))
    return b.relu(b.add(b.mul(x, scale), shift))


@pytest.mark.parametrize(("window", "kernels"), [(1, 1), (3, 2)])
def test_convolutions_of_pixels_compute_their_input(window: int, kernels: int) -> None:
    def network(b: MLGraphBuilder) -> Outputs:
        return {"y": layer(b, _normalized(b, image(b, channels=8)), window)}

    assert len(names(network)) == kernels
    assert len(names(network, kind="cpu")) == 2


def test_inputs_that_others_read_are_stored() -> None:
    def network(b: MLGraphBuilder) -> Outputs:
        x = _normalized(b, image(b, channels=8))
        return {"y": layer(b, x, 1), "z": layer(b, x, 3)}

    assert len(names(network)) == 3


def lengthened(b: MLGraphBuilder) -> Outputs:
    """Normalized pixels whose channels lie side by side, in rows that others lengthen."""

    def pixelwise(x: MLOperand, channels: int) -> MLOperand:
        weights = b.constant(normal(1, 1, x.shape[3], channels))
        return b.conv2d(x, weights, input_layout="nhwc", filter_layout="hwio")

    x = pixelwise(b.input("x", "float32", [1, 14, 14, 128]), 128)
    for _ in range(8):
        factors, terms = (b.constant(normal(x.shape[3], seed=seed)) for seed in (1, 2))
        y = pixelwise(b.relu(b.add(b.mul(x, factors), terms)), 64)
        x = b.concat([x, pixelwise(y, 32)], 3)
    return {"y": b.max_pool2d(x, layout="nhwc")}


def test_rows_of_all_lengths_are_read_by_the_same_code() -> None:
    made = compiled(lengthened, grid=65535).kernels
    reading = [kernel for kernel in made if "fn pixels(" in kernel.code]
    assert len(reading) == 8
    assert len({kernel.code for kernel in reading}) <= 3
