"""Types of a C interface are found without parsing, and are the same that parsing gives."""

from __future__ import annotations

from typing import Any

import pytest

from webnn_py.engines.webgpu.runtime.wgpu_native.internals import TypeCache, install_type_cache

cffi = pytest.importorskip("cffi", reason="wgpu brings cffi, and is not installed")

HEADER = """
typedef struct Opaque *Handle;
typedef struct { int a; Handle handle; } Pair;
typedef enum { First, Second } Choice;
typedef void (*Callback)(Pair const *pair, void *data);
typedef int Function(int);
"""
SIMPLE = ["Handle", "Handle[]", "Pair", "Pair *", "Pair * ", "Pair []", "Choice[]", "Callback"]
SIMPLE += ["void *", "char []", "uint8_t *", "uint64_t", "size_t[]"]
OTHERS = ["Pair const *", "Pair * *", "int[4]", "unsigned int", "void(*)(Handle, int)"]


@pytest.fixture
def ffi() -> Any:
    made = cffi.FFI()
    made.cdef(HEADER)
    return made


def parsed(text: str) -> Any:
    """The type that cffi makes of a text, in an FFI of its own."""
    made = cffi.FFI()
    made.cdef(HEADER)
    return made.typeof(text)


@pytest.mark.parametrize("text", SIMPLE)
def test_simple_types_are_not_parsed(ffi: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = parsed(text)
    install_type_cache(ffi)
    monkeypatch.delattr("cffi.cparser.Parser._parse")
    found = ffi.typeof(text)
    assert found is ffi.typeof(text)
    assert str(found) == str(wanted)
    assert found.kind == wanted.kind


@pytest.mark.parametrize("text", OTHERS)
def test_others_are_parsed(ffi: Any, text: str) -> None:
    install_type_cache(ffi)
    assert str(ffi.typeof(text)) == str(parsed(text))


def test_both_ways_give_one_type(ffi: Any) -> None:
    before = ffi.typeof("Pair *")
    install_type_cache(ffi)
    assert ffi.typeof("Pair *") is before
    assert ffi.typeof("Pair*") is before
    pairs = ffi.new("Pair[]", 2)
    assert ffi.typeof(pairs + 1) is before


def test_what_is_no_type_is_an_error(ffi: Any) -> None:
    install_type_cache(ffi)
    for text in ("Unknown", "Unknown *", "Function", "Pair; *"):
        with pytest.raises((cffi.CDefError, cffi.FFIError)):
            ffi.typeof(text)
    assert ffi.typeof("Function *") is ffi.typeof("int(*)(int)")


@pytest.mark.parametrize("missing", ["_parsed_types", "_parser", "_lock", "_get_cached_btype"])
def test_an_unknown_cffi_is_left_alone(missing: str) -> None:
    class Unknown:
        def __init__(self) -> None:
            self._parsed_types: dict[str, Any] = {}
            self._parser = cffi.FFI()._parser
            self._lock = self._get_cached_btype = None
            delattr(self, missing)

    unknown = Unknown()
    install_type_cache(unknown)
    assert not isinstance(getattr(unknown, "_parsed_types", None), TypeCache)


def test_wgpu_has_its_types_found() -> None:
    found = pytest.importorskip("webnn_py.engines.webgpu.runtime.wgpu_native.internals")
    internals = found.find_internals()
    assert isinstance(internals.ffi._parsed_types, TypeCache)
    text = "WGPUBindGroupEntry []"
    assert internals.ffi.typeof(text).item is internals.ffi.typeof("WGPUBindGroupEntry")
