"""Release a version: change its files, check the packages, commit and tag.

    python scripts/release.py 1.1.0          # show the changes and steps, do nothing
    python scripts/release.py 1.1.0 --run    # do them

Needs a clean checkout of `main`, and the packages `build` and `twine`. It pushes nothing: the last
line it prints does that, and the tag starts the workflow that publishes.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = "## [Unreleased]"
VERSION = re.compile(r"\d+\.\d+\.\d+")
STEPS = (
    "make test",
    "rm -rf dist",
    f"{sys.executable} -m build",
    f"{sys.executable} -m twine check --strict dist/*",
    f"{sys.executable} scripts/check_bounds.py",
    "git commit --all --message 'Release {version}'",
    "git tag --annotate v{version} --message 'Version {version}'",
)
PUBLISH = "git push origin main v{version}"


def main() -> int:
    """Show the release, or make it; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("version", help="MAJOR.MINOR.PATCH")
    parser.add_argument("--run", action="store_true", help="make the release")
    options = parser.parse_args()
    try:
        texts = changed_files(ROOT, options.version, datetime.date.today())
    except ValueError as error:
        parser.error(str(error))
    for path, text in texts.items():
        old = (ROOT / path).read_text(encoding="utf-8").splitlines()
        print(*difflib.unified_diff(old, text.splitlines(), path, path, lineterm=""), sep="\n")
    steps = [step.format(version=options.version) for step in STEPS]
    if not options.run:
        print("Then:", *steps, sep="\n  ")
        return 0
    if output("git status --porcelain") or output("git branch --show-current") != "main":
        parser.error("expected a clean checkout of main")
    for path, text in texts.items():
        (ROOT / path).write_text(text, encoding="utf-8")
    for step in steps:
        print(f"$ {step}", flush=True)
        if subprocess.run(step, shell=True, cwd=ROOT, check=False).returncode:
            print(f"{step}: failed. `git checkout .` undoes the changes of files.", file=sys.stderr)
            return 1
    print(f"Publish with: {PUBLISH.format(version=options.version)}")
    return 0


def changed_files(root: Path, version: str, date: datetime.date) -> dict[str, str]:
    """Return the new texts of the files that name the version, by path.

    Raises:
        ValueError: The version is no version, or no new one, or nothing has changed.
    """
    if not VERSION.fullmatch(version):
        raise ValueError(f"got version {version!r}, expected MAJOR.MINOR.PATCH")
    own, npm, changes = "webnn_py/_version.py", "runtime/js/package.json", "CHANGELOG.md"
    texts = {path: (root / path).read_text(encoding="utf-8") for path in (own, npm, changes)}
    (current,) = re.findall(r'__version__ = "(.*)"', texts[own])
    if numbers(version) < numbers(current):
        raise ValueError(f"version {version} is older than {current}")
    made = {
        own: texts[own].replace(current, version),
        npm: texts[npm].replace(f'"version": "{current}"', f'"version": "{version}"'),
        changes: changelog(texts[changes], version, date),
    }
    return {path: text for path, text in made.items() if text != texts[path]}


def changelog(text: str, version: str, date: datetime.date) -> str:
    """Return the changelog with the unreleased changes as the section of a version.

    Raises:
        ValueError: There are no unreleased changes, or the version has a section besides.
    """
    before, found, rest = text.partition(f"{UNRELEASED}\n")
    unreleased, _, older = rest.partition("\n## [")
    has_section = f"\n## [{version}] - " in text
    parts = re.split(r"^(?=### )", unreleased, flags=re.MULTILINE)[1:]
    filled = "".join(part for part in parts if "\n- " in part).rstrip()
    if has_section and not filled:
        return text
    if has_section or not found or not filled:
        wrong = f"a section for {version} besides" if has_section else "nothing"
        raise ValueError(f"CHANGELOG.md: expected changes under {UNRELEASED}, found {wrong}")
    heading = f"## [{version}] - {date.isoformat()}"
    return f"{before}{UNRELEASED}\n\n{heading}\n\n{filled}\n\n## [{older}"


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, to compare versions."""
    return tuple(map(int, version.split(".")))


def output(command: str) -> str:
    """Return the output of a command."""
    made = subprocess.run(
        shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
