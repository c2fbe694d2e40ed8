"""DecoderLayout: which inputs and outputs of a graph are the tokens, the caches and the logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webnn_py.api.compiled import compiled_of
from webnn_py.api.graph import MLGraph
from webnn_py.core import convert, dtypes
from webnn_py.core.dtypes import MLOperandDataType
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown, suggestion
from webnn_py.ir import Array, Descriptor

ROLES = {
    "ids": "the tokens to read, [batch, new]",
    "caches": "the caches, each [batch, heads, length, size]; the length may be open",
    "mask": "1 for every key that a token may see, [batch, length] or [batch, length + new]",
    "positions": "the position of each token, [batch, new]",
    "lengths": "the number of keys in each row before the step, [batch]",
    "last": "the index of the token whose logits are wanted, [1]",
}
"""Inputs of a decoder, by role; all but the first two are optional."""


@dataclass(frozen=True, slots=True)
class DecoderLayout:
    """The roles of a decoder's inputs and outputs.

    Attributes:
        graph: The graph.
        names: Input name of each role but the caches.
        types: NumPy data type of each of these inputs, by role.
        caches: Names of the input and of the output of each cache.
        heads: Data type, number of heads, and elements of a key, of each cache.
        logits: Name of the logits.
        keys: Number of keys in a row of the caches; None if it is open.
        vocabulary: Number of tokens.
        batch: Fixed size of the batch; None if it is open.
        one_by_one: Whether a step reads one token of each row.
        appends: Whether the mask counts the new keys behind the whole cache.
    """

    graph: MLGraph
    names: Mapping[str, str]
    types: Mapping[str, np.dtype[Any]]
    caches: Sequence[tuple[str, str]]
    heads: Sequence[tuple[MLOperandDataType, int, int]]
    logits: str
    keys: int | None
    vocabulary: int
    batch: int | None
    one_by_one: bool
    appends: bool

    def rows(self, keys: int) -> list[Descriptor]:
        """Return the descriptor of a row of each cache with so many keys."""
        return [Descriptor(kind, (count, keys, size)) for kind, count, size in self.heads]

    def empty_row(self, keys: int) -> dict[str, Array]:
        """Return caches of zeros with one row, by input name."""
        return {
            name: np.zeros([1, *row.shape], dtypes.DTYPES[row.data_type].numpy)
            for (name, _), row in zip(self.caches, self.rows(keys), strict=True)
        }

    def inputs(self, ids: Array, lengths: Array, keys: int) -> dict[str, Array]:
        """Return the inputs of a step but for the caches.

        Args:
            ids: The tokens to read, [batch, new].
            lengths: Number of keys of each row before the step, [batch].
            keys: Number of keys in a row of the caches.
        """
        new = ids.shape[1]
        made = {"ids": ids}
        if "mask" in self.names:
            made["mask"] = self._mask(lengths, new, keys)
        if "positions" in self.names:
            made["positions"] = lengths[:, None] + np.arange(new)
        made |= {"lengths": lengths, "last": np.array([new - 1])}
        return {
            name: np.ascontiguousarray(made[role], self.types[role])
            for role, name in self.names.items()
        }

    def _mask(self, lengths: Array, new: int, keys: int) -> Array:
        if not self.appends:
            return np.arange(keys) < lengths[:, None] + new
        mask = np.ones((len(lengths), keys + new), bool)
        mask[:, :keys] = np.arange(keys) < lengths[:, None]
        return mask


def layout_of(graph: object, inputs: object, outputs: object) -> DecoderLayout:
    """Return the checked layout of a graph.

    Args:
        graph: The graph.
        inputs: Name of the input of each role, and the list of names of the caches.
        outputs: Name of the "logits", and the list of names of the "caches" in the same order.

    Raises:
        ValidationError: A role or name is unknown or missing, or a shape or type does not fit.
        InvalidStateError: The graph is destroyed.
    """
    compiled = compiled_of(graph)
    compiled.check_usable(compiled.session)
    assert isinstance(graph, MLGraph)
    given, made = convert.mapping(inputs, "inputs"), convert.mapping(outputs, "outputs")
    _check_roles(given, ROLES, ("ids", "caches"), "inputs")
    _check_roles(made, ("logits", "caches"), ("logits", "caches"), "outputs")
    before, after = (
        convert.string_list(one["caches"], f"{kind}['caches']")
        for kind, one in (("inputs", given), ("outputs", made))
    )
    names = {role: str(name) for role, name in given.items() if role != "caches"}
    _check_names([*names.values(), *before], graph.inputs, "inputs")
    _check_names([str(made["logits"]), *after], graph.outputs, "outputs")
    left = [name for name in graph.inputs if name not in {*names.values(), *before}]
    if left:
        raise ValidationError(
            f"inputs: the graph's input {shown(left[0])} has no role; roles are {', '.join(ROLES)}"
        )
    if len(before) != len(after) or not before:
        raise ValidationError(
            f"caches: got {len(before)} inputs and {len(after)} outputs, expected as many of each,"
            " at least one"
        )
    return _checked(graph, names, list(zip(before, after, strict=True)), str(made["logits"]))


def _checked(
    graph: MLGraph, names: Mapping[str, str], caches: list[tuple[str, str]], logits: str
) -> DecoderLayout:
    """Return the layout, after checking shapes and data types."""
    ids = graph.inputs[names["ids"]].shape
    if len(ids) != 2:
        raise ValidationError(
            f"ids: input {shown(names['ids'])} is {list(ids)}, expected [batch, new]"
        )
    batch, new = (size if isinstance(size, int) else None for size in ids)
    if new not in (None, 1) or (batch is not None and batch > 1 and new is None):
        raise ValidationError(
            f"ids: input {shown(names['ids'])} is {list(ids)}, expected an open number of tokens"
            " with an open batch or a batch of 1, or one token"
        )
    keys, heads = _checked_caches(graph, caches, ids[0])
    for role, name in names.items():
        if dtypes.DTYPES[graph.inputs[name].data_type].kind not in "iu":
            raise ValidationError(
                f"{role}: input {shown(name)} is {graph.inputs[name]}, expected integers:"
                f" {ROLES[role]}"
            )
    made = graph.outputs[logits]
    vocabulary = made.shape[-1] if made.shape else None
    if len(made.shape) not in (2, 3) or not isinstance(vocabulary, int):
        raise ValidationError(
            f"logits: output {shown(logits)} is {made}, expected [batch, vocabulary] or [batch,"
            " new, vocabulary]"
        )
    mask = graph.inputs[names["mask"]].shape if "mask" in names else (None, keys)
    types = {role: dtypes.DTYPES[graph.inputs[n].data_type].numpy for role, n in names.items()}
    return DecoderLayout(
        graph=graph,
        names=names,
        types=types,
        caches=caches,
        heads=heads,
        logits=logits,
        keys=keys if isinstance(keys, int) else None,
        vocabulary=vocabulary,
        batch=batch,
        one_by_one=new == 1,
        appends=mask[-1] != keys,
    )


def _checked_caches(
    graph: MLGraph, caches: list[tuple[str, str]], batch: int
) -> tuple[Any, list[tuple[MLOperandDataType, int, int]]]:
    """Return the number of keys of the caches, and the data type, heads and size of each."""
    heads: list[tuple[MLOperandDataType, int, int]] = []
    first = graph.inputs[caches[0][0]].shape
    keys: Any = first[2] if len(first) == 4 else "length"
    for name, following in caches:
        one, other = graph.inputs[name], graph.outputs[following]
        if one != other:
            raise ValidationError(
                f"caches: input {shown(name)} is {one} and output {shown(following)} {other};"
                " expected the same of both"
            )
        shape = one.shape
        fits = len(shape) == 4 and shape[0] == batch and shape[2] == keys
        if not fits or not all(isinstance(size, int) for size in shape[1::2]):
            raise ValidationError(
                f"caches: input {shown(name)} is {one}, expected [{batch}, heads, {keys}, size]"
            )
        heads.append((one.data_type, shape[1], shape[3]))
    return keys, heads


def _check_roles(given: Mapping[Any, Any], known: Any, needed: Sequence[str], kind: str) -> None:
    unknown = [role for role in given if role not in known]
    if unknown:
        raise ValidationError(
            f"{kind}: unknown role {shown(unknown[0])}; roles are {', '.join(known)}"
            f"{suggestion(str(unknown[0]), list(known))}"
        )
    missing = [role for role in needed if role not in given]
    if missing:
        raise ValidationError(f"{kind}: {', '.join(map(shown, missing))} is missing")


def _check_names(names: Sequence[str], known: Mapping[str, Any], kind: str) -> None:
    for name in names:
        if name not in known:
            raise ValidationError(
                f"{kind}: the graph has no {kind[:-1]} {shown(name)}; it has"
                f" {', '.join(map(shown, known))}{suggestion(name, list(known))}"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ValidationError(f"{kind}: {shown(twice)} has two roles")
