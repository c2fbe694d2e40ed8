"""The one list of test expectations that this package does not meet, each with its reason."""

from __future__ import annotations

import fnmatch
import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.conformance.report import Status

FILE = Path(__file__).with_name("exceptions.toml")


@dataclass(frozen=True)
class ExpectedFailure:
    """An entry of `exceptions.toml`.

    Attributes:
        kind: Which suite it belongs to.
        file: Name of the data file without its suffix.
        case: Pattern (fnmatch) of the names of the cases.
        backend: One backend, or "*" for all.
        section: Anchor in the specification, or the number of a deviation.
        reason: What that section says against the test.
    """

    kind: Literal["conformance", "validation"]
    file: str
    case: str
    section: str
    reason: str
    backend: str = "*"

    def applies(self, kind: str, file: str, backend: str) -> bool:
        """Whether the entry concerns this file on this backend."""
        return (self.kind, self.file) == (kind, file) and self.backend in ("*", backend)

    def matches(self, case: str) -> bool:
        """Whether the entry covers a case; brackets in the pattern are literal."""
        return fnmatch.fnmatchcase(case, self.case.replace("[", "[[]"))


@functools.cache
def load(path: Path = FILE) -> tuple[ExpectedFailure, ...]:
    """All entries; a misspelt key is an error."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(ExpectedFailure(**entry) for entry in data.get("exception", []))


class Verdict:
    """Sorts the failures of one file on one backend into expected and unexpected ones."""

    def __init__(self, kind: str, file: str, backend: str) -> None:
        self.unused = [entry for entry in load() if entry.applies(kind, file, backend)]
        self.entries = tuple(self.unused)
        self.complaints: list[str] = []

    def status(self, case: str, status: Status, detail: str) -> Status:
        """The status to report; an unexpected failure becomes a complaint."""
        if status != "failed":
            return status
        covering = [entry for entry in self.entries if entry.matches(case)]
        if not covering:
            self.complaints.append(f"{case}: {detail}")
            return "failed"
        self.unused = [entry for entry in self.unused if entry not in covering]
        return "exception"

    def check(self) -> None:
        """Raise an AssertionError if a failure has no entry, or an entry no failure."""
        stale = [
            f"exception {entry.case!r} ({entry.section}) matches no failure any more; remove it"
            for entry in self.unused
        ]
        complaints = self.complaints + stale
        assert not complaints, "\n".join([f"{len(complaints)} complaints:", *complaints])
