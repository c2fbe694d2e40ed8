"""Disk cache of imported models, shared by processes whose engines rewrite graphs alike.

An entry holds the recorded graph, the graph after the engine's passes, and the computations that
derive its weights from the model's file. It does not hold large weights.

Validity depends on the file's bytes alone, not on paths or times. The key contains a digest of the
model's structure. Large weights are read in any case, and their SHA-256 digests must match.
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
MAX_CACHE_BYTES = 64 << 20
"""Largest total of all cache files; the least recently used ones are deleted."""
MIN_NODES = 16
"""Fewest nodes of a cached model; smaller ones import as fast as the disk is read."""
MAX_INLINE_BYTES = 1 << 14
"""Largest constant, in bytes, that the entry itself contains."""
PIECE_BYTES = 8 << 20
"""Bytes of a weight that one task reads or digests."""


class KnownModel:
    """Cache entry of a model.

    Args:
        model: The model, before any of its large weights is read.
        shapes: The user's input shapes; part of the key.
        session: The session that compiles the graph; its engine is part of the key.
    """

    def __init__(self, model: Model, shapes: InputShapes, session: Session) -> None:
        self._model = model
        rewrites = session.engine.rewrites_by
        self._key = ""
        if (
            rewrites
            and model.structure
            and model.node_count >= MIN_NODES
            and cache.cache_folder() is not None
            and not debug_level()
        ):
            versions = cache.source_fingerprint(), onnx.__version__, np.__version__
            self._key = repr((*versions, rewrites, dict(shapes), model.structure))
            model.parts = {}

    @property
    def is_cached(self) -> bool:
        """Whether `store` writes an entry, once the model is imported."""
        return bool(self._key) and not self._model.reads_elsewhere

    def load(self) -> tuple[Graph, Graph] | None:
        """Return the recorded graph and the graph after the engine's passes; None on a miss."""
        if not self._key:
            return None
        try:
            found = cache.load_json(KIND, self._key)
            return _read(found, self._model)
        except (ValueError, TypeError, LookupError, SyntaxError, OSError):
            return None  # a damaged or foreign entry is a miss

    def store(self, recipe: Graph, optimized: Graph, recorder: Recorder) -> None:
        """Write the entry to disk, unless some weights have no origin in the model's file.

        Args:
            recipe: The recorded graph.
            optimized: The graph after the engine's passes.
            recorder: The computations by which the passes derived weights.
        """
        if not self.is_cached:
            return
        try:
            found = _written(self._model, recipe, optimized, recorder)
        except PlainGraphError:
            return
        cache.store_json(KIND, self._key, found, MAX_CACHE_BYTES)


def _digest(contents: Any) -> str:
    return hashlib.sha256(contents).hexdigest()


def _digests(model: Model) -> list[str]:
    """Return the digests of all large weights, one for each piece of `PIECE_BYTES` bytes."""
    views = [memoryview(model.part(place)) for place in model.places]
    pieces = [
        view[at : at + PIECE_BYTES] for view in views for at in range(0, len(view), PIECE_BYTES)
    ]
    return parallel_map([partial(_digest, piece) for piece in pieces], sum(map(len, pieces)))


class _Reading:
    """Parallel reader of the large weights in a model's file."""

    def __init__(self, model: Model, pool: ThreadPoolExecutor) -> None:
        self._model = model
        self._memory = {place: np.empty(place[1], np.uint8) for place in model.places}
        self._pieces = {
            place: [pool.submit(self._read, place, at) for at in range(0, place[1], PIECE_BYTES)]
            for place in model.places
        }

    def _read(self, place: Place, at: int) -> str:
        """Read the piece of a weight that begins at byte `at`, and return its digest."""
        memory = self._memory[place][at : at + PIECE_BYTES]
        self._model.read_into(memory, place[0] + at)
        return _digest(memory)

    def contents(self, place: Place) -> Array:
        """Wait for all pieces of a weight and return its bytes."""
        for piece in self._pieces[place]:
            piece.result()
        return self._memory[place]

    def digests(self) -> list[str]:
        """Wait for all pieces and return their digests, in the order of `_digests`."""
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
    """Tables of constants in a cache entry.

    Attributes:
        arrays: A row for each constant: its kind, its location, and mostly its dtype and shape.
            The kind is "text" (in `texts`), "part" (in the model's file) or "made" (computed).
        computations: The computations that derive weights.
        texts: The bytes of small constants, concatenated.
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
        """Return the row number of an array in `arrays`; add the row at the first call."""
        if id(array) not in self._numbers:
            row = self._row(array)
            self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(row)
        return self._numbers[id(array)]

    def _row(self, array: Array) -> list[Any]:
        form = array.dtype.str, array.shape
        if array.nbytes <= MAX_INLINE_BYTES:
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
