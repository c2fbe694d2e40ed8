"""Every block of the pages runs as printed, and prints what the pages say."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import (
    ELSEWHERE,
    ROOT,
    Block,
    Reader,
    check_installs,
    missing_modules,
    parse_blocks,
    printed_by,
    read_blocks,
)

TESTED_ELSEWHERE = {
    "docs/add-an-engine.md": "tests/samples/test_add_an_engine.py",
    "docs/add-an-operator.md": "tests/samples/test_add_an_operator.py",
    "docs/how-to/browser.md": "tests/runtime/test_browser.py",
    "docs/how-to/cpp.md": "tests/runtime/test_cpp.py",
}
"""Pages with tests of their own."""
LABORATORY = ("docs/benchmarks/", "docs/decisions/", "spec/PROVENANCE.md")
"""Pages whose commands take minutes to hours, or files from elsewhere."""
OPTIONAL = {"torch": "onnxscript", "fastapi": "fastapi"}
"""Packages that the tests need not have, and what each needs besides."""


def pages() -> Iterator[str]:
    """Yield the pages that have blocks."""
    folders = (sorted((ROOT / name).rglob("*.md")) for name in ("docs", "spec"))
    for path in [ROOT / "README.md", *itertools.chain(*folders)]:
        name = path.relative_to(ROOT).as_posix()
        if name not in TESTED_ELSEWHERE and not name.startswith(LABORATORY) and read_blocks(name):
            yield name


PAGES = list(pages())


def check_printed(blocks: list[Block], printed: str) -> None:
    """Check that comments behind `print`, and blocks of text, were printed in this order."""
    text = " ".join(printed.split())
    place = 0
    for block in blocks:
        if block.language == "python" and not missing_modules(block.text) & ELSEWHERE:
            expected = printed_by(block.text)
        elif block.language == "text":
            expected = [" ".join(line.split()) for line in block.text.splitlines()]
        else:
            continue
        for line in filter(None, expected):
            found = text.find(line, place)
            assert found >= 0, f"{line!r} is not in {text[place:]!r}"
            place = found + len(line)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_from_top_to_bottom(
    page: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = read_blocks(page)
    code = "".join(block.text for block in blocks)
    if 'device_type="gpu"' in code or "--device gpu" in code or "pygfx" in code:
        request.getfixturevalue("gpu")  # skips where there is no adapter
    if any("g++" in block.text for block in blocks) and not shutil.which("g++"):
        pytest.skip("there is no g++")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        for name, needed in OPTIONAL.items():
            if f"import {name}" in code or f"from {name}" in code:
                pytest.importorskip(name, reason=f"{name} is not installed")
                pytest.importorskip(needed, reason=f"{name} needs {needed}")
                warnings.simplefilter("ignore")  # its own
        with Reader(page, tmp_path, sys.stdout.write) as reader:
            reader.follow(blocks)
    for name in [path.stem for path in tmp_path.glob("*.py")]:
        sys.modules.pop(name, None)
    check_printed(blocks, capsys.readouterr().out)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    for language, _, text in read_blocks(page):
        assert language, f"no language: {text}"
        if language == "sh":
            check_installs(text)


@pytest.mark.parametrize("page", [page for page in PAGES if "moving-from" in page])
def test_javascript_is_javascript(page: str, tmp_path: Path) -> None:
    if not shutil.which("node"):
        pytest.skip("there is no Node.js")
    for number, block in enumerate(read_blocks(page)):
        if block.language == "js":
            path = tmp_path / f"{number}.mjs"
            path.write_text(block.text)
            done = subprocess.run(["node", "--check", path], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("printed", ["", "cpu\n", "None cpu\n"])
def test_what_is_not_printed_is_found(printed: str) -> None:
    with pytest.raises(AssertionError, match="cpu None"):
        check_printed([Block("python", "", "print(1)  # cpu None\n")], printed)


def test_blocks_in_tabs_and_files_are_read() -> None:
    text = '=== "a"\n\n    ```python title="a.py"\n    x = 1\n    ```\n'
    assert parse_blocks(text) == [Block("python", "a.py", "x = 1\n")]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_blocks_that_stand_alone(
    page: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On these pages each block runs by itself, too."""
    for block in read_blocks(page):
        if block.language != "python":
            continue
        if 'device_type="gpu"' in block.text:
            request.getfixturevalue("gpu")
        monkeypatch.chdir(tmp_path)
        exec(compile(block.text, f"<{page}>", "exec"), {})
        check_printed([block], capsys.readouterr().out)
