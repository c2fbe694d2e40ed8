"""Command-line options of the test suite, and the contexts that tests run on."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.golden import Golden, check
from tests.loops import LOOPS, Run
from webnn_py import MLContext, NotSupportedError, ml

# Every graph is verified after every pass; read when the first graph is optimized.
os.environ.setdefault("WEBNN_VERIFY", "1")
# Nothing is taken from disk that an earlier run has left there.
os.environ["WEBNN_CACHE"] = "0"

# No deadlines: how long an example takes depends on the machine.
hypothesis.settings.register_profile("webnn", deadline=None)
hypothesis.settings.load_profile("webnn")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("web-platform-tests")
    group.addoption(
        "--wpt",
        type=Path,
        metavar="DIR",
        help="folder of the WebNN web-platform-tests as JSON (else WPT_DATA, else ../shared/wpt)",
    )
    group.addoption(
        "--wpt-report",
        type=Path,
        metavar="FILE",
        help="write the table of conformance results: JSON, or Markdown where FILE ends in .md",
    )
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden anew instead of comparing"
    )


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function to its end, under asyncio, uvloop and trio."""
    if request.param == "uvloop":  # here, as a test that is skipped halfway leaves work behind
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    return LOOPS[request.param]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with a file of tests/golden."""
    return functools.partial(check, update=request.config.getoption("--update-golden"))


HARMLESS = re.compile(
    r"Unable to find extension: VK_\w+|VK_\w+ is not available\.|No config found!|"
    r"No windowing system present\. Using surfaceless platform|"
    r"Error in wgpu callback <function .*device_lost_callback .*>: "
    r"(Event loop is closed|run\(\) has exited)"
)
"""What older versions of wgpu say where a driver lacks something that nobody needs.

And what wgpudawn says of a device that goes after the event loop which it was requested in.
"""


@pytest.fixture(autouse=True)
def wgpu_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What wgpu finds wrong and cannot raise, it logs; a test that expects it clears the log."""
    yield
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    said = [
        r.getMessage()
        for r in records
        if r.name in ("wgpu", "wgpudawn") and r.levelno >= logging.WARNING
    ]
    assert not [message for message in said if not HARMLESS.fullmatch(message)]


@pytest.fixture
def cpu() -> Iterator[MLContext]:
    """A CPU context of the default engine."""
    with ml.create_context_sync(device_type="cpu") as context:
        yield context


def no_adapter() -> str | None:
    """Why there is no GPU context to be had, if so."""
    try:
        ml.create_context_sync(device_type="gpu").destroy()
    except NotSupportedError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def gpu() -> Iterator[MLContext]:
    """A GPU context; skips where there is no adapter, unless WEBNN_REQUIRE_GPU=1."""
    why = no_adapter()
    if why is not None:
        if os.environ.get("WEBNN_REQUIRE_GPU") == "1":
            pytest.fail(f"WEBNN_REQUIRE_GPU=1, and {why}")
        pytest.skip(why)
    with ml.create_context_sync(device_type="gpu") as context:
        yield context


KINDS: dict[str, dict[str, Any]] = {
    "cpu": {"device_type": "cpu"},
    "reference": {"engine": "reference"},
    "openvino": {"engine": "openvino"},
    "gpu": {"device_type": "gpu"},
}


@contextlib.contextmanager
def context_of(request: pytest.FixtureRequest, options: dict[str, Any]) -> Iterator[MLContext]:
    """A context of a kind; skips where there is none."""
    if options.get("device_type") == "gpu":
        request.getfixturevalue("gpu")
    elif options.get("engine") == "openvino":
        pytest.importorskip("openvino")
    with ml.create_context_sync(**options) as context:
        yield context


@pytest.fixture(params=list(KINDS))
def own(request: pytest.FixtureRequest) -> Iterator[MLContext]:
    """A context of each kind, and of each engine on the CPU, that the test may destroy."""
    with context_of(request, KINDS[request.param]) as context:
        yield context
