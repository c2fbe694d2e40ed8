"""Replays validation traces: calls in order, each of which must succeed or raise.

JavaScript's calls become the Python ones: methods in snake_case, a trailing options dictionary as
keyword arguments, what returns a promise in its blocking form.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spec.extract import snake_case
from tests.conformance import format as wpt_format
from tests.conformance.exceptions import Verdict
from tests.conformance.format import Array
from tests.conformance.report import Report, Status
from tests.conformance.wpt import BACKENDS, Use, context, supported, uses
from webnn_py import (
    ContextLostError,
    InvalidStateError,
    MLContext,
    MLGraph,
    MLGraphBuilder,
    NotSupportedError,
    ValidationError,
    ml,
)

# A lost context has an error of its own here (deviation D9).
ERRORS: dict[str, tuple[type[Exception], ...]] = {
    "TypeError": (ValidationError,),
    "InvalidStateError": (InvalidStateError, ContextLostError),
}
# What the traces' opSupportLimits() answered; a test that read a limit holds only for this value.
TRACED_LIMITS = {"maxTensorByteLength": 2**31 - 1, "max": 8}
BYTES: dict[str, type[bytes] | type[bytearray]] = {
    "ArrayBuffer": bytes,
    "SharedArrayBuffer": bytearray,
}


class TraceError(AssertionError):
    """A step did not do what the trace demands."""


class UnsupportedStepError(Exception):
    """A step asked for a data type that the backend says it does not offer."""


@dataclass(frozen=True)
class Trace:
    """One validation test."""

    file: str
    name: str
    steps: tuple[Mapping[str, Any], ...]
    limits: tuple[str, ...] = ()


def read_traces(path: Path) -> list[Trace]:
    """The tests of a validation file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return [
        Trace(path.stem, test["name"], tuple(test["steps"]), tuple(test.get("limits", ())))
        for test in data["tests"]
    ]


def typed_array(
    kind: str, byte_length: int, spec: Mapping[str, Any]
) -> Array | bytes | bytearray | memoryview:
    """The contents of a JavaScript buffer; a detached one is empty."""
    if make := BYTES.get(kind):
        return make(byte_length)
    name = kind.removeprefix("Big").removesuffix("Array").lower()
    dtype = np.dtype(name)
    if "data" in spec:
        values = np.array([wpt_format.number(value) for value in spec["data"]], dtype)
    else:
        count = byte_length // dtype.itemsize
        values = np.full(count, wpt_format.number(spec.get("fill", 0)), dtype)
    # A Uint8Array stands for the bytes of any data type, as a memoryview does in Python.
    return values.data if kind == "Uint8Array" else values


