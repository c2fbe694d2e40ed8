"""The documentation's own machinery: the reference, the settings of the pages."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import runpy
import tomllib
import typing
from pathlib import Path
from typing import Literal

import pytest

import webnn_py
from benchmarks.__main__ import purposes
from webnn_py import MLGraphBuilder
from webnn_py.ops.declare import REGISTRY

ROOT = Path(__file__).parents[2]
REFERENCE: dict[str, str] = runpy.run_path(str(ROOT / "scripts/mkdocs_hooks.py"))["reference"]()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
STARTERS = ("Thread", "Workers", "ThreadPoolExecutor")
"""Ends of the names of what starts threads."""
PACKAGES = importlib.metadata.packages_distributions()
"""Names of the installed packages that hold a module; wgpu brings rendercanvas."""


def test_the_reference_has_all_that_is_public_and_nothing_else() -> None:
    shown = re.findall(r"^::: webnn_py\.([\w.]+)$", "\n".join(REFERENCE.values()), re.MULTILINE)
    public = {name for name in webnn_py.__all__ if name not in ("__version__", "ml")}
    types = {name for name in public if typing.get_origin(getattr(webnn_py, name)) is Literal}
    expected = {*public - types, "api.ml.ML", *(f"onnx.{name}" for name in webnn_py.onnx.__all__)}
    expected |= {f"MLGraphBuilder.{name}" for name in REGISTRY}
    assert sorted(shown) == sorted(expected)
    assert all(f"| `{name}` |" in REFERENCE["reference/types.md"] for name in types)


def test_operators_of_onnx_are_those_of_the_importer() -> None:
    page = REFERENCE["reference/onnx-operators.md"]
    maps, refused = page.split("## Operators that do not map")
    for name in ("Add", "If", "Gelu", "NonZero", "Shape", "GroupQueryAttention"):
        assert f"`{name}`" in maps
        assert f"| `{name}` |" not in refused
    reasons = {"StringConcat": "WebNN has no strings", "Unique": "computed at import"}
    for name, reason in reasons.items():
        assert f"`{name}`" not in maps
        assert re.search(rf"^\| `{name}` \| .*{reason} \|$", refused, re.MULTILINE)


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

Examples:
    ```python
    b = MLGraphBuilder(ctx)
    x = b.constant(np.float32([[1, 2], [3, 4]]))
    c = b.constant(np.float32([10, 20]))
    y = b.gemm(x, x, c=c, alpha=0.5, b_transpose=True)
    result = MLExecution(ctx).compute(b.build_sync({"y": y}), {})["y"]
    print(result.round(3))  # [[12.5 25.5] [15.5 32.5]]
    ```

Source: WebNN 2026, <https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gemm>"""


def test_a_docstring_tells_all_of_an_operator() -> None:
    assert inspect.getdoc(MLGraphBuilder.gemm) == GEMM


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


def needs_of_samples() -> dict[str, str]:
    """Return what the page of samples says that each needs besides the extra `samples`."""
    page = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\w+\.py)` \|.*\|([^|]*)\|$", page, re.MULTILINE))


def test_the_page_of_samples_lists_all_of_them() -> None:
    samples = (ROOT / "samples").glob("*.py")
    assert sorted(needs_of_samples()) == sorted(
        path.name for path in samples if "__main__" in path.read_text(encoding="utf-8")
    )


def packages_of_extra(extra: str) -> set[str]:
    """Return the packages that an extra names, those of the extras that it names included."""
    found: set[str] = set()
    for name, extras in re.findall(r"^([\w-]+)(?:\[([\w,]+)\])?", "\n".join(EXTRAS[extra]), re.M):
        others = extras.split(",") if name == "webnn-py" else ()
        found |= {name}.union(*map(packages_of_extra, others))
    return found


def packages_of_sample(path: Path) -> set[str]:
    """Return the installed packages that a sample and the samples that it imports use."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for package, *rest in (module.split(".") for module in modules):
            other = path.with_name(f"{rest[0]}.py") if package == "samples" else path
            if other != path and other.exists():
                found |= packages_of_sample(other)
            found.update(PACKAGES.get(package, ()))
    return found


@pytest.mark.parametrize("name", needs_of_samples())
def test_the_page_of_samples_says_what_each_needs(name: str) -> None:
    needs = needs_of_samples()[name]
    installed = {"webnn-py", "numpy", "wgpu", "rendercanvas", *re.findall(r"[\w-]+", needs)}
    for extra in ("samples", *re.findall(r"`(\w+)`", needs)):
        installed |= packages_of_extra(extra)
    assert packages_of_sample(ROOT / "samples" / name) <= installed


def thread_names() -> set[str]:
    """Return the names with which the package starts threads, those of a context left out."""
    found: set[str] = set()
    for path in (ROOT / "webnn_py").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(STARTERS):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                names = [value.value for value in values if isinstance(value, ast.Constant)]
                found.update(name for name in names if isinstance(name, str))
    return found


def test_the_page_of_threads_lists_all_of_them() -> None:
    page = (ROOT / "docs" / "threads-and-caches.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(webnn-[a-z-]+)`", page))
    assert thread_names() == listed - {"webnn-cpu", "webnn-gpu"}


def test_benchmarks_that_pages_name_are_there() -> None:
    pages = (path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"python -m benchmarks (\w+)", "\n".join(pages)))
    assert "cpu" in named
    assert named <= purposes().keys()
    assert all(purposes().values())
