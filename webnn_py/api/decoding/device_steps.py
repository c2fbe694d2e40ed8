"""DeviceSteps: a decoder's runs on a device, dispatched over the same tensors each time.

One run may read several tokens of each row: a second graph chooses the next tokens and makes the
next step's inputs of them, so that nothing is read back in between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from webnn_py.api import tensor_operations
from webnn_py.api.builder import MLGraphBuilder
from webnn_py.api.compiled import compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.decoding.cache_rows import CacheRows
from webnn_py.api.decoding.device_sampling import Draw, drawn_token
from webnn_py.api.decoding.layout import DecoderLayout
from webnn_py.api.graph import MLGraph
from webnn_py.api.session import Session
from webnn_py.api.tensor import MLTensor, memory_of, repeated
from webnn_py.core.dtypes import MLOperandDataType, from_numpy
from webnn_py.core.errors import ValidationError
from webnn_py.ir import Array, Shape
from webnn_py.ops.operand import MLOperand

MAX_SIZES = 64
"""Runs of other rows or sizes whose tensors are kept: prompts are read in seven sizes a row."""
MAX_CHOICES = 8
"""Ways to choose tokens whose tensors and graphs are kept for runs of one size."""
MAX_STEPS = 8
"""Steps of one submission: a client that comes waits for two submissions at most."""
PART_BYTES = 256
"""Parts of a tensor begin at multiples of so many bytes, as devices bind them."""
OPTIONS = ("temperature", "top_k", "top_p", "penalty")
FLAGS = {"readable": True, "writable": True, "exportable": False}


class _Dispatch:
    """A dispatch of a graph over fixed tensors, whose arguments are checked once.

    Args:
        session: Session of the context.
        graph: The graph.
        inputs: A tensor for each input, by name.
        outputs: A tensor for each output, by name.
    """

    def __init__(
        self,
        session: Session,
        graph: MLGraph,
        inputs: Mapping[str, MLTensor],
        outputs: Mapping[str, MLTensor],
    ) -> None:
        self._session = session
        self._compiled = compiled = compiled_of(graph)
        compiled.check_usable(session)
        signature, self._sizes = compiled.fixed(inputs, ValidationError)
        self._given = signature.on_tensors(session, inputs, outputs, compiled.bound)
        known = repeated(inputs, outputs)
        self._key: Hashable = None if known is None else known.key

    def submit(self) -> None:
        """Submit the dispatch."""
        session, given = self._session, self._given
        executables = self._compiled.check_usable(session)
        executable, queue = executables.get(self._sizes).executable, session.queue
        run = queue.repeat(executable, self._key)
        if run is None:
            run = queue.dispatch(executable, given.inputs, given.outputs, self._key)
        title = self._compiled.signature.title
        tensor_operations.submit(session, title, run, given.reads, given.writes)


class _Step:
    """The tensors of steps of one size.

    Args:
        session: Session of the context.
        layout: The roles of the graph's inputs and outputs.
        caches: The rows of the caches.
        given: Inputs of a step but for the caches, by name.
        count: Number of rows.
    """

    def __init__(
        self,
        session: Session,
        layout: DecoderLayout,
        caches: list[MLTensor],
        given: Mapping[str, Array],
        count: int,
    ) -> None:
        self._session = session
        self._layout = layout
        self._count = count
        self._caches = caches
        self.inputs = {
            name: self.tensor(from_numpy(array.dtype), array.shape) for name, array in given.items()
        }
        compiled = compiled_of(layout.graph)
        names = [name for name, _ in layout.caches]
        everything = {**self.inputs, **dict(zip(names, caches, strict=True))}
        signature, _ = compiled.fixed(everything)
        made = signature.outputs[layout.logits]
        self.logits = self.tensor(made.data_type, made.shape)
        self._decode = self._decoder(self.inputs)
        self._ahead: dict[Hashable, AheadSteps] = {}

    def tensor(self, data_type: MLOperandDataType, shape: Shape) -> MLTensor:
        """Make a tensor."""
        return tensor_operations.create(self._session, data_type, shape, FLAGS)

    def _decoder(self, given: Mapping[str, MLTensor]) -> _Dispatch:
        inputs, outputs = dict(given), {self._layout.logits: self.logits}
        for (name, following), cache in zip(self._layout.caches, self._caches, strict=True):
            inputs[name] = outputs[following] = cache
        return _Dispatch(self._session, self._layout.graph, inputs, outputs)

    def run(self, given: Mapping[str, Array]) -> Array:
        """Run a step; return its logits."""
        write(self._session, self.inputs, given)
        self._decode.submit()
        return read(self.logits)

    def ahead(self, draws: bool, graphs: tuple[MLGraph | None, ...]) -> AheadSteps:
        """Return the steps whose tokens the device chooses; made at their first use."""
        key = (draws, graphs)
        steps = self._ahead.pop(key, None)
        if steps is None:
            while len(self._ahead) >= MAX_CHOICES:  # the least recently used goes
                self._ahead.pop(next(iter(self._ahead)))
            steps = AheadSteps(self._session, self._layout, self, self._decoder, draws, graphs)
        self._ahead[key] = steps
        return steps


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How tokens are chosen, for each row; see `device_sampling.Draw`."""

    temperature: Array
    top_k: Array
    top_p: Array
    penalty: Array
    seen: Array