@dataclass
class Player:
    """The objects of a trace while it is replayed."""

    backend: str
    objects: dict[str, Any] = field(default_factory=dict)
    pending: list[tuple[Mapping[str, Any], Callable[[], Awaitable[Any]]]] = field(
        default_factory=list
    )

    input_names: dict[str, Counter[str]] = field(default_factory=dict)

    def play(self, trace: Trace) -> None:
        """Run all steps; the first that misbehaves raises a TraceError."""
        for index, step in enumerate(trace.steps):
            rejects = step.get("async") and step["expect"] == "throw"
            if rejects and index + 1 < len(trace.steps) and step["call"] == "readTensor":
                # The promise is rejected by what follows, so it is awaited only after that.
                read = self.receiver(step).read_tensor_async
                self.pending.append((step, partial(read, self.value(step["args"][0]))))
                continue
            self.expect(step, partial(self.call, step))
        for step, start in self.pending:
            self.expect(step, partial(asyncio.run, _wait(start)))

    def expect(self, step: Mapping[str, Any], call: Callable[[], Any]) -> None:
        """Make a call and compare its result or error with what the step demands."""
        described = f"{step['call']}({json.dumps(step['args'])[1:-1]:.200})"
        try:
            result = call()
        except Exception as error:
            if isinstance(error, NotSupportedError) and self.is_unsupported(step):
                raise UnsupportedStepError(described) from error
            if step["expect"] == "ok":
                raise TraceError(f"{described} raised {error!r}") from error
            check_error(step, error, described)
            return
        if step["expect"] == "throw":
            raise TraceError(f"{described} did not raise {step.get('error', 'TypeError')}")
        self.keep(step, result)
        check_output(step, result, described)

    def is_unsupported(self, step: Mapping[str, Any]) -> bool:
        """Whether `op_support_limits` leaves out a data type of the step."""
        name, arguments = step["call"], [self.value(argument) for argument in step["args"]]
        if name in ("input", "constant"):
            descriptor = next((item for item in arguments if isinstance(item, dict)), None)
            wanted = [Use(name, "", descriptor["dataType"] if descriptor else arguments[0])]
        elif name in wpt_format.signatures():
            signature = wpt_format.signatures()[name]
            options = arguments.pop() if isinstance(arguments[-1], dict) else {}
            given = dict(zip(signature.positional, arguments, strict=False)) | options
            wanted = list(uses(signature, given))
        else:
            return False
        limits = context(self.backend).op_support_limits()
        return not all(supported(limits, use) for use in wanted)

    def keep(self, step: Mapping[str, Any], result: Any) -> None:
        """Store results under their names."""
        names = step.get("result")
        if isinstance(names, list):
            if len(names) != len(result):
                raise TraceError(f"{step['call']} gave {len(result)} results, not {len(names)}")
            self.objects.update(zip(names, result, strict=True))
        elif names:
            self.objects[names] = result

    def receiver(self, step: Mapping[str, Any]) -> Any:
        """The object a step is called on; the default context and builder are made on demand."""
        name = step["receiver"]
        if name == "c0":
            return context(self.backend)
        if name == "ml":
            return ml
        if name not in self.objects and name.startswith("b"):
            self.objects[name] = MLGraphBuilder(context(self.backend))
        return self.objects[name]

    def value(self, raw: Any) -> Any:
        """An argument in Python's terms."""
        match raw:
            case {"$op": name} | {"$tensor": name} | {"$graph": name} | {"$context": name}:
                return self.objects[name]
            case {"$num": text}:
                return wpt_format.number(text)
            case {"$bigint": digits}:
                return int(digits)
            case {"$undefined": True}:
                return None
            case {"$date": text}:
                return text
            case {"$buffer": spec}:
                return typed_array(spec["type"], spec["byteLength"], spec)
            case dict():
                return {key: self.value(item) for key, item in raw.items()}
            case list():
                return [self.value(item) for item in raw]
        return raw

    def call(self, step: Mapping[str, Any]) -> Any:
        """Make the call of a step."""
        receiver, name = self.receiver(step), step["call"]
        arguments = [self.value(argument) for argument in step["args"]]
        if name == "MLGraphBuilder":
            return MLGraphBuilder(receiver)
        if isinstance(receiver, MLGraphBuilder):
            if name == "input" and step["expect"] == "ok":
                arguments[0] = self.fresh(step["receiver"], arguments[0])
            return self.build_step(receiver, name, arguments)
        if isinstance(receiver, MLGraph):
            return receiver.destroy()
        if receiver is ml:
            return self.create_context(*arguments)
        return context_call(receiver, name, arguments)

    def fresh(self, builder: str, name: str) -> str:
        """A name that the builder has no input of yet.

        Traces repeat names of inputs, which the specification forbids (step 3 of `input`) and no
        later step of theirs refers to.
        """
        names = self.input_names.setdefault(builder, Counter())
        names[name] += 1
        return f"{name} ({names[name]})" if names[name] > 1 else name

    def build_step(self, builder: MLGraphBuilder, name: str, arguments: list[Any]) -> Any:
        """A call on a builder."""
        if name == "build":
            return builder.build_sync(*arguments)
        if name == "input":
            input_name, descriptor = arguments
            return builder.input(input_name, *type_and_shape(descriptor))
        if name == "constant":
            return constant(builder, *arguments)
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        keywords = {snake_case(key): value for key, value in options.items()}
        return getattr(builder, snake_case(name))(*arguments, **keywords)

    def create_context(self, options: Mapping[str, Any] = {}) -> MLContext:
        """A context; where the trace asks for a device, it is that of the backend under test."""
        keywords = {snake_case(key): value for key, value in options.items()}
        if keywords.get("device_type", "cpu") in ("cpu", "gpu"):
            keywords |= BACKENDS[self.backend]
        return ml.create_context_sync(**keywords)


