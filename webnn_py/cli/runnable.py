"""Graphs and programs as `run` sees them: inputs, outputs, modes and profiles."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from webnn_py.api.compiled import compiled_of
from webnn_py.api.context import MLContext
from webnn_py.api.descriptor import MLOperandDescriptor
from webnn_py.api.profile import MLProfile
from webnn_py.api.programs.program import MLProgram, arguments_of
from webnn_py.api.staged_graph import StagedGraph
from webnn_py.api.view.facts import Facts, facts_of
from webnn_py.api.view.formats import format_bytes
from webnn_py.cli.inputs import Contents, arrays_of, shapes_of
from webnn_py.cli.models import Loaded, is_program, load
from webnn_py.cli.modes import MODES, Arrays, Awaited, Mode
from webnn_py.cli.progress import Progress
from webnn_py.core.errors import ValidationError
from webnn_py.engines.webgpu.program.plan import Argument
from webnn_py.ir import Array


@dataclass(frozen=True)
class Profile:
    """The profile of a model.

    Attributes:
        facts: Facts about nodes, kernels and memory, for JSON.
        summary: The same for a table.
        measured: The times of the steps.
    """

    facts: Mapping[str, int | None]
    summary: Mapping[str, object]
    measured: MLProfile

    def as_json(self) -> dict[str, Any]:
        """Return the profile as data for JSON."""
        return {
            **self.facts,
            "milliseconds": self.measured.milliseconds,
            "clock": self.measured.clock,
            "peak_flops": self.measured.peak_flops,
            "peak_bytes": self.measured.peak_bytes,
            "steps": [asdict(row) for row in self.measured],
        }


class Runnable(ABC):
    """A loaded model.

    Attributes:
        seconds: The time of loading.
        inputs: The inputs by name.
        optional: Names of inputs that may be omitted.
        outputs: Names of the outputs.
    """

    seconds: float
    inputs: Mapping[str, MLOperandDescriptor]
    optional: Collection[str] = ()
    outputs: Collection[str]

    @abstractmethod
    def arrays(self, contents: Contents, options: argparse.Namespace) -> Arrays:
        """Make an array for each input, as `arrays_of`."""

    @abstractmethod
    def mode(self, name: str | None, concurrency: int) -> contextlib.AbstractContextManager[Mode]:
        """Return a mode by name; None for the default of the model and device.

        Raises:
            ValidationError: The model has no such mode, or not for several runs at once.
        """

    @abstractmethod
    def profile(self, arrays: Mapping[str, Array], runs: int) -> Profile:
        """Measure each step."""


class RunnableGraph(Runnable):
    """A graph.

    Args:
        loaded: The graph.
        context: Its context.
    """

    def __init__(self, loaded: Loaded, context: MLContext) -> None:
        self._graph, self._context = loaded.graph, context
        self._loaded = loaded
        self.seconds = loaded.seconds
        self.inputs = loaded.graph.inputs
        self.outputs = loaded.graph.outputs.keys()

    def arrays(self, contents: Contents, options: argparse.Namespace) -> Arrays:
        """Make the arrays; their sizes are those of `--shape`.

        Raises:
            ValidationError: They are not.
        """
        said = self._loaded.sizes
        made = arrays_of(contents, self.inputs, said, options)
        if isinstance(self._graph, StagedGraph):
            return made  # its runs check the sizes
        for name, size in dict(compiled_of(self._graph).fixed(made)[1]).items():
            if said.get(name, size) != size:
                raise ValidationError(f"--shape: {name} is {said[name]}, and {size} by the inputs")
        return made

    def mode(self, name: str | None, concurrency: int) -> contextlib.AbstractContextManager[Mode]:
        """Return a mode; the default is synchronous on a CPU and awaited on a GPU."""
        default = "execution" if self._context.device is None else "awaited"
        return MODES[name or default](self._context, self._graph, concurrency)

    def profile(self, arrays: Mapping[str, Array], runs: int) -> Profile:
        """Measure the kernels, or the operators of an engine."""
        facts = self._facts(arrays)
        return Profile(
            {
                "nodes": len(facts.nodes),
                "kernels": len(facts.steps),
                "constant_bytes": facts.constant_bytes,
                "intermediate_bytes": facts.intermediate_bytes,
            },
            facts.summary(),
            self._graph.profile(arrays, runs=runs),
        )

    def _facts(self, arrays: Mapping[str, Array]) -> Facts:
        return facts_of(self._graph, dict(compiled_of(self._graph).fixed(arrays)[1]))


class RunnableProgram(Runnable):
    """A saved program, which runs awaited.

    Args:
        program: The program.
        seconds: The time of loading.
    """

    def __init__(self, program: MLProgram, seconds: float) -> None:
        self._program = program
        self.seconds = seconds
        self.arguments: Sequence[Argument] = arguments_of(program)
        self.inputs = program.arguments
        self.optional = [each.name for each in self.arguments if not each.required]
        self.outputs = [each.name for each in self.arguments if each.access != "read"]

    def __str__(self) -> str:
        """Return the listing of the steps."""
        return str(self._program)

    def arrays(self, contents: Contents, options: argparse.Namespace) -> Arrays:
        """Make an array for each required argument, and for others with a file."""
        if options.shape:
            raise ValidationError("--shape: the sizes of a saved program are fixed")
        return arrays_of(contents, self.inputs, {}, options, self.optional)

    @contextlib.contextmanager
    def mode(self, name: str | None, concurrency: int) -> Iterator[Mode]:
        """Return the mode "awaited"."""
        if name not in (None, "awaited"):
            raise ValidationError(f"--mode {name}: a saved program runs in the mode awaited")

        async def start(arrays: Mapping[str, Array]) -> Arrays:
            own = {name: array.copy() for name, array in arrays.items() if name in self.outputs}
            return await self._program.run_async({**arrays, **own})

        with asyncio.Runner() as loop:
            yield Awaited(loop, start)

    def profile(self, arrays: Mapping[str, Array], runs: int) -> Profile:
        """Measure the kernels."""
        size = sum(each.size for each in self.arguments)
        return Profile(
            {"arguments": len(self.arguments), "argument_bytes": size},
            {"arguments": len(self.arguments), "memory of arguments": format_bytes(size)},
            self._program.profile(arrays, runs=runs),
        )


def load_runnable(options: argparse.Namespace, context: MLContext, contents: Contents) -> Runnable:
    """Load the model of the options; arrays of inputs may fix open dimensions.

    Raises:
        MLError: As `load`, and as `MLContext.load_program_sync`.
    """
    if not is_program(options):
        return RunnableGraph(load(options, context, shapes_of(contents)), context)
    return load_program(options, context)


def load_program(options: argparse.Namespace, context: MLContext) -> RunnableProgram:
    """Load a saved program.

    Raises:
        MLError: As `MLContext.load_program_sync`.
    """
    start = time.perf_counter()
    with Progress(f"reading {options.model.name}") as progress:
        program = context.load_program_sync(options.model, progress=progress.reached)
    return RunnableProgram(program, time.perf_counter() - start)
