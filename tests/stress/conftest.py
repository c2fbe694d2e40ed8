"""The threads of these tests take turns far more often than usual."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from webnn_py import MLContext, ml


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """A thread may lose the interpreter between any two instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(params=["cpu", "gpu"])
def own(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each kind that the test may destroy."""
    if request.param == "gpu":
        request.getfixturevalue("gpu")  # skips where there is none
    with ml.create_context_sync(device_type=request.param) as context:
        yield context
