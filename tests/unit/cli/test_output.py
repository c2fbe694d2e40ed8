"""What commands print: in any encoding, to whoever reads it, or to nobody."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from webnn_py import MLGraphBuilder, ml

PROGRAM = [sys.executable, "-m", "webnn_py"]

posix = pytest.mark.skipif(os.name != "posix", reason="needs a shell, and names that are bytes")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A graph with names that few encodings hold."""
    path = tmp_path_factory.mktemp("foreign") / "foreign.mlgraph"
    with ml.create_context_sync(engine="reference") as context:
        b = MLGraphBuilder(context)
        y = b.relu(b.input("x", "float32", [2]), label="grüße ☃")
        b.build_sync({"y": y}).save(path)
    return str(path)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_any_encoding_will_do(foreign: str, encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [*PROGRAM, "inspect", foreign]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "grüße ☃".encode(encoding, "backslashreplace") in done.stdout


@posix
def test_a_page_of_a_file_whose_name_is_no_text(foreign: str, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.mlgraph"
    shutil.copy(os.fsencode(foreign), path)
    page = tmp_path / "page.html"
    command = [*map(os.fsencode, PROGRAM), b"inspect", path, b"--html", os.fsencode(page)]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "caf\\udce9.mlgraph" in page.read_text("utf-8")


@posix
@pytest.mark.parametrize(
    ("arguments", "end", "status"),
    [
        (["inspect", "FOREIGN"], "| true", 2),
        (["inspect", "FOREIGN"], ">&-", 0),
        (["run", "FOREIGN", "--json"], ">&-", 0),
        (["run", "nowhere.mlgraph"], "2>&-", 2),
    ],
)
def test_nobody_need_read_it(foreign: str, arguments: list[str], end: str, status: int) -> None:
    command = [*PROGRAM, *(each.replace("FOREIGN", foreign) for each in arguments)]
    line = f"{shlex.join(command)} {end}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr
