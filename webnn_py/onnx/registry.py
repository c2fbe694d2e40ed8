"""Which function imports which operator, from which version of its definition on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """How to import an operator.

    Attributes:
        function: Takes the emitter, the node's inputs, and its attributes as keyword arguments.
        since: The first version of the operator's definition that it imports.
        attributes: The attributes that it knows.
    """

    function: Callable[..., Any]
    since: int
    attributes: frozenset[str]


HANDLERS: dict[tuple[str, str], list[Handler]] = {}
"""By domain and operator, the oldest first."""


def handles(*operators: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
    """Register a function for operators, from a version of their definition on."""

    def register(function: F) -> F:
        kinds = inspect.signature(function).parameters.values()
        attributes = frozenset(p.name for p in kinds if p.kind is p.KEYWORD_ONLY)
        for operator in operators:
            row = HANDLERS.setdefault((domain, operator), [])
            row.append(Handler(function, since, attributes))
            row.sort(key=lambda handler: handler.since)
        return function

    return register


def handler_of(domain: str, operator: str, version: int) -> Handler | None:
    """The newest handler that is not newer than a version of the domain's operator set."""
    fitting = [h for h in HANDLERS.get((domain, operator), ()) if h.since <= version]
    return fitting[-1] if fitting else None
