"""Code that may end its process, run in one of its own."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = 100
"""Seconds after which a process counts as hanging."""


def run_alone(work: Callable[[], None], **variables: str) -> str:
    """Import a function's module in a new process and call it there; it must end well.

    Args:
        work: A function at the top of its module.
        variables: Changes of the environment.

    Returns:
        What it wrote to its standard error, also at Python's end.
    """
    module = inspect.getmodule(work)
    assert module is not None
    code = f"""
        from {module.__name__} import {work.__name__}
        {work.__name__}()
        print("the end", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.endswith("the end\n"), done.stdout
    return done.stderr
