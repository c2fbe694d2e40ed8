"""Parametrization over data files and backends, and the table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import format as wpt_format
from tests.conformance.report import Report
from tests.conformance.wpt import context
from webnn_py import NotSupportedError

REPORTS: dict[str, pytest.StashKey[Report]] = {
    "conformance": pytest.StashKey(),
    "validation": pytest.StashKey(),
}


def pytest_configure(config: pytest.Config) -> None:
    for key in REPORTS.values():
        config.stash[key] = Report()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a data file; a single skipped one where there is no data."""
    for fixture, files in (
        ("case_file", wpt_format.case_files),
        ("trace_file", wpt_format.trace_files),
    ):
        if fixture not in metafunc.fixturenames:
            continue
        try:
            folder = wpt_format.data_folder(metafunc.config.getoption("--wpt"))
        except wpt_format.FormatError as error:
            raise pytest.UsageError(f"--wpt or WPT_DATA: {error}") from None
        if folder is None:
            no_data = pytest.param(None, marks=pytest.mark.skip(reason=wpt_format.NO_DATA))
            metafunc.parametrize(fixture, [no_data], ids=["no-data"])
        else:
            metafunc.parametrize(fixture, files(folder), ids=lambda path: path.stem)


@pytest.fixture
def usable_backend(backend: str) -> None:
    """Skip the tests of what is not there: a GPU adapter, an engine that is an extra."""
    try:
        context(backend)
    except NotSupportedError as error:
        if backend == "reference":
            raise
        pytest.skip(f"no {backend}: {error}")


@pytest.fixture
def conformance_report(request: pytest.FixtureRequest) -> Report:
    return request.config.stash[REPORTS["conformance"]]


@pytest.fixture
def validation_report(request: pytest.FixtureRequest) -> Report:
    return request.config.stash[REPORTS["validation"]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    for kind, report in _reports(config):
        terminalreporter.section(f"web-platform-tests: {kind}")
        terminalreporter.write_line(report.text())
    target: Path | None = config.getoption("--wpt-report")
    reports = dict(_reports(config))
    if target and "conformance" in reports:
        reports["conformance"].write(target)
        terminalreporter.write_line(f"results written to {target}")


def _reports(config: pytest.Config) -> Iterator[tuple[str, Report]]:
    for kind, key in REPORTS.items():
        report = config.stash[key]
        if report.counts:
            yield kind, report
