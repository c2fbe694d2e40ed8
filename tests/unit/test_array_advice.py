"""What messages advise about arrays works as printed, and keeps the meaning of the numbers."""

from __future__ import annotations

import array
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import PIL.Image
import pytest

from tests.graphs import assert_works
from webnn_py import DataError, MLContext, MLError, MLExecution, MLGraphBuilder, ValidationError

HWC = np.arange(4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)
SQUARE = np.arange(6 * 6 * 3, dtype=np.float32).reshape(6, 6, 3)
CHW = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)


class TorchDtypes:
    """What `torch.` stands for in advice."""

    float16, float32, int64 = "float16", "float32", "int64"


class Tensor:
    """A stand-in for PyTorch's tensors: their methods, and none of NumPy's."""

    def __init__(
        self, values: np.ndarray[Any, Any], dtype: str, on: int = 1, requires_grad: bool = False
    ) -> None:
        self.values, self.dtype, self.on = values, f"torch.{dtype}", on
        self.requires_grad = requires_grad

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def _with(self, values: np.ndarray[Any, Any], **changed: Any) -> Tensor:
        kept = {"dtype": self.dtype[6:], "on": self.on, "requires_grad": self.requires_grad}
        return Tensor(values, **{**kept, **changed})

    def to(self, dtype: str) -> Tensor:
        return self._with(self.values.astype(dtype), dtype=dtype)

    def permute(self, *order: int) -> Tensor:
        return self._with(self.values.transpose(order))

    def reshape(self, *shape: int) -> Tensor:
        return self._with(self.values.reshape(shape))

    def __getitem__(self, index: Any) -> Tensor:
        return self._with(self.values[index])

    def cpu(self) -> Tensor:
        return self._with(self.values, on=1)

    def detach(self) -> Tensor:
        return self._with(self.values, requires_grad=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.on, 0

    def __dlpack__(self, **_: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.dtype == "torch.bfloat16":
            raise BufferError("Unsupported type bfloat16")
        return self.values.__dlpack__()


def followed(message: str, value: Any) -> Any:
    """What the advice at the end of a message makes of a value."""
    found = re.search(r"(?:it|array|one) with (.+?)(?:, whose numbers are 0 to 255)?$", message)
    assert found, message
    code = found[1]
    code = f"value{code}" if code.startswith((".", "[")) else re.sub("…|image", "value", code)
    return eval(code, {"np": np, "torch": TorchDtypes, "value": value})


def copying(cpu: MLContext, data_type: Any, shape: list[Any]) -> Callable[[Any], Any]:
    """Runs a graph that copies its input of this data type and shape."""
    builder = MLGraphBuilder(cpu)
    graph = builder.build_sync({"y": builder.identity(builder.input("x", data_type, shape))})
    return lambda value: MLExecution(cpu).compute(graph, {"x": value})["y"]


NCHW = HWC.transpose(2, 0, 1)[None]
BF16 = CHW.astype(ml_dtypes.bfloat16)
PICTURE = PIL.Image.fromarray(HWC.astype(np.uint8))

ADVICE: dict[str, tuple[Any, str, list[Any], Any, str]] = {
    # what is given, the operand, what the operand means, and what the advice has in it
    "HWC": (HWC, "float32", [1, 3, 4, 5], NCHW, r"with \.transpose\(2, 0, 1\)\[None\]$"),
    "square HWC": (SQUARE, "float32", [1, 3, 6, 6], SQUARE.transpose(2, 0, 1)[None], "transpose"),
    "NHWC": (HWC[None], "float32", [1, 3, 4, 5], NCHW, r"\.transpose\(0, 3, 1, 2\)$"),
    "NHWC for CHW": (HWC[None], "float32", [3, 4, 5], NCHW[0], r"\[0\]\.transpose\(2, 0, 1\)$"),
    "CHW for NHWC": (CHW, "float32", [1, 4, 5, 3], CHW.transpose(1, 2, 0)[None], "transpose"),
    "HWC for batches": (HWC, "float32", ["n", 3, 4, 5], NCHW, r"\.transpose\(2, 0, 1\)\[None\]$"),
    "NHWC for open sizes": (HWC[None], "float32", ["n", 3, "h", "w"], NCHW, r"\(0, 3, 1, 2\)$"),
    "no batch": (CHW, "float32", ["n", 3, 4, 5], CHW[None], r"change it with \[None\]$"),
    "no batch, fixed": (CHW, "float32", [1, 3, 4, 5], CHW[None], r"\.reshape\(1, 3, 4, 5\)$"),
    "scalar": (np.float32([[2]]), "float32", [], np.float32(2), r"\.reshape\(\(\)\)$"),
    "transposed": (CHW[0], "float32", [5, 4], CHW[0].T, r"\.transpose\(1, 0\)$"),
    "heads": (CHW[None], "float32", [1, 4, 3, 5], CHW.transpose(1, 0, 2)[None], r"\(0, 2, 1, 3\)"),
    "far": (HWC[:, None, None], "float32", [3, 1, 4, 5], NCHW[0][:, None], r"\.squeeze\(\)"),
    "float64": (CHW.astype(float), "float32", [3, 4, 5], CHW, r"\.astype\(np\.float32\)$"),
    "float64 HWC": (HWC.astype(float), "float32", [1, 3, 4, 5], NCHW, r"32\)\.transpose\(2, 0, 1"),
    "whole floats": (CHW, "int64", [3, 4, 5], CHW, r"if int64 holds its numbers, .*np\.int64\)$"),
    "int64": (CHW.astype(int), "int32", [3, 4, 5], CHW, "if int32 holds its numbers"),
    "int8": (CHW.astype(np.int8), "int64", [3, 4, 5], CHW, r"; convert it with .*np\.int64\)$"),
    "bfloat16": (
        BF16,
        "float32",
        [3, 4, 5],
        CHW,
        r"data type bfloat16, .*\.astype\(np\.float32\)$",
    ),
    "list of integers": ([[1, 2]], "int64", [1, 2], [[1, 2]], r"; make one with .*, np\.int64\)$"),
    "list of floats": ([[1.0]], "int64", [1, 1], [[1]], "if int64 holds its numbers, make one"),
    "list": ([0.5, 1.5], "float16", [2], [0.5, 1.5], r"np\.array\(…, np\.float16\)$"),
    "number": (3, "int64", [], 3, r"make one with np\.int64\(…\)$"),
    "doubles": (array.array("d", [1, 2]), "float32", [2], [1, 2], r"np\.asarray\(…\)\.astype"),
    "view": (memoryview(HWC), "float32", [1, 3, 4, 5], NCHW, r"np\.asarray\(…\)\.transpose"),
    "bytes in a picture's shape": (
        memoryview(HWC.astype(np.uint8)),
        "uint8",
        [1, 3, 4, 5],
        NCHW,
        r"\(…\)\.transpose",
    ),
    "PIL": (
        PICTURE,
        "float32",
        [1, 3, 4, 5],
        NCHW,
        r"data type uint8, .*np\.asarray\(image, .* 255",
    ),
    "PIL of the data type": (
        PICTURE,
        "uint8",
        [1, 3, 4, 5],
        NCHW,
        r"\(image\)\.transpose\(2, 0, 1",
    ),
    "PIL for open sizes": (PICTURE, "uint8", ["n", 3, "h", "w"], NCHW, r"\(image\)\.transpose\(2"),
    "torch": (
        Tensor(CHW.astype(float), "float64"),
        "float32",
        [3, 4, 5],
        CHW,
        r"\.to\(torch\.float32\)$",
    ),
    "torch HWC": (
        Tensor(HWC, "float32"),
        "float32",
        [1, 3, 4, 5],
        NCHW,
        r"\.permute\(2, 0, 1\)\[None\]$",
    ),
    "torch for open sizes": (Tensor(HWC, "float32"), "float32", ["n", 3, 4, 5], NCHW, "permute"),
    "CUDA": (
        Tensor(CHW, "float32", on=2),
        "float32",
        [3, 4, 5],
        CHW,
        r"\(1\); convert it with \.cpu\(\)$",
    ),
    "CUDA, bfloat16": (
        Tensor(BF16, "bfloat16", on=2),
        "float32",
        [3, 4, 5],
        CHW,
        r"\.cpu\(\)\.to\(torch\.float32\)$",
    ),
    "CUDA, floats for integers": (
        Tensor(CHW, "float32", on=2),
        "int64",
        [3, 4, 5],
        CHW,
        r"; if int64 holds its numbers, convert it with \.cpu\(\)\.to\(torch\.int64\)$",
    ),
    "torch bfloat16": (
        Tensor(BF16, "bfloat16"),
        "float32",
        [3, 4, 5],
        CHW,
        r"\.to\(torch\.float32\)$",
    ),
    "gradient": (
        Tensor(CHW, "float32", requires_grad=True),
        "float32",
        [3, 4, 5],
        CHW,
        r"with \.detach\(\)$",
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice_that_is_followed_gives_what_was_meant(cpu: MLContext, case: str) -> None:
    value, data_type, shape, meant, message = ADVICE[case]
    compute = copying(cpu, data_type, shape)
    with pytest.raises(DataError, match=message) as caught:
        compute(value)
    for _ in range(2):  # the shape may only be told once the data type fits
        better = followed(str(caught.value), value)
        try:
            made = compute(better)
            break
        except DataError as error:
            caught, value = pytest.ExceptionInfo.from_exception(error), better
    np.testing.assert_array_equal(made, meant)


@pytest.mark.parametrize("case", ["float64", "bfloat16", "list", "torch", "CUDA", "torch bfloat16"])
def test_advice_about_a_constant_can_be_followed(cpu: MLContext, case: str) -> None:
    value, data_type, _, meant, _ = ADVICE[case]
    for named in (None, data_type):
        with pytest.raises(ValidationError) as caught:
            MLGraphBuilder(cpu).constant(value, named)
        operand = MLGraphBuilder(cpu).constant(followed(str(caught.value), value))
        assert operand.shape == np.shape(meant)
        assert operand.data_type == (data_type if named else "float32")


def test_a_picture_is_no_bytes_in_a_row(cpu: MLContext) -> None:
    """Its pixels would be read as channels."""
    with pytest.raises(DataError, match=r"shape \[4, 5, 3\], expected \[3, 4, 5\]"):
        copying(cpu, "uint8", [3, 4, 5])(PICTURE)


MASKED = np.ma.masked_array(CHW, CHW > 9)


@pytest.mark.parametrize("dimension", [3, "n"])
def test_the_mask_of_an_array_is_not_dropped(cpu: MLContext, dimension: Any) -> None:
    compute = copying(cpu, "float32", [dimension, 4, 5])
    tensor = cpu.create_tensor_sync("float32", [3, 4, 5], writable=True, readable=True)
    for use in (
        compute,
        lambda array: compute({"resource": array, "dimensions": [3, 4, 5]}),
        MLGraphBuilder(cpu).constant,
        cpu.create_constant_tensor_sync,
        lambda array: cpu.write_tensor(tensor, array),
        lambda array: cpu.read_tensor_sync(tensor, array),
    ):
        with pytest.raises(ValidationError, match="masked array, whose mask would be lost") as no:
            use(MASKED)
        assert ".filled(" in str(no.value) or "np.empty" in str(no.value)
    np.testing.assert_array_equal(compute(MASKED.filled(0)), np.where(CHW > 9, 0, CHW))
    with pytest.raises(MLError, match="mask"):
        cpu.from_dlpack(MASKED)


WRONG_OUTPUTS: dict[str, Any] = {
    "transposed": np.empty((3, 2), np.float32),
    "another rank": np.empty((1, 2, 3), np.float32),
    "larger": np.empty((4, 3), np.float32),
    "view": memoryview(np.empty((3, 2), np.float32)),
    "tensor": Tensor(np.empty((3, 2), np.float32), "float32"),
    "float64": np.empty((2, 3)),
    "short": np.empty(5, np.float32),
    "read-only": np.broadcast_to(np.float32(1), (2, 3)),
    "number": np.float32(1),
    "list": [[0, 0, 0], [0, 0, 0]],
    "bfloat16": Tensor(BF16, "bfloat16"),
    "CUDA": Tensor(np.empty((2, 3), np.float32), "float32", on=2),
}


@pytest.mark.parametrize("case", WRONG_OUTPUTS)
def test_an_output_is_checked_as_an_input_is(cpu: MLContext, case: str) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    builder = MLGraphBuilder(cpu)
    graph = builder.build_sync({"y": builder.identity(builder.input("x", "float32", [2, 3]))})
    tensor = cpu.create_tensor_sync("float32", [2, 3], writable=True, readable=True)
    cpu.write_tensor(tensor, values)
    for write in (
        lambda out: MLExecution(cpu).compute(graph, {"x": values}, {"y": out})["y"],
        lambda out: cpu.read_tensor_sync(tensor, out),
    ):
        with pytest.raises(ValueError, match=r"make an array with np\.empty\(\(2, 3\), ") as caught:
            write(WRONG_OUTPUTS[case])
        made = followed(str(caught.value), None)
        np.testing.assert_array_equal(write(made), values)
        assert write(made) is made
    assert_works(cpu)


@pytest.mark.parametrize("size", [6, 8])
@pytest.mark.parametrize("kind", [lambda n: np.empty(n, np.float32), lambda n: bytearray(4 * n)])
def test_a_flat_output_may_be_larger(cpu: MLContext, kind: Any, size: int) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    builder = MLGraphBuilder(cpu)
    graph = builder.build_sync({"y": builder.identity(builder.input("x", "float32", [2, 3]))})
    out = kind(size)
    MLExecution(cpu).compute(graph, {"x": values}, {"y": out})
    np.testing.assert_array_equal(np.frombuffer(out, np.float32)[:6], values.ravel())
