"""Prints that are compared with files of tests/golden; --update-golden writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"
Golden = Callable[[str, str], None]


def check(name: str, text: str, update: bool) -> None:
    """Compare a text with what the file of this name holds."""
    file = FOLDER / name
    text = text.rstrip() + "\n"
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if not file.exists():
        pytest.fail(f"there is no {file}; run pytest with --update-golden, and read what it wrote")
    assert text == file.read_text(), f"{file} differs; --update-golden takes the new print over"
