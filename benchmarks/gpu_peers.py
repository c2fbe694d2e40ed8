"""Who runs the same ONNX models on a GPU: ONNX Runtime's WebGPU, wonnx, PyTorch as a CUDA graph."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Run = Callable[[], Array]
"""Uploads, runs, reads back: the first output."""

PROVIDER = "WebGpuExecutionProvider"


def missing_onnxruntime() -> str | None:
    """Why ONNX Runtime's WebGPU cannot be measured; None where it can."""
    try:
        import onnxruntime
    except ImportError:
        return "ONNX Runtime is not installed: left out"
    if PROVIDER in onnxruntime.get_available_providers():
        return None
    return "ONNX Runtime is there without WebGPU (onnxruntime-webgpu has it): left out"


def missing_wonnx() -> str | None:
    """Why wonnx cannot be measured; None where it can."""
    return None if importlib.util.find_spec("wonnx") else "wonnx is not installed: left out"


def missing_torch() -> str | None:
    """Why PyTorch cannot be measured; None where it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed: left out"
    import torch

    return None if torch.cuda.is_available() else "PyTorch has no CUDA device here: left out"


def load_onnxruntime(model: onnx.ModelProto | Path, inputs: Arrays) -> Run:
    """A session on the GPU, of a model or its file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    given = model if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(
        given, options, providers=[PROVIDER, "CPUExecutionProvider"]
    )
    if PROVIDER not in session.get_providers():  # it goes on without, and says so in its log alone
        raise RuntimeError("ONNX Runtime's WebGPU takes no adapter of this machine")
    return lambda: np.asarray(session.run(None, inputs)[0])


def load_wonnx(model: onnx.ModelProto, inputs: Arrays) -> Run:
    """A session on the adapter that wonnx finds."""
    import wonnx

    name = model.graph.output[0].name
    flat = {key: array.ravel() for key, array in inputs.items()}
    try:
        session = wonnx.Session.from_bytes(for_wonnx(model).SerializeToString())
        session.run(flat)
    except BaseException as error:  # it panics
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error)) from None
    return lambda: np.array(session.run(flat)[name], np.float32)


def for_wonnx(given: onnx.ModelProto) -> onnx.ModelProto:
    """A model with all shapes, of a version that wonnx knows, spelled in operators that it has."""
    model = copy.deepcopy(given)
    model.ir_version = max(model.ir_version, 4)  # before, shapes of weights are not inferred
    model.opset_import[0].version = min(model.opset_import[0].version, 13)
    same: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        if node.op_type == "Dropout":
            same[node.output[0]] = node.input[0]
            continue
        if node.op_type == "Sum" and len(node.input) == 2:
            node.op_type = "Add"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return onnx.shape_inference.infer_shapes(model)


PEERS: dict[str, tuple[Callable[[], str | None], Callable[[onnx.ModelProto, Arrays], Run]]] = {
    "ort": (missing_onnxruntime, load_onnxruntime),
    "wonnx": (missing_wonnx, load_wonnx),
}
"""Why each cannot be measured, and what loads a model, by the key of its figures."""


def by_torch(
    model: onnx.ModelProto, channels_last: bool = False
) -> Callable[[dict[str, Any]], Any]:
    """What computes the first output of a model by PyTorch, on CUDA."""
    from benchmarks.torch_model import TorchModel

    return TorchModel(model, "cuda", channels_last)


class CudaGraph:
    """Work of PyTorch, captured once and replayed; cuDNN measures which convolutions are fastest.

    Args:
        compute: The work.
        inputs: Its inputs.
        tf32: Whether products of float32 may round their operands to tf32.
    """

    def __init__(
        self, compute: Callable[[dict[str, Any]], Any], inputs: Arrays, tf32: bool = False
    ) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        self._torch = torch
        self._inputs = {name: torch.from_numpy(a).cuda() for name, a in inputs.items()}
        self._graph = torch.cuda.CUDAGraph()
        with torch.inference_mode():
            self._compute = compute  # kept: a replay reads its weights
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    compute(self._inputs)
            torch.cuda.current_stream().wait_stream(aside)
            with torch.cuda.graph(self._graph):
                self._output = compute(self._inputs)

    def result(self) -> Array:
        """The output of a replay."""
        self._graph.replay()
        return np.asarray(self._output.cpu().numpy())

    def seconds(self, count: int) -> float:
        """GPU time that one replay of `count` in a row takes."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / count
