"""GraphCompiler: runs a context's passes on graphs, and compiles them for its engines."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from webnn_py.api.recipe_cache import RecipeCache
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import LOG
from webnn_py.core.open_dims import typical_sizes
from webnn_py.core.parallel_map import MAX_THREADS
from webnn_py.engines.base import Engine, Executable, Loss
from webnn_py.engines.executor import CompileBy, Listing, by_compile, compile_on, compile_open
from webnn_py.engines.limits import EngineLimits
from webnn_py.engines.reference import ReferenceEngine, evaluate
from webnn_py.ir import Graph
from webnn_py.memory.memory_trim import trim_memory
from webnn_py.memory.weight_spill import WeightSpill
from webnn_py.ops.bind_sizes import fix
from webnn_py.ops.registry import Operator, TypesByOperand
from webnn_py.passes import (
    Derive,
    SharedResults,
    Target,
    derive_anew,
    optimize,
    optimize_open,
    report,
)
from webnn_py.passes.derived_constants import Results, Sources

E = TypeVar("E", bound=Executable | None)
Compiled = tuple[Listing, Executable]
CompileForSizes = Callable[[Mapping[str, int]], Compiled]


class GraphCompiler:
    """Compiler of one context's graphs. Any thread may call it; it owns none.

    Args:
        engine: Engine that runs the graphs.
        fallback: Engine that runs the operators that `engine` does not support; None for none.
        loss: Guard that marks the context lost if the device turns out to be lost.

    Attributes:
        engine: Engine that runs the graphs.
        engines: The engines, in the order in which operators are offered to them.
        recipes: Compiled recipes, which equal graphs share.
        supported_types: Supported data types of an operator's operands, by operator.
    """

    def __init__(self, engine: Engine, fallback: Engine | None, loss: Loss) -> None:
        self.engine = engine
        self.engines = (engine,) if fallback is None else (engine, fallback)
        self.recipes = RecipeCache(engine)
        self._loss = loss
        self.supported_types = _SupportedTypes(self.engines[-1])
        # Share derived arrays, as a device engine uploads each constant array once, by identity.
        self._share: Derive = derive_anew if engine.device is None else SharedResults()

    def limits(self) -> EngineLimits:
        """Return the limits on every tensor of this context."""
        return self.engines[-1].limits()

    def optimize_open(self, recipe: Graph) -> Graph:
        """Run the engine's passes that support open dimensions on a recipe that has some."""
        return optimize_open(
            recipe, _target(self.engine, derive_anew, self._share), self.engine.passes
        )

    def compile(
        self,
        recipe: Graph,
        derive: Derive = derive_anew,
        opened: Callable[[Engine], Compiled | None] = lambda engine: None,
    ) -> Compiled:
        """Compile a recipe for this context's engine, with the reference engine as fallback.

        Args:
            recipe: Graph without open dimensions.
            derive: Computes the constants that passes derive from other constants.
            opened: Returns the specialization of a shape-generic compilation, or None.

        Returns:
            The listing of the graph after the engine's passes, and its executable.

        Raises:
            OperationError: The engine or device could not compile it.
        """
        with self._loss:
            listing, executable = self.engine.pick(
                recipe, lambda engine: opened(engine) or self._compile_on(engine, recipe, derive)
            )
        report(executable.describe, executable.code)
        return listing, executable

    def load(self, make: Callable[[], E]) -> E:
        """Return the executable of a graph that is already compiled, or None.

        Args:
            make: Creates the executable from the compiled code; may return None if there is none.

        Raises:
            OperationError: The engine or device could not create it.
        """
        with self._loss:
            made = make()
        if made is not None:
            report(made.describe, made.code)
        return made

    def optimize(self, recipe: Graph, derive: Derive) -> Graph:
        """Run the passes of this context's engine on a recipe; arguments as in `compile`."""
        return _optimize(self.engine, recipe, derive, self._share)

    def compile_as(self, optimized: Graph, compile_by: CompileBy = by_compile) -> Compiled:
        """Compile a recipe as `compile` does, after this context's engine's passes have run.

        Args:
            optimized: The recipe after the passes.
            compile_by: Compiles a graph for an engine, by default with the engine's `compile`.
        """
        return self.compile(
            optimized,
            opened=lambda engine: compile_on(optimized, self._with_help(engine), compile_by),
        )

    def compile_open(self, optimized: Graph, engine: Engine) -> CompileForSizes | None:
        """Compile a recipe for all sizes of its open dimensions, as far as the engine can.

        Args:
            optimized: The recipe that `optimize_open` returns.
            engine: This context's engine, or one that it stands for.

        Returns:
            A function that compiles the rest for a set of sizes, with the results of `compile`.
            None if the engine must compile for each set of sizes.
        """
        if not engine.stays_open:
            return None
        try:
            opened = _optimize(engine, optimized, derive_anew, self._share)
            sample = fix(opened, typical_sizes(opened.open_sizes))
            compile = compile_open(opened, sample, self._with_help(engine))
        except ValidationError as error:  # an engine or pass needs a size that is open
            LOG.info("engine %s compiles for each set of sizes: %s", engine.name, error)
            return None
        return None if compile is None else lambda sizes: compile(fix(opened, sizes), sizes)

    def _compile_on(self, engine: Engine, recipe: Graph, derive: Derive) -> Compiled:
        return compile_on(_optimize(engine, recipe, derive, self._share), self._with_help(engine))

    def _with_help(self, engine: Engine) -> Sequence[Engine]:
        """Return an engine and its fallback: on a CPU, the reference engine."""
        helping = self.engines[1:]
        return (engine,) if isinstance(engine, ReferenceEngine) else (engine, *helping)


class _SupportedTypes(dict[Operator, TypesByOperand]):
    """Cache of the data types that an engine supports, by operator."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    def __missing__(self, op: Operator) -> TypesByOperand:
        found = self[op] = self._engine.supported_types(op)
        return found


def _target(engine: Engine, derive: Derive, share: Derive) -> Target:
    keep = WeightSpill().keep if engine.has_own_weights else None

    def kept(what: Hashable, sources: Sources, compute: Callable[[], Results]) -> Results:
        made = (lambda: tuple(map(keep, compute()))) if keep else compute
        return derive(what, sources, lambda: share(what, sources, made))

    threads = 1 if engine.device is None else MAX_THREADS  # a GPU leaves the processors free
    return Target(
        engine.keeps_whole,
        evaluate,
        widen_limit=engine.widen_limit,
        derive=kept,
        threads=threads,
        leaves_states=engine.leaves_states,
        has_tensor_cores=engine.has_tensor_cores,
    )


def _optimize(engine: Engine, recipe: Graph, derive: Derive, share: Derive) -> Graph:
    """Run an engine's passes on a recipe, and release the mapped memory of the weights read."""
    made = optimize(recipe, _target(engine, derive, share), engine.passes)
    if engine.has_own_weights:
        trim_memory(recipe.constants.values())
    return made
