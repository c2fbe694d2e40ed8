"""Derives the reference from the package, and puts the pages of spec/ among the others."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import onnx

import webnn_py
import webnn_py.onnx
from webnn_py.onnx.folding import BY_ONNX
from webnn_py.onnx.function_bodies import has_body
from webnn_py.onnx.handlers import HANDLERS
from webnn_py.onnx.importer import WITHOUT_HANDLERS
from webnn_py.onnx.registry import OWN
from webnn_py.onnx.unsupported_reasons import reason_of
from webnn_py.ops.declare import REGISTRY, Operator
from webnn_py.ops.decompositions import DECOMPOSITIONS
from webnn_py.ops.examples import PREAMBLE

SPEC = Path(__file__).parents[1] / "spec"

FIRST_VERSION = "1.0"
SINCE: dict[str, str] = {}
"""Versions of the public names and operators that came after the first one."""

GROUPS = {
    "Contexts": ("ml", "MLContext", "MLContextLostInfo", "MLPromise"),
    "Graphs": (
        *("MLGraphBuilder", "MLOperand", "MLOperandDescriptor", "MLDimension", "MLGraph"),
        "show_progress",
    ),
    "Running": (
        *("MLExecution", "MLAwaitedExecution", "MLCommandEncoder", "MLSlicedDispatch"),
        *("MLProfile", "MLProfileRow"),
    ),
    "Tensors and order": ("MLTensor", "Timeline", "TimelinePoint"),
    "Programs": ("MLProgram", "MLProgramBuffer", "MLProgramSequence", "runtime_path"),
    "Decoders": ("MLDecoder", "MLSequence"),
}
"""The order of the classes; those that no group names come last."""

FAMILIES = {
    "linalg": "Matrix products",
    "scan": "Positions and running sums",
    "indexing": "Gather and scatter",
    "movement": "Shape and movement",
    "quantized_products": "Products of integers",
    "resampling": "Resizing",
    "recurrent": "Recurrent networks",
}
"""Titles of operator families whose file is named otherwise."""


SEARCH_BOOSTS = {
    "how-to/index": 1.0,
    "how-to/": 4.0,
    "start/": 2.0,
    "moving-from/": 8.0,
    "troubleshooting": 2.0,
    "benchmarks/": 0.3,
    "decisions/": 0.1,
    "threads-and-caches": 0.1,
    "add-an-": 0.3,
}
"""Weights in the search by the start of a page's path; the first that fits counts."""


def since(name: str) -> str:
    """Return the line that says since when a name is there."""
    return f"*Since version {SINCE.get(name, FIRST_VERSION)}.*"


def public() -> dict[str, Any]:
    """Return all public names."""
    return {name: getattr(webnn_py, name) for name in webnn_py.__all__ if name != "__version__"}


def is_error(thing: Any) -> bool:
    """Return whether a public name is an exception."""
    return isinstance(thing, type) and issubclass(thing, BaseException)


def classes() -> dict[str, list[str]]:
    """Return the names of the classes by group; `ml` stands for its class."""
    names = [n for n, t in public().items() if not is_error(t) and not typing.get_origin(t)]
    groups = {title: list(members) for title, members in GROUPS.items()}
    rest = sorted(set(names) - {name for members in groups.values() for name in members})
    return groups | ({"Others": rest} if rest else {})


def families() -> dict[str, list[Operator]]:
    """Return the operators by family."""
    found: dict[str, list[Operator]] = {}
    for op in REGISTRY.values():
        found.setdefault(op.family, []).append(op)
    return found


def family_title(family: str) -> str:
    """Return the title of a family's page."""
    return FAMILIES.get(family, family.replace("_", " ").capitalize())


