"""What is private in wgpu is looked at before it is used."""

from __future__ import annotations

import logging
import re
import sys
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("wgpu")

from webnn_py.engines.webgpu.runtime import fallback
from webnn_py.engines.webgpu.runtime.wgpu_native import native
from webnn_py.engines.webgpu.runtime.wgpu_native.capabilities import (
    ALL,
    CALLING,
    CHECKING,
    FORKING,
    FREEING,
    OBSERVING,
    RECORDING,
    WAITING,
    Capability,
)
from webnn_py.engines.webgpu.runtime.wgpu_native.internals import (
    CFunctions,
    Internals,
    fault,
    find_internals,
)

FROM_PRIVATE_MODULES = (RECORDING, WAITING, CHECKING, FORKING, FREEING, CALLING)
BY_NAME = FROM_PRIVATE_MODULES[:-1]
BY_HANDLE = (RECORDING, WAITING, CHECKING, FREEING)


@pytest.fixture
def internals() -> Internals:
    found = find_internals()
    assert isinstance(found, Internals)
    return found


class Without:
    """Another object, but for one name."""

    def __init__(self, thing: Any, name: str) -> None:
        self._thing = thing
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise AttributeError(name)
        return getattr(self._thing, name)


class Renaming:
    """Another object, in which some names are those of others."""

    def __init__(self, thing: Any, names: dict[str, str]) -> None:
        self._thing = thing
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, self._names.get(name, name))

    def getctype(self, what: Any) -> Any:
        return self._thing.getctype(self._other(what))

    def typeof(self, what: Any) -> Any:
        return self._thing.typeof(self._other(what))

    def _other(self, what: Any) -> Any:
        return self._names.get(what, what) if isinstance(what, str) else what


def test_all_is_there_in_this_release() -> None:
    assert {c.name: c.missing for c in ALL} == dict.fromkeys(
        (
            "recording",
            "waiting",
            "checking",
            "observing",
            "forking",
            "timing",
            "calling",
            "trusting",
            "freeing",
        )
    )


