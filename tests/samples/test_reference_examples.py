"""The examples of the reference run as printed, page by page, and leave nothing public out."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import webnn_py
from tests.pages import ROOT, Block, Reader, parse_blocks
from tests.samples.test_documents import check_printed
from webnn_py.api.ml import ML
from webnn_py.ops.declare import REGISTRY
from webnn_py.ops.examples import EXAMPLES

HOOKS = runpy.run_path(str(ROOT / "scripts/mkdocs_hooks.py"))
PAGES: dict[str, str] = HOOKS["reference"]()
CLASSES = [name for names in HOOKS["classes"]().values() for name in names]


def resolve(path: str) -> Any:
    """Return the object that a page of the reference shows."""
    if path == "webnn_py.api.ml.ML":
        return ML
    thing: Any = webnn_py
    for name in path.split(".")[1:]:
        thing = getattr(thing, name)
    return thing


def members(thing: Any) -> dict[str, Any]:
    """Return the public members that a class has of its own package; operators have own pages."""
    if not isinstance(thing, type) or issubclass(thing, BaseException):
        return {}
    named = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}
    if thing is webnn_py.MLGraphBuilder:
        named = {name: member for name, member in named.items() if name not in REGISTRY}
    return named


def examples(page: str) -> list[Block]:
    """Return the blocks that a reader of a page sees."""
    blocks = parse_blocks(PAGES[page])
    for path in re.findall(r"^::: (\S+)$", PAGES[page], re.MULTILINE):
        thing = resolve(path)
        for shown in (thing, *members(thing).values()):
            blocks += parse_blocks(inspect.cleandoc(inspect.getdoc(shown) or ""))
    return blocks


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)])
def test_a_page_runs(
    page: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = examples(page)
    if any('device_type="gpu"' in block.text for block in blocks):
        request.getfixturevalue("gpu")
    monkeypatch.chdir(tmp_path)
    with Reader(page, tmp_path, sys.stdout.write) as reader:
        reader.follow(blocks)
    check_printed(blocks, capsys.readouterr().out)


def test_all_operators_have_an_example() -> None:
    assert EXAMPLES.keys() == REGISTRY.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_examples_use_every_member(name: str) -> None:
    thing = ML if name == "ml" else getattr(webnn_py, name)
    code = "\n".join(block.text for block in examples(f"reference/{name}.md"))
    assert not [member for member in members(thing) if not re.search(rf"\b{member}\b", code)]


def test_functions_have_an_example() -> None:
    for page, names in {"onnx": webnn_py.onnx.__all__, "runtime_path": ["runtime_path"]}.items():
        code = "\n".join(block.text for block in examples(f"reference/{page}.md"))
        assert not [name for name in names if f"{name}(" not in code]


def test_versions_are_those_of_names_that_are_there() -> None:
    names = {*webnn_py.__all__, *REGISTRY, *webnn_py.onnx.__all__, "onnx"}
    assert HOOKS["SINCE"].keys() <= names
