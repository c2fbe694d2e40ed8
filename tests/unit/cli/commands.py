"""Commands called in this process, and models in files for them."""

from __future__ import annotations

import json
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
