"""The Python blocks of the pages run as they are printed, and print what the pages say."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTS = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)
FILES = {"docs/add-an-engine.md", "docs/add-an-operator.md"}
"""Pages whose blocks are files; tests of their own write these."""


def blocks(name: str, language: str = "python") -> list[str]:
    """The blocks of a page in a language; those of plain text have none."""
    found = BLOCK.findall((ROOT / name).read_text())
    return [text for marked, text in found if marked == language]


def pages() -> Iterator[str]:
    """The pages that have Python blocks."""
    folders = (sorted((ROOT / name).rglob("*.md")) for name in ("docs", "spec"))
    for path in [ROOT / "README.md", *itertools.chain(*folders)]:
        name = path.relative_to(ROOT).as_posix()
        if name not in FILES and blocks(name):
            yield name


def run(page: str, names: dict[str, Any]) -> None:
    """Run the blocks of a page, top to bottom."""
    for number, code in enumerate(blocks(page)):
        exec(compile(code, f"<{page}, block {number}>", "exec"), names)


def check_printed(page: str, printed: str) -> None:
    """A comment behind a top-level print says what it prints; listings are printed, too."""
    text = " ".join(printed.split())
    place = 0
    for expected in PRINTS.findall("\n".join(blocks(page))):
        expected = " ".join(expected.split())
        found = text.find(expected, place)
        assert found >= 0, f"{expected!r} is not in {text[place:]!r}"
        place = found + len(expected)
    for listing in blocks(page, ""):
        assert not listing.startswith("graph(") or listing in printed


@pytest.mark.parametrize("page", list(pages()))
def test_a_page_runs_from_top_to_bottom(
    page: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an empty folder, with names of its own."""
    code = "".join(blocks(page))
    if 'device_type="gpu"' in code:
        request.getfixturevalue("gpu")  # skips where there is no adapter
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        if "import torch" in code:
            pytest.importorskip("torch", reason="torch is not installed")
            pytest.importorskip("onnxscript", reason="onnxscript, which torch exports by, is not")
            warnings.simplefilter("ignore")  # PyTorch's own
        run(page, {"__name__": "__main__"})
    check_printed(page, capsys.readouterr().out)


def test_what_is_not_printed_is_found() -> None:
    with pytest.raises(AssertionError, match="cpu False None"):
        check_printed("docs/guide.md", "gpu True\n")


@pytest.mark.parametrize("code", [*blocks("README.md"), *blocks("docs/index.md")])
def test_blocks_that_stand_alone(
    code: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the last line of each prints is in the comment there."""
    if 'device_type="gpu"' in code:
        request.getfixturevalue("gpu")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<document>", "exec"), {})
    expected = code.rstrip().rpartition("  # ")[2]
    assert capsys.readouterr().out.strip() == expected
