"""What passes make of a graph, as WEBNN_DEBUG=2 prints it, and what its operators give alone.

A case names the engine whose pipeline has the pass. Passes before it run, too.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from tests.graphs import awaited
from webnn_py import MLContext, MLExecution, MLGraph, MLGraphBuilder, ml

Array = np.ndarray[Any, Any]
Record = Callable[[Any, Any], Any]
"""Adds operators on one input to a builder; returns an output, or outputs by name."""


@contextlib.contextmanager
def printed(level: int = 2) -> Iterator[io.StringIO]:
    """What is printed at a level of WEBNN_DEBUG."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as text:
        patch.setenv("WEBNN_DEBUG", str(level))
        yield text


@functools.cache
def context(engine: str) -> MLContext:
    """A context for all tests: an engine on the CPU, or "gpu"."""
    if engine == "gpu":
        return ml.create_context_sync(device_type="gpu")
    return ml.create_context_sync(engine=engine)


class Built:
    """A graph of `body(x)`, prepared for sizes where its dimensions are open, and its listings.

    Attributes:
        graph: The graph.
        listings: Pairs of a pass and what is printed after it.
    """

    def __init__(
        self,
        body: Record,
        shape: Sequence[Any] = (2, 3),
        data_type: Any = "float32",
        engine: str = "reference",
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self._body, self.shape = body, shape
        builder = MLGraphBuilder(context(engine))
        made = body(builder, builder.input("x", data_type, shape))
        with printed() as text:
            self.graph: MLGraph = builder.build_sync(outputs(made))
            if sizes:
                self.graph.prepare_sync(sizes)
        parts = re.split(r"^# after (\w+)\n", text.getvalue(), flags=re.MULTILINE)[1:]
        self.listings = [*zip(parts[::2], map(str.strip, parts[1::2]), strict=True)]

    def after(self, stage: str) -> str:
        """The listing after the first run of a pass."""
        return next(listing for name, listing in self.listings if name == stage)

    def before(self, stage: str) -> str:
        """The listing before the first run of a pass."""
        place = [name for name, _ in self.listings].index(stage)
        return self.listings[place - 1][1]

    def assert_computes(self, x: Array, rtol: float = 0, atol: float = 0) -> None:
        """The results are those of the operators one by one; the same bits without tolerances."""
        wanted = outputs(self._body(OneByOne(), Known(x)))
        for name, array in awaited(self.graph, {"x": x}).items():
            expected = wanted[name].array
            np.testing.assert_allclose(array, expected, rtol=rtol, atol=atol)
            assert rtol or atol or array.tobytes() == expected.tobytes()


class Known:
    """An operand whose contents are known."""

    def __init__(self, array: Array) -> None:
        self.array = np.ascontiguousarray(array).reshape(array.shape)
        self.shape, self.rank = array.shape, array.ndim
        self.data_type: Any = array.dtype.name


class OneByOne:
    """A builder that computes each operator by itself, by the reference, where no pass matches."""

    def input(self, name: str, data_type: Any, shape: Sequence[int]) -> Known:
        raise NotImplementedError

    def constant(self, value: Any, data_type: str | None = None) -> Known:
        return Known(np.asarray(value, data_type))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*operands: Any, **options: Any) -> Any:
            builder = MLGraphBuilder(context("reference"))
            inputs: dict[str, Array] = {}

            def given(value: Any) -> Any:
                if isinstance(value, (list, tuple)):
                    return [given(item) for item in value]
                if not isinstance(value, Known):
                    return value
                known = f"x{len(inputs)}"
                inputs[known] = value.array
                return builder.input(known, value.data_type, value.shape)

            arguments = [given(operand) for operand in operands]
            named = {key: given(option) for key, option in options.items()}
            made = getattr(builder, name)(*arguments, **named)
            several = made if isinstance(made, list) else [made]
            graph = builder.build_sync({f"y{i}": operand for i, operand in enumerate(several)})
            found = MLExecution(context("reference")).compute(graph, inputs)
            results = [Known(found[f"y{i}"]) for i in range(len(several))]
            return results if isinstance(made, list) else results[0]

        return call


def outputs(made: Any) -> Mapping[str, Any]:
    return made if isinstance(made, dict) else {"y": made}


def nodes(listing: str) -> list[str]:
    """The lines of a listing that are nodes."""
    return [line.strip() for line in listing.splitlines() if " = " in line and "(" in line]


def operators(listing: str) -> list[str]:
    """The operators of a listing, in order."""
    return [node.split(" = ")[1].split("(")[0] for node in nodes(listing)]


def assert_prints(listing: str, expected: str) -> None:
    assert listing == dedent(expected).strip()


def assert_keeps(stage: str, *case: Any, **more: Any) -> None:
    """The pass does not fire."""
    built = Built(*case, **more)
    assert built.after(stage) == built.before(stage)


def tensor(*shape: int, data_type: str = "float32") -> Array:
    """Numbers from 1 on."""
    return np.arange(1, 1 + np.prod(shape), dtype=data_type).reshape(shape)


def normal(*shape: int) -> Array:
    """Numbers around 0, the same for a shape each time."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)
