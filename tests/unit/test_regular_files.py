"""Pipes, devices, sockets and folders in the place of files: an error, or no cache entry."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from webnn_py import DataError, MLContext
from webnn_py.cli.inputs import _read
from webnn_py.cli.main import main
from webnn_py.cli.run import _labels
from webnn_py.core import cache
from webnn_py.core.files import open_regular
from webnn_py.engines.webgpu.program.file import reading_program
from webnn_py.onnx import load

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("a pipe or device is waited for")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> str:
    os.mkfifo(path)
    return "a pipe"


def link_to_pipe(path: Path) -> str:
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe"))
    return "a pipe"


def link_to_device(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return "a device"


def bound_socket(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return "a socket"


def folder(path: Path) -> str:
    path.mkdir()
    return "a directory"


KINDS = [pipe, link_to_pipe, link_to_device, bound_socket, folder]


def _program(path: Path, cpu: MLContext) -> None:
    with reading_program(path):
        pass


READERS: dict[str, Callable[[Path, MLContext], Any]] = {
    "m.onnx": load,
    "m.mlgraph": lambda path, cpu: cpu.load_graph_sync(path),
    "m.mlprogram": _program,
    "x.npy": lambda path, cpu: _read(path),
    "x.pb": lambda path, cpu: _read(path),
    "x.png": lambda path, cpu: _read(path),
    "labels.txt": lambda path, cpu: _labels(path),
}


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits(
    cpu: MLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = Path(name)
    kind = make(path)
    with pytest.raises(DataError, match=f"{name}: expected a file, got {kind}"):
        READERS[name](path, cpu)


@pytest.mark.parametrize("command", ["inspect", "run", "check"])
def test_commands_do_not_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = tmp_path / "m.onnx"
    pipe(path)
    assert main([command, str(path)]) != 0
    assert "expected a file, got a pipe" in capsys.readouterr().err


@pytest.mark.parametrize("make", KINDS)
def test_in_the_cache_it_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    monkeypatch.setenv("WEBNN_CACHE", ".")
    monkeypatch.chdir(tmp_path)
    cache.store_text("kind", "key", "text")
    assert cache.load_text("kind", "key") == "text"
    (path,) = Path("kind").iterdir()
    path.unlink()
    make(path)
    assert cache.load_text("kind", "key") is None
    cache.store_text("kind", "key", "text", max_bytes=100)
    assert cache.load_text("kind", "key") == (None if make is folder else "text")
    assert Path("/dev/zero").exists()


def test_a_file_far_too_large_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBNN_CACHE", str(tmp_path))
    cache.store_text("kind", "key", "text")
    (path,) = (tmp_path / "kind").iterdir()
    os.truncate(path, 1 << 40)  # takes no room on disk
    assert cache.load_text("kind", "key") is None


def test_links_to_files_are_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"abc"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
