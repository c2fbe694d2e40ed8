"""Disk cache of small texts, shared by the processes of one user.

WEBNN_CACHE names the folder; the value 0 turns the cache off. A file that cannot be read or written
counts as absent.
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

DISABLED = "0"
MAX_ENTRY_BYTES = 1 << 28
"""Longer files are ignored, as they cannot be entries of the cache."""


def cache_folder() -> Path | None:
    """Return the cache folder by the platform's convention; None if the cache is off."""
    chosen = os.environ.get("WEBNN_CACHE", "")
    if chosen:
        return None if chosen == DISABLED else Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:  # there is no home folder
        return None
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "webnn_py" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "webnn_py"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else home / ".cache") / "webnn_py"


def load_text(kind: str, key: str) -> str | None:
    """Return the text stored under a key; None if there is none."""
    path = _path(kind, key)
    if path is None:
        return None
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_ENTRY_BYTES:
                return None
            text = file.read().decode()
    except (OSError, ValueError):  # DataError is a ValueError
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # mark the file as recently used
    return text


def store_text(kind: str, key: str, text: str, max_bytes: int | None = None) -> None:
    """Store a text; another process finds the whole text or none.

    Args:
        kind: The subfolder of the cache.
        key: A text of any length; only its hash is stored.
        text: The text to store.
        max_bytes: Bytes of all files of this kind; the least recently used ones are deleted.
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
    """Return the value that `store_json` stored under a key.

    Raises:
        ValueError: There is none, or its file is damaged.
    """
    text = load_text(kind, key) or ""
    if text != _with_checksum(text[8:]):
        raise ValueError("the checksum is wrong")
    return json.loads(text[8:])


def store_json(kind: str, key: str, value: Any, max_bytes: int) -> None:
    """Store a value as JSON with a checksum; arguments as of `store_text`."""
    text = json.dumps(value, separators=(",", ":"))
    store_text(kind, key, _with_checksum(text), max_bytes)


def _with_checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}{text}"


@functools.cache
def source_fingerprint(*folders: str) -> str:
    """Return a text that changes with the version and with each source file of `folders`."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for name in folders or ("",):
        for folder, _, files in sorted(os.walk(root / name)):
            for file in sorted(files):
                if file.endswith(".py"):
                    status = os.stat(os.path.join(folder, file))
                    digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"{__version__} {digest.hexdigest()}"


def _delete_oldest(folder: Path, max_bytes: int) -> None:
    """Delete the least recently used files until at most `max_bytes` remain."""
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process deleted it
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                files.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size


def _path(kind: str, key: str) -> Path | None:
    folder = cache_folder()
    name = hashlib.sha256(key.encode()).hexdigest()
    return None if folder is None else folder / kind / f"{name}.json"
