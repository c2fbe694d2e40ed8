"""Sizes of open dimensions that follow from the constants of an initialization, or textures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.backend.buffers import buffer_of, empty_buffer, read, run_recorded, submit
from tests.backend.tensors import tensor
from tests.backend.texels import HEIGHT, WIDTH, fill, texture
from tests.graphs import awaited, normal
from webnn_py import (
    DataError,
    InvalidStateError,
    MLCommandEncoder,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    ValidationError,
)


def scaling(context: MLContext) -> MLGraph:
    """y = x * scale, row by row."""
    b = MLGraphBuilder(context, dimensions={"n": (1, 64)})
    x, scale = b.input("x", "float32", ["n", "m"]), b.input("scale", "float32", ["m"])
    return b.build_sync({"y": b.mul(x, scale)})


def initialized(context: MLContext, graph: MLGraph, scale: Any) -> MLCommandEncoder:
    encoder = MLCommandEncoder(context)
    encoder.initialize_graph(graph, {"scale": scale})
    return encoder


SCALE = normal(4)


@pytest.mark.parametrize("kind", ["array", "buffer", "tensor"])
def test_constants_fix_the_sizes_of_their_dimensions(gpu: MLContext, kind: str) -> None:
    graph = scaling(gpu)
    given: Any = SCALE
    if kind == "buffer":
        given = {"resource": buffer_of(gpu.device, SCALE), "dimensions": [4]}
    if kind == "tensor":
        given = tensor(gpu, SCALE)
    encoder = initialized(gpu, graph, given)
    x, y = normal(2, 4, seed=1), empty_buffer(gpu.device, 32)
    encoder.dispatch(graph, {"x": x}, {"y": y})
    submit(encoder, gpu)
    np.testing.assert_array_equal(read(y, (2, 4)), x * SCALE)

    for n in (1, 3, 2):
        x = normal(n, 4, seed=n)
        np.testing.assert_array_equal(awaited(graph, {"x": x})["y"], x * SCALE)
        one, two = tensor(gpu, x), gpu.create_tensor_sync("float32", [n, 4], readable=True)
        gpu.dispatch(graph, {"x": one}, {"y": two})
        np.testing.assert_array_equal(gpu.read_tensor_sync(two), x * SCALE)
        y = empty_buffer(gpu.device, 16 * n)
        run_recorded(graph, {"x": x}, {"y": y})
        np.testing.assert_array_equal(read(y, (n, 4)), x * SCALE)


def test_sizes_by_constants_tell_those_of_buffers(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    x, scale = b.input("x", "float32", ["m"]), b.input("scale", "float32", ["m"])
    graph = b.build_sync({"y": b.mul(x, scale)})
    submit(initialized(gpu, graph, SCALE), gpu)
    y = empty_buffer(gpu.device, 16)
    run_recorded(graph, {"x": buffer_of(gpu.device, SCALE)}, {"y": y})
    np.testing.assert_array_equal(read(y, (4,)), SCALE * SCALE)


def test_inputs_that_contradict_constants(gpu: MLContext) -> None:
    graph = scaling(gpu)
    submit(initialized(gpu, graph, SCALE), gpu)
    told = re.escape(
        "input 'x' of shape [2, 3]: dimension m is 3, expected 4, as m is 4 by input 'scale'"
        " (by initialize_graph) of shape [4]"
    )
    x, y = normal(2, 3), empty_buffer(gpu.device, 24)
    with pytest.raises(DataError, match=told):
        awaited(graph, {"x": x})
    with pytest.raises(DataError, match=told):
        run_recorded(graph, {"x": x}, {"y": y})
    with pytest.raises(ValidationError, match=told):
        gpu.dispatch(graph, {"x": tensor(gpu, x)}, {"y": tensor(gpu, x)})
    with pytest.raises(DataError, match="'scale' was made a constant by initialize_graph"):
        awaited(graph, {"x": normal(2, 4), "scale": SCALE})
    np.testing.assert_array_equal(awaited(graph, {"x": normal(2, 4)})["y"], normal(2, 4) * SCALE)


def test_constants_of_a_size_that_is_not_known(gpu: MLContext) -> None:
    graph = scaling(gpu)
    with pytest.raises(DataError, match=r"'scale'.*the size of m does not follow .*dimensions"):
        initialized(gpu, graph, buffer_of(gpu.device, SCALE))
    with pytest.raises(DataError, match=r"input 'x' of shape \[65, 4\]: dimension n is 65"):
        MLCommandEncoder(gpu).initialize_graph(graph, {"x": normal(65, 4)})
    with pytest.raises(DataError, match="dimension m is 4, expected 3"):
        MLCommandEncoder(gpu).initialize_graph(graph, {"x": normal(2, 3), "scale": SCALE})
    np.testing.assert_array_equal(
        awaited(graph, {"x": normal(2, 4), "scale": SCALE})["y"], normal(2, 4) * SCALE
    )


def test_constants_fix_no_sizes_before_they_are_submitted(gpu: MLContext) -> None:
    graph = scaling(gpu)
    encoder, other = initialized(gpu, graph, SCALE), initialized(gpu, graph, normal(5))
    x = normal(2, 3, seed=3)
    np.testing.assert_array_equal(awaited(graph, {"x": x, "scale": x[0]})["y"], x * x[0])
    buffer = buffer_of(gpu.device, x)
    with pytest.raises(InvalidStateError, match=r"'scale' was made a constant by .* not submitted"):
        awaited(graph, {"x": buffer})
    y = empty_buffer(gpu.device, 40)
    other.dispatch(graph, {"x": normal(2, 5)}, {"y": y})
    submit(encoder, gpu)
    submit(other, gpu)  # its own constants are for its own dispatches
    np.testing.assert_array_equal(read(y, (2, 5)), normal(2, 5) * normal(5))
    np.testing.assert_array_equal(awaited(graph, {"x": normal(2, 4)})["y"], normal(2, 4) * SCALE)


def doubling(context: MLContext, shape: Sequence[int | str]) -> MLGraph:
    bounds = {"few": (1, 3), "many": (6, 64)}
    b = MLGraphBuilder(context, dimensions={n: b for n, b in bounds.items() if n in shape})
    x = b.input("x", "float32", list(shape))
    return b.build_sync({"y": b.add(x, x)})


TEXELS = np.arange(HEIGHT * WIDTH * 4, dtype=np.float32).reshape(HEIGHT, WIDTH, 4)


@pytest.mark.parametrize(
    ("format_", "shape", "expected"),
    [
        ("rgba32float", [1, 3, "h", "w"], (1, 3, HEIGHT, WIDTH)),
        ("rgba32float", ["n", "h", "w", 4], (1, HEIGHT, WIDTH, 4)),
        ("rgba32float", [2, "h", "w"], (2, HEIGHT, WIDTH)),
        ("rgba32float", [HEIGHT, WIDTH, "few"], None),
        ("r32float", [1, "c", "h", "many"], (1, 1, HEIGHT, WIDTH)),
        ("r32float", ["h", "w"], (HEIGHT, WIDTH)),
        ("r32float", ["c", "h", "w"], None),
        ("rgba32float", [1, "c", "h", "w"], None),
        ("rgba32float", [1, 5, "h", 5], None),
        ("rgba32float", ["w"], None),
    ],
)
def test_textures_tell_sizes_where_they_fit_in_one_way(
    gpu: MLContext, format_: str, shape: list[int | str], expected: tuple[int, ...] | None
) -> None:
    graph = doubling(gpu, shape)
    image = texture(gpu.device, format_)
    fill(image, TEXELS[..., : 1 if format_ == "r32float" else 4])
    for given in (image, image.create_view()):
        if expected is None:
            with pytest.raises(DataError, match=r"does not follow from the inputs; .*dimensions"):
                awaited(graph, {"x": given})
            continue
        wanted = awaited(graph, {"x": {"resource": image, "dimensions": expected}})["y"]
        assert wanted.any()
        got = awaited(graph, {"x": given})["y"]
        assert got.shape == expected
        np.testing.assert_array_equal(got, wanted)


def test_textures_that_contradict_other_inputs(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    x, row = b.input("x", "float32", [1, 3, "h", "w"]), b.input("row", "float32", ["w"])
    graph = b.build_sync({"y": b.add(x, row)})
    with pytest.raises(
        DataError, match=rf"'row' of shape \[6\]: dimension w is 6, expected {WIDTH}"
    ):
        awaited(graph, {"x": texture(gpu.device), "row": normal(6)})


BYTES = memoryview(np.arange(6, dtype=np.float32).tobytes())


@pytest.mark.parametrize("given", [BYTES, bytes(BYTES), bytearray(BYTES)])
def test_bytes_take_their_sizes_from_others(cpu: MLContext, given: Any) -> None:
    b = MLGraphBuilder(cpu)
    graph = b.build_sync(
        {"y": b.add(b.input("x", "float32", ["n"]), b.input("k", "float32", ["n"]))}
    )
    inputs = {"x": given, "k": np.ones(6, np.float32)}
    assert awaited(graph, inputs)["y"].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(DataError, match="the size of n does not follow"):
        awaited(graph, {"x": given, "k": given})


@pytest.mark.parametrize(
    ("given", "what"),
    [([1.0, 2.0], "list"), (None, "NoneType"), ({"resource": 1.0}, "float"), ({}, "dict")],
)
def test_what_can_be_no_input_is_named_before_sizes(
    context: MLContext, given: Any, what: str
) -> None:
    b = MLGraphBuilder(context)
    graph = b.build_sync({"y": b.relu(b.input("x", "float32", ["n", "m"]))})
    with pytest.raises(DataError, match=f"input 'x': got {what}, expected an array"):
        awaited(graph, {"x": given})


def test_formats_of_textures_are_named_before_sizes(gpu: MLContext) -> None:
    b = MLGraphBuilder(gpu)
    graph = b.build_sync({"y": b.relu(b.input("x", "float32", [1, 4, "h", "w"]))})
    with pytest.raises(DataError, match="format rgba8uint is not supported"):
        awaited(graph, {"x": texture(gpu.device, "rgba8uint")})


def test_a_texture_that_is_none_is_an_error_also_where_a_graph_is_compiled_first(
    gpu: MLContext,
) -> None:
    b = MLGraphBuilder(gpu)
    graph = b.build_sync({"y": b.relu(b.input("x", "float32", [1, 4, "h", "w"]))})
    inputs = {"x": np.ones((1, 4, 3, 5), np.float32)}
    with pytest.raises(DataError, match="output 'y': got None, expected a GPUTexture"):
        awaited(graph, inputs, {"y": {"texture": None}})
