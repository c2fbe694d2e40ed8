"""Export of greedy generation as a program file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np

from webnn_py.api.builder import MLGraphBuilder, recorded
from webnn_py.api.compiled import compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.decoding.layout import DecoderLayout
from webnn_py.api.session import Session
from webnn_py.core.dtypes import from_numpy
from webnn_py.core.errors import ValidationError, convert_memory_errors
from webnn_py.engines.reference import evaluate
from webnn_py.engines.webgpu.program.file import write_program
from webnn_py.engines.webgpu.program.source import GraphStep, Slot, Source
from webnn_py.ir import Descriptor, Graph
from webnn_py.ops.bind_sizes import fix
from webnn_py.ops.operand import MLOperand
from webnn_py.storage.archive import check_ending

ARGUMENTS = ("ids", "count", "position", "tokens")


@convert_memory_errors
def write_decoder(
    session: Session, layout: DecoderLayout, path: str | os.PathLike[str], length: int, steps: int
) -> None:
    """Compile the greedy loop over one row for all devices; save it as a program.

    Each step is three graphs: the first makes the decoder's inputs of the position and the text,
    the last takes the most likely token and moves the position on.

    Args:
        session: Session of the graph's context.
        layout: The roles of the graph's inputs and outputs.
        path: Path of the file.
        length: Number of tokens of a text.
        steps: Number of tokens that a run reads.

    Raises:
        ValidationError: The graph has several rows, or `path` ends in .onnx.
        NotSupportedError: A kernel would need more than WebGPU's default limits.
        FileError: The file cannot be written.
    """
    from webnn_py.engines.webgpu.compiler.programs import ProgramCompiler

    check_ending(path)
    keys = layout.keys or length
    decoder = _one_row(layout, keys)
    sizes = {"ids": length, "count": 1, "position": 1, "tokens": length}
    arguments = {name: Slot(Descriptor("int32", (size,)), name) for name, size in sizes.items()}
    buffers = {value.name: _buffer(value) for value in decoder.inputs}
    before = _recorded(session, arguments, lambda b, text: _inputs(b, layout, text, keys))
    logits = _buffer(dict(decoder.outputs)[layout.logits])
    read = {name: arguments[name] for name in ("position", "tokens")} | {"logits": logits}
    after = _recorded(session, read, _next_token)
    caches = {following: buffers[name] for name, following in layout.caches}
    made = {name: buffers[name] for name in layout.names.values()}
    moved = {name: arguments[name] for name in ("position", "tokens")}
    outputs = {name: caches.get(name) or _buffer(value) for name, value in decoder.outputs}
    outputs[layout.logits] = logits
    step = (
        GraphStep(before, _used(before, arguments), made),
        GraphStep(decoder, buffers, outputs),
        GraphStep(after, read, moved),
    )
    source = Source([arguments[name] for name in ARGUMENTS], [(step, steps)])
    write_program(ProgramCompiler(source, evaluate).complete_plan(), path)


def _one_row(layout: DecoderLayout, keys: int) -> Graph:
    """Return the decoder's graph for one token of one row."""
    if layout.batch not in (None, 1):
        raise ValidationError(
            f"compile_to: the graph has {layout.batch} rows, expected an open batch or one row"
        )
    compiled = compiled_of(layout.graph)
    ids, lengths = np.zeros([1, 1], np.int64), np.zeros(1, np.int64)
    inputs = layout.inputs(ids, lengths, keys) | layout.empty_row(keys)
    return fix(compiled.recipe, dict(compiled.fixed(inputs)[1]))


def _recorded(
    session: Session,
    inputs: Mapping[str, Slot],
    make: Callable[[MLGraphBuilder, Mapping[str, MLOperand]], dict[str, MLOperand]],
) -> Graph:
    builder = MLGraphBuilder(MLContext(session))
    operands = {
        name: builder.input(name, slot.descriptor.data_type, slot.descriptor.shape)
        for name, slot in inputs.items()
    }
    return recorded(builder, make(builder, operands))


def _inputs(
    b: MLGraphBuilder, layout: DecoderLayout, text: Mapping[str, MLOperand], keys: int
) -> dict[str, MLOperand]:
    """Return the decoder's inputs for the token at a position, by name."""
    position, one = text["position"], b.constant(np.ones(1, np.int32))
    zero = b.constant(np.zeros(1, np.int32))
    before = b.gather(text["tokens"], b.max(b.sub(position, one), zero))
    given = b.gather(text["ids"], position)
    token = b.where(b.lesser(position, text["count"]), given, before)
    places = b.constant(np.arange(keys, dtype=np.int32)[None])
    if layout.appends:
        seen = b.concat([b.lesser(places, position), b.constant(np.ones((1, 1), np.uint8))], 1)
    else:
        seen = b.lesser_or_equal(places, position)
    made = {
        "ids": b.reshape(token, [1, 1]),
        "mask": seen,
        "positions": b.reshape(position, [1, 1]),
        "lengths": position,
        "last": zero,
    }
    return {
        name: b.identity(b.cast(made[role], from_numpy(layout.types[role])))
        for role, name in layout.names.items()
    }


def _next_token(b: MLGraphBuilder, text: Mapping[str, MLOperand]) -> dict[str, MLOperand]:
    """Return the tokens with the most likely next one, and the next position."""
    position, tokens = text["position"], text["tokens"]
    logits = b.reshape(text["logits"], [text["logits"].shape[-1]])
    token = b.reshape(b.arg_max(logits, 0), [1])
    places = b.constant(np.arange(tokens.shape[0], dtype=np.int32))
    return {
        "tokens": b.where(b.equal(places, position), token, tokens),
        "position": b.add(position, b.constant(np.ones(1, np.int32))),
    }


def _buffer(value: Descriptor) -> Slot:
    return Slot(Descriptor(value.data_type, value.shape))


def _used(graph: Graph, slots: Mapping[str, Slot]) -> dict[str, Slot]:
    """Return the slots of the inputs that a graph has."""
    return {value.name: slots[value.name] for value in graph.inputs}
