"""Every function of the prelude, and every rule that puts one into an expression, is reached."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compiler.declared import DEVICES, written
from webnn_py.engines.webgpu import compiler
from webnn_py.engines.webgpu.compiler.code import expressions, floats, int64, prelude
from webnn_py.ops.declare import REGISTRY

FOLDER = Path(compiler.__path__[0])
TABLES = ("elementary", "expressions", "floats", "int64", "integers", "prelude")
"""Modules that say what becomes of a declaration, which is seen in what it becomes."""


def declared() -> set[str]:
    """What the declarations become on any device."""
    return {
        text for name in REGISTRY for device in DEVICES.values() for text in written(name, device)
    }


def patterns() -> Iterator[str]:
    """Names in the texts of the compiler's sources, as regular expressions: a part may be open."""
    for path in FOLDER.rglob("*.py"):
        if path.stem not in TABLES:
            for node in ast.walk(ast.parse(path.read_text())):
                yield from re.findall(r"\bwn_(?:\w|\\w\+)+", _text(node))


def _text(node: ast.AST) -> str:
    """What a constant or formatted text says, with a pattern for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values):
            return "".join(_text(v) if isinstance(v, ast.Constant) else r"\w+" for v in values)
    return ""


def defined(texts: set[str]) -> set[str]:
    """The functions that the prelude defines for some code, those that they call included."""
    return set(re.findall(r"^fn (\w+)", prelude.used("\n".join(texts)), re.MULTILINE))


def test_every_function_is_reached() -> None:
    open_names = re.compile("|".join(patterns()))
    assert not open_names.fullmatch("wn_of_any_name")
    called = {name for name in prelude.FUNCTIONS if open_names.fullmatch(name)}
    assert set(prelude.FUNCTIONS) - defined(declared() | called) == set()


def test_functions_are_named_as_in_their_table() -> None:
    for name, code in prelude.FUNCTIONS.items():
        assert code.startswith(f"fn {name}("), name
        assert prelude.signature(name) is not None, name


class Recorded(dict[str, Any]):
    """A table that knows which of its rows were asked for."""

    def __init__(self, table: dict[str, Any]) -> None:
        super().__init__(table)
        self.used: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.used.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("module", [floats, int64])
def test_every_rule_is_used(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Recorded(module.RULES)
    monkeypatch.setattr(module, "RULES", rules)
    expressions.template.cache_clear()
    declared()
    assert set(rules) - rules.used == set()


def test_functions_come_before_those_that_call_them() -> None:
    code = prelude.used("wn_gelu(x) + wn_tan(y)")
    for place, name in enumerate(names := re.findall(r"^fn (\w+)", code, re.MULTILINE)):
        body = prelude.FUNCTIONS[name].partition("{")[2]
        assert set(re.findall(r"\bwn_\w+", body)) <= {*names[:place]}, name
