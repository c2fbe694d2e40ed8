"""Commands called in this process, and models in files for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from webnn_py.cli.main import main


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command says before it gives up."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    out, said = capsys.readouterr()
    assert not out
    assert said.count("\n") == 1, said
    return said


def of_process(*arguments: str, before: str = "") -> str:
    """What a command prints in a process that finds no GPU; `before` it, some code is run."""
    program = f"{before}\nimport sys; from webnn_py.cli.main import main; sys.exit(main())"
    nowhere = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), os.devnull)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | nowhere | {"WGPU_BACKEND_TYPE": "Vulkan"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
