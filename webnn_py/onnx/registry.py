"""Which function imports which operator, from which version of its definition on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """How to import an operator.

    Attributes:
        function: Takes the emitter, the node's inputs, and its attributes as keyword arguments.
        since: The first version of the operator's definition that it imports.
        inputs: The inputs that it takes in order: their names, with the annotations of their types.
        fewest: How many of these are there at least, be it that they are left out.
        is_variadic: Whether the last of these stands for any number of inputs.
        attributes: The attributes that it takes by name, with the annotations of their types.
        required: Those that it needs.
    """

    function: Callable[..., Any]
    since: int
    inputs: Mapping[str, str]
    fewest: int
    is_variadic: bool
    attributes: Mapping[str, str]
    required: frozenset[str]


NEEDED = ("Tensor", "Tensors")
"""Annotations of inputs that may not be left out."""
OWN = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

HANDLERS: dict[tuple[str, str], list[Handler]] = {}
"""By domain and operator, the oldest first."""


def handles(*operators: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
    """Register a function for operators, from a version of their definition on."""

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
    """The newest handler that is not newer than a version of the domain's operator set."""
    fitting = [h for h in HANDLERS.get((domain, operator), ()) if h.since <= version]
    return fitting[-1] if fitting else None
