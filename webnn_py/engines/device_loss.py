"""A device that is found lost takes its context along."""

from __future__ import annotations

from collections.abc import Callable

from webnn_py.core.errors import ContextLostError


class Loss:
    """For `with`; a class, as generators cost more in each awaited run.

    Attributes:
        tell: Told why, when the device is found lost.
    """

    __slots__ = ("tell",)

    def __init__(self) -> None:
        self.tell: Callable[[str], None] = lambda message: None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ContextLostError):
            self.tell(str(error))
