"""WebNN's graph API for Python: one graph, run in three modes.

`MLGraphBuilder` records a graph of operators and builds it; the `MLGraph` then runs through
`MLExecution` (synchronous, CPU), `MLAwaitedExecution` (awaited, CPU and GPU) or `MLCommandEncoder`
(recorded between your own wgpu passes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webnn_py._version import __version__

if TYPE_CHECKING:
    from webnn_py.api.awaited import MLAwaitedExecution
    from webnn_py.api.builder import MLGraphBuilder
    from webnn_py.api.context import MLContext
    from webnn_py.api.decoding.decoder import MLDecoder
    from webnn_py.api.decoding.sequence import MLSequence
    from webnn_py.api.descriptor import MLOperandDescriptor
    from webnn_py.api.encoder import MLCommandEncoder
    from webnn_py.api.execution import MLExecution
    from webnn_py.api.graph import MLGraph
    from webnn_py.api.ml import ml
    from webnn_py.api.profile import MLProfile, MLProfileRow
    from webnn_py.api.programs.file import runtime_path
    from webnn_py.api.programs.program import MLProgram
    from webnn_py.api.programs.steps import MLProgramBuffer, MLProgramSequence
    from webnn_py.api.promise import MLPromise
    from webnn_py.api.session import MLContextLostInfo
    from webnn_py.api.slicing import MLSlicedDispatch
    from webnn_py.api.tensor import MLTensor
    from webnn_py.api.view.build_progress import show_progress
    from webnn_py.core.devices import MLDeviceType, MLPowerPreference
    from webnn_py.core.dimensions import MLDimension
    from webnn_py.core.dtypes import MLOperandDataType
    from webnn_py.core.errors import (
        ContextLostError,
        DataError,
        DLPackError,
        FileError,
        InvalidStateError,
        MLError,
        NotSupportedError,
        OperationError,
        ValidationError,
        WaitTimeoutError,
    )
    from webnn_py.ops.operand import MLOperand
    from webnn_py.ordering.timeline import Timeline, TimelinePoint

# Module of each public name. Names are imported at first use, so that `import webnn_py` is fast.
_MODULES = {
    "api.builder": ("MLGraphBuilder",),
    "api.context": ("MLContext",),
    "api.decoding.decoder": ("MLDecoder",),
    "api.decoding.sequence": ("MLSequence",),
    "api.descriptor": ("MLOperandDescriptor",),
    "api.encoder": ("MLCommandEncoder",),
    "core.dimensions": ("MLDimension",),
    "core.devices": ("MLDeviceType", "MLPowerPreference"),
    "core.dtypes": ("MLOperandDataType",),
    "core.errors": (
        "ContextLostError",
        "DLPackError",
        "DataError",
        "FileError",
        "InvalidStateError",
        "MLError",
        "NotSupportedError",
        "OperationError",
        "ValidationError",
        "WaitTimeoutError",
    ),
    "api.awaited": ("MLAwaitedExecution",),
    "api.execution": ("MLExecution",),
    "api.graph": ("MLGraph",),
    "ops.operand": ("MLOperand",),
    "api.ml": ("ml",),
    "api.profile": ("MLProfile", "MLProfileRow"),
    "api.programs.file": ("runtime_path",),
    "api.programs.program": ("MLProgram",),
    "api.programs.steps": ("MLProgramBuffer", "MLProgramSequence"),
    "api.promise": ("MLPromise",),
    "api.session": ("MLContextLostInfo",),
    "api.slicing": ("MLSlicedDispatch",),
    "api.tensor": ("MLTensor",),
    "api.view.build_progress": ("show_progress",),
    "ordering.timeline": ("Timeline", "TimelinePoint"),
}

__all__ = [
    "ContextLostError",
    "DLPackError",
    "DataError",
    "FileError",
    "InvalidStateError",
    "MLAwaitedExecution",
    "MLCommandEncoder",
    "MLContext",
    "MLContextLostInfo",
    "MLDecoder",
    "MLDeviceType",
    "MLDimension",
    "MLError",
    "MLExecution",
    "MLGraph",
    "MLGraphBuilder",
    "MLOperand",
    "MLOperandDataType",
    "MLOperandDescriptor",
    "MLPowerPreference",
    "MLProfile",
    "MLProfileRow",
    "MLProgram",
    "MLProgramBuffer",
    "MLProgramSequence",
    "MLPromise",
    "MLSequence",
    "MLSlicedDispatch",
    "MLTensor",
    "NotSupportedError",
    "OperationError",
    "Timeline",
    "TimelinePoint",
    "ValidationError",
    "WaitTimeoutError",
    "__version__",
    "ml",
    "runtime_path",
    "show_progress",
]


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _MODULES.items():
        if name in names:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    if name == "onnx":
        return importlib.import_module(f"{__name__}.onnx")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "onnx"})
