"""What is private in wgpu, and whether a release of it has what a `Capability` uses."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

import wgpu

from webnn_py.engines.webgpu.runtime.wgpu_native.c_calls import Calls
from webnn_py.engines.webgpu.runtime.wgpu_native.c_types import find_types_fast
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import CALLING, OBSERVING, Capability


@dataclass(frozen=True, slots=True)
class Internals:
    """wgpu's private modules, or what stands for them in a test.

    Attributes:
        api: Classes of the GPU objects, and `libf`: C functions that raise a GPUError, which the
            `error_handler` is told.
        helpers: Where the instance is kept.
        ffi: Types of the C interface.
        lib: C functions.
    """

    api: Any
    helpers: Any
    ffi: Any
    lib: Any


def find_internals() -> Internals | str:
    """The private modules, or why they are not found."""
    package = "wgpu.backends.wgpu_native"
    try:
        c = importlib.import_module(f"{package}._ffi")
        if os.environ.get("WEBNN_NATIVE") != "0":
            find_types_fast(c.ffi)
        api, helpers = (importlib.import_module(f"{package}.{n}") for n in ("_api", "_helpers"))
        return Internals(api, helpers, c.ffi, c.lib)
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


def fault(capability: Capability, internals: Internals | str) -> str | None:
    """Why a capability cannot be used with these private modules; None if it can."""
    if capability is OBSERVING:
        return _unfit_to_observe()
    if isinstance(internals, str):
        return internals
    name = capability.name
    try:
        if capability is CALLING:
            return calls_of(internals).fault()
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
    """Whether the method (or function), or the one that it overrides, uses a name."""
    owner, _, function = method.rpartition(".")
    if not owner:
        places = [vars(internals.helpers)]
    else:
        places = [vars(kind) for kind in getattr(internals.api, owner).__mro__]
    codes = [getattr(place.get(function), "__code__", None) for place in places]
    return any(code is not None and name in code.co_names for code in codes)


def _unfit_to_observe() -> str | None:
    """Why objects of wgpu's cannot be given a subclass of their class, if so."""
    for kind in (wgpu.GPUDevice, wgpu.GPUQueue, wgpu.GPUCommandEncoder):
        if any("__slots__" in vars(base) for base in kind.__mro__ if base is not object):
            return f"{kind.__name__} has __slots__"
    return None


def calls_of(internals: Internals) -> Calls:
    """C functions that raise what they find wrong."""
    handler, kinds = internals.api.error_handler, internals.helpers.ERROR_TYPES
    return Calls(internals.lib, handler._get_proxy_stack, handler.handle_error, kinds)
