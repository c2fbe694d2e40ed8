"""Models that an earlier process imported and rewrote for an engine like this one.

Kept on disk are the recipe, the graph after the engine's passes, and how its weights follow from
the model's file; not the weights. What decides over a graph are the file's bytes: those of the
model's structure are in the key, and large weights, which are read in any case, must have the same
digests as then. So nothing is taken for granted of paths and times, and all is as it would be anew.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import onnx

from webnn_py.api.session import Session
from webnn_py.core import cache, gil_yield
from webnn_py.core.parallel_map import MAX_THREADS, parallel_map
from webnn_py.engines.reference import evaluate
from webnn_py.ir import Array, Graph
from webnn_py.onnx.inputs import InputShapes
from webnn_py.onnx.model import Model
from webnn_py.onnx.protobuf_strip import Place
from webnn_py.passes import debug_level
from webnn_py.passes.constant_replay import Computation, Recorder, Result, compute
from webnn_py.passes.derived_constants import Results
from webnn_py.storage.graph_json import PlainGraphError, from_plain, to_plain

KIND = "models"
MOST_BYTES = 64 << 20
"""Of all models' files; those used last stay."""
LEAST_NODES = 16
"""Smaller models are imported in the time that a look at the disk takes."""
SMALL = 1 << 14
"""Bytes up to which contents are kept themselves, whatever they are."""
PIECE = 8 << 20
"""Bytes that one thread reads at once."""


class KnownModel:
    """What is remembered of a model.

    Args:
        model: The model, of which nothing was read but its structure.
        shapes: What is fixed of its inputs' shapes.
        session: Where it will run.
    """

    def __init__(self, model: Model, shapes: InputShapes, session: Session) -> None:
        self._model = model
        rewrites = session.engine.rewrites_by
        self._key = ""
        if (
            rewrites
            and model.structure
            and model.node_count >= LEAST_NODES
            and cache.cache_folder() is not None
            and not debug_level()
        ):
            versions = cache.source_fingerprint(), onnx.__version__, np.__version__
            self._key = repr((*versions, rewrites, dict(shapes), model.structure))
            model.parts = {}

    def load(self) -> tuple[Graph, Graph] | None:
        """The recipe and the graph after the engine's passes; None if they are not known."""
        if not self._key:
            return None
        try:
            found = cache.load_json(KIND, self._key)
            return _read(found, self._model)
        except (ValueError, TypeError, LookupError, SyntaxError, OSError):
            return None  # damaged, of a file with other weights, or written by somebody else

    def store(self, recipe: Graph, optimized: Graph, recorder: Recorder) -> None:
        """Keep what `load` gives for later.

        Args:
            recipe: The model as it was imported.
            optimized: The graph after the engine's passes.
            recorder: What these had derive weights.
        """
        if not self._key or self._model.reads_elsewhere:
            return
        try:
            found = _written(self._model, recipe, optimized, recorder)
        except PlainGraphError:
            return
        cache.store_json(KIND, self._key, found, MOST_BYTES)


def _digest(contents: Any) -> str:
    return hashlib.sha256(contents).hexdigest()


def _digests(model: Model) -> list[str]:
    """Those of each large weight, piece by piece."""
    views = [memoryview(model.part(place)) for place in model.places]
    pieces = [view[at : at + PIECE] for view in views for at in range(0, len(view), PIECE)]
    return parallel_map([partial(_digest, piece) for piece in pieces], sum(map(len, pieces)))


class _Reading:
    """The large weights of a model's file, which threads begin to read."""

    def __init__(self, model: Model, pool: ThreadPoolExecutor) -> None:
        self._model = model
        self._memory = {place: np.empty(place[1], np.uint8) for place in model.places}
        self._pieces = {
            place: [pool.submit(self._read, place, at) for at in range(0, place[1], PIECE)]
            for place in model.places
        }

    def _read(self, place: Place, at: int) -> str:
        """Read a piece, and give the digest of what was read."""
        memory = self._memory[place][at : at + PIECE]
        self._model.read_into(memory, place[0] + at)
        return _digest(memory)

    def contents(self, place: Place) -> Array:
        """The bytes of a weight, once all of them are there."""
        for piece in self._pieces[place]:
            piece.result()
        return self._memory[place]

    def digests(self) -> list[str]:
        """As `_digests`."""
        return [piece.result() for pieces in self._pieces.values() for piece in pieces]


