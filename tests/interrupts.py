"""Interrupting a thread at a function that it calls, as by Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import webnn_py
from webnn_py import MLError

FOLDER = webnn_py.__path__[0]


class Interrupt:
    """Interrupts this thread at a call of a function of the package.

    Args:
        wanted: Says of a function's name and the number of its call whether it is that one.
    """

    def __init__(self, wanted: Callable[[str, int], bool]) -> None:
        self._wanted = wanted
        self._calls = 0
        self.came = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(FOLDER) and code.co_name != "__del__"
        if event == "call" and ours and not self.came:
            self.came = self._wanted(code.co_name, self._calls)
            self._calls += 1
            if self.came:
                raise KeyboardInterrupt


def is_call(number: int, _: str, call: int) -> bool:
    """Whether a call has this number."""
    return call == number


def interrupted(work: Callable[[], None], interrupt: Interrupt) -> bool:
    """Do some work and interrupt it; whether who did it was told."""
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        work()
    except KeyboardInterrupt:
        return True
    except MLError:
        assert interrupt.came
    finally:
        sys.settrace(before)
    return False
