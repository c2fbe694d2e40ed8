"""Standard input, which `-` names in place of a file."""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from pathlib import Path

from webnn_py.storage.archive import KINDS, PROGRAM, kind_of

STANDARD_INPUT = "-"
SAVED_GRAPH_SUFFIX, SAVED_PROGRAM_SUFFIX = ".mlgraph", ".mlprogram"
HEAD_BYTES = 128
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"


def file_path(text: str, default_suffix: str) -> Path:
    """Parse a path; copy standard input to a temporary file, which lives as long as the process.

    Args:
        text: The path, or "-".
        default_suffix: File extension of contents that nothing identifies.
    """
    if text != STANDARD_INPUT:
        return Path(text)
    contents = _contents()
    if not contents:
        raise argparse.ArgumentTypeError("standard input is empty, or was read before")
    path = Path(_folder().name, f"standard_input{_suffix(contents[:HEAD_BYTES], default_suffix)}")
    path.write_bytes(contents)
    return path


def _contents() -> bytes:
    """Read standard input to its end."""
    if sys.stdin is None:
        return b""
    if sys.stdin.isatty():
        raise argparse.ArgumentTypeError("standard input is a terminal, expected a file or pipe")
    return sys.stdin.buffer.read()


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="webnn-")


def _suffix(head: bytes, default: str) -> str:
    kind = kind_of(head)
    if kind:
        return SAVED_PROGRAM_SUFFIX if kind == KINDS[PROGRAM] else SAVED_GRAPH_SUFFIX
    if head.startswith(_NPY):
        return ".npy"
    return ".npz" if head.startswith(_ZIP) else default
