"""Normalizations and softmax; all are composites. Source: WebNN 2026, the section of each name."""

from __future__ import annotations

from collections.abc import Sequence

from webnn_py.core.dimensions import undecided
from webnn_py.core.dtypes import FLOATS, cast_number
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import MAX_RANK, check_axes, check_axis
from webnn_py.ir import Descriptor
from webnn_py.ops.convolution import InputLayout
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand


def _check_shape(operand: MLOperand | None, name: str, shape: Sequence[int]) -> None:
    if operand is not None and operand.shape != tuple(shape):
        raise ValidationError(
            f"operand {name!r}: shape {list(operand.shape)}, expected {list(shape)}"
            f"{undecided(operand.shape, tuple(shape))}"
        )


class Normalization:
    """Builder methods of normalizations.

    Returns:
        A tensor of the input's shape.
    """

    @operator(
        input=Limits(FLOATS, (1, MAX_RANK)),
        mean=Limits("input", 1),
        variance=Limits("input", 1),
        scale=Limits("input", 1),
        bias=Limits("input", 1),
        section="batchnorm",
    )
    def batch_normalization(
        self,
        input: MLOperand,
        mean: MLOperand,
        variance: MLOperand,
        *,
        scale: MLOperand | None = None,
        bias: MLOperand | None = None,
        axis: int = 1,
        epsilon: float = 1e-5,
        label: str = "",
    ) -> Inferred:
        """Compute scale * (x - mean) / sqrt(variance + epsilon) + bias along `axis`.

        Args:
            mean: One number for each element along `axis`.
            variance: One number for each element along `axis`.
            scale: Factor, one number for each element along `axis`; default: 1.
            bias: Summand, one number for each element along `axis`; default: 0.
        """
        check_axis(axis, input.rank)
        operands = {"mean": mean, "variance": variance, "scale": scale, "bias": bias}
        for name, operand in operands.items():
            _check_shape(operand, name, [input.shape[axis]])
        rounded = cast_number(epsilon, input.data_type)
        return result(Descriptor(input.data_type, input.shape), epsilon=rounded)

    @operator(
        input=Limits(FLOATS, 4),
        scale=Limits("input", 1),
        bias=Limits("input", 1),
        section="instancenorm",
    )
    def instance_normalization(
        self,
        input: MLOperand,
        *,
        scale: MLOperand | None = None,
        bias: MLOperand | None = None,
        epsilon: float = 1e-5,
        layout: InputLayout = "nchw",
        label: str = "",
    ) -> Inferred:
        """Normalize each sample and channel over height and width.

        Args:
            scale: Factor, one number for each channel; default: 1.
            bias: Summand, one number for each channel; default: 0.
        """
        channels = input.shape[layout.index("c")]
        _check_shape(scale, "scale", [channels])
        _check_shape(bias, "bias", [channels])
        rounded = cast_number(epsilon, input.data_type)
        return result(Descriptor(input.data_type, input.shape), epsilon=rounded)

    @operator(
        input=Limits(FLOATS), scale=Limits("input"), bias=Limits("input"), section="layernorm"
    )
    def layer_normalization(
        self,
        input: MLOperand,
        *,
        scale: MLOperand | None = None,
        bias: MLOperand | None = None,
        axes: Sequence[int] | None = None,
        epsilon: float = 1e-5,
        label: str = "",
    ) -> Inferred:
        """Normalize over `axes`.

        Args:
            scale: Factor; its dimension i has the size of the input's dimension axes[i]; default:
                1.
            bias: Summand; its dimension i has the size of the input's dimension axes[i]; default:
                0.
            axes: The dimensions, counted from 0, each once; default: all but the first.
        """
        used = tuple(range(1, input.rank)) if axes is None else tuple(axes)
        check_axes(used, input.rank)
        sizes = [input.shape[axis] for axis in used]
        _check_shape(scale, "scale", sizes)
        _check_shape(bias, "bias", sizes)
        rounded = cast_number(epsilon, input.data_type)
        return result(Descriptor(input.data_type, input.shape), axes=used, epsilon=rounded)

    @operator(x=Limits(FLOATS, (1, MAX_RANK)), scale=Limits("x"), output="x", extension=True)
    def rms_normalization(
        self,
        x: MLOperand,
        scale: MLOperand,
        *,
        epsilon: float = 1e-5,
        axes: Sequence[int] | None = None,
        label: str = "",
    ) -> Inferred:
        """Divide by the root mean square over `axes`: scale * x / sqrt(mean(x * x) + epsilon).

        Args:
            scale: Factor; its dimension i has the size of the dimension axes[i] of `x`.
            epsilon: Number added to the mean of the squares to avoid division by 0.
            axes: The dimensions, counted from 0, each once; default: the last one.
        """
        used = (x.rank - 1,) if axes is None else tuple(axes)
        check_axes(used, x.rank)
        _check_shape(scale, "scale", [x.shape[axis] for axis in used])
        rounded = cast_number(epsilon, x.data_type)
        return result(Descriptor(x.data_type, x.shape), axes=used, epsilon=rounded)

    @operator(input=Limits(FLOATS, (1, MAX_RANK)), section="softmax-method")
    def softmax(self, input: MLOperand, axis: int, *, label: str = "") -> Inferred:
        """Compute exp(x) / sum(exp(x)) along `axis`."""
        check_axis(axis, input.rank)
        return result(Descriptor(input.data_type, input.shape))
