"""Models of a few bytes that declare large sizes: refused before anything is made of these."""

from __future__ import annotations

import functools
import itertools
import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

LIMIT = 2 << 30
"""Bytes of address space for the imports, with the libraries in it."""
SECONDS = 20
"""For one import, which takes milliseconds, or a second where a thousand nodes are made."""
node = helper.make_node
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FAR = 2**40
OWN = {"domain": "com.microsoft"}


class _TooLongError(BaseException):
    """An import took all of its time."""


def value(name: str, shape: Sequence[Any] | None = None, elem: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, elem, shape)


def model(
    nodes: Any, shapes: Any = None, constants: Any = None, opset: int = 21, sparse: Any = ()
) -> Any:
    """A model with an output y; a list of dimensions is of floats, or of the type before it."""
    inputs = [
        value(name, said[1], said[0]) if isinstance(said, tuple) else value(name, said)
        for name, said in (shapes or {"x": [2, 3]}).items()
    ]
    known = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    nodes = nodes if isinstance(nodes, list) else [nodes]
    graph = helper.make_graph(
        nodes, "small", inputs, [value("y")], known, sparse_initializer=sparse
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets)
    assert made.ByteSize() < 1 << 16
    return made


def sparse(dims: list[int], name: str = "w") -> Any:
    contents = numpy_helper.from_array(np.ones(1, np.float32), name)
    return helper.make_sparse_tensor(contents, numpy_helper.from_array(np.asarray([0])), dims)


def body(nodes: Any, inputs: Any, outputs: Any) -> Any:
    return helper.make_graph(nodes, "body", inputs, outputs)


SCANNED = body([node("Neg", ["v"], ["s"])], [value("v")], [value("s")])
ROUND = [value("i", [], INT64), value("on", [], BOOL)]
AGAIN = node("Identity", ["on"], ["again"])
IMAGE = {"x": [1, 1, 4, 4]}
REGIONS = {"x": [1, 1, 4, 4], "r": [1, 4], "b": (INT64, [1])}
PLACES = {"x": [1, 1, 2, 2], "i": (INT64, [1, 1, 2, 2])}
WHOLE = np.ones(1, np.float32)


def doubled(times: int) -> list[Any]:
    names = ["k", *(f"d{i}" for i in range(times))]
    return [node("Concat", [a, a], [b], axis=0) for a, b in itertools.pairwise(names)]


def unpool(shape: Any = None, **options: Any) -> Any:
    inputs = ["x", "i"] if shape is None else ["x", "i", "o"]
    return model(
        node("MaxUnpool", inputs, ["y"], **options), PLACES, {} if shape is None else {"o": shape}
    )


