"""Import rules, read from the sources: which package may import which."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "webnn_py"

# A module imports from its own row and the rows above it. A folder stands for all in it.
LAYERS = (
    ("_version",),
    ("core",),
    ("ir",),
    ("memory", "ops", "ordering"),
    ("storage",),
    ("passes",),
    ("engines",),
    ("api",),
    ("onnx",),
    ("cli",),
    ("__init__",),
    ("__main__",),
)

# Where a library that is heavy or replaceable may be imported.
LIBRARIES = {
    "wgpu": ("engines.webgpu.runtime",),
    "wgpudawn": ("engines.webgpu.runtime.dawn",),
    "onnxruntime": ("engines.onnxruntime",),
    "openvino": ("engines.openvino",),
    "onnx": ("onnx", "engines.onnx_lowering", "engines.onnxruntime", "engines.openvino"),
}

IMPLEMENTATIONS = ("engines.webgpu.runtime.wgpu_native", "engines.webgpu.runtime.dawn")
"""Where what is private in a library of WebGPU is used; only `webgpu_api` finds them, by name."""
OF_PRIVATE = (*IMPLEMENTATIONS, "engines.webgpu.runtime.webgpu_h")
"""Where the C interface, and what is private in cffi, is used."""
OF_WGPU = ("engines.webgpu.runtime",)
"""Where objects of wgpu's are used."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in (ROOT / PACKAGE).rglob("*.py")}


def statements(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements, those inside functions and for type checkers too."""
    for node in body:
        for child in ast.walk(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Full names of the modules that a file imports."""
    names: set[str] = set()
    for node in statements(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            continue
        assert node.level == 0, f"{path}:{node.lineno} is a relative import"
        for alias in node.names:
            member = f"{node.module}.{alias.name}"
            is_module = member.removeprefix(f"{PACKAGE}.") in MODULES
            names.add(member if is_module else str(node.module))
    return frozenset(names)


def own_imports(module: str) -> set[str]:
    """Modules of this package that a module imports, without the package's name."""
    found = imported(MODULES[module])
    return {name.removeprefix(f"{PACKAGE}.") for name in found if name.startswith(f"{PACKAGE}.")}


def within(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def layer(module: str) -> int:
    rows = [i for i, row in enumerate(LAYERS) if within(module, row)]
    assert len(rows) == 1, f"put module {module} into one row of LAYERS"
    return rows[0]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_one_way(module: str) -> None:
    upwards = {name for name in own_imports(module) if layer(name) > layer(module)}
    assert not upwards, f"{module} imports from above: {sorted(upwards)}"


def test_no_two_modules_import_each_other() -> None:
    """Not even for type checkers, and not by way of others."""
    graphlib.TopologicalSorter({module: own_imports(module) for module in MODULES}).prepare()


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_stay_in_their_rooms(library: str) -> None:
    users = {
        module
        for module, path in MODULES.items()
        if any(name.partition(".")[0] == library for name in imported(path))
    }
    strays = {module for module in users if not within(module, LIBRARIES[library])}
    assert not strays, f"{library} is imported by {sorted(strays)}"


@pytest.mark.parametrize("room", IMPLEMENTATIONS)
def test_an_implementation_of_webgpu_is_imported_by_none(room: str) -> None:
    users = {
        module
        for module in MODULES
        if not within(module, (room,))
        and any(within(name, (room,)) for name in own_imports(module))
    }
    assert not users, f"{room} is imported by {sorted(users)}"


def test_a_short_implementation() -> None:
    """What a second library needs beyond the public API is little."""
    lines = [path.read_text().count("\n") for path in (ROOT / PACKAGE).rglob("dawn/*.py")]
    assert 0 < sum(lines) <= 400


def private_uses(source: str) -> set[str]:
    """Where a module reaches into others' objects, or into wgpu's modules."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            hidden = node.attr.startswith("_") and not node.attr.startswith("__")
            if hidden or (node.attr == "__class__" and isinstance(node.ctx, ast.Store)):
                found.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("wgpu"):
            found.add(str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if re.match(r"wgpu(dawn)?\.", alias.name)}
        elif isinstance(node, ast.Constant) and re.match(r"wgpu(dawn)?\.backends", str(node.value)):
            found.add(str(node.value))
    return found


@pytest.mark.parametrize("module", [name for name in sorted(MODULES) if within(name, OF_WGPU)])
def test_what_is_private_in_wgpu_is_used_in_one_package(module: str) -> None:
    found = private_uses(MODULES[module].read_text())
    assert not found or within(module, OF_PRIVATE), f"{module} uses {sorted(found)}"


def test_private_uses_are_seen() -> None:
    native = MODULES[f"{OF_PRIVATE[0]}.native"]
    assert private_uses(native.read_text()) >= {"device._internal", "thing.__class__"}
    for use in (
        "x._internal",
        "x().y._device",
        "getattr(x._helpers, 'y')",
        "x.__class__ = y",
        "import wgpu.backends",
        "from wgpu.backends.wgpu_native import lib",
        "def f(): import wgpu._classes as c",
        "import_module('wgpu.backends.wgpu_native')",
        "from wgpudawn.backends.dawn import lib",
        "import wgpudawn.backends",
        "import_module('wgpudawn.backends.dawn')",
    ):
        assert private_uses(use), use
    assert not private_uses("import wgpu; self._device; x.__class__.__name__; cls._made; x.y")


def test_the_rules_see_what_they_look_for() -> None:
    assert "engines.webgpu.runtime.engine" in own_imports("api.ml")  # inside a function
    assert "api.ml" in own_imports("__init__")  # for type checkers only
    assert {"ops.graph_builder", "ir"} <= own_imports("api.graph_recorder")
    assert {"ops", "engines.reference"} <= set(MODULES)


def test_every_folder_of_tests_is_run() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = settings["tool"]["pytest"]["ini_options"]["testpaths"]
    holding = {path.relative_to(ROOT).parts[:2] for path in (ROOT / "tests").rglob("test_*.py")}
    assert sorted(listed) == sorted("/".join(parts) for parts in holding)
