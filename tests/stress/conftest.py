"""The threads of these tests take turns far more often than usual."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """A thread may lose the interpreter between any two instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