def _written(model: Model, recipe: Graph, optimized: Graph, recorder: Recorder) -> dict[str, Any]:
    contents = _Contents(model, recorder)
    graphs = to_plain([recipe, optimized], contents.number_of)
    return {
        "digests": _digests(model),
        "texts": base64.b64encode(contents.texts).decode(),
        "computations": contents.computations,
        "arrays": contents.arrays,
        **graphs,
    }


class _Contents:
    """The contents of constants as they are written.

    Attributes:
        arrays: In the order of their numbers: what they are, where that lies, and how.
        computations: What weights are computed by.
        texts: Small contents, one after the other.
    """

    def __init__(self, model: Model, recorder: Recorder) -> None:
        self._parts = {id(part): place for place, part in (model.parts or {}).items()}
        self._recorder = recorder
        self._numbers: dict[int, int] = {}
        self._computed: dict[int, int] = {}
        self.arrays: list[Any] = []
        self.computations: list[Any] = []
        self.texts = bytearray()

    def number_of(self, array: Array) -> int:
        """The number of contents, each written once."""
        if id(array) not in self._numbers:
            row = self._row(array)
            self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(row)
        return self._numbers[id(array)]

    def _row(self, array: Array) -> list[Any]:
        form = array.dtype.str, array.shape
        if array.nbytes <= SMALL:
            return ["text", *self._text(array.tobytes()), *form]
        origin = self._recorder.origin_of(array)
        if isinstance(origin, Result):
            return self._made(origin)
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if id(owner) not in self._parts or len(owner) != array.nbytes:
            raise PlainGraphError("weights that are of no file, and were not derived")
        return ["part", *self._parts[id(owner)], *form]

    def _text(self, contents: bytes) -> Place:
        place = len(self.texts), len(contents)
        self.texts += contents
        return place

    def _made(self, result: Result) -> list[Any]:
        return ["made", self._computation(result.computation), result.place]

    def _computation(self, made: Computation) -> int:
        if id(made) not in self._computed:
            sources = [None if source is None else self._source(source) for source in made.sources]
            numbers = [self._text(each) for each in made.numbers]
            self._computed[id(made)] = len(self.computations)
            self.computations.append([made.kind, made.text, numbers, sources])
        return self._computed[id(made)]

    def _source(self, source: Array | Result) -> int:
        if not isinstance(source, Result):
            return self.number_of(source)
        self.arrays.append(self._made(source))
        return len(self.arrays) - 1


def _read(found: Mapping[str, Any], model: Model) -> tuple[Graph, Graph] | None:
    texts = memoryview(base64.b64decode(found["texts"]))
    rows, computations = found["arrays"], found["computations"]

    def array_of(number: int) -> Array:
        kind, first, count, *form = rows[number]
        if kind == "made":
            made: Array = results_of(first)[int(count)]
        else:
            part = kind == "part"
            contents = reading.contents((first, count)) if part else texts[first : first + count]
            dtype, shape = form
            made = np.frombuffer(contents, dtype).reshape(shape)
        made.flags.writeable = False
        return made

    def results_of(number: int) -> Results:
        kind, text, numbers, sources = computations[number]
        arrays = [None if source is None else array_of(source) for source in sources]
        each = [texts[first : first + count] for first, count in numbers]
        return compute(kind, text, each, arrays, evaluate)

    wanted = sorted({number for graph in found["graphs"] for _, number in graph["constants"]})
    threads = min(MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "webnn-weights", gil_yield.enable) as pool:
        reading = _Reading(model, pool)
        computed = {
            number: pool.submit(array_of, number) for number in wanted if rows[number][0] == "made"
        }
        arrays = {
            number: computed[number].result() if number in computed else array_of(number)
            for number in wanted
        }
        if reading.digests() != found["digests"]:
            return None
    recipe, optimized = from_plain(found, arrays.__getitem__)
    return recipe, optimized
