"""Files that a release changes."""

from __future__ import annotations

import datetime
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from webnn_py._version import __version__

ROOT = Path(__file__).parents[2]
RELEASE = runpy.run_path(str(ROOT / "scripts/release.py"))
DATE = datetime.date(2027, 3, 4)
OLDER = "\n## [1.0.0] - 2026-01-02\n\n### Added\n\n- A first thing.\n"
CHANGES = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n### Fixed\n" + OLDER
RELEASED = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.1.0] - 2027-03-04\n\n### Added\n\n- A thing.\n" + OLDER
)


def test_unreleased_changes_become_the_section_of_the_version() -> None:
    assert RELEASE["changelog"](CHANGES, "1.1.0", DATE) == RELEASED


@pytest.mark.parametrize(
    ("text", "version", "message"),
    [
        (CHANGES, "1.0.0", "found a section for 1.0.0 besides"),
        (RELEASED, "1.2.0", "found nothing"),
    ],
)
def test_a_changelog_that_does_not_fit_is_refused(text: str, version: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RELEASE["changelog"](text, version, DATE)


def test_a_section_that_is_written_already_stays() -> None:
    assert RELEASE["changelog"](RELEASED, "1.1.0", DATE) == RELEASED


def test_all_files_that_name_the_version_change(tmp_path: Path) -> None:
    for path in ("webnn_py/_version.py", "runtime/js/package.json", "CHANGELOG.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    texts = RELEASE["changed_files"](tmp_path, "999.1.0", DATE)
    assert len(texts) == 3
    assert all("999.1.0" in text and __version__ not in text for text in list(texts.values())[:2])


@pytest.mark.parametrize(
    ("version", "message"),
    [("0.0.9", "is older than"), ("v2.0.0", "expected MAJOR.MINOR.PATCH")],
)
def test_other_versions_are_refused_without_a_change(version: str, message: str) -> None:
    command = [sys.executable, ROOT / "scripts/release.py", version]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
