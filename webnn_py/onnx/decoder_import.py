"""Import of an ONNX language model as a decoder; imported at the first call of `load_decoder`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from webnn_py.api.awaited import run_blocking
from webnn_py.api.builder import MLGraphBuilder, inputs_of
from webnn_py.api.context import MLContext
from webnn_py.api.decoding.decoder import MLDecoder
from webnn_py.api.decoding.layout import DecoderLayout, layout_of
from webnn_py.api.session import Session, session_of
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown
from webnn_py.ir import Array
from webnn_py.onnx.load_impl import imported, outputs
from webnn_py.onnx.model import Model
from webnn_py.ops.operand import MLOperand

ROLE_NAMES = {"ids": "input_ids", "mask": "attention_mask", "positions": "position_ids"}
"""Name of the input of each role in models of language."""
USES_CACHE = "use_cache_branch"
"""Input of merged decoders that tells prompts from later steps."""
WRITES_IN_PLACE = {"GroupQueryAttention", "TensorScatter"}
"""Operators that write new keys into a cache of constant length."""
PROBE_KEYS = 32
"""Cache length of a trial run, which finds out whether positions come from that length."""
BATCH, NEW, KEYS, LENGTHS, LAST = "batch", "new", "keys", "cache lengths", "last token"
"""Names of the graph's open dimensions and of its own inputs."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """Inputs and outputs of a model.

    Attributes:
        inputs: Shape of each input, by name.
        roles: Input name of each role.
        caches: Names of the input and of the output of each cache.
        logits: Name of the logits.
        constants: Inputs that are always the same.
    """

    inputs: dict[str, list[int | str | None]]
    roles: dict[str, str]
    caches: list[tuple[str, str]]
    logits: str
    constants: dict[str, Any]


def loaded(source: Any, ctx: MLContext, length: int, slots: int) -> MLDecoder:
    """Return the decoder of a model.

    Args:
        source: A path, the bytes of a file, or an onnx.ModelProto.
        ctx: The context that runs it.
        length: Number of tokens of a text.
        slots: Number of texts at once.

    Raises:
        MLError: As `load_decoder`.
    """
    model = Model(source)
    ends = _ends(model)
    appends = not any(node.op_type in WRITES_IN_PLACE for node in _nodes(model))
    shapes: dict[str, list[int | str]] = {
        name: [BATCH, NEW] for role, name in ends.roles.items() if role != "mask"
    }
    if "mask" in ends.roles:
        shapes[ends.roles["mask"]] = [BATCH, f"{KEYS} + {NEW}" if appends else KEYS]
    for name, _ in ends.caches:
        heads, _, size = ends.inputs[name][1:]
        shapes[name] = [BATCH, heads, KEYS, size]  # type: ignore[list-item]
    builder, made, _ = imported(ctx, model, shapes, ends.constants)
    found = outputs(builder, made)
    logits = found[ends.logits]
    if len(logits.shape) != 3:
        raise ValidationError(
            f"load_decoder: output {shown(ends.logits)} is {logits.data_type}{list(logits.shape)},"
            " expected logits [batch, sequence, vocabulary]"
        )
    inputs: dict[str, Any] = {**ends.roles, "caches": [name for name, _ in ends.caches]}
    last = builder.input(LAST, "int32", [1])
    inputs["last"] = LAST
    results = {"logits": builder.gather(logits, last, axis=1)}
    starts = None
    for name, following in ends.caches:
        cache = found[following]
        if appends:
            if starts is None:
                starts = builder.input(LENGTHS, "int32", [cache.shape[0]])
                inputs["lengths"] = LENGTHS
            cache = _stored(builder, inputs_of(builder)[name], cache, starts)
        results[f"{name} after"] = cache
    graph = builder.build_sync(results)
    after = [f"{name} after" for name in inputs["caches"]]
    layout = layout_of(graph, inputs, {"logits": "logits", "caches": after})
    if appends and "positions" not in ends.roles:
        _check_positions(session_of(ctx), layout)
    return MLDecoder(layout, length, slots)


def _stored(
    builder: MLGraphBuilder, past: MLOperand, both: MLOperand, starts: MLOperand
) -> MLOperand:
    """Write the new keys into the cache, which an engine may do in place.

    Args:
        builder: The builder.
        past: The old keys, [batch, heads, keys, size].
        both: Old and new keys, [batch, heads, keys + new, size].
        starts: Position of the first new key of each row, int32 [batch].
    """
    keys, total = past.shape[2], both.shape[2]
    new = [*both.shape[:2], total - keys, both.shape[3]]
    return builder.scatter_rows(past, builder.slice(both, [0, 0, keys, 0], new), starts)


def _check_positions(session: Session, layout: DecoderLayout) -> None:
    """Check that the model tells positions by its mask, not by the length of its caches.

    Raises:
        ValidationError: Tokens read one by one give other logits than all at once.
    """
    ids = np.array([[1, 2, 0]]) % layout.vocabulary
    one = _logits_after(session, layout, [ids])
    other = _logits_after(session, layout, [ids[:, :1], ids[:, 1:2], ids[:, 2:]])
    if not np.allclose(one, other, rtol=1e-2, atol=1e-2 * float(np.abs(one).max())):
        raise ValidationError(
            "load_decoder: the model takes the length of its caches for the position of a token,"
            f" and caches have a constant length here; export it with {ROLE_NAMES['positions']!r}"
        )


def _logits_after(session: Session, layout: DecoderLayout, pieces: Iterable[Array]) -> Array:
    """Return the logits after a text in pieces, each [1, new]."""
    caches = layout.empty_row(PROBE_KEYS)
    length, logits = 0, np.empty(0)
    for ids in pieces:
        inputs = layout.inputs(ids, np.array([length]), PROBE_KEYS) | caches
        made = run_blocking(session, layout.graph, inputs, {})
        caches = {name: made[following] for name, following in layout.caches}
        length, logits = length + ids.shape[1], made[layout.logits]
    return logits


def _ends(model: Model) -> _Ends:
    """Find a model's inputs and outputs by their names and shapes.

    Raises:
        ValidationError: Some are missing, or have no known role; the message lists all.
    """
    inputs = {value.name: _shape(value) for value in model.inputs}
    results = [value.name for value in model.graph.output]
    roles = {role: name for role, name in ROLE_NAMES.items() if name in inputs}
    pasts = [name for name in inputs if name.startswith("past") and len(inputs[name]) == 4]
    caches: list[tuple[str, str]] = []
    wrong: list[str] = []
    if "ids" not in roles:
        wrong.append(f"an input {ROLE_NAMES['ids']!r} [batch, sequence]")
    if not pasts:
        wrong.append("inputs 'past_key_values.0.key' [batch, heads, past, size] and so on")
    for name in pasts:
        following = [other for other in _following(name) if other in results]
        if not following:
            wrong.append(f"an output {_following(name)[0]!r} for the input {name!r}")
        else:
            caches.append((name, following[0]))
        if not all(isinstance(inputs[name][axis], int) for axis in (1, 3)):
            wrong.append(f"the numbers of heads and of elements in {name!r} {inputs[name]}")
    opens = {name: inputs[name][:2] for name in roles.values()}
    opens |= {name: inputs[name][:3:2] for name in pasts}
    for name, sizes in opens.items():
        if any(isinstance(size, int) for size in sizes):
            wrong.append(f"an open batch and an open length of {name!r} {inputs[name]}")
    others = [name for name in results if name not in {one for _, one in caches}]
    logits = "logits" if "logits" in others else next(iter(others), "")
    if "logits" not in others and len(others) != 1:
        wrong.append("an output 'logits' [batch, sequence, vocabulary]")
    constants = {USES_CACHE: np.ones(1, bool)} if USES_CACHE in inputs else {}
    known = {*roles.values(), *pasts, *constants}
    wrong += [f"a meaning of the input {shown(name)}" for name in inputs if name not in known]
    if wrong:
        raise ValidationError(
            "load_decoder: the model is no decoder with caches; it lacks "
            + ", ".join(wrong)
            + f"; it has inputs {', '.join(map(shown, inputs))} and outputs"
            f" {', '.join(map(shown, results))}"
        )
    return _Ends(inputs, roles, caches, logits, constants)


def _following(name: str) -> list[str]:
    """Return the names that the output of a cache may have."""
    return [re.sub(f"^{old}", "present", name) for old in ("past_key_values", "past")]


def _shape(value: Any) -> list[int | str | None]:
    sizes = value.type.tensor_type.shape.dim
    return [
        size.dim_value if size.HasField("dim_value") else size.dim_param or None for size in sizes
    ]


def _nodes(model: Model) -> Iterable[Any]:
    """Yield the nodes of a model's graph and functions, those of inner graphs too."""
    todo: list[Any] = [model.graph, *model.functions.values()]
    while todo:
        for node in todo.pop().node:
            yield node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    todo.append(attribute.g)
