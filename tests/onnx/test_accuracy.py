"""How accurate ONNX operators are that are composed of WebNN's, on each engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.accuracy import (
    ENGINES,
    Function,
    assert_within,
    computed,
    exact_softplus,
    numbers,
)
from tests.conftest import context_of
from tests.onnx.models import model
from webnn_py import MLContext
from webnn_py.onnx import load

TINY = float(np.finfo(np.float32).tiny)


def acosh(x: Any) -> Any:
    return np.where(x < 1, np.nan, np.log1p((x - 1) + np.sqrt((x - 1) * (x + 1))))


EXACT: dict[str, Function] = {
    "Acos": np.arccos,
    "Acosh": acosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Cosh": np.cosh,
    "Mish": lambda x: x * np.tanh(exact_softplus(x)),
    "Sinh": np.sinh,
}


@pytest.fixture(params=list(ENGINES), scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, MLContext]]:
    with context_of(request, ENGINES[request.param]) as context:
        yield request.param, context


def of_node(context: MLContext, operator: str, x: Any, **attributes: Any) -> Any:
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    elem = TensorProto.FLOAT if x.dtype == np.float32 else TensorProto.FLOAT16
    graph = load(model([node], {"x": x.shape}, ["y"], elem=elem), context)
    return computed(context, graph, x)


@pytest.mark.parametrize("operator", EXACT)
@pytest.mark.parametrize("data_type", [np.float32, np.float16])
def test_composed_operators(engine: tuple[str, MLContext], operator: str, data_type: Any) -> None:
    name, context = engine
    x = numbers(data_type)
    with np.errstate(all="ignore"):
        exact = EXACT[operator](x.astype(np.longdouble))
    units = 1.0 if data_type == np.float16 else 10 if name == "openvino" else 6
    # Mish multiplies an exponential that may count as zero by x.
    absolute = 110 * TINY if operator == "Mish" else 0
    assert_within(x, of_node(context, operator, x), exact, units, absolute)


@pytest.mark.parametrize("operator", ["Asinh", "Sinh", "Atanh"])
@pytest.mark.parametrize("data_type", [np.float32, np.float16])
def test_odd_functions_keep_zeros_and_infinities(
    engine: tuple[str, MLContext], operator: str, data_type: Any
) -> None:
    _, context = engine
    x = np.asarray([0.0, np.inf, -np.inf, np.nan], data_type)
    wanted = x.copy()
    if operator == "Atanh":
        wanted[1:] = np.nan
    np.testing.assert_array_equal(of_node(context, operator, x), wanted)


def test_left_tails_do_not_cancel(engine: tuple[str, MLContext]) -> None:
    name, context = engine
    x = np.linspace(-9, -0.01, 1000, dtype=np.float32)
    wide = x.astype(np.longdouble)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    exact = wide / (1 + np.exp(-2 * inner))
    # The exponent is rounded: 256 units where it is largest. Sigmoids may be right to 1e-7 alone.
    absolute = 0 if name == "reference" else 1e-6
    got = of_node(context, "Gelu", x, approximate="tanh")
    assert_within(x, got, exact, 256, absolute)


def test_celu_of_a_negative_alpha_keeps_digits_near_zero(engine: tuple[str, MLContext]) -> None:
    name, context = engine
    x = -(10.0 ** np.linspace(-30, 1, 500)).astype(np.float32)
    exact = -1.5 * np.expm1(x.astype(np.longdouble) / -1.5)
    absolute = 0 if name in ("reference", "gpu") else 2e-7  # as that of elu
    assert_within(x, of_node(context, "Celu", x, alpha=-1.5), exact, 10, absolute)
