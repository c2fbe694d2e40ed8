"""The threads of these tests take turns far more often than usual."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from webnn_py import MLContext, ml

KINDS = {
    "cpu": {"device_type": "cpu"},
    "several": {"device_type": "cpu", "workers": 4},
    "gpu": {"device_type": "gpu"},
}


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """A thread may lose the interpreter between any two instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(params=list(KINDS))
def own(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each kind, and a CPU context of several threads, that the test may destroy."""
    if request.param == "gpu":
        request.getfixturevalue("gpu")  # skips where there is none
    options: Any = KINDS[request.param]
    with ml.create_context_sync(**options) as context:
        yield context
