"""Completes the docstrings of the builder methods for `help` and the reference.

Data types, ranks, exceptions and the specification's section come from the declaration itself.
Text that operators share stands once, in the docstring of their family or of `Operators`.
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
from webnn_py.ops.examples import EXAMPLES

SPECIFICATION = "https://www.w3.org/TR/webnn/#"
MAX_LINE_COLUMNS = 92
RAISES = {
    "ValidationError": "An operand or option breaks a rule stated here, or an operand belongs to"
    " another builder.",
    "NotSupportedError": "The context does not support these data types for this operator, see"
    " `MLContext.op_support_limits`.",
    "InvalidStateError": "The builder has already built its graph.",
    "ContextLostError": "The context is lost.",
}
DATA_TYPE_ANNOTATION = "MLOperandDataType"
Sections = dict[str, dict[str, str]]


def complete_docstrings(operators: type) -> None:
    """Complete the docstring of every builder method in a class and its bases."""
    common = _sections(inspect.cleandoc(operators.__doc__ or ""))
    for family in operators.__mro__[1:-1]:
        shared = _sections(inspect.cleandoc(family.__doc__ or ""))
        for method in vars(family).values():
            if isinstance(op := getattr(method, "operator", None), Operator):
                doc = _complete_docstring(op, shared, common)
                method.__doc__ = method.__wrapped__.__doc__ = doc  # some tools read the inner one


def _complete_docstring(op: Operator, shared: Sections, common: Sections) -> str:
    text, own = _split(op.doc)
    described = common.get("Options", {}) | shared.get("Options", {}) | own.get("Args", {})
    entries = {
        name: _join(described.get(name, ""), _argument_facts(op, name))
        for name in op.signature.parameters
        if name != "self"
    }
    shape = (own.get("Returns") or shared.get("Returns") or {}).get("", "")
    rules = shared.get("Raises", {}) | own.get("Raises", {})
    raised = {name: _join(always, rules.get(name, "")) for name, always in RAISES.items()}
    parts = [
        text,
        "\n".join(["Args:", *_format_entries(entries)]),
        "\n".join(["Returns:", *_wrap(_join(shape, _output_facts(op)), 4, 4)]),
        "\n".join(["Raises:", *_format_entries(raised)]),
        *_example(op),
        f"Source: {source(op)}",
    ]
    return "\n\n".join(parts)


def _example(op: Operator) -> Iterator[str]:
    if op.name in EXAMPLES:
        lines = ["```python", *str(EXAMPLES[op.name]).splitlines(), "```"]
        yield "\n".join(["Examples:", *(f"    {line}" for line in lines)])


def source(op: Operator) -> str:
    """Return the link to an operator's section of the specification."""
    return "an extension." if op.extension else f"WebNN 2026, <{SPECIFICATION}{op.section}>"


def _argument_facts(op: Operator, name: str) -> str:
    """Describe the allowed data types and ranks of an argument; empty for most options."""
    limits = op.limits.get(name)
    if limits is None:
        return _sentence([_types(op.output_types)]) if name == _data_type_option(op) else ""
    optional = op.signature.parameters[name].default is None
    facts = [_types(limits.types), _ranks(*limits.rank_range), "optional" if optional else ""]
    return _sentence(facts)


def _output_facts(op: Operator) -> str:
    return _sentence([_types(_data_type_option(op) or op.output_types)])


def _data_type_option(op: Operator) -> str:
    """Return the name of the option that sets the output's data type, or ""."""
    parameters = op.signature.parameters.values()
    named = (p.name for p in parameters if p.annotation == DATA_TYPE_ANNOTATION)
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


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _sections(doc: str) -> Sections:
    return _split(doc)[1]


def _split(doc: str) -> tuple[str, Sections]:
    """Split a docstring into its text and its sections; `Returns` has the one entry ""."""
    text, *rest = re.split(r"^(Args|Options|Returns|Raises):\n", doc, flags=re.MULTILINE)
    return text.rstrip(), {
        title: {"": " ".join(body.split())} if title == "Returns" else dict(_entries(body))
        for title, body in zip(rest[::2], rest[1::2], strict=True)
    }


def _entries(body: str) -> Iterator[tuple[str, str]]:
    for entry in re.split(r"\n(?! )", textwrap.dedent(body).strip()):
        name, _, text = entry.partition(": ")
        yield name, " ".join(text.split())


def _format_entries(entries: Mapping[str, Any]) -> list[str]:
    return [line for name, text in entries.items() for line in _wrap(f"{name}: {text}", 4, 8)]


def _wrap(text: str, first: int, rest: int) -> list[str]:
    """Wrap a paragraph; `first` and `rest` are the lines' indentations.

    `textwrap` takes ten times as long, which every import of the package would pay.
    """
    lines, line = [], " " * first
    for word in text.split():
        if len(line) + len(word) >= MAX_LINE_COLUMNS and line.strip():
            lines.append(line)
            line = " " * rest
        line += word if line.isspace() else f" {word}"
    return [*lines, line]
