"""The WGSL of small graphs, as one reads it."""

from __future__ import annotations

import pytest

from tests.compiler.compiled import kernels
from tests.golden import Golden
from tests.graphs import Build, normal
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.program.storage import Features


def chain(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Elementwise operators over a row and a column, some used twice."""
    row = builder.input("row", "float32", [1, 6])
    column = builder.input("column", "float32", [4, 1])
    total = builder.add(row, column)
    scaled = builder.mul(total, builder.constant(0.5, "float32"))
    return {"y": builder.max(builder.sub(scaled, row), builder.sqrt(scaled))}


def epilogue(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """A bias and an activation taken into the loop before them; a padded input into its reads."""
    x = builder.input("x", "float32", [1, 3, 6, 6])
    padded = builder.pad(x, [0, 0, 1, 1], [0, 0, 1, 1])
    pooled = builder.average_pool2d(padded, window_dimensions=[2, 2], strides=[2, 2])
    return {"y": builder.relu(builder.add(pooled, builder.constant(normal(3, 1, 1))))}


def moved(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Elements that change their places several times, without a division too many."""
    x, y = builder.input("x", "float32", [4, 6, 8]), builder.input("y", "float32", [4, 2, 8])
    joined = builder.concat([x, y], 1)
    turned = builder.transpose(joined, permutation=[2, 0, 1])
    padded = builder.pad(turned, [1, 0, 2], [1, 0, 2], mode="edge")
    return {"y": builder.slice(padded, [0, 1, 0], [10, 2, 12]), "z": builder.reverse(x, axes=[1])}


def bytes_compared(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Four results to a word."""
    a = builder.input("a", "uint8", [5, 3])
    b = builder.input("b", "uint8", [3])
    return {"y": builder.lesser_or_equal(a, b)}


def halves(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """float16, computed in float32."""
    x = builder.input("x", "float16", [7, 8])
    return {"y": builder.reduce_sum(builder.abs(x), axes=[1])}


def lines(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """A workgroup for each line; where it waits, no test on a software driver tells."""
    x = builder.input("x", "float32", [70000, 300])
    return {
        "norm": builder.reduce_l2(x, axes=[1]),
        "best": builder.arg_max(x, 1),
        "sums": builder.cumulative_sum(x, 1, reversed=True),
    }


def few_rows(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """More rows than shared memory holds at once."""
    x = builder.input("x", "float32", [3, 65])
    return {"y": builder.matmul(x, builder.constant(normal(65, 3)))}


def side_by_side(builder: MLGraphBuilder) -> dict[str, MLOperand]:
    """Heads and halves by fours, and columns, of which some are read together."""
    x = builder.input("x", "float32", [8, 24])
    heads = builder.transpose(builder.reshape(x, [8, 3, 8]), permutation=[1, 0, 2])
    tall = builder.input("tall", "float32", [300, 2048])
    return {
        "moved": builder.add(heads, builder.slice(heads, [0, 0, 0], [1, 1, 8])),
        "halves": builder.cast(builder.add(x, builder.reverse(x, axes=[0])), "float16"),
        "sums": builder.reduce_sum(tall, axes=[0]),
        "best": builder.arg_min(tall, 0),
    }


GRAPHS: dict[str, Build] = {
    "side-by-side": side_by_side,
    "few-rows": few_rows,
    "lines": lines,
    "chain": chain,
    "moved": moved,
    "epilogue": epilogue,
    "bytes": bytes_compared,
    "halves": halves,
}
DEVICES = {
    "": Features(),
    "-without-f16": Features(f16=False, int64=False),
    "-of-little-memory": Features(workgroup_bytes=2048),
    "-of-few-elements": Features(large=1),
}


ELSEWHERE = {"few-rows": "-of-little-memory", "side-by-side": "-of-few-elements"}
LISTINGS = [(name, ELSEWHERE.get(name, "")) for name in GRAPHS]
LISTINGS.append(("halves", "-without-f16"))


@pytest.mark.parametrize(("graph", "device"), LISTINGS)
def test_wgsl(golden: Golden, graph: str, device: str) -> None:
    made = kernels(GRAPHS[graph], DEVICES[device])
    listing = "\n".join(
        f"// {kernel.name}, workgroups {kernel.workgroups}\n{kernel.code}" for kernel in made
    )
    golden(f"{graph}{device}.wgsl", listing)
