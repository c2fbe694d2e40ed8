"""The engines that CPU contexts can have, by name: our own, and those that packages add.

A package adds one by an entry point of the group `webnn_py.engines`: its name is the engine's, and
it refers to what makes the engine, called without arguments (a class will do).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass

from webnn_py.core.errors import NotSupportedError, OperationError, ValidationError
from webnn_py.core.messages import said, shown, type_name
from webnn_py.engines.base import Engine

GROUP = "webnn_py.engines"
FALLBACK = "reference"
"""The engine that runs everything, and what others do not."""

Make = Callable[[], Engine]


@dataclass(frozen=True, slots=True)
class _Own:
    """An engine of this package.

    Attributes:
        home: Module and class, imported when first used.
        needs: The package that it runs on; None if it needs no other.
    """

    home: str
    needs: str | None = None

    @property
    def installed(self) -> bool:
        """Whether it can be made here."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None

    def __call__(self) -> Engine:
        module, _, name = self.home.partition(":")
        made: Engine = getattr(importlib.import_module(module), name)()
        return made


_OWN = {FALLBACK: _Own("webnn_py.engines.reference:ReferenceEngine")}
_registered: dict[str, Make] = {}
_lock = threading.Lock()


def register_engine(name: str, make: Make) -> None:
    """Add an engine for CPU contexts, or replace one that was added.

    Args:
        name: By which `engine=` chooses it.
        make: Called without arguments for each context; gives an `Engine`.

    Raises:
        ValidationError: The name is taken or not a string, or `make` cannot be called.
    """
    if not isinstance(name, str) or not name:
        raise ValidationError(f"name: got {shown(name)}, expected a string with characters")
    if name in _OWN or name in ("auto", "fastest", "webgpu"):
        raise ValidationError(f"name {shown(name)}: this engine is webnn_py's own")
    if not callable(make):
        raise ValidationError(f"make: got {shown(make)}, expected a function without arguments")
    with _lock:
        _registered[name] = make


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def engine_packages() -> dict[str, str]:
    """The engines that there are, and the distribution that each runs on or comes from."""
    found = {name: own.needs or "numpy" for name, own in _OWN.items() if own.installed}
    for name, make in _registered.items():
        found[name] = getattr(make, "__module__", "") or type_name(make)
    for name, point in _entry_points().items():
        found.setdefault(name, point.module if point.dist is None else point.dist.name)
    return found


def make_engine(name: str) -> Engine:
    """A new engine.

    Args:
        name: "auto" for the best that is installed, or the name of one.

    Raises:
        NotSupportedError: There is none of this name, or what it runs on is not installed.
        OperationError: It could not be made.
    """
    wanted = FALLBACK if name == "auto" else name
    make = _registered.get(wanted) or _own(wanted) or _entry_points().get(wanted)
    if make is None:
        there = ", ".join(map(repr, ("auto", *engine_packages())))
        raise NotSupportedError(f"engine {shown(name)} is not there; use one of {there}")
    try:
        made = make.load()() if isinstance(make, importlib.metadata.EntryPoint) else make()
    except Exception as error:  # whatever a package raises
        raise OperationError(f"engine {shown(name)} cannot be made: {said(error)}") from error
    if not isinstance(made, Engine):
        raise OperationError(
            f"engine {shown(name)}: what makes it gave {type_name(made)}, expected an Engine"
        )
    return made


def _own(name: str) -> Make | None:
    own = _OWN.get(name)
    if own is not None and not own.installed:
        raise NotSupportedError(
            f"engine {name!r} needs the package {own.needs}, which is not installed"
        )
    return own
