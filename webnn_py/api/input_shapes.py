"""Shapes of the arguments for inputs with open dimensions, which determine the sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from webnn_py.api.tensor import MLTensor
from webnn_py.core import convert
from webnn_py.core.dimensions import is_open
from webnn_py.core.errors import DataError, MLError, ValidationError
from webnn_py.core.messages import named
from webnn_py.engines.base import Engine
from webnn_py.ir import Descriptor
from webnn_py.memory import array_remedies, host_arrays


def given_shapes(
    engine: Engine, given: Mapping[str, Any], descriptors: Mapping[str, Descriptor]
) -> dict[str, Sequence[int]]:
    """Return the known shapes of arguments for inputs with open dimensions, by name.

    Args:
        engine: Engine that reads the shapes of device resources.
        given: Arguments for some of the inputs, by name.
        descriptors: Descriptors of the inputs, by name; arguments without one are skipped.
    """
    return {
        name: shape
        for name, descriptor in descriptors.items()
        if name in given
        and is_open(descriptor.shape)
        and (shape := _shape(engine, given[name], descriptor, name)) is not None
    }


def _shape(engine: Engine, value: Any, descriptor: Descriptor, name: str) -> Sequence[int] | None:
    resource = host_arrays.resource_of(value)
    if isinstance(value, Mapping) and value.get("dimensions") is not None:
        try:
            return convert.unsigned_list(value["dimensions"], "dimensions")
        except ValidationError as error:
            raise DataError(f"{named('input', name)}: {error}") from None
    if isinstance(resource, MLTensor):
        return resource.shape
    if engine.takes(resource):
        return engine.shape_of(resource, descriptor.shape, named("input", name))
    shape = _shape_in_memory(resource, descriptor, named("input", name))
    return None if shape is None or len(shape) == 1 != descriptor.rank else shape


def _shape_in_memory(resource: Any, descriptor: Descriptor, what: str) -> Sequence[int] | None:
    """Return the shape of an array or typed buffer; None for a buffer of raw bytes.

    Raises:
        DataError: `resource` is neither an array nor a buffer.
    """
    if not isinstance(resource, memoryview):
        try:
            return tuple(int(size) for size in resource.shape)
        except Exception:  # it has no shape, or its own methods raise any type
            pass
    try:
        array = host_arrays.array_of(resource)
    except MLError as error:
        remedy = array_remedies.for_untaken(resource, descriptor.data_type)
        raise type(error)(f"{what}: {error}{remedy}") from error.__cause__
    return None if host_arrays.is_raw(resource, array, descriptor.data_type) else array.shape
