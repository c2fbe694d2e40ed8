"""Import of ONNX models as graphs, and export of graphs as ONNX models; needs the extra `onnx`.

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
    from webnn_py.api.decoding.decoder import MLDecoder
    from webnn_py.onnx.inputs import InputShapes

__all__ = ["add_to", "load", "load_decoder", "to_onnx"]


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
    """Build a graph from an ONNX model.

    Bools become uint8 tensors of 0 and 1. Node names become labels, and constants keep the names
    of their initializers. Dimensions that the model leaves open stay open in the graph and keep
    their names. A dimension without a name is named after its input and axis. The importer narrows
    the bounds of open dimensions to the sizes that all nodes accept.

    Args:
        path_or_model: A path, the bytes of a file, or an onnx.ModelProto.
        ctx: The context that runs the graph.
        input_shapes: Shapes by input name, and sizes or bounds (lowest, highest) by dimension
            name. Within a shape, -1 or the name of a size leaves a dimension open.
        constants: Arrays by input name, for inputs whose contents never change, such as a sampling
            rate that selects a branch. The graph has no such inputs.
        progress: The same as of `MLGraphBuilder.build_sync`.

    Raises:
        NotSupportedError: WebNN cannot express some nodes, all listed in one message; or the extra
            `onnx` is not installed.
        DataError: The model is damaged, contradicts itself, or lacks its external data.
        ValidationError: `input_shapes` or `constants` do not match the model's inputs and
            dimensions; or neither the model nor `input_shapes` has the shape of an input.

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
    """Add the nodes of an ONNX model to a graph builder.

    Args:
        builder: The builder that receives the nodes.
        model: A path, the bytes of a file, or an onnx.ModelProto. Its open dimensions become the
            builder's dimensions of the same names.
        inputs: Operands or arrays by input name. An operand replaces the input, and an array makes
            it a constant. All other inputs become inputs of the builder.

    Returns:
        The operands of the model's outputs, by name.

    Raises:
        MLError: The same errors as `load`. Also a ValidationError if an operand or array has
            another data type than the input, or `builder` is no MLGraphBuilder.

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


@suggest_options
@convert_memory_errors
def load_decoder(model: Any, ctx: MLContext, length: int = 2048, slots: int = 8) -> MLDecoder:
    """Make a decoder from an ONNX language model with caches.

    It takes models as the builder of onnxruntime-genai and optimum export them: inputs
    `input_ids`, `past_key_values.N.key` and `.value` [batch, heads, past, size], optionally
    `attention_mask` and `position_ids`; outputs `logits`, `present.N.key` and `.value`.

    Args:
        model: A path, the bytes of a file, or an onnx.ModelProto.
        ctx: The context that runs it.
        length: Number of tokens that each text has room for.
        slots: Number of texts in the caches at once; others wait.

    Raises:
        ValidationError: The model is no decoder with caches; the message lists what it lacks. Or
            `length` or `slots` is out of range.
        NotSupportedError: The same as of `load`.
        DataError: The same as of `load`.
        OperationError: There is no memory for the caches.

    Source: webnn_py, spec/execution.md, "Decoders".
    """
    for name, value in (("length", length), ("slots", slots)):
        if convert.unsigned(value, f"load_decoder: {name}") < 1:
            raise ValidationError(f"load_decoder: {name}: got {value}, expected at least 1")
    _importer()
    importing: Any = importlib.import_module("webnn_py.onnx.decoder_import")
    decoder: MLDecoder = importing.loaded(model, ctx, int(length), int(slots))
    return decoder


def to_onnx(graph: MLGraph) -> Any:
    """Convert a graph to an onnx.ModelProto.

    Args:
        graph: The graph to export.

    Raises:
        NotSupportedError: ONNX cannot express the graph; or the extra `onnx` is not installed.

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
