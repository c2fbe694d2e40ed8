"""The registry of engines for CPU contexts: built-in ones and those of other packages.

A package adds an engine by an entry point of the group `webnn_py.engines`. The entry point has the
engine's name and refers to its factory, such as its class. If several packages use one name, the
first on `sys.path` counts, as for modules.
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
    from importlib.metadata import EntryPoint  # a late import elsewhere: it takes 15 ms

GROUP = "webnn_py.engines"
FALLBACK = "reference"
"""The engine that supports every node and runs what others do not."""
OTHER_NAMES = {
    **dict.fromkeys(("ort", "onnx", "onnx-runtime"), "onnxruntime"),
    **dict.fromkeys(("ov", "vino"), "openvino"),
    **dict.fromkeys(("numpy", "cpu"), FALLBACK),
    **dict.fromkeys(("wgpu", "cuda", "vulkan"), "webgpu"),
    "wgpudawn": "dawn",
}
"""Engine names by other common names, for suggestions in messages."""
RESERVED = ("auto", "fastest", "webgpu", "dawn")
"""Names that no registered engine may have."""

Factory = Callable[..., HostEngine]
"""Function that creates an engine; its keyword arguments are the engine's options."""


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    """An engine of this package.

    Attributes:
        module: Name of its module, which is imported at first use.
        name: Name of its class.
        needs: Distribution that it runs on, with the import name of the same spelling.
        others: Further distributions that it needs.
        extra: The extra of this package that installs them.
    """

    module: str
    name: str
    needs: str
    others: tuple[str, ...] = ()
    extra: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether all its distributions are installed."""
        return not self.missing

    @property
    def missing(self) -> list[str]:
        """Distributions that are not installed."""
        needed = (self.needs, *self.others)
        return [name for name in needed if not _can_import(name)]

    @property
    def remedy(self) -> str:
        """The command that installs its distributions."""
        return f'pip install "webnn-py[{self.extra}]"'

    def load(self) -> Factory:
        """Import the engine's class."""
        factory: Factory = getattr(importlib.import_module(self.module), self.name)
        return factory


