"""Reading a model: the file, its external data, its opsets, the shapes of its inputs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from webnn_py.core.errors import DataError, MLError, ValidationError, file_error
from webnn_py.core.files import check_regular, open_regular
from webnn_py.core.messages import type_name
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.onnx import protobuf_strip
from webnn_py.onnx.functions import count_nodes, key_of
from webnn_py.onnx.protobuf_strip import Place
from webnn_py.onnx.tensor import Array, element_name
from webnn_py.storage.archive import kind_of

READERS = 4
"""Threads that read a model's weights."""
WORTH_A_THREAD = 1 << 18
"""Bytes of a weight from which on they do."""
ZEROS_PER_VALUE = 128
"""Elements that a sparse tensor may have for each of its values, beside those of a small one."""
_BITS = {
    int(number): 2 if "INT2" in name else 4
    for name, number in onnx.TensorProto.DataType.items()
    if name in ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1")
}
"""Bits of elements of which several lie in a byte."""
_COMPLEX = (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)
EXTERNAL = onnx.TensorProto.EXTERNAL

Affords = Callable[[int], bool]


class Model:
    """A model that has been read.

    Args:
        source: A path, the bytes of a file, or an onnx.ModelProto.

    Attributes:
        structure: What tells a file, or the bytes of one, from others, but for the contents of
            large weights; "" of what is neither.
        parts: Those contents, by their places, as they were read; None unless they are to be kept.
        reads_elsewhere: Whether contents were read of other files.
        node_count: The number of its nodes, those of local functions that it calls included.
        functions: Its local functions, by what they are called by.

    Raises:
        DataError: It cannot be read, or is no model.
    """

    def __init__(self, source: object) -> None:
        self.folder = ""
        self.structure = ""
        self.parts: dict[Place, bytes] | None = None
        self.reads_elsewhere = False
        self._source = source
        cut_out: frozenset[Place] = frozenset()
        if isinstance(source, (str, os.PathLike)):
            path = Path(source)
            self.folder = str(path.parent)
            try:
                proto, self.structure, cut_out = _read(path)
            except OSError as error:
                raise file_error(error, source, f"onnx: {path} cannot be read") from error
            except DataError:
                raise
            except ValueError as error:  # it has a null character
                raise DataError(f"onnx: {str(path)!r} cannot be read: {error}") from error
        elif isinstance(source, (bytes, bytearray, memoryview)):
            proto, self.structure, cut_out = _parsed(source, "the model")
        elif isinstance(source, onnx.ModelProto):
            proto = source
        else:
            raise ValidationError(
                f"onnx: got {type_name(source)}, expected a path, bytes or an onnx.ModelProto"
            )
        if not proto.HasField("graph") or not proto.graph.output:
            raise DataError("onnx: the model has no graph with outputs; the file may be cut off")
        self.proto: Any = proto
        self.node_count = count_nodes(proto)
        self.functions = {key_of(function): function for function in proto.functions}
        self.opsets = opsets_of(proto.opset_import)
        self._cut_out = cut_out

    @property
    def graph(self) -> Any:
        """The graph of the model."""
        return self.proto.graph

    @property
    def inputs(self) -> list[Any]:
        """The inputs that are to be given: an initializer of its name is an input's default."""
        names = {tensor.name for tensor in self.graph.initializer}
        names |= {sparse.values.name for sparse in self.graph.sparse_initializer}
        return [value for value in self.graph.input if value.name not in names]

    @functools.cached_property
    def places(self) -> list[Place]:
        """Where large weights lie in the file."""
        return [place for one in self.graph.initializer if (place := self._place_of(one))]

    @functools.cached_property
    def ahead(self) -> Mapping[str, Future[Array]]:
        """The contents of large initializers by name, which threads read from now on."""
        placed = [
            tensor
            for tensor in self.graph.initializer
            if (place := self._place_of(tensor)) and place[1] >= WORTH_A_THREAD
        ]
        if not placed:
            return {}
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="webnn-weights")
        made = {tensor.name: pool.submit(self.contents, tensor) for tensor in placed}
        pool.shutdown(wait=False)
        return made

    def contents(self, tensor: Any) -> Array:
        """The contents of a tensor that the model holds, external data included.

        Raises:
            DataError: They are not there, or do not fit its shape.
        """
        title = f"onnx: tensor {tensor.name!r}"
        if any(size < 0 for size in tensor.dims):
            raise DataError(f"{title}: its shape is {list(tensor.dims)}")
        try:
            place = self._place_of(tensor)
            if place is not None:
                _check_length(tensor, title, place[1])
                dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                return np.frombuffer(self.part(place), dtype).reshape(tuple(tensor.dims))
        except MLError:
            raise
        except (OSError, ValueError) as error:
            raise DataError(f"{title}: its contents cannot be read: {error}") from error
        if tensor.data_location == EXTERNAL:
            tensor = self._external(tensor, title)
        _check_length(tensor, title)
        try:
            return np.asarray(numpy_helper.to_array(tensor))
        except Exception as error:  # what the library raises is not said anywhere
            raise DataError(f"{title}: its contents do not fit its type and shape: {error}") from (
                error
            )

    def contents_in(self, graph: Any, affords: Affords) -> Iterator[tuple[str, Array]]:
        """Names and contents of a graph's initializers, sparse ones included.

        Args:
            graph: One of the model's graphs.
            affords: As of `dense`.

        Raises:
            DataError: As `contents`.
        """
        for tensor in graph.initializer:
            yield tensor.name, self.contents(tensor)
        for sparse in graph.sparse_initializer:
            yield sparse.values.name, self.dense(sparse, affords)

    def dense(self, sparse: Any, affords: Affords) -> Array:
        """The contents of a sparse tensor, zeros included.

        Args:
            sparse: One of the model.
            affords: Whether so many elements may be made that are in no file.

        Raises:
            DataError: They are not there, or do not fit its shape.
        """
        shape = tuple(sparse.dims)
        values, places = self.contents(sparse.values), self.contents(sparse.indices)
        title = f"onnx: sparse tensor {sparse.values.name!r} of shape {list(shape)}"
        if not all(size > 0 for size in shape) or math.prod(shape) > MAX_DIMENSION:
            raise DataError(f"{title}: it has none, or over {MAX_DIMENSION} elements")
        if values.ndim != 1:
            raise DataError(f"{title}: its values have shape {list(values.shape)}, expected a list")
        rows = [len(shape)] if places.ndim == 2 else []
        if places.dtype != np.int64 or list(places.shape) != [*values.shape[:1], *rows]:
            raise DataError(
                f"{title}: its indices of shape {list(places.shape)} do not fit its"
                f" {len(values)} values"
            )
        flat = places if places.ndim == 1 else places @ _strides(shape)
        limits = np.asarray(shape if places.ndim == 2 else math.prod(shape))
        if ((places < 0) | (places >= limits)).any():
            raise DataError(f"{title}: an index lies outside")
        count = math.prod(shape)
        if not affords(max(0, count - ZEROS_PER_VALUE * values.size)):
            raise DataError(
                f"{title}: {count} elements are too many, of {values.size} value(s); expected at"
                f" most about {ZEROS_PER_VALUE} for each value: store it as a dense tensor"
            )
        made = np.zeros(count, values.dtype)
        made[flat] = values
        return made.reshape(shape)

    def _place_of(self, tensor: Any) -> Place | None:
        """Return where contents that were cut out of the file stand in it.

        A file may say the same of tensors that were not cut out, which counts for nothing.
        """
        place = protobuf_strip.place_of(tensor)
        return place if place in self._cut_out else None

    def part(self, place: Place) -> Any:
        """Bytes of the model's file.

        Raises:
            OSError: It cannot be read.
        """
        kept = self.parts
        if kept is None:
            return self._read_part(*place)
        return kept.get(place) or kept.setdefault(place, self._read_part(*place))

    def read_into(self, memory: Array, first: int) -> None:
        """Fill memory from some byte of the model's file on.

        Raises:
            OSError: It cannot be read.
            ValueError: It ends before.
        """
        if isinstance(self._source, (bytes, bytearray, memoryview)):
            memory[:] = np.frombuffer(self._source, np.uint8, len(memory), first)
            return
        assert isinstance(self._source, (str, os.PathLike))
        with open_regular(self._source) as file:
            file.seek(first)
            if file.readinto(memory.data) != len(memory):
                raise ValueError("the file ends before")

    def _read_part(self, first: int, count: int) -> Any:
        if isinstance(self._source, (bytes, bytearray, memoryview)):
            view = memoryview(self._source).cast("B")[first : first + count]
            return view if self.parts is None else bytes(view)
        assert isinstance(self._source, (str, os.PathLike))
        with open_regular(self._source) as file:
            if first + count > os.fstat(file.fileno()).st_size:
                raise ValueError("the file ends before")
            file.seek(first)
            return file.read(count)

    def _external(self, tensor: Any, title: str) -> Any:
        self.reads_elsewhere = True
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        entries = {entry.key: entry.value for entry in copy.external_data}
        if not entries.get("location"):
            raise DataError(
                f"{title}: its data_location is EXTERNAL, and external_data gives no location;"
                f" it has {', '.join(map(repr, entries)) or 'nothing'}"
            )
        for key in ("offset", "length"):
            if not entries.get(key, "0").isdecimal():
                raise DataError(
                    f"{title}: external_data gives the {key} {entries[key]!r}, expected a number of"
                    " bytes"
                )
        try:
            folder = self._folder_of(copy)
            external_data_helper.load_external_data_for_tensor(copy, folder)
        except Exception as error:  # checks of the path raise errors of several kinds
            raise DataError(f"{title}: its external data cannot be read: {error}") from error
        copy.data_location = onnx.TensorProto.DEFAULT
        return copy

    def _folder_of(self, tensor: Any) -> str:
        """The folder that external data lies in, to which its place is made relative.

        A link may lead to a file in the folder of the model, or of what the model's path is a link
        to, as in caches that keep contents apart from names. The library takes no links.
        """
        for entry in tensor.external_data:
            path = Path(entry.value)
            if entry.key != "location" or path.is_absolute() or ".." in path.parts:
                continue
            data = Path(self.folder, path).resolve()
            homes = [Path(self.folder).resolve()]
            if isinstance(self._source, (str, os.PathLike)):
                homes.append(Path(self._source).resolve().parent)
            with contextlib.suppress(FileNotFoundError):  # the library says so
                check_regular(data, os.stat(data).st_mode)
            for home in homes:
                if data.is_relative_to(home):
                    entry.value = data.relative_to(home).as_posix()
                    return str(home)
        return self.folder


