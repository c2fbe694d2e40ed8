"""Negations of integers: no kernel has one that NVIDIA's compiler would join with a maximum."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.compiler.compiled import kernels
from webnn_py import MLGraphBuilder, MLOperand
from webnn_py.engines.webgpu.program.storage import Features

SHAPE = [2048, 2048]
"""So large that no pass writes constants out in it."""
Negate = Callable[[MLGraphBuilder, MLOperand], MLOperand]


def _spread(b: MLGraphBuilder, number: int, x: MLOperand) -> MLOperand:
    return b.expand(b.constant(number, x.data_type), SHAPE)


SIGNED: dict[str, Negate] = {
    "neg": lambda b, x: b.neg(x),
    "abs": lambda b, x: b.abs(x),
    "times -1": lambda b, x: b.mul(x, b.constant(-1, x.data_type)),
    "by -1": lambda b, x: b.div(x, b.constant(-1, x.data_type)),
    "slope -1": lambda b, x: b.prelu(x, b.constant(-1, x.data_type)),
    "-1 times": lambda b, x: b.mul(_spread(b, -1, x), x),
    "of a view": lambda b, x: b.reshape(b.neg(b.transpose(x)), SHAPE),
}
ANY_INTEGER: dict[str, Negate] = {
    "0 less": lambda b, x: b.sub(b.constant(0, x.data_type), x),
    "zeros less": lambda b, x: b.sub(_spread(b, 0, x), x),
}
CASES = [
    *((data_type, name) for data_type in ("int32", "int64") for name in SIGNED | ANY_INTEGER),
    *((data_type, name) for data_type in ("uint32", "uint64") for name in ANY_INTEGER),
]


@pytest.mark.parametrize("ending", ["reduce_max", "reduce_min", "max", "clamp"])
@pytest.mark.parametrize(("data_type", "name"), CASES)
def test_negations_before_maxima_are_not_recognisable(
    data_type: str, name: str, ending: str
) -> None:
    def model(b: MLGraphBuilder) -> dict[str, MLOperand]:
        x, other = (b.input(which, data_type, SHAPE) for which in "xy")
        made = (SIGNED | ANY_INTEGER)[name](b, x)
        if ending == "max":
            return {"z": b.max(b.max(made, other), x)}
        if ending == "clamp":
            return {"z": b.clamp(made, min_value=1, max_value=5)}
        return {"z": getattr(b, ending)(made, axes=[1])}

    texts = [kernel.code for kernel in kernels(model, Features())]
    assert any(re.search(r"wn_(neg|abs)_[iu](32|64)\(\w+\)", text) for text in texts)
    for text in texts:
        own = re.sub(r"fn wn_.*?\n}|fn wn_.* }", "", text, flags=re.DOTALL)
        assert not re.search(r"[=(,] *-\(?v\d|\babs\(", own)
        for constant in re.findall(r"let (c\d+) = ", own):
            assert not re.search(rf"\b{constant} [-*/]|[*/] {constant}\b", own)


def test_quotients_that_nobody_rounds_are_as_the_driver_divides() -> None:
    """They cost less so, and the specification leaves them room."""

    def quotient(g: MLGraphBuilder) -> dict[str, MLOperand]:
        x, y = g.input("a", "float32", [4]), g.input("b", "float32", [4])
        return {"y": g.relu(g.div(x, y))}

    (kernel,) = kernels(quotient, Features())
    assert "wn_quotient" not in kernel.code
