"""Work of a context that is recorded and not yet submitted."""

from __future__ import annotations

from typing import Any

from webnn_py.engines.webgpu.runtime.devices.device import Device


class Batch:
    """What is recorded and not yet submitted: one command encoder, one compute pass at a time.

    Attributes:
        empty: Nothing is recorded.
        operations: How many are.
        bytes: So many are to be uploaded, or were made meanwhile, and can only be freed behind it.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._encoder: Any = None
        self._pass: Any = None
        self.empty = True
        self.operations = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether it is to be submitted without being asked, even if nothing is recorded."""
        policy = self._gpu.policy
        return (
            self.operations >= policy.max_batch_operations or self.bytes >= policy.max_batch_bytes
        )

    def encoder(self) -> Any:
        """The command encoder, with no pass open."""
        if self._pass is not None:
            compute, self._pass = self._pass, None
            compute.end()
        if self._encoder is None:
            self._encoder = self._gpu.plain_encoder("batch")
            self.empty = False
        return self._encoder

    def compute_pass(self) -> Any:
        """The open compute pass; consecutive graphs share it."""
        if self._pass is None:
            self._pass = self.encoder().begin_compute_pass()
        return self._pass

    def submit(self) -> None:
        """Submit and begin anew."""
        if self.empty:
            return
        try:
            commands = (self._encoder if self._pass is None else self.encoder()).finish()
        finally:
            self._encoder = self._pass = None
            self.empty = True
            self.operations = self.bytes = 0
        self._gpu.submit(commands)
