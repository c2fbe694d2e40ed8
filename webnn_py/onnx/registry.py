"""Which function imports which operator, from which version of its definition on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from webnn_py.onnx.tensor import BrokenModelError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """How to import an operator.

    Attributes:
        function: Takes the emitter, the node's inputs, and its attributes as keyword arguments.
        since: The first version of the operator's definition that it imports.
        attributes: The attributes that it knows.
        needed: The inputs that it needs, by their places.
    """

    function: Callable[..., Any]
    since: int
    attributes: frozenset[str]
    needed: Mapping[int, str]

    def check(self, inputs: Sequence[Any]) -> None:
        """None of the inputs that it needs is left out.

        Raises:
            BrokenModelError: One is.
        """
        for place, name in self.needed.items():
            if place < len(inputs) and inputs[place] is None:
                raise BrokenModelError(f"it lacks its input {name!r}")


NEEDED = ("Tensor", "Tensors")
"""Annotations of inputs that may not be left out."""
OWN = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

HANDLERS: dict[tuple[str, str], list[Handler]] = {}
"""By domain and operator, the oldest first."""


def handles(*operators: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
    """Register a function for operators, from a version of their definition on."""

    def register(function: F) -> F:
        kinds = inspect.signature(function).parameters.values()
        attributes = frozenset(p.name for p in kinds if p.kind is p.KEYWORD_ONLY)
        _, *inputs = (p for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD)
        known = [(place, p) for place, p in enumerate(inputs) if p.annotation in NEEDED]
        needed = {place: p.name for place, p in known}
        for operator in operators:
            row = HANDLERS.setdefault((domain, operator), [])
            row.append(Handler(function, since, attributes, needed))
            row.sort(key=lambda handler: handler.since)
        return function

    return register


def handler_of(domain: str, operator: str, version: int) -> Handler | None:
    """The newest handler that is not newer than a version of the domain's operator set."""
    fitting = [h for h in HANDLERS.get((domain, operator), ()) if h.since <= version]
    return fitting[-1] if fitting else None
