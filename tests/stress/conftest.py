"""The threads of these tests take turns far more often than usual."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.conftest import KINDS, context_of
from webnn_py import MLContext

SEVERAL = {"several": {"device_type": "cpu", "workers": 4}}


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """A thread may lose the interpreter between any two instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(params=[*KINDS, *SEVERAL])
def own(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each kind, and a CPU context of several threads, that the test may destroy."""
    with context_of(request, (KINDS | SEVERAL)[request.param]) as context:
        yield context
