"""ONNX models as graphs, and graphs as ONNX models; needs the extra `onnx`.

```python
graph = webnn_py.onnx.load("model.onnx", context)
```
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from webnn_py.api.builder import MLGraphBuilder
from webnn_py.api.context import MLContext
from webnn_py.api.graph import MLGraph
from webnn_py.core import convert
from webnn_py.core.errors import NotSupportedError, ValidationError, convert_memory_errors
from webnn_py.core.messages import suggest_options, type_name
from webnn_py.core.progress import BuildProgress, with_progress
from webnn_py.core.requirements import check_version
from webnn_py.ops.operand import MLOperand

if TYPE_CHECKING:
    from webnn_py.onnx.inputs import InputShapes

__all__ = ["add_to", "load", "to_onnx"]


@suggest_options
@convert_memory_errors
def load(
    path_or_model: Any,
    ctx: MLContext,
    input_shapes: InputShapes | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    progress: BuildProgress | None = None,
) -> MLGraph:
    """Build a graph of an ONNX model.

    Bools are uint8 tensors of 0 and 1. Nodes are labelled by their names, weights named by their
    initializers. Dimensions that the model leaves open are so in the graph, called as the model
    calls them (an input's name and the axis where it does not); their bounds are those within
    which its nodes work.

    Args:
        path_or_model: A path, the bytes of a file, or an onnx.ModelProto.
        ctx: Where the graph will run.
        input_shapes: What is fixed of that: shapes by inputs' names (names of sizes and -1 leave
            them open), sizes or bounds (lowest, highest) by the names of dimensions.
        constants: Arrays for inputs whose contents never change, by name, such as a sampling rate
            that chooses a branch: they are no inputs of the graph.
        progress: As of `MLGraphBuilder.build_sync`.

    Raises:
        NotSupportedError: Nodes that WebNN cannot express, all in one message; or the extra `onnx`
            is not installed.
        DataError: The model is damaged or contradicts itself, or its external data is not there.
        ValidationError: `input_shapes` or `constants` name what the model does not have, or do not
            fit it; or an input has no shape at all.

    Source: webnn_py; ONNX, "Open Neural Network Exchange Intermediate Representation".
    """
    importing = _importer()
    shapes = {} if input_shapes is None else convert.mapping(input_shapes, "onnx: input_shapes")
    model = importing.Model(path_or_model)
    known = {} if constants is None else convert.mapping(constants, "onnx: constants")
    graph: MLGraph = with_progress(progress, importing.built, ctx, model, shapes, known)
    return graph


@suggest_options
@convert_memory_errors
def add_to(
    builder: MLGraphBuilder, model: Any, inputs: Mapping[str, Any] | None = None
) -> dict[str, MLOperand]:
    """Put an ONNX model into a graph under construction.

    Args:
        builder: Where its nodes go.
        model: A path, the bytes of a file, or an onnx.ModelProto. Its open dimensions are the
            builder's of these names.
        inputs: Operands in the place of the model's inputs, by name; or arrays, for inputs whose
            contents are constant. The others become inputs of the builder.

    Returns:
        The model's outputs by name.

    Raises:
        MLError: As `load`; a ValidationError for an operand or array of another data type, or
            where `builder` is none.

    Source: webnn_py.
    """
    importing = _importer()
    if not isinstance(builder, MLGraphBuilder):
        raise ValidationError(
            f"onnx: builder: got {type_name(builder)}, expected an MLGraphBuilder"
        )
    given = {} if inputs is None else convert.mapping(inputs, "onnx: inputs")
    found = importing.Importer(builder, importing.Model(model)).run(given)
    return {name: tensor.operand for name, tensor in found.items()}


def to_onnx(graph: MLGraph) -> Any:
    """An onnx.ModelProto of a graph.

    Args:
        graph: What to export.

    Raises:
        NotSupportedError: ONNX cannot express it; or the extra `onnx` is not installed.

    Source: webnn_py.
    """
    _importer()
    exporter: Any = importlib.import_module("webnn_py.onnx.exporter")
    return exporter.to_onnx(graph)


def __getattr__(name: str) -> Any:
    if name == "backend":
        _importer()
        return importlib.import_module(f"{__name__}.backend")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _importer() -> Any:
    try:
        check_version(importlib.import_module("onnx"))
        from webnn_py.onnx import load_impl as importing
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise NotSupportedError(
            'webnn_py.onnx needs the package onnx: pip install "webnn-py[onnx]"'
        ) from error
    return importing
