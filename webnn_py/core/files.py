"""Opening files for reading: regular files only, so that no pipe blocks and no device is read."""

from __future__ import annotations

import errno
import io
import os
import stat

from webnn_py.core.errors import file_error
from webnn_py.core.messages import printable

_FLAGS = os.O_RDONLY | sum(getattr(os, n, 0) for n in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK"))
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a regular file to read its bytes.

    Raises:
        OSError: It cannot be opened.
        FileError: It is neither a regular file nor a link to one.
    """
    check_regular(path, os.stat(path).st_mode)  # opening a device may change it
    number = os.open(path, _FLAGS)
    try:
        check_regular(path, os.fstat(number).st_mode)  # the file may have been replaced
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def check_regular(path: str | os.PathLike[str], mode: int) -> None:
    """Raise a FileError unless this is the mode of a regular file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        error = OSError(code, f"expected a file, got {kind}")
        raise file_error(error, path, printable(os.fspath(path)))
