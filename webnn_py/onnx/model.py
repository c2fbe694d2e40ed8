"""Reader of ONNX models: the file, its weights and external data, and its opsets."""

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
from webnn_py.memory.mapped_file import MappedFile
from webnn_py.onnx import protobuf_strip
from webnn_py.onnx.functions import count_nodes, key_of
from webnn_py.onnx.protobuf_strip import Place
from webnn_py.onnx.tensor import Array, element_name
from webnn_py.storage.archive import kind_of

READERS = 4
"""Number of threads that read a model's weights in advance."""
WORTH_A_THREAD = 1 << 18
"""Smallest weight, in bytes, that a thread reads in advance."""
ZEROS_PER_VALUE = 128
"""Elements of a sparse tensor per stored value that do not count towards the import limit."""
_BITS = {
    int(number): 2 if "INT2" in name else 4
    for name, number in onnx.TensorProto.DataType.items()
    if name in ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1")
}
"""Bits per element of data types that pack several elements into a byte."""
_COMPLEX = (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)
EXTERNAL = onnx.TensorProto.EXTERNAL

Affords = Callable[[int], bool]


class Model:
    """Parsed ONNX model, whose large weights stay in its file until they are used.

    Args:
        source: A path, the bytes of a file, or an onnx.ModelProto.

    Attributes:
        structure: SHA-256 digest of the file without its large weights; "" for an onnx.ModelProto.
        parts: Contents of the large weights read so far, by place; None if they are not kept.
        reads_elsewhere: Whether external data was read from other files.
        node_count: The number of nodes, with calls of local functions expanded.
        functions: The local functions by key.

    Raises:
        DataError: The file cannot be read, or holds no valid model.
        ValidationError: `source` is of another type.
    """

    def __init__(self, source: object) -> None:
        self.folder = ""
        self.structure = ""
        self.parts: dict[Place, bytes] | None = None
        self.reads_elsewhere = False
        self._source = source
        self._mappings: dict[str, MappedFile] = {}  # files with external data by location
        self._homes: dict[str, tuple[str, str]] = {}  # folder and name there by location
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
            except ValueError as error:  # the path contains a null character
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
        """The inputs without a default value, which is an initializer of the same name."""
        names = {tensor.name for tensor in self.graph.initializer}
        names |= {sparse.values.name for sparse in self.graph.sparse_initializer}
        return [value for value in self.graph.input if value.name not in names]

    @functools.cached_property
    def places(self) -> list[Place]:
        """The places of large weights in the file."""
        return [place for one in self.graph.initializer if (place := self._place_of(one))]

    @functools.cached_property
    def ahead(self) -> Mapping[str, Future[Array]]:
        """Futures of the contents of large initializers by name; threads start to read now."""
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
        """Return the contents of an onnx.TensorProto of the model, including external data.

        Raises:
            DataError: The contents are missing, or do not fit the tensor's type and shape.
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
            mapped = self._mapped(tensor, title)
            if mapped is not None:
                return mapped
            tensor = self._external(tensor, title)
        _check_length(tensor, title)
        try:
            return np.asarray(numpy_helper.to_array(tensor))
        except Exception as error:  # onnx documents no error types
            raise DataError(f"{title}: its contents do not fit its type and shape: {error}") from (
                error
            )

    def contents_in(self, graph: Any, affords: Affords) -> Iterator[tuple[str, Array]]:
        """Yield the name and contents of each initializer of a graph, including sparse ones.

        Args:
            graph: An onnx.GraphProto of the model.
            affords: The same as of `dense`.

        Raises:
            DataError: The contents are missing, or do not fit the tensor's type and shape.
        """
        for tensor in graph.initializer:
            yield tensor.name, self.contents(tensor)
        for sparse in graph.sparse_initializer:
            yield sparse.values.name, self.dense(sparse, affords)

    def dense(self, sparse: Any, affords: Affords) -> Array:
        """Return the contents of a sparse tensor as a dense array.

        Args:
            sparse: An onnx.SparseTensorProto of the model.
            affords: A function that tells whether the import may generate a number of elements.

        Raises:
            DataError: The contents are missing, do not fit the shape, or have too many zeros.
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
        """Return the place of a weight that `protobuf_strip` left in the file, or None.

        Places that the file itself declares are ignored: a file can contain forged ones.
        """
        place = protobuf_strip.place_of(tensor)
        return place if place in self._cut_out else None

    def part(self, place: Place) -> Any:
        """Return the bytes of the model's file at a place.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file has become shorter.
        """
        kept = self.parts
        if kept is None:
            return self._read_part(*place)
        return kept.get(place) or kept.setdefault(place, self._read_part(*place))

    def read_into(self, memory: Array, first: int) -> None:
        """Fill an array with the bytes of the model's file from offset `first` on.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file ends before the array is full.
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

    def _mapped(self, tensor: Any, title: str) -> Array | None:
        """Return external data as a view of its file, which saves copies; None for packed types."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location: str = entries.get("location", "")
        length, offset = (entries.get(key, "0") for key in ("length", "offset"))
        is_plain = location and length.isdecimal() and offset.isdecimal()
        if not is_plain or not int(length) or tensor.data_type in _BITS:
            return None
        _check_length(tensor, title, int(length))
        if location not in self._mappings:
            first = onnx.TensorProto()
            first.CopyFrom(tensor)
            for entry in first.external_data:
                if entry.key == "length":
                    entry.value = "1"
            with open_regular(self._load_external(first, title)) as file:  # which checks the path
                self._mappings[location] = MappedFile.of(os.dup(file.fileno()))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        shape = tuple(tensor.dims)
        try:
            mapping = self._mappings[location]
            data = np.frombuffer(mapping, dtype, math.prod(shape), int(offset))
        except ValueError as error:
            raise DataError(f"{title}: its external data cannot be read: {error}") from error
        return data.reshape(shape)

    def _external(self, tensor: Any, title: str) -> Any:
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
        self._load_external(copy, title)
        copy.data_location = onnx.TensorProto.DEFAULT
        return copy

    def _load_external(self, tensor: Any, title: str) -> Path:
        """Load a tensor's external data into it; return the file's path."""
        self.reads_elsewhere = True
        try:
            folder = self._folder_of(tensor)
            path = Path(folder, *(e.value for e in tensor.external_data if e.key == "location"))
            external_data_helper.load_external_data_for_tensor(tensor, folder)
        except Exception as error:  # onnx raises several error types for bad paths
            raise DataError(f"{title}: its external data cannot be read: {error}") from error
        return path

    def _folder_of(self, tensor: Any) -> str:
        """Return the folder of external data, and rewrite its location relative to that folder.

        The library `onnx` rejects symbolic links. This method resolves links whose targets lie in
        the folder of the model, or in the folder that the model's own link points to. Caches such
        as the Hugging Face Hub's use such links.
        """
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value in self._homes:
                folder, entry.value = self._homes[entry.value]
                return folder
            path = Path(entry.value)
            if entry.key != "location" or path.is_absolute() or ".." in path.parts:
                continue
            data = Path(self.folder, path).resolve()
            homes = [Path(self.folder).resolve()]
            if isinstance(self._source, (str, os.PathLike)):
                homes.append(Path(self._source).resolve().parent)
            with contextlib.suppress(FileNotFoundError):  # onnx reports missing files
                check_regular(data, os.stat(data).st_mode)
            for home in homes:
                if data.is_relative_to(home):
                    found = str(home), data.relative_to(home).as_posix()
                    self._homes[entry.value] = found
                    entry.value = found[1]
                    return found[0]
        return self.folder