CASES: dict[str, tuple[Any, str]] = {
    "Split": (
        model(node("Split", ["x"], ["y"], num_outputs=2**31)),
        "num_outputs is 2147483648, expected 1",
    ),
    "Split of a constant": (
        model(node("Split", ["w"], ["y"], num_outputs=2**31), {}, {"w": WHOLE}),
        "num_outputs is 2147483648, expected 1",
    ),
    "Split into none": (
        model(node("Split", ["x"], ["y"], num_outputs=0)),
        "num_outputs is 0, expected 1",
    ),
    "Scan of many inputs": (
        model(node("Scan", ["x"], ["y"], body=SCANNED, num_scan_inputs=2**28)),
        "num_scan_inputs is 268435456, expected 1 to 1",
    ),
    "Scan of less than none": (
        model(node("Scan", ["x"], ["y"], body=SCANNED, num_scan_inputs=-1)),
        "num_scan_inputs is -1, expected 1 to 1",
    ),
    "Scan of many inputs, before opset 9": (
        model(node("Scan", ["", "x"], ["y"], body=SCANNED, num_scan_inputs=2**28), opset=8),
        "num_scan_inputs is 268435456, expected 1 to 1",
    ),
    "Scan of many rows": (
        model(
            node(
                "Scan",
                ["x"],
                ["y"],
                body=body([], [value("v")], [value("v")]),
                num_scan_inputs=1,
            ),
            {"x": [2**28]},
        ),
        "goes round more than 10000 times",
    ),
    "sparse initializer": (
        model(node("Add", ["x", "w"], ["y"]), {"x": [1]}, {}, 21, [sparse([2**30 + 2**29])]),
        "'w'.*1610612736 elements.* of 1 value",
    ),
    "sparse initializer that nothing reads": (
        model(node("Neg", ["x"], ["y"]), {"x": [1]}, {}, 21, [sparse([2**31 - 1])]),
        "'w'.*2147483647 elements.* of 1 value",
    ),
    "many sparse initializers": (
        model(
            node("Sum", ["x", *(f"w{i}" for i in range(100))], ["y"]),
            {"x": [1]},
            {},
            21,
            [sparse([2**22], f"w{i}") for i in range(100)],
        ),
        "elements.* of 1 value",
    ),
    "sparse constant": (
        model(
            [node("Constant", [], ["w"], sparse_value=sparse([2**30])), node("Neg", ["w"], ["y"])]
        ),
        "'w'.*1073741824 elements",
    ),
    "AffineGrid": (
        model(node("AffineGrid", ["t", "s"], ["y"]), {"t": [1, 2, 3]}, {"s": [1, 1, FAR, 4]}),
        r"AffineGrid \[y\]: .*1099511627776",
    ),
    "AffineGrid of an area": (
        model(node("AffineGrid", ["t", "s"], ["y"]), {"t": [1, 2, 3]}, {"s": [1, 1, 2**16, 2**16]}),
        r"AffineGrid \[y\]: .*65536",
    ),
    "AffineGrid of three axes": (
        model(
            node("AffineGrid", ["t", "s"], ["y"], align_corners=1),
            {"t": [1, 3, 4]},
            {"s": [1, 1, 4096, 4096, 4096]},
        ),
        r"AffineGrid \[y\]: .*4096",
    ),
    "RoiAlign": (
        model(
            node("RoiAlign", ["x", "r", "b"], ["y"], output_height=2**40, sampling_ratio=1), REGIONS
        ),
        r"RoiAlign \[y\]: .*1099511627776",
    ),
    "RoiAlign of many samples": (
        model(node("RoiAlign", ["x", "r", "b"], ["y"], sampling_ratio=2**30), REGIONS),
        r"RoiAlign \[y\]: .*1073741824",
    ),
    "MaxUnpool by strides": (
        unpool(kernel_shape=[2, 2], strides=[2**30, 2**30]),
        r"MaxUnpool \[y\]: .*shape",
    ),
    "MaxUnpool by windows": (unpool(kernel_shape=[FAR, 2]), r"MaxUnpool \[y\]: .*3298534883331"),
    "MaxUnpool by a shape": (
        unpool([1, 1, 2**20, 2**20], kernel_shape=[2, 2]),
        r"MaxUnpool \[y\]: .*shape",
    ),
    "MaxUnpool less than nothing": (
        unpool(kernel_shape=[2, 2], pads=[2**40] * 4),
        r"\(MaxUnpool\): .*pads|MaxUnpool \[y\]: ",
    ),
    "ConstantOfShape": (
        model(node("ConstantOfShape", ["s"], ["y"]), {}, {"s": [2**20, 2**20]}),
        r"ConstantOfShape \[y\]: .*1048576",
    ),
    "Range": (
        model(
            node("Range", ["a", "b", "c"], ["y"]),
            {},
            {"a": np.int64(0), "b": np.int64(FAR), "c": np.int64(1)},
        ),
        r"Range \[y\]: .*1099511627776",
    ),
    "OneHot": (
        model(
            node("OneHot", ["i", "d", "v"], ["y"]),
            {"i": (INT64, [2])},
            {"d": np.int64(FAR), "v": np.zeros(2, np.float32)},
        ),
        r"OneHot \[y\]: .*1099511627776",
    ),
    "Tile": (
        model(node("Tile", ["w", "s"], ["y"]), {}, {"w": WHOLE, "s": [FAR]}),
        r"Tile \[y\]: .*1099511627776",
    ),
    "Expand": (
        model(node("Expand", ["w", "s"], ["y"]), {}, {"w": WHOLE, "s": [FAR, 2]}),
        r"Expand \[y\]: .*1099511627776",
    ),
    "Pad": (
        model(node("Pad", ["x", "p"], ["y"]), {"x": [2]}, {"p": [FAR, 0]}),
        r"Pad \[y\]: .*1099511627776",
    ),
    "Pad around": (
        model(node("Pad", ["x", "p"], ["y"], mode="wrap"), {"x": [2]}, {"p": [2**30, 2**30]}),
        r"Pad \[y\]: .*2147483650",
    ),
    "Resize": (
        model(
            node("Resize", ["x", "", "s"], ["y"], mode="cubic"),
            {"x": [3]},
            {"s": np.float32([1e9])},
        ),
        r"Resize \[y\]: a size of 3000000000.* 9000000000 elements",
    ),
    "Resize to nothing": (
        model(
            node("Resize", ["x", "", "s"], ["y"], mode="cubic", antialias=1),
            {"x": [3]},
            {"s": np.float32([1e-9])},
        ),
        r"\(Resize\): axis 0 of 3 elements becomes 0",
    ),
    "Upsample": (
        model(
            node("Upsample", ["x", "s"], ["y"], mode="linear"),
            {"x": [3]},
            {"s": np.float32([1e9])},
            9,
        ),
        r"Upsample \[y\]: a size of 3000000000.* 9000000000 elements",
    ),
    "HannWindow": (
        model(node("HannWindow", ["s"], ["y"]), {}, {"s": np.int64(FAR)}),
        r"1099511627776",
    ),
    "BlackmanWindow": (
        model(node("BlackmanWindow", ["s"], ["y"], periodic=0), {}, {"s": np.int64(2**31)}),
        r"2147483648",
    ),
    "MelWeightMatrix": (
        model(
            node("MelWeightMatrix", ["n", "d", "r", "l", "h"], ["y"]),
            {},
            {
                "n": np.int64(2**20),
                "d": np.int64(2**20),
                "r": np.int64(8000),
                "l": np.float32(0),
                "h": np.float32(4000),
            },
        ),
        r"MelWeightMatrix \[y\]: .*549756862464 elements",
    ),
    "DFT": (
        model(node("DFT", ["x", "n"], ["y"]), {"x": [1, 4, 2]}, {"n": np.int64(FAR)}),
        r"DFT \[y\]: .*1099511627772",
    ),
    "STFT": (
        model(
            node("STFT", ["x", "s", "", "n"], ["y"]),
            {"x": [1, 2**28, 1]},
            {"s": np.int64(1), "n": np.int64(2**27)},
        ),
        r"STFT \[y\]: ",
    ),
    "Trilu": (model(node("Trilu", ["x", "k"], ["y"]), {}, {"k": np.int64(2**62)}), ""),
    "EyeLike": (model(node("EyeLike", ["x"], ["y"], k=2**62), {"x": [4096, 4096]}), ""),
    "CumProd of a declared size": (
        model(node("CumProd", ["x", "a"], ["y"]), {"x": [2**28]}, {"a": np.int64(0)}, 26),
        "",
    ),
    "Loop that collects": (
        model(
            [
                node("ConstantOfShape", ["s"], ["w"]),
                node(
                    "Loop",
                    ["n", ""],
                    ["k"],
                    body=body(
                        [AGAIN, node("Identity", ["w"], ["c"])],
                        ROUND,
                        [value("again", [], BOOL), value("c")],
                    ),
                ),
                node("ReduceMax", ["k"], ["y"], keepdims=0),
            ],
            {"x": [1]},
            {"n": np.int64(4000), "s": [1 << 19]},
        ),
        r"Loop \[k\]: .*shape",
    ),
    "Loop that doubles": (
        model(
            node(
                "Loop",
                ["n", "", "x"],
                ["y"],
                body=body(
                    [AGAIN, node("Concat", ["v", "v"], ["u"], axis=0)],
                    [*ROUND, value("v")],
                    [value("again", [], BOOL), value("u")],
                ),
            ),
            {"x": [1]},
            {"n": np.int64(60)},
        ),
        "Concat .*shape",
    ),
    "Loop of loops of nothing": (
        model(
            node(
                "Loop",
                ["n", "", "x"],
                ["y"],
                body=body(
                    [
                        node(
                            "Loop",
                            ["n", "", "v"],
                            ["u"],
                            body=body(
                                [],
                                [*ROUND, value("v")],
                                [value("on", [], BOOL), value("v")],
                            ),
                        )
                    ],
                    [value("i", [], INT64), value("on", [], BOOL), value("v")],
                    [value("on", [], BOOL), value("u")],
                ),
            ),
            {"x": [1]},
            {"n": np.int64(10000)},
        ),
        "over 200000 nodes",
    ),
    "Concat that doubles": (
        model([*doubled(60), node("Identity", ["d59"], ["y"])], {}, {"k": np.float32([1])}),
        "Concat .*shape",
    ),
    "Concat that doubles to what a tensor may have": (
        model(
            [*doubled(28), node("Add", ["d27", "x"], ["z"]), node("ReduceMax", ["z"], ["y"])],
            {"x": [1]},
            {"k": np.float32([1])},
        ),
        "",
    ),
    "Gather": (
        model(
            [
                node("Tile", ["w", "s"], ["t"]),
                node("Gather", ["t", "j"], ["u"], axis=1),
                node("Gather", ["u", "j"], ["y"], axis=2),
            ],
            {},
            {"w": np.ones((1, 1, 1), np.float32), "s": [1, 1, 4096], "j": np.zeros(4096, np.int64)},
        ),
        "",
    ),
    "ScatterND that adds": (
        model(
            node("ScatterND", ["x", "i", "u"], ["y"], reduction="add"),
            {"x": [4], "i": (INT64, [2**26, 1]), "u": [2**26]},
        ),
        r"ScatterND \[y\]: .*67108864",
    ),
    "ScatterElements that adds": (
        model(
            node("ScatterElements", ["x", "i", "u"], ["y"], reduction="max"),
            {"x": [4], "i": (INT64, [2**26]), "u": [2**26]},
        ),
        r"ScatterElements \[y\]: .*67108864",
    ),
    "ConvTranspose in three dimensions": (
        model(
            node("ConvTranspose", ["x", "w"], ["y"], strides=[2**28, 1, 1]),
            {"x": [1, 1, 4, 1, 1], "w": [1, 1, 2, 1, 1]},
        ),
        r"ConvTranspose \[y\]: .*shape",
    ),
    "ConvTranspose of many rows": (
        model(
            node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 1, 1]),
            {"x": [1, 1, 2**20, 1, 1], "w": [1, 1, 2, 1, 1]},
        ),
        "",
    ),
    "Conv of many taps": (
        model(
            node("Conv", ["x", "w"], ["y"]), {"x": [1, 1, 2**20, 1, 1], "w": [1, 1, 2**19, 1, 1]}
        ),
        r"Conv \[y\]: .*524288",
    ),
    "DeformConv": (
        model(
            node("DeformConv", ["x", "w", "o"], ["y"]),
            {"x": [1, 1, 2**13, 2**13], "w": [1, 1, 1, 1], "o": [1, 2, 2**13, 2**13]},
        ),
        "",
    ),
    "LSTM with peepholes": (
        model(
            node("LSTM", ["x", "w", "r", "", "", "", "", "p"], ["", "y"], hidden_size=1),
            {"x": [2**26, 1, 1], "w": [1, 4, 1], "r": [1, 4, 1], "p": [1, 3]},
        ),
        r"LSTM \[y\]: .*67108864",
    ),
    "RNN of a large state": (
        model(
            node("RNN", ["x", "w", "r"], ["", "y"], hidden_size=2**40),
            {"x": [1, 1, 1], "w": [1, 1, 1], "r": [1, 1, 2**28]},
        ),
        r"RNN \[y\]: the gates of 268435456 states",
    ),
    "MatMulNBits": (
        model(
            node("MatMulNBits", ["x", "w", "s"], ["y"], K=FAR, N=1, block_size=16, **OWN),
            {"x": [1, 16]},
            {"w": np.zeros((1, 1, 8), np.uint8), "s": WHOLE},
        ),
        r"1099511627776",
    ),
    "MatMulBnb4": (
        model(
            node(
                "MatMulBnb4",
                ["x", "w", "s"],
                ["y"],
                K=16,
                N=1,
                block_size=2**33,
                quant_type=1,
                **OWN,
            ),
            {"x": [1, 16]},
            {"w": np.zeros(8, np.uint8), "s": WHOLE},
        ),
        "",
    ),
    "RelativePositionBias": (
        model(
            node("RelativePositionBias", ["x", "n", "n"], ["y"], max_distance=2**33, **OWN),
            {"x": [32, 2]},
            {"n": np.asarray([4], np.int32)},
        ),
        r"8589934592",
    ),
    "GroupQueryAttention": (
        model(
            node(
                "GroupQueryAttention",
                ["x", "x", "x", "", "", "l", "t"],
                ["y"],
                num_heads=2**33,
                kv_num_heads=2**33,
                smooth_softmax=1,
                **OWN,
            ),
            {"x": [1, 1, 8]},
            {"l": np.asarray([0], np.int32), "t": np.int32(1)},
        ),
        r"GroupQueryAttention",
    ),
    "QuantizeLinear of declared scales": (
        model(
            node("QuantizeLinear", ["x", "s"], ["y"], axis=0),
            {"x": [2**28], "s": [2**28]},
        ),
        r"QuantizeLinear \[y\]: a zero point for each scale needs 268435456",
    ),
    "DequantizeLinear by uneven blocks": (
        model(
            node("DequantizeLinear", ["x", "s"], ["y"], axis=0, block_size=3),
            {"x": (TensorProto.INT8, [2**28]), "s": [(2**28 + 2) // 3]},
        ),
        r"DequantizeLinear \[y\]: the blocks of axis 0 needs 268435456",
    ),
    "Col2Im": (
        model(
            node("Col2Im", ["x", "i", "b"], ["y"]),
            {"x": [1, 1, 2**26]},
            {"i": [2**13, 2**13], "b": [1, 1]},
        ),
        "",
    ),
    "MaxPool": (
        model(
            node("MaxPool", ["x"], ["y", "i"], kernel_shape=[4096, 4096]),
            {"x": [1, 1, 2**14, 2**14]},
        ),
        "",
    ),
    "LRN": (
        model(node("LRN", ["x"], ["y"], size=2**40), IMAGE),
        r"LRN \[y\]: .*549755813887",
    ),
    "AveragePool": (
        model(
            node("AveragePool", ["x"], ["y"], kernel_shape=[FAR, 2], pads=[FAR, 0, FAR, 0]), IMAGE
        ),
        r"AveragePool \[y\]: .*1099511627",
    ),
    "TopK of a constant": (
        model(
            [node("ConstantOfShape", ["s"], ["w"]), node("TopK", ["w", "k"], ["y", ""])],
            {},
            {"s": [1 << 16], "k": [1 << 15]},
        ),
        "",
    ),
    "DepthToSpace": (
        model(node("DepthToSpace", ["x"], ["y"], blocksize=2**40), IMAGE),
        r"DepthToSpace",
    ),
    "SplitToSequence": (
        model(
            [node("SplitToSequence", ["x"], ["q"]), node("SequenceLength", ["q"], ["y"])],
            {"x": [2**28]},
        ),
        r"SplitToSequence \[q\]: .*more than 10000",
    ),
    "CenterCropPad": (
        model(node("CenterCropPad", ["x", "s"], ["y"]), {"x": [4]}, {"s": [FAR]}),
        r"549755813886",
    ),
}


def _too_long(*_: object) -> None:
    raise _TooLongError


def outcome(found: Any) -> str:
    """What an import ends with."""
    from webnn_py import DataError, NotSupportedError, ValidationError, ml
    from webnn_py.onnx import load

    with ml.create_context_sync(engine="reference") as context:
        try:
            load(found, context)
        except (DataError, NotSupportedError, ValidationError) as error:
            return f"{type(error).__name__}: {error}"
        except (Exception, _TooLongError) as error:
            return f"! {error!r}"
    return ""


@functools.cache
def outcomes() -> dict[str, str]:
    """Those of all cases, in a process that may not have much memory."""
    ran = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, timeout=300, check=False
    )
    found: dict[str, str] = {}
    for line in ran.stdout.splitlines():
        found.update(json.loads(line))
    assert ran.returncode == 0, (list(found)[-1:], ran.stderr[-2000:])
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_a_few_bytes_declare(name: str) -> None:
    found, why = outcomes()[name], CASES[name][1]
    assert bool(found) == bool(why), found
    assert re.search(why, found, re.DOTALL), found
    assert not found.startswith("!"), found


if __name__ == "__main__":
    outcome(CASES["Trilu"][0])  # the libraries
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    signal.signal(signal.SIGALRM, _too_long)
    for name, (made, _) in CASES.items():
        signal.alarm(SECONDS)
        print(json.dumps({name: outcome(made)}), flush=True)
        signal.alarm(0)
