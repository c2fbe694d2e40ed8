"""The decorator that registers the decomposition of an operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from webnn_py.ops.declare import REGISTRY

F = TypeVar("F", bound=Callable[..., Any])

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def decomposition(function: F) -> F:
    """Register a function as the decomposition of the operator of the same name.

    The function takes a GraphBuilder `g` and the operator's operands and options by name, those
    that are inferred included. It returns the same as the operator's builder method.
    """
    name = function.__name__
    expected = REGISTRY[name].signature.parameters.keys() - {"self", "label"}
    actual = inspect.signature(function).parameters.keys() - {"g"}
    assert actual >= expected, f"{name} takes {expected}"
    assert name not in FUNCTIONS, f"the decomposition of {name} is registered twice"
    FUNCTIONS[name] = function
    return function
