"""Every conformance case of the web-platform-tests, on every backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.exceptions import Verdict
from tests.conformance.format import read_cases
from tests.conformance.report import Report
from tests.conformance.wpt import BACKENDS, run_case


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("usable_backend")
def test_file(case_file: Path, backend: str, conformance_report: Report) -> None:
    verdict = Verdict("conformance", case_file.stem, backend)
    cases = read_cases(case_file)
    assert cases
    for case in cases:
        outcome = run_case(backend, case)
        status = verdict.status(case.name, outcome.status, outcome.detail)
        conformance_report.add(case.operator, backend, status)
    verdict.check()
