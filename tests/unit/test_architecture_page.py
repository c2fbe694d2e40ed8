"""docs/architecture.md: its picture, its table of packages and the files it names are true."""

from __future__ import annotations

import asyncio
import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.unit.test_architecture import LAYERS, MODULES, PACKAGE, ROOT, own_imports
from webnn_py import (
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
)

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = ElementTree.parse(ROOT / "docs/images/architecture.svg").getroot()
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PAGES = [
    *("README.md", "CONTRIBUTING.md", "spec/execution.md", "spec/interop.md", "spec/deviations.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))),
]

FOLDERS = (PACKAGE, "benchmarks", "docs", "samples", "scripts", "spec", "tests")
PATHS = [
    *(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*")),
    *(Path(folder) for folder in FOLDERS),
    *(path.relative_to(ROOT) for path in ROOT.glob("*.*")),
]
MADE = {"site/", "webnn_float32.py"}
"""What commands make, and those who follow a page."""


def calls() -> list[tuple[str, str]]:
    """Module and name of the call at each arrow, from the top to the bottom."""
    found = []
    for group in PICTURE.iter(f"{SVG}g"):
        if group.get("class") == "call":
            at = re.search(r"\((\d+) (\d+)\)", group.get("transform", ""))
            module, name = (part.text or "" for part in group.iter(f"{SVG}tspan"))
            assert at, f"{name} has no place"
            found.append((int(at[2]), int(at[1]), module, name))
    return [(module, name) for *_, module, name in sorted(found)]


@pytest.mark.parametrize(("module", "name"), calls())
def test_the_calls_in_the_picture_are_there(module: str, name: str) -> None:
    assert callable(pkgutil.resolve_name(f"{PACKAGE}.{module}:{name}"))


def made_by(work: Callable[[], object]) -> list[str]:
    """The picture's calls that some work makes, in order of the first of each."""
    wanted = {f"{PACKAGE}.{module}.{name}" for module, name in calls()}
    made: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        name = frame.f_code.co_name
        of = type(frame.f_locals.get("self")).__mro__
        homes = [f"{c.__module__}.{c.__qualname__}" for c in of if name in vars(c)]
        names = homes if name == "__init__" else [f"{home}.{name}" for home in homes]
        names.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")
        made.update(dict.fromkeys(wanted.intersection(names)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return [name.removeprefix(f"{PACKAGE}.") for name in made]


def built(context: MLContext) -> MLGraph:
    b = MLGraphBuilder(context)
    return b.build_sync({"y": b.relu(b.input("x", "float32", [4]))})


def test_each_mode_goes_the_way_of_the_picture(cpu: MLContext, gpu: MLContext) -> None:
    x = np.ones(4, np.float32)

    def run() -> object:
        return MLExecution(cpu).compute(built(cpu), {"x": x}, {"y": np.empty_like(x)})

    def start(context: MLContext) -> object:
        async def compute() -> Any:
            return await MLAwaitedExecution(context).compute(graph, {"x": x})

        graph = built(context)
        return asyncio.run(compute())

    def record() -> None:
        y = gpu.device.create_buffer(size=16, usage="STORAGE")
        encoder = MLCommandEncoder(gpu)
        encoder.dispatch(built(gpu), {"x": x}, {"y": y})
        encoder.finish()

    ways = {
        "engines.base.HostExecutable.run": made_by(run),
        "engines.base.Executable.start": made_by(lambda: start(gpu)),
        "engines.device.DeviceExecutable.record": made_by(record),
    }
    drawn = [f"{module}.{name}" for module, name in calls()]
    for end, way in ways.items():
        assert way == [name for name in drawn if name in way]
        assert way[-1] == end
    assert set(drawn) == {name for way in ways.values() for name in way}
    assert "api.signature.Signature.on_host" in made_by(lambda: start(cpu))


def package(module: str) -> str:
    """The package that a module belongs to: one of the package's own, an engine, or half of one."""
    depth = 1 + module.startswith("engines.") + module.startswith("engines.webgpu.")
    folders = MODULES[module].parent.relative_to(ROOT / PACKAGE).parts
    return "".join(f"{folder}/" for folder in folders[:depth])


def packages() -> list[str]:
    """The packages that hold code."""
    holding = {package(module) for module, path in MODULES.items() if path.name != "__init__.py"}
    return sorted(holding - {""})


def rows() -> dict[str, list[str]]:
    """The table: of each package, what it imports."""
    lines = re.findall(r"^\| `([\w/]+/)` \|(.*)\|(.*)\|$", PAGE, re.MULTILINE)
    return {name: re.findall(r"`([\w/]+/)`", last) for name, _, last in lines}


def test_the_table_has_every_package_in_the_order_of_layers() -> None:
    assert sorted(rows()) == packages()
    order = [name for row in LAYERS for name in row]
    layers = [order.index(name.partition("/")[0]) for name in rows()]
    assert layers == sorted(layers)


@pytest.mark.parametrize("name", packages())
def test_packages_import_what_the_table_says(name: str) -> None:
    inside = [module for module in MODULES if package(module) == name]
    used = {package(other) for module in inside for other in own_imports(module) & MODULES.keys()}
    order = list(rows())
    above = order[: order.index(name)]
    assert rows()[name] == [other for other in above if other in used]
    assert used - {name, ""} <= set(above)


def drawn_places() -> list[str]:
    """The packages and files in the picture."""
    words = re.split(r"[\s,]+", " ".join(PICTURE.itertext()))
    return [word for word in words if re.fullmatch(r"[\w/]+(\.py|/)", word)]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_are_there(page: str) -> None:
    named = re.findall(r"`(\w[\w./]*(?:\.py|\.sh|\.md|/))`", (ROOT / page).read_text("utf-8"))
    drawn = drawn_places() if page == "docs/architecture.md" else []
    paths = (f"/{path}{'/' * (ROOT / path).is_dir()}" for path in PATHS)
    missing = set(named + drawn) - MADE
    for path in paths:
        missing = {name for name in missing if not path.endswith(f"/{name}")}
    assert not missing
