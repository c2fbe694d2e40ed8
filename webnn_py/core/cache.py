"""What is remembered on disk from one process to the next: small texts, in a folder of the user's.

WEBNN_CACHE names another folder; 0 turns the cache off. What cannot be read or written is as if it
were not there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from webnn_py._version import __version__
from webnn_py.core.files import open_regular

OFF = "0"
MAX_ENTRY_BYTES = 1 << 28
"""Larger files are nothing that was remembered."""


def cache_folder() -> Path | None:
    """Where things are remembered, by the platform's convention; None if they are not."""
    wanted = os.environ.get("WEBNN_CACHE", "")
    if wanted:
        return None if wanted == OFF else Path(wanted)
    try:
        home = Path.home()
    except RuntimeError:  # nobody knows where that is
        return None
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "webnn_py" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "webnn_py"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else home / ".cache") / "webnn_py"


def load_text(kind: str, key: str) -> str | None:
    """What was remembered under a key, if anything was."""
    path = _path(kind, key)
    if path is None:
        return None
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_ENTRY_BYTES:
                return None
            text = file.read().decode()
    except (OSError, ValueError):  # a DataError, too
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the file was used
    return text


def store_text(kind: str, key: str, text: str, max_bytes: int | None = None) -> None:
    """Remember a text; another process finds it whole or not at all.

    Args:
        kind: Of what it tells; a folder of its own.
        key: A text of any length, which is not kept.
        text: What to remember.
        max_bytes: Of all files of the kind: those that were not used for longest go.
    """
    path = _path(kind, key)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        if max_bytes is not None:
            _delete_oldest(path.parent, max_bytes)


def load_json(kind: str, key: str) -> Any:
    """What `store_json` kept under a key.

    Raises:
        ValueError: That is nothing, or damaged.
    """
    text = load_text(kind, key) or ""
    if text != _with_checksum(text[8:]):
        raise ValueError("the checksum is wrong")
    return json.loads(text[8:])


def store_json(kind: str, key: str, what: Any, max_bytes: int) -> None:
    """Remember what JSON can hold; as `store_text`."""
    text = json.dumps(what, separators=(",", ":"))
    store_text(kind, key, _with_checksum(text), max_bytes)


def _with_checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}{text}"


@functools.cache
def source_fingerprint(*folders: str) -> str:
    """What tells the package's sources, or those in some folders, from others before a change."""
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    for name in folders or ("",):
        for folder, _, files in sorted(os.walk(root / name)):
            for file in sorted(files):
                if file.endswith(".py"):
                    status = os.stat(os.path.join(folder, file))
                    found.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"{__version__} {found.hexdigest()}"


def _delete_oldest(folder: Path, max_bytes: int) -> None:
    """Remove files until those that are left take no more."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= max_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size


def _path(kind: str, key: str) -> Path | None:
    folder = cache_folder()
    name = hashlib.sha256(key.encode()).hexdigest()
    return None if folder is None else folder / kind / f"{name}.json"
