"""The pages are short and plain: words a page, words a sentence, none of the phrases to avoid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_PAGE_WORDS = 1500
MAX_SENTENCE_WORDS = 25
MAX_LONG_SHARE = 0.1
FEW_SENTENCES = 10
"""Pages with fewer sentences may have one long one."""

PHRASES = (
    "what is given",
    "what is made",
    "what is found",
    "what is known",
    "what is kept",
    "what is had",
    "what is held",
    "count no more",
    "runs along an axis",
    "do the same by themselves",
    "makes do nothing",
    "take about as long for",
    "for the next time",
    "record the end",
    "a duration, for people",
    "crosses between the host",
    "until those that are left",
    "where the open sizes are these",
)
"""Turns of phrase that circle the thing instead of naming it."""

RECORDS = ("docs/decisions/",)
"""Notes of their day, which nobody edits."""

PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
]
PAGES = [page for page in PAGES if not page.startswith(RECORDS)]
SPEC = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "spec").glob("*.md"))]


def prose(page: str) -> list[str]:
    """Return paragraphs, list items and table cells, without code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    pieces: list[str] = []
    for line in text.splitlines():
        if line.startswith("|"):
            pieces += [*(cell.strip() for cell in re.split(r"(?<!\\)\|", line)), ""]
        elif re.match(r"\s*([-*]|\d+\.) |#|=== |:::", line) or not line.strip():
            pieces += ["", re.sub(r"^\s*([-*]|\d+\.|#+) ", "", line)]
        elif pieces:
            pieces[-1] = f"{pieces[-1]} {line.strip()}".strip()
        else:
            pieces.append(line.strip())
    return [piece for piece in pieces if piece]


def sentences(page: str) -> list[str]:
    """Return the sentences of a page; a piece without a full stop counts as one."""
    parts = (re.split(r"(?<=[.!?])\s+|(?<=:)\s+(?=[A-Z])", piece) for piece in prose(page))
    return [sentence for part in parts for sentence in part if len(sentence.split()) > 2]


def is_long(sentence: str) -> bool:
    """Return whether a sentence has more words than it may."""
    return len(sentence.split()) > MAX_SENTENCE_WORDS


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short(page: str) -> None:
    assert sum(len(piece.split()) for piece in prose(page)) <= MAX_PAGE_WORDS


@pytest.mark.parametrize("page", [*PAGES, *SPEC])
def test_nine_of_ten_sentences_are_short(page: str) -> None:
    found = sentences(page)
    long = [sentence for sentence in found if is_long(sentence)]
    assert len(long) <= max(MAX_LONG_SHARE * len(found), len(found) < FEW_SENTENCES), long


@pytest.mark.parametrize("page", [*PAGES, *SPEC])
def test_no_phrase_circles_the_thing(page: str) -> None:
    text = " ".join(prose(page)).lower()
    assert not [phrase for phrase in PHRASES if phrase in text]


def test_long_sentences_are_found() -> None:
    assert is_long("word " * 26)
    assert not is_long("word " * 25)


if __name__ == "__main__":
    for name in PAGES:
        every = sentences(name)
        print(f"{sum(map(is_long, every)) / max(len(every), 1):6.1%} {len(every):5} {name}")
