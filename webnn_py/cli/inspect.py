"""`webnn-py inspect`: show a model's operators, sizes, memory and kernels."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from webnn_py.api.view.facts import Facts, facts_of
from webnn_py.api.view.formats import format_bytes, format_shape
from webnn_py.api.view.page import page_of
from webnn_py.cli.models import add_context, add_model, context_of, is_program, load
from webnn_py.cli.printing import print_facts, print_json, print_table
from webnn_py.cli.runnable import load_program
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import printable_lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model(parser, programs=True)
    add_context(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with the graph drawn"
    )


def run(options: argparse.Namespace) -> int:
    """Print tables or JSON, or write the page; return the exit status."""
    if is_program(options):
        return _inspect_program(options)
    with context_of(options) as context:
        loaded = load(options, context)
        facts = facts_of(loaded.graph, loaded.sizes)
    if options.html is not None:
        page = page_of(options.model.name, facts)
        options.html.write_text(page, encoding="utf-8", errors="backslashreplace")
    if options.json:
        print_json({"model": str(options.model), **facts.as_json()})
    elif options.html is not None:
        print(f"{options.html}: {len(facts.nodes)} nodes drawn")
    else:
        _print(options.model.name, facts)
    return 0


def _inspect_program(options: argparse.Namespace) -> int:
    if options.html is not None or options.shape:
        raise ValidationError("--html and --shape are for graphs, not for saved programs")
    with context_of(options) as context:
        program = load_program(options, context)
        arguments = [asdict(each) for each in program.arguments]
        listing = str(program)
    if options.json:
        print_json({"model": str(options.model), "arguments": arguments, "listing": listing})
        return 0
    rows = [
        (
            each["name"],
            f"{each['data_type']}{format_shape(each['shape'])}",
            each["access"],
            each["required"],
        )
        for each in arguments
    ]
    print_table(f"arguments of {options.model.name}", ("name", "type", "access", "required"), rows)
    print(printable_lines(listing))
    return 0


def _print(name: str, facts: Facts) -> None:
    print_facts(name, facts.summary())
    print_table("operators", ("operator", "nodes"), list(facts.operators.items()))
    rows = [
        (
            number,
            node.operator,
            node.label,
            ", ".join(map(str, node.outputs)),
            facts.where(node),
        )
        for number, node in enumerate(facts.nodes)
    ]
    print_table("nodes, as they run", ("", "operator", "name", "makes", "runs in"), rows)
    steps = [
        (n, step.name, len(step.nodes), format_bytes(step.reads), format_bytes(step.writes))
        for n, step in enumerate(facts.steps)
    ]
    if steps:
        print_table("kernels", ("", "kernel", "nodes", "reads", "writes"), steps)
