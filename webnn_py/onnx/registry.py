"""Registry of handlers: the import function of each operator, by domain and version."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """Handler of an operator.

    Attributes:
        function: Import function; it takes the emitter, the node's inputs, and its attributes as
            keyword arguments.
        since: The first version of the operator set that it supports.
        inputs: Type annotations of its inputs by name, in order.
        fewest: The smallest number of inputs; an input with the empty name counts.
        is_variadic: Whether the last input repeats any number of times.
        attributes: Type annotations of its attributes by name.
        required: Names of the attributes without a default.
    """

    function: Callable[..., Any]
    since: int
    inputs: Mapping[str, str]
    fewest: int
    is_variadic: bool
    attributes: Mapping[str, str]
    required: frozenset[str]


NEEDED = ("Tensor", "Tensors")
"""Type annotations of inputs that a node may not omit."""
OWN = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

HANDLERS: dict[tuple[str, str], list[Handler]] = {}
"""Handlers by domain and operator, the oldest version first."""


def handles(*operators: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
    """Register the decorated function as the handler of operators.

    Args:
        *operators: Names of the operators.
        since: The first version of the operator set that the function supports.
        domain: The domain of the operators; '' is ONNX's own.
    """

    def register(function: F) -> F:
        _, *parameters = inspect.signature(function).parameters.values()
        given = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        handler = Handler(
            function,
            since,
            {p.name: p.annotation for p in given},
            sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in given),
            any(p.kind is p.VAR_POSITIONAL for p in given),
            {p.name: p.annotation for p in named},
            frozenset(p.name for p in named if p.default is p.empty),
        )
        for operator in operators:
            row = HANDLERS.setdefault((domain, operator), [])
            row.append(handler)
            row.sort(key=lambda handler: handler.since)
        return function

    return register


def handler_of(domain: str, operator: str, version: int) -> Handler | None:
    """Return the newest handler whose `since` is at most `version`, or None.

    Args:
        domain: The operator's domain.
        operator: The operator's name.
        version: The model's version of the domain's operator set.
    """
    fitting = [h for h in HANDLERS.get((domain, operator), ()) if h.since <= version]
    return fitting[-1] if fitting else None
