"""The contexts that operators are compared on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import wgpu

from tests.adapters import new_device
from tests.backend.attending import Later
from tests.backend.joined import Held, Sizes
from tests.backend.libraries import Library, jax_library, numpy_library, torch_library
from tests.backend.tint import tint
from tests.backend.webgpu import CommandBuffer
from tests.internals import engine_of, session_of, set_policy, taken_for
from tests.threads import LONG
from webnn_py import MLContext, ml
from webnn_py.api.batching import batch_queue
from webnn_py.api.batching.batch_queue import BatchQueue
from webnn_py.api.batching.request import Request
from webnn_py.api.graph_compiler import GraphCompiler
from webnn_py.api.session import Session
from webnn_py.engines.device import ForSizes
from webnn_py.engines.webgpu.compiler.shape_generic import CompiledAlike
from webnn_py.engines.webgpu.runtime.devices.pipelines import PipelineCache, PipelineKey
from webnn_py.engines.webgpu.runtime.engine import WebGPUEngine
from webnn_py.ordering import operation
from webnn_py.ordering.timeline_state import TimelineState

KINDS = ["cpu", "gpu"]
PAIRS = [(one, two) for one in KINDS for two in KINDS]
SHADER_TYPES = {"shader-f16", "shader-int64"}
FEWEST_BINDINGS = {"max-storage-buffers-per-shader-stage": 8}


@pytest.fixture(scope="session", autouse=True)
def kernels_are_taken_by_both() -> Iterator[None]:
    """What wgpu-native's compiler takes, Dawn's takes, too."""
    if importlib.util.find_spec("wgpudawn") is None or "wgpudawn" in wgpu.GPUDevice.__module__:
        yield
        return
    compile_pipeline, compiler = PipelineCache._compile, tint()  # made before threads ask for it

    def compile_twice(self: PipelineCache, name: str, key: PipelineKey) -> Any:
        pipeline = compile_pipeline(self, name, key)
        if key.ends:  # written here, not by a user
            compiler.check(key.code)
        return pipeline

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineCache, "_compile", compile_twice)
        yield


@pytest.fixture(scope="session")
def reference() -> MLContext:
    """The engine that defines what is right."""
    return ml.create_context_sync(engine="reference")


@pytest.fixture(scope="session", params=["all features", "no features"])
def each_device(request: pytest.FixtureRequest) -> MLContext:
    """A context with what the adapter offers, and one on a device with WebGPU's least."""
    gpu: MLContext = request.getfixturevalue("gpu")
    if request.param == "all features":
        return gpu
    if not SHADER_TYPES & set(gpu.device.features):
        pytest.skip("the adapter has no features to go without")
    found: MLContext = request.getfixturevalue("plain")
    return found


@pytest.fixture(scope="session")
def plain(gpu: MLContext) -> Iterator[MLContext]:
    """A context on a device with WebGPU's least."""
    device = new_device(required_features=[], required_limits=FEWEST_BINDINGS)
    assert not SHADER_TYPES & set(device.features)
    assert device.limits["max-storage-buffers-per-shader-stage"] == 8
    with ml.create_context_sync(device) as context:
        yield context


AsDevice = Callable[..., MLContext]


