"""How far results are from exact ones, in units in the last place."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, erfc
from typing import Any

import numpy as np

from webnn_py import MLContext, MLExecution, MLGraph

Function = Callable[[Any], Any]
ENGINES = {
    "reference": {"engine": "reference"},
    "onnxruntime": {"engine": "onnxruntime"},
    "openvino": {"engine": "openvino"},
    "gpu": {"device_type": "gpu"},
}
WIDE = np.longdouble


def numbers(data_type: Any) -> Any:
    """Normal numbers of all sizes, dense where functions bend; all that float16 has."""
    if data_type == np.float16:
        x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    else:
        rng = np.random.default_rng(0)
        sizes = 10.0 ** rng.uniform(-37, 38.5, 4000)
        steps = 10.0 ** rng.uniform(-7.2, 0, 1000)
        near = [rng.uniform(-end, end, 3000) for end in (1.5, 20, 104)]
        ends = [0.0, 1.0, -1.0, 88.8, 89.3, -89.3, 3e38, 3.4028235e38]
        x = np.concatenate([sizes, -sizes, 1 - steps, 1 + steps, steps - 1, *near, ends])
        x = x.astype(np.float32)
    keep = (np.abs(x) >= np.finfo(data_type).tiny) | (x == 0)
    return x[keep & np.isfinite(x)]


def excess(got: Any, exact: Any, absolute: float) -> Any:
    """By how many units in the last place each result is off, besides an absolute error.

    What overflows in either is compared as the greatest number.
    """
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        held = np.clip(exact, -info.max, info.max)
        unit = np.spacing(np.maximum(np.abs(held), info.tiny).astype(got.dtype))
        off = np.abs(np.clip(got.astype(WIDE), -info.max, info.max) - held) - absolute
        units = np.maximum(off / unit.astype(WIDE), 0)
    return np.where(np.isnan(exact) | np.isnan(got), np.isnan(exact) != np.isnan(got), units)


def assert_within(x: Any, got: Any, exact: Any, units: float, absolute: float) -> None:
    """Each result is within a number of units in the last place, and an absolute error."""
    found = excess(got, exact, absolute)
    worst = int(np.argmax(found))
    assert found[worst] <= units, (
        f"{found[worst]:.4g} units at {x[worst]!r}: {got[worst]!r}, not {float(exact[worst])!r}"
    )


def computed(context: MLContext, graph: MLGraph, x: Any) -> Any:
    """The output "y" of a graph for its input "x", whatever the device."""
    if context.device_type == "cpu":
        return np.asarray(MLExecution(context).compute(graph, {"x": x})["y"])
    given = context.create_tensor_sync(x.dtype.name, x.shape, writable=True)
    y = graph.outputs["y"]
    made = context.create_tensor_sync(y.data_type, y.shape, readable=True)
    context.write_tensor(given, x)
    context.dispatch(graph, {"x": given}, {"y": made})
    return np.asarray(context.read_tensor_sync(made))


def exact_erf(x: Any) -> Any:
    """The error function, exact to float64."""
    return np.vectorize(erf, otypes=[float])(x.astype(float)).astype(WIDE)


def exact_gelu(x: Any) -> Any:
    """The Gaussian error linear unit, exact to float64."""
    wide = x.astype(float)
    return (0.5 * wide * np.vectorize(erfc, otypes=[float])(-wide / np.sqrt(2))).astype(WIDE)


def exact_softplus(x: Any) -> Any:
    """log(1 + exp(x))."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
