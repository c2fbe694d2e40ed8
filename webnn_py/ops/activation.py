"""Activation functions, elementwise operators with options.

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
    """Cast options to the input's data type; numbers beyond its range become infinite."""
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
        A tensor of the input's shape.
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
        """Clamp each element to the range from `min_value` to `max_value`.

        A bound of None or NaN has no effect.

        Args:
            min_value: Lower bound, at most `max_value`; cast to the input's data type.
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
        """Compute max(0, x) + alpha * (exp(min(0, x)) - 1), the exponential linear unit.

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
        """Compute 0.5 * x * (1 + erf(x / sqrt(2))), the Gaussian error linear unit."""
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
        """Compute max(0, min(alpha * x + beta, 1)).

        Args:
            alpha: A finite number, cast to the input's data type.
            beta: A finite number, cast to the input's data type.
        """
        return _cast_options(input, alpha=alpha, beta=beta)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input: input * np.clip(input + 3.0, 0.0, 6.0) / 6.0),
        wgsl="{input} * (clamp({input} + 3.0, 0.0, 6.0) / 6.0)",
        section="hard-swish",
    )
    def hard_swish(self, input: MLOperand, *, label: str = "") -> Inferred:
        """Compute x * max(0, min(x + 3, 6)) / 6."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input, alpha: np.where(input < 0, alpha * input, input)),
        wgsl="select({input}, wn_scaled({input}, {alpha}), {input} < 0.0)",
    )
    def leaky_relu(self, input: MLOperand, *, alpha: float = 0.01, label: str = "") -> Inferred:
        """Compute x where x >= 0, else alpha * x.

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
        """Compute alpha * x + beta.

        Args:
            alpha: A finite number, cast to the input's data type.
            beta: A finite number, cast to the input's data type.
        """
        return _cast_options(input, alpha=alpha, beta=beta)

    @operator(
        input=Limits(SIGNED),
        slope=Limits("input"),
        numpy=numeric.prelu,
        wgsl="select({input}, wn_scaled({input}, {slope}), {input} < {T}(0))",
    )
    def prelu(self, input: MLOperand, slope: MLOperand, *, label: str = "") -> Inferred:
        """Compute x where x >= 0, else slope * x.

        Args:
            slope: Factors for negative elements; broadcasts with `input`.

        Returns:
            A tensor of the shape that `input` and `slope` broadcast to.
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
        """Compute max(0, x), the rectified linear unit."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(_sigmoid),
        wgsl="1.0 / (1.0 + wn_exp(-({input})))",
        section="sigmoid-method",
    )
    def sigmoid(self, input: MLOperand, *, label: str = "") -> Inferred:
        """Compute 1 / (1 + exp(-x))."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input: np.logaddexp(input, 0.0)),
        wgsl="max({input}, 0.0) + wn_log1p(wn_exp(-abs({input})))",
        section="softplus-method",
    )
    def softplus(self, input: MLOperand, *, label: str = "") -> Inferred:
        """Compute ln(1 + exp(x))."""
        return _same(input)

    @operator(
        input=Limits(FLOATS),
        numpy=_wide(lambda input: input / (1.0 + np.abs(input))),
        wgsl="{input} / (1.0 + abs({input}))",
        section="softsign-method",
    )
    def softsign(self, input: MLOperand, *, label: str = "") -> Inferred:
        """Compute x / (1 + |x|)."""
        return _same(input)

    @operator(
        input=Limits(FLOATS), numpy=_wide(np.tanh), wgsl="wn_tanh({input})", section="tanh-method"
    )
    def tanh(self, input: MLOperand, *, label: str = "") -> Inferred:
        """Compute the hyperbolic tangent."""
        return _same(input)


def _bound(value: MLNumber | None, data_type: str) -> MLNumber | None:
    if value is None or value != value:
        return None
    return cast_number(value, data_type)
