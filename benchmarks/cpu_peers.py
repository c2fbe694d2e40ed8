"""Who runs the same ONNX models on a CPU: our engines, ONNX Runtime, OpenVINO, pywebnn."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx

import webnn_py.onnx
from benchmarks.cases import CASES
from benchmarks.models import inputs_of, logits
from webnn_py import MLExecution, ml
from webnn_py.engines.registry import FALLBACK, FAST, default_engine

Array = np.ndarray[Any, Any]
Run = Callable[[], Array]


class Given(NamedTuple):
    """A model.

    Attributes:
        data: As it stands in a file.
        inputs: What it is run on, by name.
    """

    data: bytes
    inputs: Mapping[str, Array]


Load = Callable[[Given, int | None], Run]
"""Makes a model ready for so many threads; what it gives runs it and returns the first result."""


def case(name: str) -> Given:
    """A case by its name."""
    return _given(CASES[name]())


def compared_case(name: str) -> Given:
    """The case by whose results peers are compared: models without their last softmax."""
    return _given(logits(CASES[name]()))


def _given(model: onnx.ModelProto) -> Given:
    return Given(model.SerializeToString(), inputs_of(model))


ORT = "onnxruntime, directly"
OPENVINO = "openvino, directly"
PYWEBNN = "pywebnn"


def ours(engine: str) -> Load:
    """One of our engines."""

    def load(given: Given, threads: int | None) -> Run:
        told = {} if threads is None or engine == FALLBACK else {"threads": threads}
        context = ml.create_context_sync(engine=engine, engine_options=told)
        graph, execution = webnn_py.onnx.load(given.data, context), MLExecution(context)
        first = next(iter(graph.outputs))
        return lambda: execution.compute(graph, given.inputs)[first]

    return load


def load_onnxruntime(given: Given, threads: int | None) -> Run:
    """As its documentation has it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or 0
    session = onnxruntime.InferenceSession(given.data, options, providers=["CPUExecutionProvider"])
    return lambda: np.asarray(session.run(None, given.inputs)[0])


def load_openvino(given: Given, threads: int | None) -> Run:
    """A request of its own, inferred in place."""
    from webnn_py.engines.openvino.openvino_import import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads is not None:
        settings["INFERENCE_NUM_THREADS"] = str(threads)
    compiled = core.compile_model(core.read_model(given.data), "CPU", settings)
    request, first = compiled.create_infer_request(), compiled.outputs[0]
    return lambda: np.asarray(request.infer(dict(given.inputs))[first])


def load_pywebnn(given: Given, threads: int | None) -> Run:
    """By `MLContext.compute`, the fastest of its ways; it has as many threads as it likes."""
    from benchmarks.pywebnn_model import PywebnnModel

    return functools.partial(PywebnnModel(onnx.load_from_string(given.data)), given.inputs)


def peers(reference: bool = False) -> tuple[Mapping[str, Load], list[str]]:
    """Those that are installed, ONNX Runtime first, and notes on the others.

    Args:
        reference: Ours too, which takes its time.
    """
    found: dict[str, Load] = {ORT: load_onnxruntime}
    notes = []
    if importlib.util.find_spec("openvino") is not None:
        found[OPENVINO] = load_openvino
    names = ["fastest", *FAST, *([FALLBACK] if reference else [])]
    found |= {name: ours(name) for name in names if name in (*installed(), "fastest", FALLBACK)}
    if importlib.util.find_spec("webnn") is not None:
        found[PYWEBNN] = load_pywebnn
    else:
        notes.append("pywebnn is not installed (it has wheels for Python 3.12): left out")
    return found, [*notes, f'engine="auto" is {default_engine()}']


def installed() -> list[str]:
    """Engines of ours that can be had."""
    return [name for name in FAST if importlib.util.find_spec(name) is not None]
