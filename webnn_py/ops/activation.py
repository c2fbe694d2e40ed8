"""Activation functions: elementwise operators with options.

Source: WebNN 2026, the section of each operator's name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webnn_py.core.convert import MLNumber
from webnn_py.core.dtypes import ANY, FLOATS, cast_number
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import broadcast
from webnn_py.ir import Descriptor
from webnn_py.ops import numeric
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.elementwise import SIGNED
from webnn_py.ops.operand import MLOperand

_wide = numeric.wide


def _same(input: MLOperand, **attrs: Any) -> Inferred:
    return result(Descriptor(input.data_type, input.shape), **attrs)


def _cast_options(input: MLOperand, **numbers: float) -> Inferred:
    """Options as the input's data type holds them: what is beyond its range is infinite."""
    return _same(input, **{n: cast_number(v, input.data_type) for n, v in numbers.items()})


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _clamp(input: Any, min_value: Any, max_value: Any) -> Any:
    low = None if min_value is None else input.dtype.type(min_value)
    high = None if max_value is None else input.dtype.type(max_value)
    floor = input if low is None else np.maximum(input, low)
    return floor if high is None else np.minimum(floor, high)


class Activation:
    """Builder methods of the activation functions.

    Returns:
        Of the input's shape.
    """

    @operator(
        input=Limits(ANY),
        numpy=_clamp,
        wgsl="min(max({input}, {min_value}), {max_value})",
    )
    def clamp(
        self,
        input: MLOperand,
        *,
        min_value: MLNumber | None = None,
        max_value: MLNumber | None = None,
        label: str = "",
    ) -> Inferred:
        """Values held between `min_value` and `max_value`.

        A bound that is not given, or is NaN, does not bound.

        Args:
            min_value: Lower bound, not above `max_value`; cast to the input's data type.
            max_value: Upper bound; cast to the input's data type.
        """
        bounds = [_bound(value, input.data_type) for value in (min_value, max_value)]
        low, high = bounds
        if low is not None and high is not None and low > high:
            raise ValidationError(f"min_value {min_value} is above max_value {max_value}")
        return _same(input, min_value=low, max_value=high)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input, alpha: np.where(input > 0, input, alpha * np.expm1(input))),
        wgsl="select(wn_scaled(wn_expm1({input}), {alpha}), {input}, {input} > 0.0)",
    )
    def elu(self, input: MLOperand, *, alpha: float = 1.0, label: str = "") -> Inferred:
        """max(0, x) + alpha * (exp(min(0, x)) - 1).

        Args:
            alpha: A finite number, cast to the input's data type.
        """
        return _cast_options(input, alpha=alpha)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(numeric.gelu),
        wgsl="wn_gelu({input})",
        section="gelu-method",
    )
    def gelu(self, input: MLOperand, *, label: str = "") -> Inferred:
        """Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2)))."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input, alpha, beta: np.clip(alpha * input + beta, 0.0, 1.0)),
        wgsl="clamp(wn_scaled({input}, {alpha}) + {beta}, 0.0, 1.0)",
        section="hard-sigmoid",
    )
    def hard_sigmoid(
        self, input: MLOperand, *, alpha: float = 0.2, beta: float = 0.5, label: str = ""
    ) -> Inferred:
        """max(0, min(alpha * x + beta, 1)).

        Args:
            alpha: A finite number, cast to the input's data type.
            beta: Likewise.
        """
        return _cast_options(input, alpha=alpha, beta=beta)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input: input * np.clip(input + 3.0, 0.0, 6.0) / 6.0),
        wgsl="{input} * (clamp({input} + 3.0, 0.0, 6.0) / 6.0)",
        section="hard-swish",
    )
    def hard_swish(self, input: MLOperand, *, label: str = "") -> Inferred:
        """X * max(0, min(x + 3, 6)) / 6."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input, alpha: np.where(input < 0, alpha * input, input)),
        wgsl="select({input}, wn_scaled({input}, {alpha}), {input} < 0.0)",
    )
    def leaky_relu(self, input: MLOperand, *, alpha: float = 0.01, label: str = "") -> Inferred:
        """X where it is not negative, else alpha * x.

        Args:
            alpha: A finite number, cast to the input's data type.
        """
        return _cast_options(input, alpha=alpha)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input, alpha, beta: alpha * input + beta),
        wgsl="wn_scaled({input}, {alpha}) + {beta}",
    )
    def linear(
        self, input: MLOperand, *, alpha: float = 1.0, beta: float = 0.0, label: str = ""
    ) -> Inferred:
        """Alpha * x + beta.

        Args:
            alpha: A finite number, cast to the input's data type.
            beta: Likewise.
        """
        return _cast_options(input, alpha=alpha, beta=beta)

    @operator(
        input=Limits(SIGNED),
        slope=Limits("input"),
        numpy=numeric.prelu,
        wgsl="select({input}, wn_scaled({input}, {slope}), {input} < {T}(0))",
    )
    def prelu(self, input: MLOperand, slope: MLOperand, *, label: str = "") -> Inferred:
        """X where it is not negative, else slope * x.

        Args:
            slope: Broadcasts with `input`.

        Returns:
            Of the shape to which the two broadcast.
        """
        shape = broadcast(input.shape, slope.shape, ("input", "slope"))
        return result(Descriptor(input.data_type, shape))

    @operator(
        input=Limits(SIGNED),
        numpy=lambda input: np.maximum(input, input.dtype.type(0)),
        wgsl="max({input}, {T}(0))",
        section="relu-method",
    )
    def relu(self, input: MLOperand, *, label: str = "") -> Inferred:
        """max(0, x)."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(_sigmoid),
        wgsl="1.0 / (1.0 + wn_exp(-({input})))",
        section="sigmoid-method",
    )
    def sigmoid(self, input: MLOperand, *, label: str = "") -> Inferred:
        """1 / (1 + exp(-x))."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input: np.logaddexp(input, 0.0)),
        wgsl="max({input}, 0.0) + wn_log1p(wn_exp(-abs({input})))",
        section="softplus-method",
    )
    def softplus(self, input: MLOperand, *, label: str = "") -> Inferred:
        """ln(1 + exp(x))."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input: input / (1.0 + np.abs(input))),
        wgsl="{input} / (1.0 + abs({input}))",
        section="softsign-method",
    )
    def softsign(self, input: MLOperand, *, label: str = "") -> Inferred:
        """X / (1 + |x|)."""
        return _same(input)

    @operator(
        input=Limits(FLOATS), numpy=_wide(np.tanh), wgsl="wn_tanh({input})", section="tanh-method"
    )
    def tanh(self, input: MLOperand, *, label: str = "") -> Inferred:
        """Hyperbolic tangent."""
        return _same(input)


def _bound(value: MLNumber | None, data_type: str) -> MLNumber | None:
    if value is None or value != value:
        return None
    return cast_number(value, data_type)
