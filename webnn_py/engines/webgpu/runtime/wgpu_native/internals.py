"""wgpu-py's private modules: import them, check capabilities against them, and call C functions.

wgpu-py calls wgpu-native through cffi. Two parts of that are replaced here, as they cost most:
the wrapper of each C function (`CFunctions`) and the parsing of C types (`TypeCache`).
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import wgpu

from webnn_py.engines.webgpu.runtime.webgpu_api import Capability
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import CALLING, OBSERVING


@dataclass(frozen=True, slots=True)
class Internals:
    """wgpu-py's private modules, or their stand-ins in a test.

    Attributes:
        api: Classes of the GPU objects, `libf` (C functions that raise a GPUError) and
            `error_handler` (the receiver of errors).
        helpers: The module that holds the wgpu instance.
        ffi: The cffi object with the types of the C interface.
        lib: The C functions.
    """

    api: Any
    helpers: Any
    ffi: Any
    lib: Any


def find_internals() -> Internals | str:
    """Return the private modules, or the reason why they cannot be imported."""
    package = "wgpu.backends.wgpu_native"
    try:
        c = importlib.import_module(f"{package}._ffi")
        if os.environ.get("WEBNN_NATIVE") != "0":
            install_type_cache(c.ffi)
        api, helpers = (importlib.import_module(f"{package}.{n}") for n in ("_api", "_helpers"))
        return Internals(api, helpers, c.ffi, c.lib)
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


# Capability checks


def fault(capability: Capability, internals: Internals | str) -> str | None:
    """Return why a capability cannot be used with these private modules; None if it can."""
    if capability is OBSERVING:
        return _specialization_fault()
    if isinstance(internals, str):
        return internals
    name = capability.name
    try:
        if capability is CALLING:
            return c_functions(internals).fault()
        for name, expected in capability.interface.items():
            found = _type_of(internals, name)
            if found != expected:
                return f"{name} is {found}, expected {expected}"
        for name, method in capability.attributes.items():
            if not _uses(internals, method, name):
                return f"{method} knows no {name}"
    except Exception as error:  # cffi has errors of its own
        return f"{name}: {type(error).__name__}: {error}"
    return None


def _type_of(internals: Internals, name: str) -> str:
    ffi = internals.ffi
    if name.startswith("WGPU") and "_" in name:
        return type(getattr(internals.lib, name)).__name__
    if name.startswith("WGPU"):
        members = ffi.typeof(name).fields if ffi.typeof(name).kind == "struct" else None
        return ", ".join(member for member, _ in members) if members else str(ffi.getctype(name))
    if not callable(getattr(internals.api.libf, name)):
        return "not callable"
    return str(ffi.getctype(ffi.typeof(getattr(internals.lib, name))))


def _uses(internals: Internals, method: str, name: str) -> bool:
    """Return whether a method or function, or one that it overrides, uses a name."""
    owner, _, function = method.rpartition(".")
    if not owner:
        namespaces = [vars(internals.helpers)]
    else:
        namespaces = [vars(kind) for kind in getattr(internals.api, owner).__mro__]
    codes = [getattr(namespace.get(function), "__code__", None) for namespace in namespaces]
    return any(code is not None and name in code.co_names for code in codes)


def _specialization_fault() -> str | None:
    """Return why wgpu-py's objects cannot change to a subclass of their class; None if they can."""
    for kind in (wgpu.GPUDevice, wgpu.GPUQueue, wgpu.GPUCommandEncoder):
        if any("__slots__" in vars(base) for base in kind.__mro__ if base is not object):
            return f"{kind.__name__} has __slots__"
    return None


# C functions


class _ErrorSlot:
    """The place where wgpu-py stores the error of a C function that runs meanwhile."""

    type = ""
    message: str | None = None


class CFunctions:
    """C functions, as attributes, that raise a GPUError.

    A call takes one Python call, and a sixth of the time of wgpu-py's own wrapper.

    Args:
        lib: The cffi library.
        slots: Returns this thread's stack of error slots.
        report: Stores an error, as its kind and message, in the top slot.
        kinds: Exception classes by the kind of error.
    """

    def __init__(
        self,
        lib: Any,
        slots: Callable[[], Any],
        report: Callable[[str, str], None],
        kinds: Mapping[str, type[BaseException]],
    ) -> None:
        self._lib = lib
        self._slots = slots
        self._report = report
        self._kinds = kinds

    def fault(self) -> str | None:
        """Return why errors do not arrive in the error slots; None if they do."""
        slot, kind, message = _ErrorSlot(), "Validation", "a trial"
        stack = self._slots()
        stack.append(slot)
        self._report(kind, message)
        arrived = stack.pop() is slot and (slot.type, slot.message) == (kind, message)
        known = self._kinds.get(kind) is wgpu.GPUValidationError
        return None if arrived and known else "errors of C functions are told in another way"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function, slots = getattr(self._lib, name), self._slots

        def call(*arguments: Any) -> Any:
            # Ask for the stack at each call. While wgpu-py makes a thread's first stack, the
            # garbage collector may call this function, and the thread then has another stack.
            stack = slots()
            slot = _ErrorSlot()
            stack.append(slot)
            try:
                result = function(*arguments)
            finally:
                stack.pop()
            if slot.message is not None:
                raise self._kinds.get(slot.type, wgpu.GPUError)(slot.message)
            return result

        setattr(self, name, call)
        return call


def c_functions(internals: Internals) -> CFunctions:
    """Return wgpu-native's C functions, which raise a GPUError."""
    handler, kinds = internals.api.error_handler, internals.helpers.ERROR_TYPES
    return CFunctions(internals.lib, handler._get_proxy_stack, handler.handle_error, kinds)


# C types


_SIMPLE_TYPE = re.compile(r"(\w+) ?(\*|\[\])? ?")


class TypeCache(dict[str, tuple[Any, bool]]):
    """cffi's cache of parsed types, which finds simple types without parsing C.

    cffi parses each new type text, such as `WGPUBufferDescriptor *`, together with the names of
    all types. That takes some 20 ms, and the first result needs dozens of them. Most texts are a
    name with a star or brackets behind it.

    Args:
        ffi: The FFI that owns the types.
    """

    def __init__(self, ffi: Any) -> None:
        super().__init__(ffi._parsed_types)
        self._ffi = ffi
        self._declarations = ffi._parser._declarations
        self._find = ffi._get_cached_btype
        self._model = sys.modules[type(ffi._parser).__module__].model

    def __missing__(self, text: str) -> tuple[Any, bool]:
        """Return the type of `text`, and that it is no function. A KeyError has cffi parse it."""
        model = self._model
        simple = _SIMPLE_TYPE.fullmatch(text)
        if simple is None:
            raise KeyError(text)
        name, suffix = simple.groups()
        if name == "void":
            kind = model.void_type
        elif name in model.PrimitiveType.ALL_PRIMITIVE_TYPES:
            kind = model.PrimitiveType(name)
        else:
            kind, _ = self._declarations[f"typedef {name}"]
        if kind.is_raw_function:
            raise KeyError(text)
        if suffix is not None:
            kind = model.PointerType(kind) if suffix == "*" else model.ArrayType(kind, None)
        with self._ffi._lock:
            found = self[text] = self._find(kind), False
        return found


def install_type_cache(ffi: Any) -> None:
    """Replace an FFI's cache of types by a TypeCache; do nothing with an unknown cffi."""
    parsed = getattr(ffi, "_parsed_types", None)
    if type(parsed) is dict and hasattr(ffi, "_lock"):
        try:
            ffi._parsed_types = TypeCache(ffi)
        except AttributeError:
            return
