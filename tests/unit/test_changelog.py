"""The changelog has a section for each version, and one short line for each change."""

from __future__ import annotations

import re
from pathlib import Path

from webnn_py._version import __version__

LINES = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
VERSION_HEADING = re.compile(r"## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d")
MAX_WORDS = 25


def test_unreleased_changes_stand_above_the_newest_version() -> None:
    headings = [line for line in LINES if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
    versions = [VERSION_HEADING.fullmatch(heading) for heading in headings[1:]]
    assert all(versions), headings
    assert versions[0] is not None
    assert versions[0][1] == __version__


def test_a_change_is_one_short_line() -> None:
    start = LINES.index("## [Unreleased]")
    texts = [line for line in LINES[start:] if line and not line.startswith("#")]
    changes = [line for line in texts if line.startswith("- ")]
    assert changes
    assert [line for line in texts if line not in changes] == ["The first release."]
    assert [line for line in changes if len(line.removeprefix("- ").split()) > MAX_WORDS] == []
