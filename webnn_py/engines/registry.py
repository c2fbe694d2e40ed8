"""The engines that CPU contexts can have, by name: our own, and those that packages add.

A package adds one by an entry point of the group `webnn_py.engines`: its name is the engine's, and
it refers to what makes the engine, such as its class. Where several packages have one of the same
name, the first on `sys.path` counts, as with modules.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webnn_py.core.errors import MLError, NotSupportedError, OperationError, ValidationError
from webnn_py.core.messages import LOG, describe_error, did_you_mean, shown, type_name
from webnn_py.engines.fastest import FastestEngine
from webnn_py.engines.host import HostEngine

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint  # imported late: 15 ms

GROUP = "webnn_py.engines"
FALLBACK = "reference"
OTHER_NAMES = {
    **dict.fromkeys(("ort", "onnx", "onnx-runtime"), "onnxruntime"),
    **dict.fromkeys(("ov", "vino"), "openvino"),
    **dict.fromkeys(("numpy", "cpu"), FALLBACK),
    **dict.fromkeys(("wgpu", "cuda", "vulkan"), "webgpu"),
}
"""What engines are called elsewhere."""
"""The engine that runs everything, and what others do not."""
RESERVED = ("auto", "fastest", "webgpu")
"""Names that mean something else."""

Make = Callable[..., HostEngine]
"""Makes an engine; its keyword arguments are the engine's options."""


