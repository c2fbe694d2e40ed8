"""Tables of ONNX Runtime's own operators, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.onnx.own_operators import alone, by_onnx_runtime
from webnn_py import MLContext, MLExecution, NotSupportedError
from webnn_py.onnx import load

INT4, UINT4 = map(helper.tensor_dtype_to_np_dtype, (TensorProto.INT4, TensorProto.UINT4))
RNG = np.random.default_rng(8)
WORDS = np.asarray([[1, 2, 3, 0], [4, 5, 0, 0]], np.int32)
SEGMENTS = np.asarray([[0, 0, 1, 1], [0, 1, 1, 1]], np.int32)
MASK = np.asarray([[0, 1, 1, 0], [1, 0, 2, 1]], np.int32)
PLACES = np.asarray([[1, 2, 3, 4], [0, 1, 2, 3]], np.int32)
Case = tuple[list[Any], int, dict[str, Any]]


def floats(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def integers(*shape: int, kind: Any = np.uint8, low: int = 0, high: int = 256) -> Any:
    return RNG.integers(low, high, shape).astype(kind)


TABLES = [floats(10, 8), floats(6, 8), floats(2, 8), floats(8), floats(8)]
BARE = [floats(10, 8), floats(6, 8), None, floats(8), floats(8)]
HALVES = [table.astype(np.float16) for table in TABLES]
NORMALIZED: dict[str, Case] = {
    "all": ([WORDS, SEGMENTS, *TABLES, MASK], 3, {"epsilon": 0.1}),
    "without a mask": ([WORDS, SEGMENTS, *TABLES], 2, {}),
    "without segments": ([WORDS, None, *BARE, MASK], 2, {}),
    "places": ([WORDS, SEGMENTS, *TABLES, MASK, PLACES], 2, {}),
    "places of all": ([WORDS, SEGMENTS, *TABLES, None, PLACES[:1]], 2, {}),
    "float16": ([WORDS, SEGMENTS, *HALVES], 2, {}),
}
SCALES = [np.asarray(scale, np.float32) for scale in (0.02, 0.01, 0.03, 0.02, 0.015)]
ZEROS = [np.asarray(zero, np.uint8) for zero in (120, 130, 128, 100, 127)]
SMALL = [integers(10, 8), integers(6, 8), integers(2, 8), integers(8), integers(8)]


def without_segments(rows: list[Any]) -> list[Any]:
    return [None if i == 2 else row for i, row in enumerate(rows)]


OF_BYTES: dict[str, Case] = {
    "all": ([WORDS, SEGMENTS, *SMALL, MASK, *SCALES, *ZEROS], 2, {}),
    "without segments": (
        [WORDS, None, *(one for row in (SMALL, [MASK], SCALES, ZEROS)
                        for one in (without_segments(row) if len(row) > 1 else row))], 2, {},
    ),
}  # fmt: skip

TAKEN, ROW = np.asarray([[1, 2], [3, -1]]), np.asarray([3, 4, 5], np.int32)
BLOCKS = {"block_size": 16, "quantize_axis": 1, "gather_axis": 0}
GATHERED: dict[str, Case] = {
    **{
        f"{bits} bits": (
            [integers(10, 6 * bits), indices, floats(10, 3), integers(10, -(-3 * bits // 8))],
            1,
            BLOCKS | {"bits": bits},
        )
        for bits, indices in ((2, TAKEN), (4, ROW), (8, TAKEN))
    },
    "without zero points": ([integers(10, 20), ROW, floats(10, 3)], 1, BLOCKS | {"bits": 4}),
    "float16": (
        [integers(10, 24), ROW, floats(10, 3).astype(np.float16), integers(10, 2)], 1, BLOCKS,
    ),
    "int4": (
        [integers(10, 34, kind=INT4, low=-8, high=8), TAKEN, floats(10, 3),
         integers(10, 3, kind=INT4, low=-8, high=8)], 1, BLOCKS,
    ),
    "odd rows of uint4": (
        [integers(10, 33, kind=UINT4, high=16), TAKEN, floats(10, 3)], 1, BLOCKS,
    ),
    "another axis": (
        [integers(3, 10, 32, kind=INT4, low=-8, high=8), TAKEN, floats(3, 10, 2)], 1,
        {"block_size": 16, "quantize_axis": 2, "gather_axis": 1},
    ),
    "blocks before": (
        [integers(32, 10, 4, kind=UINT4, high=16), TAKEN, floats(2, 10, 4)], 1,
        {"block_size": 16, "quantize_axis": 0, "gather_axis": 1},
    ),
}  # fmt: skip
CASES = [
    (kind, name, case)
    for kind, cases in (
        ("EmbedLayerNormalization", NORMALIZED),
        ("QEmbedLayerNormalization", OF_BYTES),
        ("GatherBlockQuantized", GATHERED),
    )
    for name, case in cases.items()
]


@pytest.mark.parametrize(
    ("kind", "name", "case"), CASES, ids=lambda one: one if isinstance(one, str) else ""
)
def test_rows_of_tables(cpu: MLContext, kind: str, name: str, case: Case) -> None:
    given, outputs, attributes = case
    known = [0, 2, 3] if kind == "GatherBlockQuantized" else range(2, 7)
    known = [i for i in known if i < len(given)]
    made, feeds = alone(kind, given, outputs, attributes, known)
    graph = load(made, cpu)
    wanted = by_onnx_runtime(made, feeds)
    feeds = {name: one for name, one in feeds.items() if name in graph.inputs}
    found = MLExecution(cpu).compute(graph, feeds)
    tolerance = 5e-3 if name == "float16" else 1e-5
    for output, one in wanted.items():
        np.testing.assert_allclose(found[output], one, rtol=tolerance, atol=tolerance)


def test_a_table_that_is_taken_along_its_blocks(cpu: MLContext) -> None:
    table = integers(10, 32, kind=INT4, low=-8, high=8)
    attributes = {"block_size": 16, "quantize_axis": 1, "gather_axis": 1}
    made, _ = alone("GatherBlockQuantized", [table, ROW, floats(10, 2)], 1, attributes, [0, 2])
    with pytest.raises(NotSupportedError, match="taken along axis 1, and quantized along axis 1"):
        load(made, cpu)


@pytest.mark.parametrize("kind", [0, 1], ids=["FP4", "NF4"])
@pytest.mark.parametrize("half", [False, True])
def test_products_with_codes_of_4_bits(cpu: MLContext, kind: int, half: bool) -> None:
    """Blocks go on from one row of the weights to the next."""
    x, codes, scales = floats(3, 24), integers(120), np.abs(floats(15))
    if half:
        x, scales = x.astype(np.float16), scales.astype(np.float16)
    attributes = {"K": 24, "N": 10, "block_size": 16, "quant_type": kind}
    made, feeds = alone("MatMulBnb4", [x, codes, scales], 1, attributes, [1, 2])
    found = MLExecution(cpu).compute(load(made, cpu), feeds)["y0"]
    wide = [x.astype(np.float32), codes, scales.astype(np.float32)]  # it has no kernel for float16
    wanted = by_onnx_runtime(*alone("MatMulBnb4", wide, 1, attributes, [1, 2]))["y0"]
    tolerance = 2e-2 if half else 1e-5
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
