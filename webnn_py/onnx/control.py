"""Import of control flow: If selects a branch at import or runs both; Loop and Scan unroll."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from webnn_py.core.dimensions import is_dimension
from webnn_py.onnx.tensor import (
    BrokenModelError,
    NarrowerError,
    Tensor,
    UnknownValueError,
    UnmappableError,
    axis_in,
    check_rank,
    element_name,
    listed,
    of_array,
)

MAX_ROUNDS = 10_000


@dataclass(frozen=True, slots=True)
class ControlNode:
    """A node of control flow to import.

    Attributes:
        importer: The importer.
        node: The onnx.NodeProto.
        inputs: Its inputs.
        scope: The tensors by name that its subgraphs may read.
        opsets: The versions of the model's operator sets.
        needed: For each output, whether anything reads it.
    """

    importer: Any
    node: Any
    inputs: Sequence[Any]
    scope: Any
    opsets: Mapping[str, int]
    needed: Any

    def graph(self, name: str) -> Any:
        """Return the subgraph of an attribute."""
        return next(one.g for one in self.node.attribute if one.name == name)

    def run(self, graph: Any, inputs: Sequence[Any] = ()) -> list[Any]:
        """Import a subgraph once, and return its results."""
        made: list[Any] = self.importer.subgraph(
            graph, self.scope, self.opsets, inputs, self.needed
        )
        return made


def branch(c: ControlNode) -> Sequence[Any]:
    """Import If: one branch of a constant condition, or both branches and a `where`.

    The branches of an unknown condition never narrow the bounds of open dimensions: the other
    branch may handle the remaining sizes.
    """
    names = ["then_branch", "else_branch"]
    try:
        names = [names[not c.inputs[0].number("its condition")]]
    except UnknownValueError as unknown:
        try:
            one, other = (c.run(c.graph(name)) for name in names)
        except NarrowerError:
            raise unknown from None
        if len(one) != len(other) or not all(map(_are_alike, one, other)):
            raise unknown from None
        emitter = c.importer.emitter
        condition = emitter.moved(c.inputs[0], ())
        return [
            a if a is None or _have_same_contents(a, b) else emitter.where(condition, a, b)
            for a, b in zip(one, other, strict=True)
        ]
    return c.run(c.graph(names[0]))


def _are_alike(one: Any, other: Any) -> bool:
    if one is None and other is None:
        return True  # neither output is read
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False  # WebNN cannot express one of the branches
    return (one.elem, one.shape) == (other.elem, other.shape)


def _have_same_contents(one: Tensor, other: Tensor) -> bool:
    """Return whether both tensors have contents at import, and the contents are equal."""
    for a, b in ((one.array, other.array), (one.sizes, other.sizes)):
        if a is not None and b is not None:
            return a.tobytes() == b.tobytes() if a.dtype != object else a.tolist() == b.tolist()
    return False


def loop(c: ControlNode) -> Sequence[Any]:
    """Import Loop: unroll its body; the condition must be a constant in every iteration."""
    body = c.graph("body")
    trips, condition, *carried = [*c.inputs, None, None][: max(len(c.inputs), 2)]
    most = MAX_ROUNDS + 1 if trips is None else trips.integer("its trip count")
    goes_on = condition is None or bool(condition.number("its condition"))
    if goes_on and _always_goes_on(body):
        c.importer.check_count(min(most, MAX_ROUNDS) * _unrolled(body, c.scope))
    collected: list[list[Tensor]] = [[] for _ in body.output[1 + len(carried) :]]
    count = 0
    while goes_on and count < most:
        _check_rounds(count + 1)
        given = [of_array(np.asarray(count, np.int64)), of_array(np.asarray(True)), *carried]
        again, *made = c.run(body, given)
        if not isinstance(again, Tensor):
            raise UnmappableError("its body cannot be mapped")
        goes_on = bool(again.number("its condition"))
        carried, scanned = made[: len(carried)], made[len(carried) :]
        for rows, one in zip(collected, scanned, strict=True):
            rows.append(one)
        count += 1
    wanted = c.needed[1 + len(carried) :]
    stacked = (
        _stacked(c.importer, rows) if w else None for rows, w in zip(collected, wanted, strict=True)
    )
    return [*carried, *stacked]


def _always_goes_on(body: Any) -> bool:
    """Return whether the body of a Loop returns its input condition unchanged."""
    given = {body.input[1].name} if len(body.input) > 1 else set()
    for node in body.node:
        if node.op_type == "Identity" and given & {*node.input}:
            given |= {*node.output}
    return bool(body.output) and body.output[0].name in given


def _unrolled(graph: Any, scope: Any) -> int:
    """Estimate the nodes of a graph with its loops unrolled; an unknown trip count counts as 1."""
    count = 0
    for node in graph.node:
        count += 1
        bodies = [one.g for one in node.attribute if one.name == "body"]
        if node.op_type == "Loop" and len(node.input) > 1 and bodies:
            body = bodies[0]
            known = _always_goes_on(body) and _number(node.input[1], scope, 1)
            rounds = _number(node.input[0], scope, 1) if known else 1
            count += max(0, min(rounds, MAX_ROUNDS)) * _unrolled(body, scope)
    return count


def _number(name: str, scope: Any, otherwise: int) -> int:
    """Return the constant integer that a name refers to in `scope`, or else `otherwise`."""
    found = scope[name] if name in scope else None  # noqa: SIM401, as get() reads no weights
    array = found.array if isinstance(found, Tensor) else None
    if array is None or array.size != 1 or array.dtype.kind not in "biu":
        return otherwise
    return int(array.item())


def scan(c: ControlNode) -> Sequence[Any]:
    """Import Scan: unroll its body, once for each slice of its inputs."""
    return _scan_8(c) if c.opsets[""] < 9 else _scanned(c)


def _check_rounds(count: Any) -> None:
    if is_dimension(count):
        raise UnmappableError(f"it goes round an open number of times, {count}")
    if count > MAX_ROUNDS:
        raise UnmappableError(f"it goes round more than {MAX_ROUNDS} times")


def _check_scanned(count: int, inputs: Sequence[Any]) -> None:
    if not 1 <= count <= len(inputs):
        raise BrokenModelError(f"its num_scan_inputs is {count}, expected 1 to {len(inputs)}")
    if any(one is None for one in inputs[-count:]):
        raise BrokenModelError("it lacks one of its scan inputs")


def _scanned(c: ControlNode) -> Sequence[Any]:
    importer, inputs = c.importer, c.inputs
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in c.node.attribute}
    body, count = attributes["body"], attributes["num_scan_inputs"]
    _check_scanned(count, inputs)
    carried, scanned = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    made = len(body.output) - len(carried)
    if made < 0:
        raise BrokenModelError(
            f"its body has {len(body.output)} outputs, expected at least {len(carried)}"
        )

    def each(name: str, number: int) -> list[int]:
        return listed(name, attributes.get(name) or [0] * number, number)

    input_axes, backward = each("scan_input_axes", count), each("scan_input_directions", count)
    output_axes = each("scan_output_axes", made)
    output_backward = each("scan_output_directions", made)
    axes = [one.axis(axis) for axis, one in zip(input_axes, scanned, strict=True)]
    lengths = [one.shape[axis] for axis, one in zip(axes, scanned, strict=True)]
    rounds = lengths[0]
    if any(length != rounds for length in lengths):
        raise BrokenModelError(f"its scan inputs have {lengths} elements, expected as many each")
    _check_rounds(rounds)
    collected: list[list[Tensor]] = [[] for _ in range(made)]
    if type(rounds) is int:
        importer.check_count(rounds * _unrolled(body, c.scope))
    for i in range(rounds):
        places = [rounds - 1 - i if b else i for b in backward]
        slices = [
            _taken(importer, one, axis, place)
            for one, axis, place in zip(scanned, axes, places, strict=True)
        ]
        results = c.run(body, [*carried, *slices])
        carried = results[: len(carried)]
        for rows, one, b in zip(collected, results[len(carried) :], output_backward, strict=True):
            rows.insert(0 if b else len(rows), one)
    stacked = [
        _stacked(importer, rows, axis) if wanted else None
        for rows, axis, wanted in zip(collected, output_axes, c.needed[len(carried) :], strict=True)
    ]
    return [*carried, *stacked]


def _scan_8(c: ControlNode) -> Sequence[Any]:
    """Import Scan of opset 8: each batch separately; all sequences must have one length."""
    lengths, *batched = c.inputs
    attributes = {a.name: a for a in c.node.attribute}
    first = onnx.NodeProto(attribute=[attributes[n] for n in ("body", "num_scan_inputs")])
    if "directions" in attributes:
        first.attribute.append(attributes["directions"])
        first.attribute[-1].name = "scan_input_directions"
    count = attributes["num_scan_inputs"].i
    _check_scanned(count, batched)
    check_rank(2, 10, scanned=batched[-count])
    check_rank(1, 10, **{f"input {i}": one for i, one in enumerate(batched)})
    longest = batched[-count].shape[1]
    batches = batched[-count].shape[0]
    if any(one is not None and one.shape[0] != batches for one in batched):
        raise BrokenModelError(f"its inputs have other numbers of batches than {batches}")
    if lengths is not None and set(lengths.integers("sequence_lens")) != {longest}:
        raise UnmappableError("sequences of different lengths")
    made = []
    _check_rounds(batches)
    for b in range(batches):
        given = [None if one is None else _taken(c.importer, one, 0, b) for one in batched]
        made.append(_scanned(replace(c, node=first, inputs=given)))
    return [
        _stacked(c.importer, rows) if wanted else None
        for rows, wanted in zip(zip(*made, strict=True), c.needed, strict=True)
    ]


def _taken(importer: Any, tensor: Tensor, axis: int, place: int) -> Tensor:
    if tensor.array is not None:
        return of_array(np.take(tensor.array, place, axis))
    starts = [place if i == axis else 0 for i in range(tensor.rank)]
    sizes = [1 if i == axis else n for i, n in enumerate(tensor.shape)]
    part = importer.emitter.slice(tensor, starts, sizes)
    shape = [n for i, n in enumerate(tensor.shape) if i != axis]
    taken: Tensor = importer.emitter.reshape(part, shape)
    return taken


def _stacked(importer: Any, rows: Sequence[Any], axis: int = 0) -> Tensor:
    if not rows:
        raise UnmappableError("it collects nothing: WebNN has no tensors without elements")
    if not all(isinstance(row, Tensor) for row in rows):
        raise UnmappableError("its body cannot be mapped")
    if not all(_are_alike(row, rows[0]) for row in rows):
        shapes = ", ".join(dict.fromkeys(f"{element_name(r.elem)} {list(r.shape)}" for r in rows))
        raise BrokenModelError(f"what it collects has several types: {shapes[:200]}")
    at = axis_in(axis, rows[0].rank + 1)
    known = [row.array for row in rows if row.array is not None]
    if len(known) == len(rows) and importer.emitter.affords(sum(one.size for one in known)):
        return of_array(np.stack(known, at))
    shape = [*rows[0].shape[:at], 1, *rows[0].shape[at:]]
    parts = [importer.emitter.reshape(row, shape) for row in rows]
    stacked: Tensor = importer.emitter.concat(parts, at) if len(parts) > 1 else parts[0]
    return stacked


CONTROL: dict[str, Callable[[ControlNode], Sequence[Any]]] = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
}
