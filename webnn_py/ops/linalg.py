"""Matrix products. Source: WebNN 2026, "matmul" and "gemm"."""

from __future__ import annotations

from webnn_py.core.dimensions import undecided
from webnn_py.core.dtypes import FLOATS, cast_number
from webnn_py.core.errors import ValidationError
from webnn_py.core.shapes import MAX_RANK, broadcast, check_broadcast_to
from webnn_py.ir import Descriptor
from webnn_py.ops.declare import Inferred, Limits, operator, result
from webnn_py.ops.operand import MLOperand


class Linalg:
    """Builder methods of matrix products."""

    @operator(a=Limits(FLOATS, (2, MAX_RANK)), b=Limits("a", (2, MAX_RANK)), output="a")
    def matmul(self, a: MLOperand, b: MLOperand, *, label: str = "") -> Inferred:
        """Multiply matrices in the last two dimensions: [..., m, k] x [..., k, n] -> [..., m, n].

        Args:
            a: [..., m, k]; its leading dimensions broadcast with those of `b`.
            b: [..., k, n].

        Returns:
            [..., m, n].
        """
        if a.shape[-1] != b.shape[-2]:
            raise ValidationError(
                f"columns of a {list(a.shape)} and rows of b {list(b.shape)} differ"
                f"{undecided(a.shape[-1], b.shape[-2])}"
            )
        batch = broadcast(a.shape[:-2], b.shape[:-2], ("a's batch", "b's batch"))
        return result(Descriptor(a.data_type, (*batch, a.shape[-2], b.shape[-1])))

    @operator(a=Limits(FLOATS, 2), b=Limits("a", 2), c=Limits("a", (0, 2)), output="a")
    def gemm(
        self,
        a: MLOperand,
        b: MLOperand,
        *,
        c: MLOperand | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        a_transpose: bool = False,
        b_transpose: bool = False,
        label: str = "",
    ) -> Inferred:
        """Compute alpha * A x B + beta * C, a matrix product with an optional summand.

        Args:
            a: [m, k], or [k, m] with `a_transpose`.
            b: [k, n], or [n, k] with `b_transpose`.
            c: The summand; broadcasts to [m, n].
            alpha: Factor of the product.
            beta: Factor of `c`.
            a_transpose: Transpose `a` first.
            b_transpose: Transpose `b` first.

        Returns:
            [m, n].
        """
        m, k = a.shape[::-1] if a_transpose else a.shape
        rows, n = b.shape[::-1] if b_transpose else b.shape
        if k != rows:
            raise ValidationError(
                f"columns of A ({k}) and rows of B ({rows}) differ{undecided(k, rows)}"
            )
        if c is not None:
            check_broadcast_to(c.shape, (m, n), "c")
        numbers = {"alpha": cast_number(alpha, a.data_type), "beta": cast_number(beta, a.data_type)}
        return result(Descriptor(a.data_type, (m, n)), **numbers)
