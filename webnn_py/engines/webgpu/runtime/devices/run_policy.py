"""RunPolicy: every threshold that decides how runs on a device are recorded, submitted and read."""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.engines.webgpu.runtime.poll_backoff import NEAR_SECONDS
from webnn_py.memory.host_arrays import SLOW_COPY_BYTES


@dataclass(frozen=True)
class RunPolicy:
    """Thresholds of runs on one device. A `Device` has one; tests replace it.

    An event loop's thread may submit a short run, watch for its end and read it back, as handing
    it to another thread takes longer than the run itself.

    Attributes:
        short_run_seconds: The loop's thread submits and watches shorter runs on hardware.
        late_seconds: How much later the loop's thread may notice the end of a run to record the
            next one, where runs follow each other.
        late_finish_seconds: The same for finishing the next run's command buffer: handing that to
            the recorder thread takes as long.
        back_to_back_seconds: Runs follow each other if at most so much time lies between.
        steps_per_turn: Recording steps of the loop's thread between two turns of other tasks.
        max_steps_left: Recording steps that the loop's thread may make before it submits.
        tiny_run_seconds: The loop's thread computes shorter runs itself on a software driver, which
            computes on this machine's cores. On lavapipe an await takes 254 us so, else 339 us.
        tiny_wait_seconds: The reader thread takes over a tiny run that takes longer.
        max_counted_seconds: A run counts as at most so long where it is asked whether it is tiny.
        wake_seconds: Time before and after the expected end in which a thread watches for it, as
            waking another thread takes as long.
        blocking_read_seconds: How long a thread that blocks for a tensor watches for its copy.
        loop_result_bytes: Results up to so many bytes are copied on the loop's thread.
        prerecorded_result_bytes: Runs with results up to so many bytes are recorded beforehand.
        large_input_bytes: Inputs from so many bytes on are copied by the context's worker.
        max_prerecorded_runs: Runs of one graph that are recorded beforehand: the second while the
            recorder thread finishes the first.
        max_prerecorded_graphs: Graphs, and sizes of open ones, whose next runs stay recorded, with
            memory for their inputs and outputs.
        max_runs_in_flight: Awaited runs not yet read back; later ones wait, to bound memory.
        max_batch_operations: Operations recorded before they are submitted without being asked.
        max_batch_replays: Repeated long runs before a batch is submitted without being asked: the
            device works on them while the next are recorded.
        max_batch_bytes: Bytes that wait for a batch before it is submitted without being asked.
    """

    short_run_seconds: float = 2e-3
    late_seconds: float = 1e-3
    late_finish_seconds: float = 1.5e-4
    back_to_back_seconds: float = 1e-3
    steps_per_turn: int = 8
    max_steps_left: int = 16
    tiny_run_seconds: float = 4e-4
    tiny_wait_seconds: float = 8e-4
    max_counted_seconds: float = 1e-3
    wake_seconds: float = NEAR_SECONDS
    blocking_read_seconds: float = 1e-3
    loop_result_bytes: int = 2 << 20
    prerecorded_result_bytes: int = 16 << 20
    large_input_bytes: int = SLOW_COPY_BYTES
    max_prerecorded_runs: int = 2
    max_prerecorded_graphs: int = 16
    max_runs_in_flight: int = 16
    max_batch_operations: int = 256
    max_batch_replays: int = 2
    max_batch_bytes: int = 64 << 20
