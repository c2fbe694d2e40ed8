"""Random valid calls of any operator, drawn from its declaration.

    @given(calls("conv2d"))
    def test(call):
        outputs = call(builder)            # adds inputs and the operator, returns its outputs
        arrays = call.inputs               # what to feed the inputs with

Data types, ranks, enums, flags and axes come from the registry. What a signature cannot say (shapes
that belong together, lists of a certain length) is said by a rule for the operator.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence
from typing import Any, Literal

from hypothesis import strategies as st

from tests.property.contents import WHOLE
from tests.property.drawing import Call, Draw, Tensor, data_types, operands, shapes, tensors
from tests.property.rules import RULES, general
from webnn_py import MLOperandDataType
from webnn_py.core.convert import SignedSize
from webnn_py.ops.declare import REGISTRY, Operator


def numbers(name: str) -> st.SearchStrategy[float]:
    return st.floats(2**-10, 1, width=16) if name == "epsilon" else st.floats(-2, 2, width=16)


def option(op: Operator, name: str, annotation: Any, rank: int) -> st.SearchStrategy[Any] | None:
    """How to draw an option whose annotation and name say all, or None."""
    if name == "axis":
        return st.integers(0, rank - 1)
    if name == "axes":
        return st.none() | st.lists(st.integers(0, max(rank - 1, 0)), unique=True, max_size=rank)
    if name == "permutation":
        return st.none() | st.permutations(range(rank))
    if annotation == MLOperandDataType:
        return data_types(op, "output")
    if typing.get_origin(annotation) is Literal:
        return st.sampled_from(typing.get_args(annotation))
    simple = {bool: st.booleans(), float: numbers(name), SignedSize: st.integers(-4, 4)}
    return simple.get(annotation)


def general_options(op: Operator, rank: int, known: Sequence[str] = ()) -> st.SearchStrategy[Any]:
    """All options that need no rule; those that have a default are left out at times."""
    hints = typing.get_type_hints(op.infer, include_extras=True)
    required: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for name, parameter in op.signature.parameters.items():
        if name in ("self", "label", *known) or name in op.limits:
            continue
        strategy = option(op, name, hints[name], rank)
        if strategy is not None:
            has_default = parameter.default is not inspect.Parameter.empty
            (optional if has_default else required)[name] = strategy
    return st.fixed_dictionaries(required, optional=optional)


@st.composite
def _drawn(draw: Draw, op: Operator) -> Call:
    wanted, options = RULES.get(op.name, general)(draw, op)
    if op.variadic:
        ((name, parts),) = wanted.items()
        data_type = draw(data_types(op, name))
        members: dict[str, Any] = {name: [draw(tensors(data_type, part)) for part in parts]}
        return Call(op, members, options)
    first = wanted[next(iter(op.limits))]
    rest = draw(general_options(op, len(first), tuple(options)))
    # States that grow from step to step say little of the steps.
    reach = 1 if op.family == "recurrent" else 6
    return Call(op, draw(operands(op, wanted, reach)), rest | options)


def calls(name: str) -> st.SearchStrategy[Call]:
    """Valid calls of one operator."""
    op = REGISTRY[name]
    return WHOLE.get(name, _drawn)(op)


def any_call() -> st.SearchStrategy[Call]:
    """Valid calls of any operator."""
    return st.sampled_from(sorted(REGISTRY)).flatmap(calls)


__all__ = ["Call", "Tensor", "any_call", "calls", "shapes", "tensors"]
