"""Run the WebNN web-platform-tests through the public interface.

    python -m tests.conformance.wpt relu --backend reference
    python -m tests.conformance.wpt conv2d clamp --backend webgpu --case '*float16*'
    python -m tests.conformance.wpt --validation gemm

Names select data files or operators; each failing case is printed with its first wrong element.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec.extract import snake_case
from tests.conformance import format as wpt_format
from tests.conformance.compare import first_difference
from tests.conformance.exceptions import Verdict
from tests.conformance.format import Array, Case, Signature
from tests.conformance.report import Report, Status
from webnn_py import (
    MLAwaitedExecution,
    MLContext,
    MLExecution,
    MLGraphBuilder,
    MLOperand,
    NotSupportedError,
    ml,
)

BACKENDS: dict[str, dict[str, Any]] = {
    "reference": {"device_type": "cpu", "engine": "reference"},
    "onnxruntime": {"device_type": "cpu", "engine": "onnxruntime"},
    "openvino": {"device_type": "cpu", "engine": "openvino"},
    "webgpu": {"device_type": "gpu"},
}


@functools.cache
def context(backend: str) -> MLContext:
    """The context that all cases of a backend share."""
    return ml.create_context_sync(**BACKENDS[backend])


@dataclass(frozen=True)
class Use:
    """An operand of an operator as a case uses it; the operator of a graph input is "input"."""

    operator: str
    operand: str
    data_type: str


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    case: Case
    status: Status
    detail: str = ""


def supported(limits: Mapping[str, Any], use: Use) -> bool:
    """Whether `op_support_limits` lists the data type of an operand."""
    entry = limits[use.operator]
    if use.operand:
        entry = entry[use.operand]
    return use.data_type in entry["data_types"]


def uses(signature: Signature, arguments: Mapping[str, Any]) -> Iterator[Use]:
    """The operands among the arguments of an operator, and an output whose type is an argument."""
    types = {**signature.positional, **signature.options}
    for name, value in arguments.items():
        if types.get(name) == "MLOperandDataType":
            yield Use(signature.python, "output", value)
        for operand in value if isinstance(value, list) else [value]:
            if isinstance(operand, MLOperand):
                yield Use(signature.python, snake_case(name), operand.data_type)


class Replay:
    """Builds the graph of a case, and remembers which data types it asked for."""

    def __init__(self, ctx: MLContext, case: Case) -> None:
        self.case = case
        self.builder = MLGraphBuilder(ctx)
        self.operands: dict[str, Any] = {}
        self.uses: list[Use] = []
        self.arrays: dict[str, Array] = {}

    def build(self) -> Any:
        """The graph."""
        constants = set(self.case.constants())
        for name, entry in self.case.inputs.items():
            values = wpt_format.array(entry)
            data_type = entry["descriptor"]["dataType"]
            self.uses.append(Use("constant" if name in constants else "input", "", data_type))
            if name in constants:
                self.operands[name] = self.builder.constant(values)
            else:
                self.arrays[name] = values
                self.operands[name] = self.builder.input(name, data_type, list(values.shape))
        for step in self.case.steps:
            self._apply(step)
        return self.builder.build_sync({name: self.operands[name] for name in self.case.expected})

    def _apply(self, step: wpt_format.Step) -> None:
        signature = step.signature
        arguments, options = step.call(self.operands.__getitem__)
        named = dict(zip(signature.positional, arguments, strict=False))
        by_idl_name = {name: options.get(python) for name, python in signature.keywords.items()}
        self.uses += uses(signature, named | by_idl_name)
        result = getattr(self.builder, signature.python)(*arguments, **options)
        outputs = result if signature.returns_list else [result]
        for name, operand in zip(step.outputs, outputs, strict=True):
            self.operands[name] = operand


def compute(ctx: MLContext, graph: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    """Run a graph by the mode that fits the context."""
    if ctx.device_type == "gpu":
        return asyncio.run(_awaited(ctx, graph, inputs))
    return MLExecution(ctx).compute(graph, inputs)


async def _awaited(ctx: MLContext, graph: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    return await MLAwaitedExecution(ctx).compute(graph, inputs)


def mismatch(case: Case, results: Mapping[str, Array]) -> str:
    """The first way in which results differ from what the case expects, or nothing."""
    if results.keys() != case.expected.keys():
        return f"outputs {sorted(results)}, expected {sorted(case.expected)}"
    for name, entry in case.expected.items():
        actual, expected = results[name], wpt_format.array(entry)
        if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
            return (
                f"{name}: got {actual.dtype}{list(actual.shape)},"
                f" expected {expected.dtype}{list(expected.shape)}"
            )
        difference = first_difference(actual, expected, case.metric, case.tolerance)
        if difference:
            return f"{name}: {difference}, tolerance {case.tolerance} {case.metric}"
    return ""


def run_case(backend: str, case: Case) -> Outcome:
    """Build, run and judge one case."""
    ctx = context(backend)
    replay = Replay(ctx, case)
    try:
        graph = replay.build()
    except NotSupportedError as error:
        limits = ctx.op_support_limits()
        if backend == "webgpu" and not all(supported(limits, use) for use in replay.uses):
            return Outcome(case, "not supported", str(error))
        return Outcome(case, "failed", f"{error!r}, but op_support_limits() allows it")
    except Exception as error:
        return Outcome(case, "failed", f"build: {error!r}")
    try:
        results = compute(ctx, graph, replay.arrays)
    except Exception as error:
        return Outcome(case, "failed", f"compute: {error!r}")
    detail = mismatch(case, results)
    return Outcome(case, "failed" if detail else "passed", detail)


def select(folder: Path, names: Iterable[str], pattern: str) -> Iterator[Case]:
    """The cases of the files or operators with these names; of all where none is given."""
    wanted = set(names)
    for path in wpt_format.case_files(folder):
        for case in wpt_format.read_cases(path):
            aliases = {case.file, case.operator, *(step.idl_name for step in case.steps)}
            if (not wanted or wanted & aliases) and fnmatch.fnmatch(case.name, pattern):
                yield case


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status is 1 where a case fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="data files or operators; all without")
    parser.add_argument("--backend", choices=BACKENDS, default="reference")
    parser.add_argument("--case", default="*", metavar="PATTERN", help="names of cases (fnmatch)")
    parser.add_argument("--wpt", type=Path, metavar="DIR", help="folder of the test data")
    parser.add_argument("--validation", action="store_true", help="replay validation traces")
    options = parser.parse_args(arguments)
    folder = wpt_format.data_folder(options.wpt)
    if folder is None:
        parser.error(wpt_format.NO_DATA)
    if options.validation:
        from tests.conformance import trace

        return trace.run_files(folder, options.names, options.case, options.backend)
    report = Report()
    for case in select(folder, options.names, options.case):
        outcome = run_case(options.backend, case)
        verdict = Verdict("conformance", case.file, options.backend)
        status = verdict.status(case.name, outcome.status, outcome.detail)
        report.add(case.operator, options.backend, status)
        if status != "passed":
            print(f"{status}: {case.file}: {case.name}\n    {outcome.detail}")
    print(report.text())
    if not report.counts:
        parser.error(f"no case matches {options.names} {options.case}")
    return 1 if report.total(options.backend)["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
