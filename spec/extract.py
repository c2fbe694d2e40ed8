"""Extract the operators of the WebNN specification as data.

    python spec/extract.py path/to/index.bs --output spec/operators.json

The input is the Bikeshed source of the specification. What is taken from it is facts: the WebIDL
(operations, dictionaries, enumerations), the table of tensor limits of each operator, the anchors
of its sections, and the defaults that stand in the prose because WebIDL cannot express them.
No sentence is copied. `--check` compares an existing file with what the source gives.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

BUILDER = "MLGraphBuilder"
NOT_OPERATORS = frozenset({"constructor", "input", "constant", "build"})
COLUMNS = ("operand", "data_types", "required_data_types", "ranks", "required_ranks")

HEADING = re.compile(r"^#{2,} .*\{#(?P<anchor>[\w-]+)\}", re.MULTILINE)
IDL_BLOCK = re.compile(r"<script type=\"?idl\"?>(?P<idl>.*?)</script>", re.DOTALL)
DEFINITION = re.compile(
    r"(?:partial\s+)?(?P<kind>enum|dictionary|interface)\s+(?P<name>\w+)"
    r"\s*(?::\s*(?P<base>\w+))?\s*\{(?P<body>.*?)\}\s*;",
    re.DOTALL,
)
OPERATION = re.compile(r"(?P<returns>[\w<>]+)\s+(?P<name>\w+)\s*\((?P<arguments>.*)\)", re.DOTALL)
MEMBER = re.compile(r"(?P<type>.+?)\s+(?P<name>\w+)(?:\s*=\s*(?P<default>.+))?", re.DOTALL)
LIMITS_TABLE = re.compile(
    r"<table id=tensor-limits-\S+ class='data' link-for=\"(?P<operators>[^\"]+)\">"
    r"(?P<rows>.*?)</table>",
    re.DOTALL,
)
CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
MEMBER_DOCS = re.compile(
    r"<dl dfn-type=dict-member dfn-for=(?P<dictionary>\w+)>(?P<body>.*?)\n</dl>", re.DOTALL
)
MEMBER_DOC = re.compile(r": <dfn>(?P<name>\w+)</dfn>(?P<text>.*?)(?=\n\s*: <dfn>|\Z)", re.DOTALL)
LIST_DEFAULT = re.compile(r"default value is (\[[\d., ]+\])")
ENUM_DEFAULT = re.compile(r"not specified, defaults to ([^.]*)")


class ExtractionError(ValueError):
    """The text does not have the form that this script understands."""


def snake_case(name: str) -> str:
    """Spell a WebIDL name as Python does: `convTranspose2d` -> `conv_transpose2d`.

    A capital after a small letter or a digit begins a word. "NaN" alone is one word although it
    is written with two capitals; "ND", "L1" and "L2" need no rule of their own.
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("NaN", "Nan")).lower()


@dataclass(frozen=True)
class Member:
    """A dictionary member or an argument of an operation."""

    name: str
    type: str
    enforce_range: bool
    default: object | None = None

    @property
    def is_operand(self) -> bool:
        """Whether the value is a tensor of the graph."""
        return self.type in ("MLOperand", "sequence<MLOperand>")

    def to_json(self) -> Json:
        """The entry in `operators.json`."""
        entry: Json = {"name": self.name, "python": snake_case(self.name), "type": self.type}
        if self.enforce_range:
            entry["enforce_range"] = True
        if self.default is not None:
            entry["default"] = self.default
        return entry


@dataclass(frozen=True)
class Operation:
    """A method of the graph builder and the section that declares it."""

    name: str
    returns: str
    arguments: tuple[Member, ...]
    options: str
    anchor: str


@dataclass(frozen=True)
class Limit:
    """A row of a table of tensor limits."""

    name: str
    limits: Json


@dataclass
class Idl:
    """All definitions of the text that the operators are made of."""

    enums: dict[str, list[str]] = field(default_factory=dict)
    dictionaries: dict[str, list[Member]] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def members(self, dictionary: str) -> list[Member]:
        """The members of a dictionary, inherited ones last."""
        base = self.bases.get(dictionary)
        return self.dictionaries[dictionary] + (self.members(base) if base else [])