def _check_length(tensor: Any, title: str, size: int | None = None) -> None:
    """A tensor has as many elements as its shape says.

    Args:
        tensor: The tensor, whose contents lie in it.
        title: What to call it.
        size: How many bytes it has, where they lie elsewhere.

    Raises:
        DataError: It has more or fewer; or it is of no element type.
    """
    kind = tensor.data_type
    if kind not in onnx.TensorProto.DataType.values() or not kind:
        raise DataError(f"{title}: its element type is {kind}, which ONNX has not")
    if 0 in tensor.dims and math.prod(n for n in tensor.dims if n) > MAX_DIMENSION:
        raise DataError(f"{title}: its shape is {list(tensor.dims)}, which is too large")
    if size is None and not tensor.HasField("raw_data"):
        field = onnx.helper.tensor_dtype_to_field(kind)
        got, unit = len(getattr(tensor, field)), f"elements in {field}"
        numbers = math.prod(tensor.dims) * (2 if kind in _COMPLEX else 1)
        expected = -(-numbers * _BITS.get(kind, 8) // 8)
    elif kind == onnx.TensorProto.STRING:
        raise DataError(f"{title}: it is of strings, which have no raw data")
    else:
        got, unit = len(tensor.raw_data) if size is None else size, "bytes"
        bits = _BITS.get(kind) or 8 * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
        expected = -(-math.prod(tensor.dims) * bits // 8)
    if got != expected:
        raise DataError(
            f"{title}: its contents do not fit its type and shape: got {got} {unit}, expected"
            f" {expected} for {element_name(kind)} {list(tensor.dims)}"
        )


def _strides(shape: tuple[int, ...]) -> Array:
    """How many elements apart neighbours along each dimension are."""
    return np.asarray([math.prod(shape[i + 1 :]) for i in range(len(shape))], np.int64)


def _read(path: Path) -> tuple[Any, str, frozenset[Place]]:
    with open_regular(path) as file:
        try:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # there is nothing in it
            return _parsed(b"", str(path))
        with memory:
            return _parsed(memory, str(path))


def _parsed(contents: Any, title: str) -> tuple[Any, str, frozenset[Place]]:
    """A model without its large weights, a digest of it, and where the weights stay."""
    if kind := kind_of(bytes(contents[:256])):
        raise DataError(f"onnx: {title}: got {kind}")
    proto = onnx.ModelProto()
    places: frozenset[Place] = frozenset()
    try:
        try:
            rest, places = protobuf_strip.without_weights(contents)
        except (ValueError, IndexError):
            rest = bytes(contents)  # the library says what is wrong with it
        proto.ParseFromString(rest)
    except Exception as error:  # google.protobuf.message.DecodeError
        raise DataError(f"onnx: {title} is not an ONNX model, or damaged: {error}") from error
    return proto, hashlib.sha256(rest).hexdigest(), places


def check_once(named: Iterable[Any], what: str) -> None:
    """No two members of a graph have one name.

    Raises:
        DataError: Two have.
    """
    names: set[str] = set()
    for one in named:
        if not isinstance(one.name, str):  # bytes that are no UTF-8
            raise DataError(
                f"onnx: the model's {what} have the name {one.name!r}, which is no text"
            )
        if one.name in names:
            raise DataError(f"onnx: two of the model's {what} are called {one.name!r}")
        names.add(one.name)


def opsets_of(imports: Any) -> dict[str, int]:
    """Versions of the operator sets by domain; the default domain is ''."""
    return {"": 1} | imports_of(imports)


def imports_of(imports: Any) -> dict[str, int]:
    """The same, of the domains alone that are said.

    Raises:
        DataError: One is none, or there are two of a domain.
    """
    found: dict[str, int] = {}
    for one in imports:
        domain = "" if one.domain == "ai.onnx" else one.domain
        if not 1 <= one.version < 1 << 31:
            raise DataError(
                f"onnx: opset version {one.version} of domain {one.domain!r}, expected 1 or more"
            )
        if found.setdefault(domain, int(one.version)) != one.version:
            raise DataError(
                f"onnx: opset versions {found[domain]} and {one.version} of domain {one.domain!r},"
                " expected one"
            )
    return found