class AheadSteps:
    """Steps whose tokens the device chooses.

    The number of keys of each row lies in one of two tensors in turn, as a step reads one and
    writes the other. Tokens lie in a ring, of which one half is read while the other is written.

    Args:
        session: Session of the context.
        layout: The roles of the graph's inputs and outputs.
        step: Tensors of the step.
        decoder: Makes the dispatch of the decoder's graph with other inputs.
        draws: Whether rows have options; else the most likely tokens are taken.
        graphs: The graph that changes the logits of each row, if any.
    """

    def __init__(
        self,
        session: Session,
        layout: DecoderLayout,
        step: _Step,
        decoder: Callable[[Mapping[str, MLTensor]], _Dispatch],
        draws: bool,
        graphs: tuple[MLGraph | None, ...],
    ) -> None:
        count = len(graphs)
        self._session = session
        self._layout = layout
        self._step = step
        self._lengths = [step.tensor("int32", (count,)) for _ in range(2)]
        self._active = step.tensor("int32", (count,))
        each = -(-count * 4 // PART_BYTES) * PART_BYTES
        self._ring = step.tensor("int32", (2 * MAX_STEPS, each // 4))
        half = MAX_STEPS * each
        part = functools.partial(tensor_operations.part, self._ring)
        self._halves = [part(n * half, (MAX_STEPS, each // 4)) for n in range(2)]
        self._tokens = [part(n * each, (count,)) for n in range(2 * MAX_STEPS)]
        self._count = count
        self._batch = self._turn = 0
        name = layout.names.get("lengths", "")
        self._shares = name if name and layout.types["lengths"] == np.int32 else ""
        self._decoders = [
            decoder({**step.inputs, self._shares: lengths} if self._shares else step.inputs)
            for lengths in self._lengths
        ]
        self._choosers: dict[tuple[int, int], _Dispatch] = {}
        self._options: dict[str, MLTensor] = {}
        self._seen: list[MLTensor] = []
        if draws:
            self._options = {name: step.tensor("float32", (count,)) for name in OPTIONS}
            self._seen = [step.tensor("uint8", (count, layout.vocabulary)) for _ in range(2)]
            self._noise = step.tensor("float32", (2 * MAX_STEPS, each // 4))
            noise = functools.partial(tensor_operations.part, self._noise)
            self._noise_halves = [noise(n * half, (MAX_STEPS, each // 4)) for n in range(2)]
            self._noises = [noise(n * each, (count,)) for n in range(2 * MAX_STEPS)]
        self._scores, self._adjust = _adjustments(session, layout, step, graphs)
        self._graph = _chooser(session, layout, step, self._scores, count, self._shares, draws)

    def begin(
        self,
        given: Mapping[str, Array],
        lengths: Array,
        active: Array,
        options: RowOptions | None = None,
    ) -> None:
        """Begin at tokens that the host knows.

        Args:
            given: Inputs of the first step but for the caches, by name.
            lengths: Number of keys of each row.
            active: 1 for rows that take part, 0 for others.
            options: How to choose, if rows have options.
        """
        if options is not None:
            values = {name: getattr(options, name).astype(np.float32) for name in OPTIONS}
            write(self._session, self._options, values)
            tensor_operations.write(self._session, self._seen[self._turn], options.seen)
        write(self._session, self._step.inputs, given)
        tensor_operations.write(self._session, self._lengths[self._turn], lengths.astype(np.int32))
        tensor_operations.write(self._session, self._active, active.astype(np.int32))

    def submit(self, count: int, noise: Array | None = None) -> int:
        """Submit steps; return the number of the half with their tokens.

        Args:
            count: Number of steps, at most `MAX_STEPS`.
            noise: Numbers from 0 up to 1, [count, rows], if rows have options.
        """
        half, self._batch = self._batch, 1 - self._batch
        if noise is not None:
            target = self._noise_halves[half]
            padded = np.zeros(target.shape, np.float32)
            padded[:count, : noise.shape[1]] = noise
            tensor_operations.write(self._session, target, padded)
        for place in range(half * MAX_STEPS, half * MAX_STEPS + count):
            self._decoders[self._turn].submit()
            for dispatch in self._adjust:
                dispatch.submit()
            self._chooser(self._turn, place).submit()
            self._turn = 1 - self._turn
        self._session.queue.flush()
        return half

    def tokens(self, half: int, count: int) -> Array:
        """Return the tokens of a submission, [count, rows]; block until they are there."""
        return read(self._halves[half])[:count, : self._count]

    def _chooser(self, turn: int, place: int) -> _Dispatch:
        found = self._choosers.get((turn, place))
        if found is None:
            before, after = self._lengths[turn], self._lengths[1 - turn]
            inputs = {"logits": self._scores, "before": before, "active": self._active}
            outputs = {
                name: self._step.inputs[name]
                for role, name in self._layout.names.items()
                if role != "last" and name != self._shares
            }
            outputs |= {"the token": self._tokens[place], "after": after}
            if self._seen:
                inputs |= {**self._options, "noise": self._noises[place], "seen": self._seen[turn]}
                outputs["seen after"] = self._seen[1 - turn]
            found = _Dispatch(self._session, self._graph, inputs, outputs)
            self._choosers[turn, place] = found
        return found


def _adjustments(
    session: Session, layout: DecoderLayout, step: _Step, graphs: tuple[MLGraph | None, ...]
) -> tuple[MLTensor, list[_Dispatch]]:
    """Return the tensor with the logits that count, and what writes it after each step."""
    if not any(graphs):
        return step.logits, []
    rows, words = len(graphs), layout.vocabulary
    width = -(-words * 4 // PART_BYTES) * PART_BYTES // 4
    scores = step.tensor("float32", (rows, width))
    b = MLGraphBuilder(MLContext(session))
    logits = b.input("logits", step.logits.data_type, step.logits.shape)
    wide = b.pad(b.cast(b.reshape(logits, [rows, words]), "float32"), [0, 0], [0, width - words])
    copy = _Dispatch(
        session, b.build_sync({"scores": wide}), {"logits": step.logits}, {"scores": scores}
    )
    dispatches = [copy]
    for row, graph in enumerate(graphs):
        if graph is not None:
            (before,), (after,) = graph.inputs.items(), graph.outputs.items()
            at = functools.partial(tensor_operations.part, scores, row * width * 4)
            ends = [{name: at(descriptor.shape)} for name, descriptor in (before, after)]
            dispatches.append(_Dispatch(session, graph, *ends))
    return scores, dispatches


def _chooser(
    session: Session,
    layout: DecoderLayout,
    step: _Step,
    scores: MLTensor,
    count: int,
    shared: str,
    draws: bool,
) -> MLGraph:
    """Return the graph between two steps: the chosen tokens, and the next step's inputs."""
    b = MLGraphBuilder(MLContext(session))
    logits = b.input("logits", scores.data_type, scores.shape)
    before = b.input("before", "int32", [count])
    after = b.add(before, b.input("active", "int32", [count]))
    rated = b.slice(
        b.reshape(logits, [count, scores.shape[-1]]), [0, 0], [count, layout.vocabulary]
    )
    made: dict[str, MLOperand] = {}
    if draws:
        options = {name: b.input(name, "float32", [count]) for name in (*OPTIONS, "noise")}
        seen = b.input("seen", "uint8", rated.shape)
        token = drawn_token(b, rated, Draw(**options, seen=seen))
        words = b.constant(np.arange(layout.vocabulary, dtype=np.int32)[None])
        is_it = b.equal(words, b.reshape(token, [count, 1]))
        made["seen after"] = b.logical_or(seen, is_it)
    else:
        token = b.arg_max(rated, 1)
    row = b.reshape(after, [count, 1])

    def mask() -> MLOperand:
        name = layout.names["mask"]
        keys = step.inputs[name].shape[1] - layout.appends
        places = b.constant(np.arange(keys, dtype=np.int32)[None])
        if not layout.appends:
            return b.lesser_or_equal(places, row)
        own = b.constant(np.ones((count, 1), np.uint8))
        return b.concat([b.lesser(places, row), own], 1)

    makers: dict[str, Callable[[], MLOperand]] = {
        "ids": lambda: b.reshape(token, [count, 1]),
        "mask": mask,
        "positions": lambda: row,
        "lengths": lambda: after,
    }
    outputs = {
        name: b.cast(makers[role](), from_numpy(layout.types[role]))
        for role, name in layout.names.items()
        if role in makers and name != shared
    }
    return b.build_sync({**outputs, **made, "the token": token, "after": after})


class DeviceSteps:
    """Runs of a decoder's graph on a device; of one thread.

    Args:
        session: Session of the context.
        layout: The roles of the graph's inputs and outputs.
        caches: The caches that runs read and write.
    """

    def __init__(self, session: Session, layout: DecoderLayout, caches: CacheRows) -> None:
        self._session = session
        self._layout = layout
        self._caches = caches
        self._steps: dict[Hashable, _Step] = {}
        self._version = caches.version

    def logits(self, first: int, given: Mapping[str, Array], size: tuple[int, int]) -> Array:
        """Run a step; return its logits.

        Args:
            first: First row of the caches.
            given: Inputs of the step but for the caches, by name.
            size: Number of rows, and of new tokens of each.
        """
        return self._step(first, given, size).run(given)

    def ahead(
        self,
        first: int,
        given: Mapping[str, Array],
        draws: bool,
        graphs: tuple[MLGraph | None, ...],
    ) -> AheadSteps:
        """Return the steps of rows whose tokens the device chooses; arguments as `AheadSteps`."""
        return self._step(first, given, (len(graphs), 1)).ahead(draws, graphs)

    def _step(self, first: int, given: Mapping[str, Array], size: tuple[int, int]) -> _Step:
        if self._version != self._caches.version:
            self._steps.clear()
            self._version = self._caches.version
        step = self._steps.pop((first, size), None)
        if step is None:
            while len(self._steps) >= MAX_SIZES:  # the least recently used goes
                self._steps.pop(next(iter(self._steps)))
            caches = self._caches.tensors(first, size[0])
            step = _Step(self._session, self._layout, caches, given, size[0])
        self._steps[first, size] = step
        return step


def write(session: Session, tensors: Mapping[str, MLTensor], given: Mapping[str, Array]) -> None:
    """Write arrays into tensors of the same names."""
    for name, array in given.items():
        tensor_operations.write(session, tensors[name], array)


def read(tensor: MLTensor) -> Array:
    """Return the contents of a tensor; block until they are there."""
    session = memory_of(tensor, "step").session
    memory, result, target = tensor_operations.read_target(session, tensor, None)
    tensor_operations.read(memory, target, None, given=False)
    return result
