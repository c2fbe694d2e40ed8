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
    bounds: Mapping[str, int] | None = None,
    progress: BuildProgress | None = None,
) -> MLGraph:
    """Build a graph from an ONNX model.

    Bools become uint8 tensors of 0 and 1. Node names become labels, and constants keep the names
    of their initializers. Dimensions that the model leaves open stay open in the graph and keep
    their names. A dimension without a name is named after its input and axis. The importer narrows
    the bounds of open dimensions to the sizes that all nodes accept. What a node draws at random
    becomes an input, `NODE:noise`: normal for RandomNormal, else uniform from 0 to below 1.

    Args:
        path_or_model: A path, the bytes of a file, or an onnx.ModelProto.
        ctx: The context that runs the graph.
        input_shapes: Shapes by input name, and sizes or bounds (lowest, highest) by dimension
            name. Within a shape, -1 or the name of a size leaves a dimension open.
        constants: Arrays by input name, for inputs whose contents never change, such as a sampling
            rate that selects a branch. The graph has no such inputs.
        bounds: Highest sizes by node name, for nodes whose contents decide a size, such as NonZero,
            Range or TopK. A run that exceeds one is a DataError.
        progress: The same as of `MLGraphBuilder.build_sync`.

    Raises:
        NotSupportedError: WebNN cannot express some nodes, all listed in one message; or the extra
            `onnx` is not installed.
        DataError: The model is damaged, contradicts itself, or lacks its external data.
        ValidationError: `input_shapes` or `constants` do not match the model's inputs and
            dimensions; or neither the model nor `input_shapes` has the shape of an input.

    Examples:
        ```python
        from pathlib import Path

        import numpy as np

        from webnn_py import MLExecution, MLGraphBuilder, ml
        from webnn_py.onnx import load, to_onnx

        ctx = ml.create_context_sync(device_type="cpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", ["batch", 2])
        model = to_onnx(b.build_sync({"y": b.add(x, x)}))
        Path("model.onnx").write_bytes(model.SerializeToString())

        graph = load("model.onnx", ctx, input_shapes={"batch": (1, 8)})
        print(MLExecution(ctx).compute(graph, {"x": np.float32([[1, 2]])})["y"])  # [[2. 4.]]
        ```

    Source: webnn_py; ONNX, "Open Neural Network Exchange Intermediate Representation".
    """
    importing = _importer()
    shapes = {} if input_shapes is None else convert.mapping(input_shapes, "onnx: input_shapes")
    model = importing.Model(path_or_model)
    known = {} if constants is None else convert.mapping(constants, "onnx: constants")
    highest = {} if bounds is None else convert.mapping(bounds, "onnx: bounds")
    graph: MLGraph = with_progress(progress, importing.built, ctx, model, shapes, known, highest)
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

    Examples:
        ```python
        from pathlib import Path

        import numpy as np

        from webnn_py import MLExecution, MLGraphBuilder, ml
        from webnn_py.onnx import add_to, to_onnx

        ctx = ml.create_context_sync(device_type="cpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", ["batch", 2])
        model = to_onnx(b.build_sync({"y": b.add(x, x)}))
        Path("model.onnx").write_bytes(model.SerializeToString())

        b = MLGraphBuilder(ctx)
        x = b.input("photo", "uint8", [1, 2])
        outputs = add_to(b, "model.onnx", {"x": b.cast(x, "float32")})
        graph = b.build_sync(outputs)
        print(MLExecution(ctx).compute(graph, {"photo": np.uint8([[1, 2]])})["y"])  # [[2. 4.]]
        ```

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

    Examples:
        ```python
        import numpy as np
        import onnx

        from webnn_py import ml
        from webnn_py.onnx import load_decoder

        model = onnx.parser.parse_model(
            '''<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
            decoder (
                int64[batch, new] input_ids, int64[batch, total] attention_mask,
                float[batch, 2, past, 8] past_key_0, float[batch, 2, past, 8] past_value_0
            ) => (
                float[batch, new, 99] logits,
                float[batch, 2, p, 8] present_key_0, float[batch, 2, p, 8] present_value_0
            ) {
                x = Gather (embeddings, input_ids)
                packed = MatMul (x, projection)
                lengths = ReduceSum <keepdims = 0> (attention_mask, last_axis)
                last = Add (lengths, minus_one)
                last_key = Cast <to = 6> (last)
                total = Shape <start = 1> (attention_mask)
                keys = Cast <to = 6> (total)
                y, present_key_0, present_value_0 = com.microsoft.GroupQueryAttention
                    <num_heads = 4, kv_num_heads = 2>
                    (packed, , , past_key_0, past_value_0, last_key, keys)
                logits = MatMul (y, head)
            }'''
        )
        rng = np.random.default_rng(0)
        sizes = {"embeddings": (99, 32), "projection": (32, 64), "head": (32, 99)}
        arrays = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
        arrays |= {"last_axis": np.array([1]), "minus_one": np.array(-1)}
        for name, array in arrays.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))

        ctx = ml.create_context_sync(device_type="cpu")
        decoder = load_decoder(model, ctx, length=64, slots=4)
        print(len(list(decoder.generate_sync([3, 1, 4], max_tokens=5))))  # 5
        ```

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

    Examples:
        ```python
        from pathlib import Path

        from webnn_py import MLGraphBuilder, ml
        from webnn_py.onnx import to_onnx

        ctx = ml.create_context_sync(device_type="cpu")
        b = MLGraphBuilder(ctx)
        x = b.input("x", "float32", ["batch", 2])
        model = to_onnx(b.build_sync({"y": b.add(x, x)}))
        Path("model.onnx").write_bytes(model.SerializeToString())
        ```

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
