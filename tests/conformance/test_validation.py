"""Every validation trace of the web-platform-tests: what must raise raises, the rest passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.exceptions import Verdict
from tests.conformance.report import Report
from tests.conformance.trace import limits_agree, read_traces, run_trace


# The engine of a CPU context plays no part in validation; the device of a GPU context does.
@pytest.mark.parametrize("backend", ["reference", "webgpu"])
@pytest.mark.usefixtures("usable_backend")
def test_file(trace_file: Path, backend: str, validation_report: Report) -> None:
    verdict = Verdict("validation", trace_file.stem, backend)
    traces = read_traces(trace_file)
    assert traces
    for trace in traces:
        assert limits_agree(trace, backend), f"{trace.name}: recorded with other {trace.limits}"
        status = verdict.status(trace.name, *run_trace(backend, trace))
        validation_report.add(trace.file, backend, status)
    verdict.check()