def type_and_shape(descriptor: Mapping[str, Any]) -> tuple[Any, Any]:
    """The two members of a descriptor."""
    return descriptor["dataType"], descriptor["shape"]


def constant(builder: MLGraphBuilder, first: Any, second: Any = None) -> Any:
    """`constant(descriptor, buffer)`, `constant(type, value)` or `constant(tensor)`."""
    if isinstance(first, dict):
        return builder.constant(second, *type_and_shape(first))
    if second is None:
        return builder.constant(first)
    return builder.constant(second, first)


def context_call(ctx: MLContext, name: str, arguments: list[Any]) -> Any:
    """A call on a context."""
    match name:
        case "lost":
            return asyncio.run(_wait(lambda: ctx.lost))
        case "createTensor":
            (options,) = arguments
            flags = {key: options[key] for key in ("readable", "writable") if key in options}
            return ctx.create_tensor_sync(*type_and_shape(options), **flags)
        case "createConstantTensor":
            descriptor, values = arguments
            return ctx.create_constant_tensor_sync(values, *type_and_shape(descriptor))
        case "readTensor":
            tensor, *out = arguments
            return ctx.read_tensor_sync(tensor, *out)
    return getattr(ctx, snake_case(name))(*arguments)


async def _wait(start: Callable[[], Awaitable[Any]]) -> Any:
    return await start()


def check_error(step: Mapping[str, Any], error: Exception, call: str) -> None:
    """The class of an error, and the label in its message."""
    wanted = step.get("error", "TypeError")
    if not isinstance(error, ERRORS[wanted]):
        raise TraceError(f"{call} raised {error!r}, expected {wanted}") from error
    label = step.get("label")
    if label and f"[{label}]" not in str(error):
        raise TraceError(f"{call}: the label [{label}] is missing from {str(error)!r}")


def check_output(step: Mapping[str, Any], result: Any, call: str) -> None:
    """Data types and shapes of operands, contents of tensors."""
    wanted = step.get("output")
    if wanted is None:
        return
    wanted_list = wanted if isinstance(wanted, list) else [wanted]
    results = result if isinstance(wanted, list) else [result]
    for expected, actual in zip(wanted_list, results, strict=True):
        if "dataType" in expected and actual.data_type != expected["dataType"]:
            raise TraceError(f"{call}: {actual.data_type}, expected {expected['dataType']}")
        if "shape" in expected and list(actual.shape) != expected["shape"]:
            raise TraceError(f"{call}: {list(actual.shape)}, expected {expected['shape']}")
        if "data" in expected and actual.ravel().tolist() != expected["data"]:
            raise TraceError(f"{call}: {actual.ravel().tolist()}, expected {expected['data']}")


def limits_agree(trace: Trace, backend: str) -> bool:
    """Whether the limits that the test read have the values that it was recorded with."""
    limits = context(backend).op_support_limits()
    for path in trace.limits:
        *parents, last = map(snake_case, path.split("."))
        entry: Any = limits
        for name in parents:
            entry = entry[name]
        if entry[last] != TRACED_LIMITS.get(last, TRACED_LIMITS.get(path, entry[last])):
            return False
    return True


def run_trace(backend: str, trace: Trace) -> tuple[Status, str]:
    """Replay a test; the text says what is wrong."""
    try:
        Player(backend).play(trace)
    except UnsupportedStepError as error:
        return "not supported", str(error)
    except TraceError as error:
        return "failed", str(error)
    return "passed", ""


def run_files(folder: Path, names: list[str], pattern: str, backend: str) -> int:
    """Command line: replay the traces of some files; the result is the exit status."""
    report = Report()
    for path in wpt_format.trace_files(folder):
        if names and path.stem not in names:
            continue
        for trace in read_traces(path):
            if not fnmatch.fnmatch(trace.name, pattern):
                continue
            raw_status, detail = run_trace(backend, trace)
            verdict = Verdict("validation", trace.file, backend)
            status = verdict.status(trace.name, raw_status, detail)
            report.add(trace.file, backend, status)
            if status != "passed":
                print(f"{status}: {trace.file}: {trace.name}\n    {detail}")
    print(report.text())
    return 1 if report.total(backend)["failed"] or not report.counts else 0
