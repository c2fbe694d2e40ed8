"""How an operator is explained by others: a function of its name, registered by a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from webnn_py.ops.declare import REGISTRY

F = TypeVar("F", bound=Callable[..., Any])

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def decomposition(function: F) -> F:
    """Register the decomposition of the operator that has the function's name.

    It takes a GraphBuilder `g`, and the operands and options of the declaration by name; it returns
    what the operator's method does.
    """
    name = function.__name__
    wanted = REGISTRY[name].signature.parameters.keys() - {"self", "label"}
    assert inspect.signature(function).parameters.keys() - {"g"} == wanted, f"{name} takes {wanted}"
    assert name not in FUNCTIONS, f"the decomposition of {name} stands twice"
    FUNCTIONS[name] = function
    return function
