"""The Python blocks of README and guide run, and the guide shows the real listing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(name: str, language: str = "python") -> list[str]:
    """The blocks of a page in a language; those of plain text have none."""
    found = BLOCK.findall((ROOT / name).read_text())
    return [text for marked, text in found if marked == language]


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "<document>", "exec"), names)


@pytest.mark.parametrize("number", range(len(blocks("README.md"))))
def test_readme(
    number: int, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block stands alone; what its last line prints is in the comment there."""
    code = blocks("README.md")[number]
    if "wgpu" in code:
        request.getfixturevalue("gpu")  # skips where there is no adapter
    run(code, {})
    expected = code.rstrip().rpartition("  # ")[2]
    assert capsys.readouterr().out.strip() == expected


def test_guide_on_the_cpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the guide writes files
    names: dict[str, Any] = {}
    for code in blocks("docs/guide.md"):
        if not code.startswith("# gpu"):
            run(code, names)
    printed = capsys.readouterr().out
    listing = (ROOT / "docs/guide.md").read_text().split("```\ngraph(")[1].split("```")[0]
    assert f"graph({listing}" in printed
    assert "matmul [head]: " in printed


def test_guide_on_the_gpu(gpu: object, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = blocks("docs/guide.md")
    names: dict[str, Any] = {}
    run(f"import numpy as np\nfrom webnn_py import MLGraphBuilder\n{first}", names)
    (code,) = (code for code in blocks("docs/guide.md") if code.startswith("# gpu"))
    run(code, names)
    assert capsys.readouterr().out.endswith("[0. 0. 1. 0. 0. 1.]\n")
