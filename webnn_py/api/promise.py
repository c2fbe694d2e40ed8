"""MLPromise, an awaitable future result."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from webnn_py.core.completion import Completion
from webnn_py.core.messages import Suggesting

T = TypeVar("T")


class MLPromise(Suggesting, Generic[T]):
    """Future result, awaitable under asyncio and trio.

    Any number of tasks may await it, before and after the result arrives. Cancelling one await
    does not affect the others.

    Examples:
        ```python
        import asyncio

        from webnn_py import ml

        ctx = ml.create_context_sync(device_type="cpu")
        print(ctx.lost.done)  # False


        async def main():
            waiting = asyncio.gather(ctx.lost, ctx.lost)
            ctx.destroy()
            return await waiting


        print(len(asyncio.run(main())), ctx.lost.done)  # 2 True
        ```

    Source: Web IDL, "Promise<T>".
    """

    __slots__ = ("_completion",)

    def __init__(self, completion: Completion[T]) -> None:
        self._completion = completion

    @property
    def done(self) -> bool:
        """Whether the result has arrived."""
        return self._completion.done

    def __await__(self) -> Generator[Any, None, T]:
        return self._completion.__await__()

    def __repr__(self) -> str:
        return f"<{'done' if self.done else 'pending'} MLPromise>"