@dataclass(frozen=True, slots=True)
class _Own:
    """An engine of this package.

    Attributes:
        module: Imported when the engine is first used.
        name: Of its class.
        needs: The distribution that it runs on, which imports under the same name.
        others: What it needs besides; the same.
    """

    module: str
    name: str
    needs: str
    others: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether it can be made here."""
        return not self.lacking

    @property
    def lacking(self) -> list[str]:
        """What of it is not installed."""
        needed = (self.needs, *self.others)
        return [name for name in needed if not _can_import(name)]

    def load(self) -> Make:
        """The class."""
        made: Make = getattr(importlib.import_module(self.module), self.name)
        return made


def _can_import(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # of a finder that refuses it
        return False


@dataclass(frozen=True, slots=True)
class _Found:
    """The entry points that there were.

    Attributes:
        path: `sys.path` at that time.
        points: By name.
    """

    path: tuple[str, ...]
    points: Mapping[str, EntryPoint]


_OWN = {
    FALLBACK: _Own("webnn_py.engines.reference", "ReferenceEngine", needs="numpy"),
    "onnxruntime": _Own(
        "webnn_py.engines.onnxruntime",
        "OnnxRuntimeEngine",
        needs="onnxruntime",
        others=("onnx",),
    ),
    "openvino": _Own(
        "webnn_py.engines.openvino", "OpenVinoEngine", needs="openvino", others=("onnx",)
    ),
}
FAST = tuple(name for name in _OWN if name != FALLBACK)
"""Those in which "auto" looks for one that is installed, in this order."""
_registered: dict[str, Make] = {}
_found = _Found((), {})
_lock = threading.Lock()


def register_engine(name: str, make: Make) -> None:
    """Add an engine for CPU contexts of this process, or replace one that was added.

    It goes before a package's of the same name.

    Args:
        name: By which `engine=` chooses it.
        make: Called for each context; gives a new `HostEngine`, as its class does. Its keyword
            arguments are what `engine_options` takes.

    Raises:
        ValidationError: The name is webnn_py's own or not a string, or `make` cannot be called.
    """
    if not isinstance(name, str) or not name:
        raise ValidationError(f"name: got {shown(name)}, expected a string with characters")
    if _is_taken(name):
        raise ValidationError(f"name {shown(name)} is webnn_py's own; take another one")
    if not callable(make):
        raise ValidationError(f"make: got {shown(make)}, expected what makes a HostEngine")
    with _lock:
        _registered[name] = make


def _is_taken(name: str) -> bool:
    return name in _OWN or name in RESERVED


def engine_names() -> list[str]:
    """The names of all engines that there are."""
    own = [name for name, engine in _OWN.items() if engine.installed]
    return [*dict.fromkeys([*own, *_registered, *_entry_points()])]


def installed_engines() -> dict[str, str]:
    """The engines that are installed, by name: what each runs on or comes from, with version."""
    from importlib.metadata import version

    found = {n: f"{own.needs} {version(own.needs)}" for n, own in _OWN.items() if own.installed}
    for name, point in _entry_points().items():
        dist = point.dist
        found[name] = point.value if dist is None else f"{dist.name} {dist.version}"
    return found


def make_engine(name: str, options: Mapping[str, Any]) -> HostEngine:
    """A new engine.

    Args:
        name: "auto" for the first of `FAST` that is installed, "fastest" for one that measures
            all of them for each graph, or the name of one.
        options: What it is told, by name.

    Raises:
        NotSupportedError: There is none of this name, or what it runs on is not installed.
        ValidationError: It has no such option.
        OperationError: It could not be made.
    """
    wanted = default_engine() if name == "auto" else name
    if name in ("auto", "fastest") and default_engine() == FALLBACK:
        _say_once()
    if name == "fastest":
        return fastest_engine(options)
    made = _make(wanted, _loaded(wanted), options)
    if not isinstance(made, HostEngine):
        raise OperationError(
            f"engine {shown(wanted)}: what makes it gave {type_name(made)}, expected a HostEngine"
        )
    made.name = wanted
    return made


def default_engine() -> str:
    """The name of the engine that "auto" stands for here."""
    return next((name for name in FAST if _OWN[name].installed), FALLBACK)


def fastest_engine(options: Mapping[str, Any], anew: bool = False) -> FastestEngine:
    """What "fastest" stands for here.

    Args:
        options: What the engines are told.
        anew: Measure what is remembered, too.
    """
    there = [name for name in FAST if _OWN[name].installed]
    small = [make_engine(FALLBACK, {} if there else options)]
    engines = [make_engine(name, options) for name in there]
    return FastestEngine(engines or small, small if engines else (), anew, options)


@functools.cache
def _say_once() -> None:
    packages = ", or ".join(" ".join((_OWN[name].needs, *_OWN[name].others)) for name in FAST)
    LOG.warning(
        "no fast engine is installed for CPU contexts: the reference engine runs graphs, which is"
        " right and slow; pip install %s, for a fast one",
        packages,
    )


def _loaded(name: str) -> Make:
    """What makes the engine of a name."""
    if name in _registered:
        return _registered[name]
    source = _OWN.get(name) or _entry_point(name)
    if source is None:
        there = ", ".join(map(shown, ("auto", *engine_names(), "fastest")))
        meant = did_you_mean(name, engine_names(), OTHER_NAMES)
        raise NotSupportedError(f"engine {shown(name)} is not there; use one of {there}{meant}")
    if isinstance(source, _Own) and not source.installed:
        raise NotSupportedError(
            f"engine {name!r} needs the package {source.lacking[0]}, which is not installed"
        )
    try:
        make: Make = source.load()
    except MLError:  # what it runs on is too old
        raise
    except ImportError as error:
        raise NotSupportedError(
            f"engine {shown(name)} cannot be imported: {describe_error(error)}"
        ) from error
    except Exception as error:  # whatever a package raises
        raise OperationError(
            f"engine {shown(name)} cannot be imported: {describe_error(error)}"
        ) from error
    return make


def _make(name: str, make: Make, options: Mapping[str, Any]) -> object:
    if options:
        _check_options(name, make, options)
    try:
        return make(**options)
    except MLError:
        raise
    except Exception as error:  # whatever a package raises
        raise OperationError(
            f"engine {shown(name)} cannot be made: {describe_error(error)}"
        ) from error


def _check_options(name: str, make: Make, options: Mapping[str, Any]) -> None:
    """Every option is one that what makes the engine declares."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # such as of a class in C: it will tell
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [option for option in options if option not in known]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        there = f"it has {', '.join(map(shown, known))}" if known else "it has none"
        raise ValidationError(f"engine {shown(name)} has no option {shown(unknown[0])}; {there}")


def _entry_point(name: str) -> EntryPoint | None:
    """Of a package's engine; looked for anew only where it was not found before."""
    known = _found
    if known.path == tuple(sys.path) and name in known.points:
        return known.points[name]
    return _entry_points().get(name)


def _entry_points() -> Mapping[str, EntryPoint]:
    """Those of all packages: this reads a file of every one."""
    from importlib.metadata import entry_points

    global _found
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if not _is_taken(point.name):
            points.setdefault(point.name, point)
    _found = _Found(tuple(sys.path), points)
    return points