def _can_import(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # raised by a finder
        return False


@dataclass(frozen=True, slots=True)
class _EntryPointCache:
    """The entry points of installed packages.

    Attributes:
        path: `sys.path` at the time of the search.
        points: The entry points by name.
    """

    path: tuple[str, ...]
    points: Mapping[str, EntryPoint]


_BUILT_IN = {
    FALLBACK: _BuiltIn("webnn_py.engines.reference", "ReferenceEngine", needs="numpy"),
    "onnxruntime": _BuiltIn(
        "webnn_py.engines.onnxruntime",
        "OnnxRuntimeEngine",
        needs="onnxruntime",
        others=("onnx",),
        extra="ort",
    ),
    "openvino": _BuiltIn(
        "webnn_py.engines.openvino",
        "OpenVinoEngine",
        needs="openvino",
        others=("onnx",),
        extra="openvino",
    ),
}
FAST = tuple(name for name in _BUILT_IN if name != FALLBACK)
"""The engines among which "auto" picks the first installed one."""
_registered: dict[str, Factory] = {}
_entry_point_cache = _EntryPointCache((), {})
_lock = threading.Lock()


def register_engine(name: str, make: Factory) -> None:
    """Register an engine for CPU contexts of this process, or replace a registered one.

    It takes precedence over a package's engine of the same name.

    Args:
        name: The name for `engine=`.
        make: Factory, called once for each context, that returns a new `HostEngine`, such as its
            class. Its keyword arguments are the engine's options (`engine_options`).

    Raises:
        ValidationError: The name is reserved or not a string, or `make` is not callable.
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
    return name in _BUILT_IN or name in RESERVED


def engine_names() -> list[str]:
    """Return the names of all installed and registered engines."""
    own = [name for name, engine in _BUILT_IN.items() if engine.is_installed]
    return [*dict.fromkeys([*own, *_registered, *_entry_points()])]


def installed_engines() -> dict[str, str]:
    """Return the package and version that each installed engine runs on or comes from, by name."""
    from importlib.metadata import version

    found = {
        n: f"{own.needs} {version(own.needs)}" for n, own in _BUILT_IN.items() if own.is_installed
    }
    for name, point in _entry_points().items():
        dist = point.dist
        found[name] = point.value if dist is None else f"{dist.name} {dist.version}"
    return found


def make_engine(name: str, options: Mapping[str, Any]) -> HostEngine:
    """Create an engine.

    Args:
        name: "auto" for the first installed engine of `FAST`, "fastest" for one that measures all
            of them for each graph, or an engine's name.
        options: The engine's options by name.

    Raises:
        NotSupportedError: There is no engine of this name, or its package is not installed.
        ValidationError: The engine has no such option.
        OperationError: Creating the engine failed.
    """
    actual = default_engine() if name == "auto" else name
    if name in ("auto", "fastest") and default_engine() == FALLBACK:
        _warn_once()
    if name == "fastest":
        return fastest_engine(options)
    engine = _create(actual, _factory(actual), options)
    if not isinstance(engine, HostEngine):
        raise OperationError(
            f"engine {shown(actual)}: what makes it gave {type_name(engine)}, expected a HostEngine"
        )
    engine.name = actual
    return engine


def default_engine() -> str:
    """Return the name of the engine that "auto" selects on this machine."""
    return next((name for name in FAST if _BUILT_IN[name].is_installed), FALLBACK)


def fastest_engine(options: Mapping[str, Any], anew: bool = False) -> FastestEngine:
    """Create the engine that "fastest" selects on this machine.

    Args:
        options: The engines' options.
        anew: Ignore cached measurements.
    """
    names = [name for name in FAST if _BUILT_IN[name].is_installed]
    small = [make_engine(FALLBACK, {} if names else options)]
    engines = [make_engine(name, options) for name in names]
    return FastestEngine(engines or small, small if engines else (), anew, options)


@functools.cache
def _warn_once() -> None:
    LOG.warning(
        "no fast engine is installed for CPU contexts: the reference engine runs graphs, which is"
        " exact and slow; for a fast one: %s",
        " or ".join(_BUILT_IN[name].remedy for name in FAST),
    )


def _factory(name: str) -> Factory:
    """Return the factory of an engine; import it if need be."""
    if name in _registered:
        return _registered[name]
    source = _BUILT_IN.get(name) or _entry_point(name)
    if source is None:
        names = ", ".join(map(shown, ("auto", *engine_names(), "fastest")))
        meant = did_you_mean(name, engine_names(), OTHER_NAMES)
        raise NotSupportedError(f"engine {shown(name)} is not there; use one of {names}{meant}")
    if isinstance(source, _BuiltIn) and not source.is_installed:
        raise NotSupportedError(
            f"engine {name!r} needs the package {source.missing[0]}, which is not installed:"
            f" {source.remedy}"
        )
    try:
        factory: Factory = source.load()
    except MLError:  # the version of its package is too old
        raise
    except ImportError as error:
        raise NotSupportedError(
            f"engine {shown(name)} cannot be imported: {describe_error(error)}"
        ) from error
    except Exception as error:  # a package may raise anything
        raise OperationError(
            f"engine {shown(name)} cannot be imported: {describe_error(error)}"
        ) from error
    return factory


def _create(name: str, factory: Factory, options: Mapping[str, Any]) -> object:
    if options:
        _check_options(name, factory, options)
    try:
        return factory(**options)
    except MLError:
        raise
    except Exception as error:  # a package may raise anything
        raise OperationError(
            f"engine {shown(name)} cannot be made: {describe_error(error)}"
        ) from error


def _check_options(name: str, factory: Factory, options: Mapping[str, Any]) -> None:
    """Check that the factory declares every option."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # no signature, as for classes in C: the call itself checks
        return
    declared = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [option for option in options if option not in declared]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        choices = f"it has {', '.join(map(shown, declared))}" if declared else "it has none"
        raise ValidationError(f"engine {shown(name)} has no option {shown(unknown[0])}; {choices}")


def _entry_point(name: str) -> EntryPoint | None:
    """Return the entry point of an engine; search the packages again only if it is not cached."""
    cached = _entry_point_cache
    if cached.path == tuple(sys.path) and name in cached.points:
        return cached.points[name]
    return _entry_points().get(name)


def _entry_points() -> Mapping[str, EntryPoint]:
    """Search all packages for entry points, which reads a file of each package."""
    from importlib.metadata import entry_points

    global _entry_point_cache
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if not _is_taken(point.name):
            points.setdefault(point.name, point)
    _entry_point_cache = _EntryPointCache(tuple(sys.path), points)
    return points