@pytest.fixture(scope="session")
def as_device(gpu: MLContext) -> Iterator[AsDevice]:
    """Make contexts on the GPU's device that is taken for another kind, or has lower limits."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def make(**changes: Any) -> MLContext:
            return stack.enter_context(taken_for(gpu.device, **changes))

        yield make


@pytest.fixture(scope="session")
def hardware(as_device: AsDevice) -> MLContext:
    """A context that compiles as for graphics hardware."""
    return as_device(kind="gpu")


@pytest.fixture(scope="session")
def software(as_device: AsDevice) -> MLContext:
    """A context that compiles as for a software driver."""
    return as_device(kind="cpu")


@pytest.fixture(scope="session", params=["as it is", "plain", "for graphics"])
def form(request: pytest.FixtureRequest, gpu: MLContext) -> MLContext:
    """A device as it is, without features, and taken for graphics hardware."""
    if request.param == "plain" and not SHADER_TYPES & set(gpu.device.features):
        pytest.skip("the adapter has no features to go without")
    names = {"as it is": "gpu", "plain": "plain", "for graphics": "hardware"}
    found: MLContext = request.getfixturevalue(names[request.param])
    return found


@pytest.fixture(params=["cpu", "gpu"])
def context(request: pytest.FixtureRequest) -> MLContext:
    """A context of each kind."""
    found: MLContext = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def several() -> Iterator[MLContext]:
    """A CPU context of several threads."""
    with ml.create_context_sync(device_type="cpu", workers=4) as context:
        yield context


@pytest.fixture(params=[numpy_library, torch_library, jax_library], ids=["numpy", "torch", "jax"])
def library(request: pytest.FixtureRequest) -> Library:
    found: Library = request.param()
    return found


@pytest.fixture
def contexts(gpu: MLContext) -> Iterator[Callable[[str], MLContext]]:
    """Makes contexts that end with the test."""
    made: list[MLContext] = []

    def make(kind: Any) -> MLContext:
        made.append(ml.create_context_sync(device_type=kind))
        return made[-1]

    yield make
    for context in made:
        context.destroy()


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(
    request: pytest.FixtureRequest, contexts: Callable[[str], MLContext]
) -> tuple[MLContext, MLContext]:
    """Two contexts of each pair of kinds."""
    one, two = request.param
    return contexts(one), contexts(two)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    """How many computes were joined, and the size of the run, for each run."""
    seen: Sizes = []
    run = BatchQueue._run

    def noted(
        queue: BatchQueue, requests: Sequence[Request], size: int, beside: bool = False
    ) -> None:
        seen.append((len(requests), size))
        run(queue, requests, size, beside)

    monkeypatch.setattr(BatchQueue, "_run", noted)
    return seen


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[MLContext], Held]]:
    """Has a context compute nothing until it is let go, nor event loops for it."""
    monkeypatch.setattr(batch_queue, "MAX_LOOP_SECONDS", 0)
    made: list[Held] = []

    def held(context: MLContext) -> Held:
        made.append(Held(context))
        return made[-1]

    yield held
    for each in made:
        each.release()


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pipelines that are made, in order."""
    made: list[str] = []
    make = PipelineCache._compile

    def noted(self: PipelineCache, name: str, key: PipelineKey) -> Any:
        made.append(name)
        return make(self, name, key)

    monkeypatch.setattr(PipelineCache, "_compile", noted)
    return made


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """What would be done on a thread of its own, and is not."""
    works: Later = deque()
    monkeypatch.setattr(Session, "improve", lambda self, work, needless: works.append(work))
    return works


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each trace, in order."""
    made: list[int] = []
    trace = CompiledAlike.__init__

    def noted(self: CompiledAlike, graph: object, sizes: dict[str, int], *rest: object) -> None:
        made.append(sizes["length"])
        trace(self, graph, sizes, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(CompiledAlike, "__init__", noted)
    return made


@pytest.fixture
def for_sizes(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[ForSizes]]:
    """What compiles each graph, as long as it is there."""
    made: list[weakref.ref[ForSizes]] = []
    make = WebGPUEngine.for_sizes

    def noted(self: WebGPUEngine) -> ForSizes:
        one = make(self)
        made.append(weakref.ref(one))
        return one

    monkeypatch.setattr(WebGPUEngine, "for_sizes", noted)
    return made


POLICIES: dict[str, tuple[bool, dict[str, Any]]] = {
    "the worker watches": (True, {"short_run_seconds": 0.0}),
    "who awaits": (True, {"short_run_seconds": 1e9, "late_finish_seconds": 1e9}),
    "a thread finishes": (
        True,
        {
            "short_run_seconds": 1e9,
            "late_seconds": 1e9,
            "back_to_back_seconds": 1e9,
            "late_finish_seconds": -1e9,
        },
    ),
    "the worker in software": (False, {}),
    "who awaits in software": (False, {"tiny_run_seconds": 1e9, "tiny_wait_seconds": 1e9}),
    "large inputs": (True, {"short_run_seconds": 1e9, "large_input_bytes": 1}),
    "large results": (
        True,
        {"short_run_seconds": 1e9, "loop_result_bytes": 0, "prerecorded_result_bytes": 0},
    ),
}
"""By who runs awaited runs: whether the device is taken for hardware, and thresholds."""


@pytest.fixture(params=POLICIES)
def policed(
    gpu: MLContext, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[MLContext]:
    """A context that runs all awaited runs in one way, with few in flight."""
    caplog.set_level(logging.CRITICAL, logger="wgpu")  # which logs a lost device on any thread
    hardware, changes = POLICIES[request.param]
    with ml.create_context_sync(device_type="gpu") as context:
        set_policy(context, **{"tiny_run_seconds": 0.0, "max_runs_in_flight": 3} | changes)
        engine_of(context).gpu.hardware = hardware
        yield context
    reader = engine_of(context).gpu.reader
    reader.finish()
    reader.join()


@pytest.fixture
def refusing() -> Callable[[MLContext], contextlib.AbstractContextManager[None]]:
    """Has a device refuse every submission, for a while."""

    @contextlib.contextmanager
    def refuse(context: MLContext) -> Iterator[None]:
        gpu = engine_of(context).gpu

        def submit(*commands: Any) -> None:
            raise wgpu.GPUValidationError("no")

        gpu.submit = submit
        try:
            yield
        finally:
            del gpu.submit

    return refuse


@pytest.fixture
def before_compiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has a function called before graphs are compiled for sizes."""

    def call(act: Callable[[], None]) -> None:
        for name in ("compile_open", "compile_as"):
            compile_now = getattr(GraphCompiler, name)

            def compile_later(*given: Any, compile_now: Any = compile_now) -> Any:
                act()
                return compile_now(*given)

            monkeypatch.setattr(GraphCompiler, name, compile_later)

    return call


