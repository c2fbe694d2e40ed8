"""How accurate elementwise operators are on each engine; spec/deviations.md states what is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.accuracy import (
    ENGINES,
    Function,
    assert_within,
    computed,
    exact_erf,
    exact_gelu,
    exact_softplus,
    numbers,
)
from tests.conftest import context_of
from webnn_py import MLContext, MLGraphBuilder

pytestmark = pytest.mark.kernels

EXACT: dict[str, tuple[Function, dict[str, Any]]] = {
    "abs": (np.abs, {}),
    "cos": (np.cos, {}),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(x)), {}),
    "erf": (exact_erf, {}),
    "exp": (np.exp, {}),
    "gelu": (exact_gelu, {}),
    "hard_sigmoid": (lambda x: np.clip(x / 4 + 0.5, 0, 1), {"alpha": 0.25}),
    "hard_swish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, {}),
    "log": (np.log, {}),
    "reciprocal": (lambda x: 1 / x, {}),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), {}),
    "sin": (np.sin, {}),
    "softplus": (exact_softplus, {}),
    "softsign": (lambda x: x / (1 + np.abs(x)), {}),
    "sqrt": (np.sqrt, {}),
    "tan": (np.tan, {}),
    "tanh": (np.tanh, {}),
}

TINY = float(np.finfo(np.float32).tiny)
"""What lies below counts as zero on some engines."""
BOUNDS: dict[str, dict[str, tuple[float, float]]] = {
    "reference": {},
    "onnxruntime": {
        "elu": (4, 6e-8),
        "gelu": (4, 5e-7),
        "hard_swish": (4, 3e-7),
        "tanh": (16, 0),
    },
    "openvino": {
        "elu": (4, 1.2e-7),
        "erf": (4, 5e-7),
        "exp": (16, 0),
        "gelu": (4, 1e-6),
        "hard_swish": (4, 3e-7),
        "softplus": (4, 2e-7),
    },
    "gpu": {"gelu": (8, 0), "tanh": (6, 0)},
}
"""Units in the last place, and an absolute error, beyond 0.51 on the reference and 4 elsewhere."""

ENDS = {"exp": 87.3, "gelu": 1.7e38}
"""Where OpenVINO's results become 0 or infinite too early."""


@pytest.fixture(params=list(ENGINES), scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, MLContext]]:
    with context_of(request, ENGINES[request.param]) as context:
        yield request.param, context


@pytest.mark.parametrize("operator", EXACT)
@pytest.mark.parametrize("data_type", [np.float32, np.float16])
def test_elementwise_operators(
    engine: tuple[str, MLContext], operator: str, data_type: Any
) -> None:
    name, context = engine
    x = numbers(data_type)
    if name == "openvino" and data_type == np.float32 and operator in ENDS:
        x = x[np.abs(x) < ENDS[operator]]
    builder = MLGraphBuilder(context)
    given = builder.input("x", np.dtype(data_type).name, x.shape)  # type: ignore[arg-type]
    function, options = EXACT[operator]
    graph = builder.build_sync({"y": getattr(builder, operator)(given, **options)})
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.longdouble))
    units, absolute = BOUNDS[name].get(operator, (0.51 if name == "reference" else 4, 0))
    assert_within(x, computed(context, graph, x), exact, units, absolute + 2 * TINY)


@pytest.mark.parametrize("exponent", [-2.5, -1, -0.5, 1 / 3, 0.5, 2, 3, 7.25])
@pytest.mark.parametrize("data_type", [np.float32, np.float16])
def test_powers(engine: tuple[str, MLContext], exponent: float, data_type: Any) -> None:
    name, context = engine
    x = (10.0 ** np.random.default_rng(0).uniform(-3, 3, 4000)).astype(data_type)
    builder = MLGraphBuilder(context)
    given = builder.input("x", np.dtype(data_type).name, x.shape)  # type: ignore[arg-type]
    power = np.asarray(exponent, data_type)
    graph = builder.build_sync({"y": builder.pow(given, builder.constant(power))})
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), power.astype(np.longdouble))
    units = 0.51 if name == "reference" else 4
    assert_within(x, computed(context, graph, x), exact, units, 2 * TINY)


def test_exponentials_at_the_ends_on_openvino(engine: tuple[str, MLContext]) -> None:
    name, context = engine
    builder = MLGraphBuilder(context)
    x = np.asarray([88.3, 88.7, -87.3, -104], np.float32)
    graph = builder.build_sync({"y": builder.exp(builder.input("x", "float32", [4]))})
    got = computed(context, graph, x)
    early = name == "openvino"
    assert got[:2].tolist() == pytest.approx(
        [np.exp(88.3), np.inf if early else np.exp(88.7)], rel=1e-5
    )
    assert got[3] <= got[2] <= 2 * TINY
