"""The TypeScript types of the browser's runtime say what the module exports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[2] / "runtime" / "js"
MODULE = (RUNTIME / "webnn-program.mjs").read_text()
TYPES = (RUNTIME / "webnn-program.d.mts").read_text()

INTERNAL = {"ProgramFile": {"plan", "variantFor"}}
"""What may change from version to version, and so has no types."""

Members = dict[str, list[str] | None]
"""The parameters of each member, in order; None for what is read."""

EXPORT = r"^export (?:class|function|const) (\w+)([^\n]*)\{(?:\}|\n(.*?)^\})"
METHOD = r"^  ((?:(?:static|async|private|get) )*)(\w+)(?:<[^\n]*>)?\(([^)]*)\)"
PROPERTY = r"^  readonly (\w+):"


def exports(text: str) -> dict[str, tuple[str, Members]]:
    """Each exported class: what it extends, and its public members."""
    found = {}
    for name, base, body in re.findall(EXPORT, text, re.MULTILINE | re.DOTALL):
        found[name] = (base.strip(), members(body))
    return found


def members(body: str) -> Members:
    found: Members = dict.fromkeys(re.findall(PROPERTY, body, re.MULTILINE))
    for modifiers, name, listed in re.findall(METHOD, body, re.MULTILINE):
        if "get" in modifiers:
            found[name] = None
        elif name == "constructor" and ("private" in modifiers or "token" in listed):
            continue  # no user calls it
        else:
            static = "static " if "static" in modifiers else ""
            found[static + name] = [
                re.split(r"[?:= ]", part.strip())[0]
                for part in re.sub(r"<[^()]*>", "", listed).split(",")
                if part.strip()
            ]
    return found


def documented(text: str) -> dict[str, tuple[str, Members]]:
    """The exports of the module that are to have types."""
    return {
        name: (base, {m: p for m, p in found.items() if m not in INTERNAL.get(name, ())})
        for name, (base, found) in exports(text).items()
    }


def test_the_types_are_those_of_the_module() -> None:
    typed = exports(TYPES)
    assert {"Program", "ProgramFile", "ProgramError"} <= set(typed)
    assert typed["Program"][1]["run"] == ["given"]
    assert documented(MODULE) == typed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  destroy() {", "  reset() {\n  }\n\n  destroy() {"),
        ("  destroy() {", "  destroy(now) {"),
        ("  encode(encoder, given) {", "  encode(given, encoder) {"),
        ("  static async load(", "  async load("),
        ("  get arguments() {", "  get inputs() {"),
        ("export class DataError", "class DataError"),
        ("// ----", "export class Other {}\n// ----"),
    ],
)
def test_what_is_in_the_module_alone_is_found(old: str, new: str) -> None:
    assert old in MODULE
    assert documented(MODULE.replace(old, new)) != exports(TYPES)


def test_what_is_in_the_types_alone_is_found() -> None:
    changed = TYPES.replace("  destroy(): void;", "  destroy(): void;\n  reset(): void;")
    assert documented(MODULE) != exports(changed) != exports(TYPES)