def _check_length(tensor: Any, title: str, size: int | None = None) -> None:
    """Check that the length of a tensor's contents matches its type and shape.

    Args:
        tensor: The onnx.TensorProto.
        title: The tensor's title in messages.
        size: The length in bytes of contents outside the tensor; None if it contains them.

    Raises:
        DataError: The length differs, or the element type is unknown.
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
    """Return the row-major strides of a shape, in elements."""
    return np.asarray([math.prod(shape[i + 1 :]) for i in range(len(shape))], np.int64)


def _read(path: Path) -> tuple[Any, str, frozenset[Place]]:
    with open_regular(path) as file:
        try:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            return _parsed(b"", str(path))
        with memory:
            return _parsed(memory, str(path))


def _parsed(contents: Any, title: str) -> tuple[Any, str, frozenset[Place]]:
    """Parse a model without its large weights.

    Returns:
        The onnx.ModelProto, its SHA-256 digest, and the places of the large weights.
    """
    if kind := kind_of(bytes(contents[:256])):
        raise DataError(f"onnx: {title}: got {kind}")
    proto = onnx.ModelProto()
    places: frozenset[Place] = frozenset()
    try:
        try:
            rest, places = protobuf_strip.without_weights(contents)
        except (ValueError, IndexError):
            rest = bytes(contents)  # protobuf reports the damage below
        proto.ParseFromString(rest)
    except Exception as error:  # google.protobuf.message.DecodeError
        raise DataError(f"onnx: {title} is not an ONNX model, or damaged: {error}") from error
    return proto, hashlib.sha256(rest).hexdigest(), places


def check_once(named: Iterable[Any], what: str) -> None:
    """Check that the names of a graph's inputs or initializers are unique texts.

    Args:
        named: The inputs or initializers.
        what: Their plural noun, for the error message.

    Raises:
        DataError: Two have the same name, or a name is no text.
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
    """Return the versions of the operator sets by domain; domain '' defaults to version 1."""
    return {"": 1} | imports_of(imports)


def imports_of(imports: Any) -> dict[str, int]:
    """Return the imported versions of operator sets by domain, without defaults.

    Raises:
        DataError: A version is invalid, or a domain has two versions.
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
