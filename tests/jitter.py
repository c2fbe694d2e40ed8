"""A pytest plugin: threads stop at random lines for a while, as a busy machine has them stop.

    WEBNN_JITTER=7 python -m pytest -p tests.jitter tests/backend/test_timelines.py

WEBNN_JITTER is the seed (1 if not set). What else fails once in thousands of runs, as it holds in
most orders of events and not in all, is found so in minutes. Several seeds at once share a core, as
they mostly sleep. Tests that only compute take far longer; leave them out.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

SECONDS = (1e-4, 1e-3, 5e-3, 0.02, 0.05)
CHANCES = {"tests": 0.04, "webnn_py": 0.006}
"""Of a stop at a line, by the folder of its file."""

_ROOT = Path(__file__).parents[1]
_chance = random.Random(int(os.environ.get("WEBNN_JITTER", "1")))
_during_test = threading.Event()


def _tracer(chance: float) -> Any:
    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and _during_test.is_set() and _chance.random() < chance:
            time.sleep(_chance.choice(SECONDS))
        return trace

    return trace


_TRACERS = {str(_ROOT / folder) + os.sep: _tracer(chance) for folder, chance in CHANCES.items()}


def _begin_frame(frame: FrameType, event: str, arg: Any) -> Any:
    path = frame.f_code.co_filename
    return next((trace for folder, trace in _TRACERS.items() if path.startswith(folder)), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Have this thread, and those that begin in the test, stop now and then."""
    threading.settrace(_begin_frame)
    sys.settrace(_begin_frame)
    _during_test.set()
    try:
        return (yield)
    finally:
        _during_test.clear()
        sys.settrace(None)
        threading.settrace(None)
