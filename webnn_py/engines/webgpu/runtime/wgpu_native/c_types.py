"""Types of wgpu's C interface, found without parsing C.

cffi gives a type for its text, such as `WGPUBufferDescriptor *`. It parses each text that it meets
for the first time together with the names of all types, which takes some 20 ms; dozens are met
until the first result. Most texts are just a name with a star or brackets behind it.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_SIMPLE = re.compile(r"(\w+) ?(\*|\[\])? ?")


class FoundTypes(dict[str, tuple[Any, bool]]):
    """What cffi has parsed, and whatever it need not parse.

    Args:
        ffi: Whose types they are.
    """

    def __init__(self, ffi: Any) -> None:
        super().__init__(ffi._parsed_types)
        self._ffi = ffi
        self._declarations = ffi._parser._declarations
        self._find = ffi._get_cached_btype
        self._model = sys.modules[type(ffi._parser).__module__].model

    def __missing__(self, text: str) -> tuple[Any, bool]:
        """The type of a text, and that it is no function; a KeyError has cffi parse the text."""
        model = self._model
        simple = _SIMPLE.fullmatch(text)
        if simple is None:
            raise KeyError(text)
        name, behind = simple.groups()
        if name == "void":
            kind = model.void_type
        elif name in model.PrimitiveType.ALL_PRIMITIVE_TYPES:
            kind = model.PrimitiveType(name)
        else:
            kind, _ = self._declarations[f"typedef {name}"]
        if kind.is_raw_function:
            raise KeyError(text)
        if behind is not None:
            kind = model.PointerType(kind) if behind == "*" else model.ArrayType(kind, None)
        with self._ffi._lock:
            found = self[text] = self._find(kind), False
        return found


def find_types_fast(ffi: Any) -> None:
    """Spare an FFI the parsing of simple types; where cffi is another than is known, do nothing."""
    parsed = getattr(ffi, "_parsed_types", None)
    if type(parsed) is dict and hasattr(ffi, "_lock"):
        try:
            ffi._parsed_types = FoundTypes(ffi)
        except AttributeError:
            return
