"""What is remembered on disk: found again, bounded, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from webnn_py.core import cache

HOUR = 3600 * 10**9


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "texts"


def age(folder: Path) -> None:
    """Make everything in a folder an hour older."""
    for path in folder.iterdir():
        then = path.stat().st_mtime_ns - HOUR
        os.utime(path, ns=(then, then))


def test_it_is_found_again_by_kind_and_key(folder: Path) -> None:
    cache.store_text("texts", "a", "of a")
    assert cache.load_text("texts", "a") == "of a"
    assert cache.load_text("texts", "b") is None
    assert cache.load_text("others", "a") is None
    assert len(list(folder.iterdir())) == 1


def test_what_was_not_used_for_longest_goes(folder: Path) -> None:
    for key in "abc":
        cache.store_text("texts", key, 10 * key, 30)
        age(folder)
    assert cache.load_text("texts", "a") == 10 * "a"  # it is used
    cache.store_text("texts", "d", 10 * "d", 30)
    kept = {key for key in "abcd" if cache.load_text("texts", key)}
    assert kept == set("acd")


def test_what_is_larger_than_the_bound_does_not_stay(folder: Path) -> None:
    cache.store_text("texts", "a", 31 * "a", 30)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path / "file"))
    cache.store_text("texts", "a", "of a", 30)
    assert cache.load_text("texts", "a") is None