@pytest.fixture
def soon_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has those who wait for parked work told of it soon."""
    monkeypatch.setattr(operation, "PARKED_WARNING_SECONDS", 0.5)


@pytest.fixture
def joined_threads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Of each joined run: whether this thread computes it, and of how many computes it is."""
    found: list[tuple[bool, int]] = []
    run, here = BatchQueue._run, threading.get_ident()

    def noted(self: BatchQueue, requests: Any, *args: Any, **options: Any) -> None:
        found.append((threading.get_ident() == here, len(requests)))
        run(self, requests, *args, **options)

    monkeypatch.setattr(BatchQueue, "_run", noted)
    monkeypatch.setattr(batch_queue, "MAX_LOOP_SECONDS", LONG)
    return found


@pytest.fixture
def never_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if work waits on the host for a timeline."""
    monkeypatch.setattr(TimelineState, "call_when_reached", pytest.fail)


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], str]], None]:
    """Has the WGSL of each kernel rewritten before it is compiled."""

    def rewrite(change: Callable[[str], str]) -> None:
        make = PipelineCache._compile

        def made(cache: PipelineCache, name: str, key: PipelineKey) -> object:
            return make(cache, name, dataclasses.replace(key, code=change(key.code)))

        monkeypatch.setattr(PipelineCache, "_compile", made)

    return rewrite


@pytest.fixture
def lost_gpu(gpu: MLContext, caplog: pytest.LogCaptureFixture) -> Iterator[MLContext]:
    """A GPU context that the test may destroy, and its device, which wgpu logs on any thread."""
    caplog.set_level(logging.CRITICAL, logger="wgpu")
    context = ml.create_context_sync(device_type="gpu")
    yield context
    context.destroy()
    session, reader = session_of(context), engine_of(context).gpu.reader
    reader.finish()
    for threads in (session._worker, session._builder, reader):
        threads.join()


@pytest.fixture
def submissions(gpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by the number of command buffers of each submission to the queue."""
    gpu.flush()  # so that nothing goes on from before
    counts: list[int] = []
    kind = type(gpu.device.queue)
    submit = kind.submit

    def counted(queue: Any, buffers: Any) -> None:
        counts.append(len(buffers))
        submit(queue, buffers)

    submit_own = CommandBuffer.submit

    def counted_own(
        commands: CommandBuffer, queue: Any, before: Sequence[CommandBuffer] = ()
    ) -> None:
        counts.append(1 + len(before))
        submit_own(commands, queue, before)

    monkeypatch.setattr(kind, "submit", counted)
    monkeypatch.setattr(CommandBuffer, "submit", counted_own)
    return counts
