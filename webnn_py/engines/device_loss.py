"""The guard that marks a context lost when its device is lost."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.core.errors import ContextLostError


class Loss:
    """A context manager that calls `on_lost` if its block raises a ContextLostError.

    It is a class because every awaited run enters it and a generator would be slower.

    Attributes:
        on_lost: Called with the reason when the device is lost.
    """

    __slots__ = ("on_lost",)

    def __init__(self) -> None:
        self.on_lost: Callable[[str], None] = lambda message: None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ContextLostError):
            self.on_lost(str(error))
