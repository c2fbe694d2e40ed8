"""What `help` shows of an operator's method: the declaration's docstring and the facts beside it.

A declaration's docstring describes what its limits do not say. Data types, ranks, what is raised
and the section of the specification are added here, from where they are checked; what operators
have in common stands once, in the docstring of their family or of the class of all.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from webnn_py.core.dtypes import DTYPES
from webnn_py.core.shapes import MAX_RANK
from webnn_py.ops.declare import Operator

SPECIFICATION = "https://www.w3.org/TR/webnn/#"
WIDTH = 92
RAISES = {
    "ValidationError": "An operand or option is not as said here, or an operand is another"
    " builder's.",
    "NotSupportedError": "The context does not run this on these data types, see"
    " `MLContext.op_support_limits`.",
    "InvalidStateError": "The builder has built its graph.",
    "ContextLostError": "The context is lost.",
}
TYPE_CHOICE = "MLOperandDataType"
Sections = dict[str, dict[str, str]]


def complete(operators: type) -> None:
    """Complete the docstring of every operator's method in a class and its bases."""
    common = _sections(inspect.cleandoc(operators.__doc__ or ""))
    for family in operators.__mro__[1:-1]:
        shared = _sections(inspect.cleandoc(family.__doc__ or ""))
        for method in vars(family).values():
            if isinstance(op := getattr(method, "operator", None), Operator):
                doc = _completed(op, shared, common)
                method.__doc__ = method.__wrapped__.__doc__ = doc  # tools look at either


def _completed(op: Operator, shared: Sections, common: Sections) -> str:
    text, own = _split(op.doc)
    said = common.get("Options", {}) | shared.get("Options", {}) | own.get("Args", {})
    entries = {
        name: _joined(said.get(name, ""), _facts(op, name))
        for name in op.signature.parameters
        if name != "self"
    }
    shape = (own.get("Returns") or shared.get("Returns") or {}).get("", "")
    rules = shared.get("Raises", {}) | own.get("Raises", {})
    raised = {name: _joined(always, rules.get(name, "")) for name, always in RAISES.items()}
    parts = [
        text,
        "\n".join(["Args:", *_listed(entries)]),
        "\n".join(["Returns:", *_wrapped(_joined(shape, _output_facts(op)), 4, 4)]),
        "\n".join(["Raises:", *_listed(raised)]),
        f"Source: {source(op)}",
    ]
    return "\n\n".join(parts)


def source(op: Operator) -> str:
    """Where the specification describes an operator."""
    return "an extension." if op.extension else f"WebNN 2026, <{SPECIFICATION}{op.section}>"


def _facts(op: Operator, name: str) -> str:
    """What is allowed for an operand, or for the option that chooses the output's data type."""
    limits = op.limits.get(name)
    if limits is None:
        return _sentence([_types(op.output_types)]) if name == _choice(op) else ""
    optional = op.signature.parameters[name].default is None
    facts = [_types(limits.types), _ranks(*limits.rank_range), "optional" if optional else ""]
    return _sentence(facts)


def _output_facts(op: Operator) -> str:
    return _sentence([_types(_choice(op) or op.output_types)])


def _choice(op: Operator) -> str:
    """The option that chooses the output's data type; empty if none does."""
    parameters = op.signature.parameters.values()
    named = (p.name for p in parameters if p.annotation == TYPE_CHOICE)
    return next(named, "")


def _types(types: tuple[str, ...] | str) -> str:
    if isinstance(types, str):
        return f"data type as `{types}`"
    others = [name for name in DTYPES if name not in types]
    if len(others) <= 2:
        return f"any data type but {' and '.join(others)}"
    return " or ".join(filter(None, [", ".join(types[:-1]), types[-1]]))


def _ranks(low: int, high: int) -> str:
    if low == high:
        return f"{low}-D"
    if high == MAX_RANK:
        return f"rank {low} or more" if low else ""
    return f"rank {low} to {high}"


def _sentence(facts: Iterable[str]) -> str:
    text = "; ".join(filter(None, facts))
    return f"{text[0].upper() if text.startswith(('any', 'data')) else text[0]}{text[1:]}."


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _sections(doc: str) -> Sections:
    return _split(doc)[1]


def _split(doc: str) -> tuple[str, Sections]:
    """A docstring's text, and its sections: entries by name; one without names by ""."""
    text, *rest = re.split(r"^(Args|Options|Returns|Raises):\n", doc, flags=re.MULTILINE)
    return text.rstrip(), {
        title: {"": " ".join(body.split())} if title == "Returns" else dict(_entries(body))
        for title, body in zip(rest[::2], rest[1::2], strict=True)
    }


def _entries(body: str) -> Iterator[tuple[str, str]]:
    for entry in re.split(r"\n(?! )", textwrap.dedent(body).strip()):
        name, _, text = entry.partition(": ")
        yield name, " ".join(text.split())


def _listed(entries: Mapping[str, Any]) -> list[str]:
    return [line for name, text in entries.items() for line in _wrapped(f"{name}: {text}", 4, 8)]


def _wrapped(text: str, first: int, rest: int) -> list[str]:
    """Lines of a paragraph; `textwrap` takes ten times as long, for every import."""
    lines, line = [], " " * first
    for word in text.split():
        if len(line) + len(word) >= WIDTH and line.strip():
            lines.append(line)
            line = " " * rest
        line += word if line.isspace() else f" {word}"
    return [*lines, line]