@pytest.mark.parametrize("capability", FROM_PRIVATE_MODULES, ids=lambda c: c.name)
def test_private_modules_that_are_gone(
    capability: Capability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wgpu.backends.wgpu_native._helpers", None)
    found = find_internals()
    assert isinstance(found, str)
    assert "_helpers" in str(fault(capability, found))
    assert fault(OBSERVING, found) is None


@pytest.mark.parametrize("capability", BY_HANDLE, ids=lambda c: c.name)
def test_functions_that_are_gone(capability: Capability, internals: Internals) -> None:
    for name in capability.interface:
        if not name.startswith("wgpu"):
            continue
        for changed in (
            Internals(
                internals.api, internals.helpers, internals.ffi, Without(internals.lib, name)
            ),
            Internals(
                SimpleNamespace(libf=Without(internals.api.libf, name)),
                internals.helpers,
                internals.ffi,
                internals.lib,
            ),
        ):
            assert name in str(fault(capability, changed))


@pytest.mark.parametrize("capability", BY_HANDLE, ids=lambda c: c.name)
def test_functions_with_another_signature(capability: Capability, internals: Internals) -> None:
    for name, expected in capability.interface.items():
        if "(*)" not in expected:
            continue
        other = "WGPUProcQueueSetLabel" if name.startswith("WGPU") else "wgpuQueueSetLabel"
        changed = Internals(
            internals.api,
            internals.helpers,
            Renaming(internals.ffi, {name: other}),
            Renaming(internals.lib, {name: other}),
        )
        found = str(fault(capability, changed))
        assert found.startswith(f"{name} is void(*)(struct WGPUQueueImpl *, ")
        assert found.endswith(f"expected {expected}")


def test_structs_and_constants_that_are_others(internals: Internals) -> None:
    struct = "WGPUBufferMapCallbackInfo"
    ffi = Renaming(internals.ffi, {struct: "WGPUQueueWorkDoneCallback"})
    changed = Internals(internals.api, internals.helpers, ffi, internals.lib)
    assert f"{struct} is void(*)(" in str(fault(WAITING, changed))
    ffi = Renaming(internals.ffi, {struct: "WGPUColor"})
    changed = Internals(internals.api, internals.helpers, ffi, internals.lib)
    assert f"{struct} is r, g, b, a, expected nextInChain" in str(fault(WAITING, changed))
    constants = [name for name, kind in WAITING.interface.items() if kind == "int"]
    assert len(constants) == 4
    for name in constants:
        lib = Without(internals.lib, name)
        changed = Internals(internals.api, internals.helpers, internals.ffi, lib)
        assert f"{name}: AttributeError" in str(fault(WAITING, changed))


@pytest.mark.parametrize("capability", BY_NAME, ids=lambda c: c.name)
def test_attributes_under_another_name(capability: Capability, internals: Internals) -> None:
    class GPUObjectBase:
        def __init__(self, raw: Any) -> None:
            self.raw = raw

        def __del__(self) -> None:
            pass

    api = SimpleNamespace(libf=internals.api.libf, GPUObjectBase=GPUObjectBase)
    helpers = SimpleNamespace(get_wgpu_instance=lambda: None)
    changed = Internals(api, helpers, internals.ffi, internals.lib)
    assert "knows no _" in str(fault(capability, changed))
    fewer = SimpleNamespace(libf=internals.api.libf)
    changed = Internals(fewer, SimpleNamespace(), internals.ffi, internals.lib)
    assert re.search("no attribute|knows no _", str(fault(capability, changed)))


class Handler:
    """wgpu's of errors, in one slot for all; it may forget the message."""

    def __init__(self, forgetful: bool) -> None:
        self._forgetful = forgetful
        self.slots: list[Any] = []

    def _get_proxy_stack(self) -> list[Any]:
        return self.slots

    def handle_error(self, kind: str, message: str) -> None:
        self.slots[-1].type = kind
        if not self._forgetful:
            self.slots[-1].message = message


def test_errors_of_functions_that_are_told_in_another_way(internals: Internals) -> None:
    def told_by(handler: Any, kinds: Any = internals.helpers.ERROR_TYPES) -> str | None:
        api, helpers = SimpleNamespace(error_handler=handler), SimpleNamespace(ERROR_TYPES=kinds)
        return fault(CALLING, Internals(api, helpers, internals.ffi, internals.lib))

    assert told_by(Handler(forgetful=False)) is None
    told = "errors of C functions are told in another way"
    assert told_by(Handler(forgetful=True)) == told
    assert told_by(Handler(forgetful=False), {}) == told
    assert str(told_by(object())).startswith("calling: AttributeError")


def test_functions_raise_what_they_are_told() -> None:
    handler = Handler(forgetful=False)

    def refuse(kind: str, message: str) -> None:
        handler.handle_error(kind, message)

    lib = SimpleNamespace(refuse=refuse, add=lambda a, b: a + b, fail=lambda: 1 // 0)
    refused = native.wgpu.GPUValidationError
    calls = CFunctions(lib, handler._get_proxy_stack, handler.handle_error, {"Validation": refused})
    assert calls.add(1, 2) == calls.add(2, 1) == 3
    with pytest.raises(refused, match="too large"):
        calls.refuse("Validation", "too large")
    with pytest.raises(native.wgpu.GPUError, match="of a new kind"):
        calls.refuse("Unheard of", "of a new kind")
    with pytest.raises(ZeroDivisionError):
        calls.fail()
    assert handler.slots == []


def test_a_thread_may_call_from_within_its_first_call(
    internals: Internals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the collector does, which frees what has ended: errors are raised behind that, too."""
    helpers = internals.helpers
    handler = helpers.ErrorHandler(logging.getLogger("wgpu"))
    lib = SimpleNamespace(refuse=handler.handle_error, free=lambda: None)
    calls = CFunctions(lib, handler._get_proxy_stack, handler.handle_error, helpers.ERROR_TYPES)
    freed: list[bool] = []

    def new_stack() -> deque[Any]:
        if not freed:
            freed.append(True)
            calls.free()
        return deque()

    monkeypatch.setattr(helpers, "deque", new_stack)
    handler.capture("by wgpu-py")
    assert handler.release("by wgpu-py") is None
    assert freed
    with pytest.raises(native.wgpu.GPUValidationError, match="too large"):
        calls.refuse("Validation", "too large")


def test_classes_that_cannot_be_specialized(monkeypatch: pytest.MonkeyPatch) -> None:
    class GPUQueue:
        __slots__ = ()

    monkeypatch.setattr(native.wgpu, "GPUQueue", GPUQueue)
    assert fault(OBSERVING, "") == "GPUQueue has __slots__"


@pytest.mark.parametrize("handle", [None, 7, object()])
def test_handles_of_another_kind(handle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in ALL:
        monkeypatch.setattr(capability, "missing", None)
    native.prepare(SimpleNamespace(_internal=handle))
    assert [c for c in ALL if c.is_available] == [OBSERVING, FORKING, CALLING]


def test_an_environment_that_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in ALL:
        monkeypatch.setattr(capability, "missing", None)  # and put back at the end
    monkeypatch.setenv("WEBNN_NATIVE", "0")
    native.check_capabilities()
    assert {c.missing for c in ALL} == {"WEBNN_NATIVE=0"}


def test_what_is_there_when_python_ends_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.FORKING.is_available:
        pytest.skip("devices are released by wgpu-py alone")

    class Device:
        _internal: Any = "handle"

        def _release(self) -> None:
            pytest.fail("the driver may be gone")

    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    methods = native.releasing_unless(Device, lambda device: pytest.fail("modules are gone"))
    device = Device()
    methods["_release"](device)
    assert device._internal is None


def test_an_object_whose_device_is_gone() -> None:
    class Device:
        """What a proxy is made of."""

    gone = Device()
    thing = SimpleNamespace(_device=weakref.proxy(gone))
    del gone
    assert fallback.device_of(thing) is None
    assert not fallback.is_foreign(thing, object())