def split_arguments(text: str) -> Iterator[str]:
    """Split at the commas that no bracket encloses."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if text[start:].strip():
        yield text[start:]


def parse_default(text: str | None) -> object | None:
    """The value of a WebIDL default; the literals used are those of JSON."""
    if text is None or text.strip() == "{}":
        return None
    value: object = json.loads(text)
    return value


def parse_member(text: str, prose_defaults: dict[str, object] | None = None) -> Member:
    """A dictionary member or argument, without its semicolon or comma."""
    plain = re.sub(r"\[\w+\]\s*", "", text.strip())
    plain = re.sub(r"^(?:optional|required)\s+", "", plain)
    match = MEMBER.fullmatch(plain)
    if match is None:
        raise ExtractionError(f"not a WebIDL member: {text!r}")
    name = match["name"]
    default = parse_default(match["default"])
    if default is None and prose_defaults:
        default = prose_defaults.get(name)
    type_name = re.sub(r"\s+", " ", match["type"])
    return Member(name, type_name, "[EnforceRange]" in text, default)


def parse_operation(text: str, anchor: str) -> Operation | None:
    """A method of the builder, or None where it is no operator."""
    match = OPERATION.fullmatch(text.strip())
    if match is None or match["name"] in NOT_OPERATORS:
        return None
    *arguments, options = map(parse_member, split_arguments(match["arguments"]))
    if options.name != "options":
        raise ExtractionError(f"{match['name']}: the last argument is not the options dictionary")
    return Operation(match["name"], match["returns"], tuple(arguments), options.type, anchor)


def parse_prose_defaults(text: str) -> dict[str, dict[str, object]]:
    """The defaults of list members, which WebIDL leaves to the prose."""
    defaults: dict[str, dict[str, object]] = {}
    for block in MEMBER_DOCS.finditer(text):
        for doc in MEMBER_DOC.finditer(block["body"]):
            found = defaults.setdefault(block["dictionary"], {})
            if match := LIST_DEFAULT.search(doc["text"]):
                found[doc["name"]] = json.loads(match[1])
            elif match := ENUM_DEFAULT.search(doc["text"]):
                found[doc["name"]] = re.findall(r"\{\{\w+/\"(\w+)\"\}\}", match[1])
    return defaults


def parse_idl(text: str) -> Idl:
    """All WebIDL blocks of the text, merged."""
    idl = Idl()
    prose_defaults = parse_prose_defaults(text)
    headings = [(match.start(), match["anchor"]) for match in HEADING.finditer(text)]
    for block in IDL_BLOCK.finditer(text):
        anchor = max((h for h in headings if h[0] < block.start()), default=(0, ""))[1]
        source = re.sub(r"//.*", "", block["idl"])
        for definition in DEFINITION.finditer(source):
            parse_definition(idl, definition, anchor, prose_defaults)
    return idl


def parse_definition(
    idl: Idl,
    definition: re.Match[str],
    anchor: str,
    prose_defaults: dict[str, dict[str, object]],
) -> None:
    """Add one enum, dictionary or builder interface to `idl`."""
    name, body = definition["name"], definition["body"]
    statements = [part for part in body.split(";") if part.strip()]
    match definition["kind"]:
        case "enum":
            idl.enums[name] = re.findall(r"\"([\w-]+)\"", body)
        case "dictionary":
            if definition["base"]:
                idl.bases[name] = definition["base"]
            members = [parse_member(part, prose_defaults.get(name)) for part in statements]
            idl.dictionaries.setdefault(name, []).extend(members)
        case "interface" if name == BUILDER:
            found = (parse_operation(part, anchor) for part in statements)
            idl.operations.extend(operation for operation in found if operation)


def parse_data_types(cell: str) -> Json | list[str] | str:
    """A data type cell: "any", a reference to another operand, or the list of types."""
    if "any data type" in cell:
        return "any"
    if "same type as" in cell:
        return {"same_as": reference(cell)}
    data_types = re.findall(r"MLOperandDataType/\"(\w+)\"", cell)
    if not data_types:
        raise ExtractionError(f"no data types in {cell!r}")
    return data_types


def parse_ranks(cell: str) -> Json | list[int | None]:
    """A rank cell as [minimum, maximum]; None stands for no upper bound."""
    if "same rank as" in cell:
        return {"same_as": reference(cell)}
    match = re.fullmatch(r"(?:(\d+) to )?(\d+|N)", cell.replace("[=/any rank|N=]", "N"))
    if match is None:
        raise ExtractionError(f"not a rank range: {cell!r}")
    upper = None if match[2] == "N" else int(match[2])
    if match[1] is not None:
        return [int(match[1]), upper]
    return [0 if upper is None else upper, upper]


def reference(cell: str) -> str:
    """The operand that a table cell names, without its dictionary."""
    match = re.search(r"\{\{(?:\w+/)?(\w+)\}\}", cell)
    if match is None:
        raise ExtractionError(f"no operand named in {cell!r}")
    return match[1]


def parse_limit(cells: list[str]) -> Limit:
    """A row of a table of tensor limits."""
    operand, data_types, required_data_types, ranks, required_ranks = cells
    limits: Json = {
        "data_types": parse_data_types(data_types),
        "required_data_types": parse_data_types(required_data_types),
        "ranks": parse_ranks(ranks),
        "required_ranks": parse_ranks(required_ranks),
    }
    output = re.match(r"\*(outputs?)(?:\[(\d)\])?\*(?P<condition> if .*)?$", operand)
    if output is None:
        return Limit(reference(operand), limits)
    # The dictionaries of the support limits spell "outputs[0]" as "output0".
    name = f"output{output[2]}" if output[2] else output[1]
    if output["condition"]:
        limits["only_if"] = reference(output["condition"])
    return Limit(name, limits)


def parse_limits(text: str) -> dict[str, list[Limit]]:
    """The rows of the table of tensor limits, by operator."""
    tables: dict[str, list[Limit]] = {}
    for table in LIMITS_TABLE.finditer(text):
        # Cells, not rows, are counted: one table of the text lacks a row's end tag.
        cells = [cell.strip() for cell in CELL.findall(table["rows"])]
        width = len(COLUMNS)
        if len(cells) % width:
            raise ExtractionError(f"a table row is incomplete: {table['operators']}")
        rows = [parse_limit(cells[i : i + width]) for i in range(0, len(cells), width)]
        for name in re.findall(rf"{BUILDER}/(\w+)\(", table["operators"]):
            tables[name] = rows
    return tables


def operator_entry(operation: Operation, idl: Idl, limits: list[Limit]) -> Json:
    """The entry of an operator: its signature joined with its tensor limits."""
    by_name = {limit.name: limit.limits for limit in limits}
    options = idl.members(operation.options)
    operands = [member for member in operation.arguments if member.is_operand]
    if list(operation.arguments[: len(operands)]) != operands:
        raise ExtractionError(f"{operation.name}: an operand comes after another argument")

    def operand_entry(member: Member) -> Json:
        entry: Json = {"name": member.name, "python": snake_case(member.name)}
        if member.type.startswith("sequence"):
            entry["sequence"] = True
        return entry | by_name.pop(member.name)

    entry: Json = {
        "name": operation.name,
        "python": snake_case(operation.name),
        "section": operation.anchor,
        "operands": [operand_entry(member) for member in operands],
        "arguments": [member.to_json() for member in operation.arguments[len(operands) :]],
        "options_dictionary": operation.options,
        "option_operands": [operand_entry(member) for member in options if member.is_operand],
        "options": [member.to_json() for member in options if not member.is_operand],
        "returns": "list" if operation.returns.startswith("sequence") else "operand",
    }
    entry["outputs"] = [{"name": name} | limit for name, limit in by_name.items()]
    if not all(name.startswith("output") for name in by_name) or not by_name:
        raise ExtractionError(f"{operation.name}: limits that fit no operand: {sorted(by_name)}")
    return entry


def used_enums(idl: Idl, operators: list[Json]) -> dict[str, list[str]]:
    """The enumerations that the arguments and options of the operators mention."""
    types = {
        entry["type"]
        for operator in operators
        for entry in (*operator["arguments"], *operator["options"])
    }
    return {name: values for name, values in idl.enums.items() if any(name in t for t in types)}


def extract(text: str) -> Json:
    """Everything that `operators.json` holds, from the text of the specification."""
    idl = parse_idl(text)
    limits = parse_limits(text)
    operators = [operator_entry(op, idl, limits[op.name]) for op in idl.operations]
    return {
        "source_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "enums": used_enums(idl, operators),
        "operators": operators,
    }


def dumps(value: object, indent: int = 0, prefix: int = 0, width: int = 100) -> str:
    """JSON that keeps what fits on one line on one line, so that the file can be read."""
    flat = json.dumps(value, ensure_ascii=False)
    if indent + prefix + len(flat) < width or not isinstance(value, dict | list) or not value:
        return flat
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        keys = [f"{json.dumps(key)}: " for key in value]
        items = value.values()
        lines = [
            key + dumps(item, indent + 2, len(key), width)
            for key, item in zip(keys, items, strict=True)
        ]
        opening, closing = "{}"
    else:
        lines = [dumps(item, indent + 2, 0, width) for item in value]
        opening, closing = "[]"
    body = f",\n{inner}".join(lines)
    return f"{opening}\n{inner}{body}\n{' ' * indent}{closing}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status is 1 where `--check` finds a difference."""
    parser = argparse.ArgumentParser(description="Extract the WebNN operators from index.bs.")
    parser.add_argument("source", type=Path, help="index.bs of the specification")
    parser.add_argument("--output", type=Path, help="the file to write; standard output without")
    parser.add_argument("--check", type=Path, help="a file that must equal the result")
    options = parser.parse_args(arguments)
    result = dumps(extract(options.source.read_text(encoding="utf-8"))) + "\n"
    if options.check:
        same = options.check.read_text(encoding="utf-8") == result
        print(f"{options.check} {'is' if same else 'is not'} what {options.source} gives")
        return 0 if same else 1
    if options.output:
        options.output.write_text(result, encoding="utf-8")
    else:
        print(result, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