def summary(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def class_page(name: str) -> str:
    """Return the page of a class."""
    thing = public()[name]
    path = "webnn_py.api.ml.ML" if name == "ml" else f"webnn_py.{name}"
    lines = [f"# {name}", "", f"`from webnn_py import {name}` · {since(name)}", ""]
    lines += [f"::: {path}", "    options:", "      show_root_heading: false"]
    lines += ["      show_root_toc_entry: false", "      heading_level: 2"]
    if thing is webnn_py.MLGraphBuilder:
        own = [member for member in vars(thing) if member[0] != "_" and member not in REGISTRY]
        lines += [f"      members: [{', '.join(own)}]", "", "## Operators", ""]
        lines += ["Each operator is a method of the builder.", "", *operator_rows("operators/")]
    return "\n".join([*lines, ""])


def operator_rows(folder: str) -> Iterator[str]:
    """Yield a table of all operators by family."""
    yield from ("| family | operators |", "|---|---|")
    for family, members in families().items():
        links = (
            f"[`{op.name}`]({folder}{family}.md#webnn_py.MLGraphBuilder.{op.name})"
            for op in members
        )
        yield f"| [{family_title(family)}]({folder}{family}.md) | {' '.join(links)} |"


def family_page(family: str, members: list[Operator]) -> str:
    """Return the page of a family of operators."""
    lines = [f"# {family_title(family)}", "", "| operator | result |", "|---|---|"]
    for op in members:
        text = summary(getattr(webnn_py.MLGraphBuilder, op.name)).replace("|", "\\|")
        lines.append(f"| [`{op.name}`](#webnn_py.MLGraphBuilder.{op.name}) | {text} |")
    lines += ["", "The examples begin with:", "", "```python", PREAMBLE.rstrip(), "```", ""]
    for op in members:
        kind = "Extension of this package." if op.extension else ""
        if op.name in DECOMPOSITIONS:
            kind += " Composite: an engine may run it as other operators."
        lines += [
            f"::: webnn_py.MLGraphBuilder.{op.name}",
            "    options:",
            "      heading_level: 2",
        ]
        lines += ["", f"{since(op.name)} {kind.strip()}".rstrip(), ""]
    return "\n".join(lines)


def errors_page() -> str:
    """Return the page of the exceptions."""
    lines = ["# Errors", "", f"All are importable from `webnn_py`. {since('MLError')}", ""]
    lines += ["Causes and remedies are on the page [Troubleshooting](../troubleshooting.md).", ""]
    for name in sorted(n for n, thing in public().items() if is_error(thing)):
        lines += [f"::: webnn_py.{name}", "    options:", "      heading_level: 2"]
        lines += ["      inherited_members: false", ""]
    return "\n".join(lines)


def types_page() -> str:
    """Return the page of the types that are choices of strings."""
    lines = ["# Types of options", "", "Types of strings, for annotations of yours.", ""]
    lines += ["| type | values |", "|---|---|"]
    for name, thing in public().items():
        if typing.get_origin(thing) is Literal:
            lines.append(f"| `{name}` | {', '.join(map(repr, typing.get_args(thing)))} |")
    return "\n".join([*lines, ""])


def onnx_page() -> str:
    """Return the page of the functions for ONNX models."""
    lines = ["# webnn_py.onnx", "", f"Needs the extra `onnx`. {since('onnx')}", ""]
    lines += ["`webnn_py.onnx.backend` is ONNX's interface to backends.", ""]
    for name in webnn_py.onnx.__all__:
        lines += [f"::: webnn_py.onnx.{name}", "    options:", "      heading_level: 2", ""]
    return "\n".join(lines)


def onnx_operators() -> dict[str, dict[str, str]]:
    """Return ONNX's operators by domain, each with the reason why it does not map, or an empty one.

    Operators of ONNX Runtime's own domain are those that map.
    """
    own: dict[str, str] = {}
    for schema in onnx.defs.get_all_schemas():
        if not schema.domain and not schema.deprecated:
            name = schema.name
            is_known = name in WITHOUT_HANDLERS or ("", name) in HANDLERS or has_body(schema)
            constants = "; of constants it is computed at import" if name in BY_ONNX else ""
            own[name] = "" if is_known else reason_of(name) + constants
    others = {name: "" for domain, name in sorted(HANDLERS) if domain == OWN}
    return {"": dict(sorted(own.items())), OWN: others}


def onnx_operators_page() -> str:
    """Return the page of ONNX's operators: those that map, and why others do not."""
    found = onnx_operators()
    version = onnx.defs.onnx_opset_version()
    lines = ["# ONNX operators", "", f"Derived from the importer and from ONNX's opset {version}."]
    lines += ["Whether a node maps depends on its types and options, too: `webnn-py check MODEL`"]
    lines += ["lists those that do not."]
    for domain, title in (("", "Operators that map"), (OWN, f"Operators of `{OWN}` that map")):
        names = [f"`{name}`" for name, reason in found[domain].items() if not reason]
        lines += ["", f"## {title}", "", ", ".join(names)]
    lines += ["", "## Operators that do not map", "", "| operator | reason |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in found[""].items() if reason]
    return "\n".join([*lines, ""])


def index_page() -> str:
    """Return the first page of the reference."""
    lines = ["# Reference", "", "Every public name, derived from the package.", ""]
    for title, names in classes().items():
        lines += [f"## {title}", "", "| name | purpose |", "|---|---|"]
        for name in names:
            thing = public()[name]
            text = summary(type(thing) if name == "ml" else thing)
            lines.append(f"| [`{name}`]({name}.md) | {text} |")
        lines.append("")
    lines += ["## ONNX, errors, types", "", "- [Functions for ONNX models](onnx.md)"]
    lines += ["- [ONNX operators](onnx-operators.md)", "- [Errors](errors.md)"]
    lines += [
        "- [Types of options](types.md)",
        "",
        "## Operators",
        "",
        *operator_rows("operators/"),
        "",
    ]
    return "\n".join(lines)


def reference() -> dict[str, str]:
    """Return the pages of the reference: path to Markdown."""
    pages = {"index": index_page(), "onnx": onnx_page(), "errors": errors_page()}
    pages |= {"types": types_page(), "onnx-operators": onnx_operators_page()}
    pages |= {name: class_page(name) for names in classes().values() for name in names}
    pages |= {f"operators/{family}": family_page(family, ops) for family, ops in families().items()}
    return {f"reference/{name}.md": text for name, text in pages.items()}


def reference_nav() -> list[Any]:
    """Return the navigation of the reference."""
    nav: list[Any] = ["reference/index.md"]
    nav += [{title: [f"reference/{n}.md" for n in names]} for title, names in classes().items()]
    nav.append({"Operators": [f"reference/operators/{family}.md" for family in families()]})
    others = ("onnx", "onnx-operators", "errors", "types")
    return [*nav, *(f"reference/{name}.md" for name in others)]


def on_config(config: Any, **_: Any) -> Any:
    """Put the generated pages first into the entry `Reference` of the navigation."""
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = [*reference_nav(), *entry["Reference"]]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links between docs/ and spec/ to the site's pages, and weigh the page in search."""
    for start, boost in SEARCH_BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
            break
    depth = page.file.src_uri.count("/")
    markdown = markdown.replace(f"]({'../' * (depth + 1)}spec/", f"]({'../' * depth}spec/")
    return markdown.replace("](../docs/", "](../")  # from a page of spec/


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages of spec/ and of the reference."""
    from mkdocs.structure.files import File

    for path in sorted([*SPEC.glob("*.md"), *SPEC.glob("*.json")]):
        files.append(File.generated(config, f"spec/{path.name}", abs_src_path=str(path)))
    for name, text in reference().items():
        files.append(File.generated(config, name, content=text))
    return files
