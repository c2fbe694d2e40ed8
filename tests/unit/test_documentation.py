"""The documentation's own machinery: the table of operators, the settings of the pages."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import webnn_py
from webnn_py import MLGraphBuilder

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide.md"
HOOKS = """
import runpy, sys
hooks = runpy.run_path("scripts/mkdocs_hooks.py")
sys.stdout.write(hooks["on_page_markdown"](open("docs/operators.md", encoding="utf-8").read()))
"""


def operators_page() -> str:
    """The page as mkdocs gets it: in a process that has not imported the operators before."""
    made = subprocess.run(
        [sys.executable, "-c", HOOKS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return made.stdout


def test_the_reference_has_all_that_is_public_and_nothing_else() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: ([\w.]+)\.(\w+)$", page, re.MULTILINE)
    named.remove(("webnn_py", "onnx"))
    (members,) = re.findall(r"^      members: \[(.*)\]$", page, re.MULTILINE)
    assert sorted(members.split(", ")) == sorted(webnn_py.onnx.__all__)
    errors = re.findall(r"^        - (\w+)$", page, re.MULTILINE)
    *shown, module = [getattr(importlib.import_module(home), name) for home, name in named]
    shown += [getattr(module, name) for name in errors]
    public = [getattr(webnn_py, name) for name in webnn_py.__all__ if name != "__version__"]
    types = [type(thing) if thing is webnn_py.ml else thing for thing in public]
    assert {thing for thing in types if isinstance(thing, (type, FunctionType))} == set(shown)
    assert len(shown) == len(set(shown))
    assert "<!-- names -->" in page  # the types of strings


GEMM = """\
Compute alpha * A x B + beta * C, a matrix product with an optional summand.

Args:
    a: [m, k], or [k, m] with `a_transpose`. float32 or float16; 2-D.
    b: [k, n], or [n, k] with `b_transpose`. Data type as `a`; 2-D.
    c: The summand; broadcasts to [m, n]. Data type as `a`; rank 0 to 2; optional.
    alpha: Factor of the product.
    beta: Factor of `c`.
    a_transpose: Transpose `a` first.
    b_transpose: Transpose `b` first.
    label: Name of the operator in error messages and listings.

Returns:
    [m, n]. Data type as `a`.

Raises:
    ValidationError: An operand or option breaks a rule stated here, or an operand belongs
        to another builder.
    NotSupportedError: The context does not support these data types for this operator, see
        `MLContext.op_support_limits`.
    InvalidStateError: The builder has already built its graph.
    ContextLostError: The context is lost.

Source: WebNN 2026, <https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gemm>"""


def test_a_docstring_tells_all_of_an_operator() -> None:
    assert inspect.getdoc(MLGraphBuilder.gemm) == GEMM


def test_the_reference_shows_what_is_there() -> None:
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert shown
    for name in shown:
        assert pkgutil.resolve_name(name), name


def test_no_setting_of_the_pages_stands_twice() -> None:
    seen: dict[int, set[str]] = {}  # keys of the mappings that are open, by indentation
    for line in (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines():
        found = re.match(r"( *(- )?)([\w ]+):( |$)", line)
        if found is None:
            continue
        depth = len(found[1])
        seen = {d: keys for d, keys in seen.items() if d < depth or (d == depth and not found[2])}
        assert found[3] not in seen.setdefault(depth, set()), line
        seen[depth].add(found[3])


def test_the_page_of_samples_lists_all_of_them() -> None:
    page = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE)
    samples = (ROOT / "samples").glob("*.py")
    assert sorted(listed) == sorted(
        path.name for path in samples if "__main__" in path.read_text(encoding="utf-8")
    )
