"""docs/architecture.md: its pictures, its table of packages and the files it names are true."""

from __future__ import annotations

import pkgutil
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.test_architecture import LAYERS, MODULES, PACKAGE, ROOT, own_imports

SVG = "{http://www.w3.org/2000/svg}"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PAGES = [
    *("README.md", "CONTRIBUTING.md", "spec/execution.md", "spec/interop.md", "spec/deviations.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))),
]
PICTURES = {
    name: draw().printed()
    for name, draw in runpy.run_path(str(ROOT / "scripts/diagrams.py"))["PICTURES"].items()
}

FOLDERS = (PACKAGE, "benchmarks", "docs", "samples", "scripts", "spec", "tests")
PATHS = [
    *(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*")),
    *(Path(folder) for folder in FOLDERS),
    *(path.relative_to(ROOT) for path in ROOT.glob("*.*")),
]
MADE = {"site/", "webnn_float32.py"}
"""What commands make, and those who follow a page."""


def texts(picture: str, kind: str) -> list[str]:
    """The texts of one class in a picture."""
    root = ElementTree.fromstring(PICTURES[picture])
    return [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == kind]


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures_are_drawn_by_their_script_and_shown(picture: str) -> None:
    file = ROOT / f"docs/images/{picture}.svg"
    assert file.read_text(encoding="utf-8") == PICTURES[picture], "run scripts/diagrams.py"
    assert f"](images/{picture}.svg)" in PAGE


def test_the_picture_of_layers_has_their_order() -> None:
    order = {name: row for row, names in enumerate(LAYERS) for name in names}
    drawn = [title.partition("/")[0] for title in texts("layers", "title")]
    assert set(drawn) == {name.partition("/")[0] for name in packages()}
    assert [order[name] for name in drawn] == sorted((order[name] for name in drawn), reverse=True)


def is_there(name: str) -> bool:
    """Whether some module has this object; `name` begins with the module's last parts."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        end = ".".join(parts[:at])
        for module in MODULES:
            if f".{module}".endswith(f".{end}"):
                try:
                    pkgutil.resolve_name(f"{PACKAGE}.{module}:{'.'.join(parts[at:])}")
                except AttributeError:
                    continue
                return True
    return False


@pytest.mark.parametrize("picture", PICTURES)
def test_code_in_pictures_is_there(picture: str) -> None:
    words = [word for text in texts(picture, "code") for word in re.findall(r"[\w.]+\.\w+", text)]
    files = {path.name for path in MODULES.values()}
    assert not [w for w in words if not (w in files if w.endswith(".py") else is_there(w))]


def package(module: str) -> str:
    """The package that a module belongs to: one of the package's own, an engine, or half of one."""
    depth = 1 + module.startswith("engines.") + module.startswith("engines.webgpu.")
    folders = MODULES[module].parent.relative_to(ROOT / PACKAGE).parts
    return "".join(f"{folder}/" for folder in folders[:depth])


def packages() -> list[str]:
    """The packages that hold code."""
    holding = {package(module) for module, path in MODULES.items() if path.name != "__init__.py"}
    return sorted(holding - {""})


def rows() -> list[str]:
    """The packages in the table."""
    section = PAGE.partition("## The layers")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/]+/)` \|", section, re.MULTILINE)


def test_the_table_has_every_package() -> None:
    assert sorted(rows()) == packages()


@pytest.mark.parametrize("name", packages())
def test_packages_import_from_those_above_in_the_table(name: str) -> None:
    inside = [module for module in MODULES if package(module) == name]
    used = {package(other) for module in inside for other in own_imports(module) & MODULES.keys()}
    above = rows()[: rows().index(name)]
    assert used - {name, ""} <= set(above)


def test_the_glossary_has_the_words_in_italics() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    words = {word.removesuffix("s") for word in re.findall(r"(?<!\*)\*([\w -]+)\*(?!\*)", PAGE)}
    assert words - {"italic"} <= set(re.findall(r"^\| ([\w ]+) \|", glossary, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_are_there(page: str) -> None:
    named = re.findall(r"`(\w[\w./]*(?:\.py|\.sh|\.md|/))`", (ROOT / page).read_text("utf-8"))
    paths = (f"/{path}{'/' * (ROOT / path).is_dir()}" for path in PATHS)
    missing = set(named) - MADE
    for path in paths:
        missing = {name for name in missing if not path.endswith(f"/{name}")}
    assert not missing
