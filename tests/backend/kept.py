"""What graphs and contexts keep in memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import wgpu

from tests.internals import executable_of, recipe_of, session_of
from webnn_py import MLContext, MLGraph
from webnn_py.api.compiled import compiled_of
from webnn_py.engines.webgpu.runtime.fallback import device_of

Reference = weakref.ref[Any]


def threads_of(context: MLContext) -> Reference:
    """What has a context's threads."""
    return weakref.ref(session_of(context))


def constants_of(graph: MLGraph) -> list[Reference]:
    """The buffers of inputs that an initialization made constants."""
    places: Any = compiled_of(graph).bound.constants.places
    return [weakref.ref(place.buffer) for place in places.values()]


def weights_of(graph: MLGraph) -> list[weakref.ref[Any]]:
    """The constants as they were given, and as they are run."""
    executable = executable_of(graph)
    run = getattr(executable, "compiled", executable)
    graphs = [recipe_of(graph), *([run.graph] if hasattr(run, "graph") else [])]
    return [weakref.ref(array) for made in graphs for array in made.constants.values()]


def buffers_of(device: Any) -> list[Any]:
    """All buffers that anything has; proxies of some may outlive them."""
    found = (made for made in gc.get_objects() if issubclass(type(made), wgpu.GPUBuffer))
    return [made for made in found if device_of(made) is device]
