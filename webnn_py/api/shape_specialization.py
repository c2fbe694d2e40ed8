"""Shape specialization: compilation of a graph with open dimensions for sets of sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from webnn_py.api.graph_compiler import Compiled, GraphCompiler
from webnn_py.api.recipe_cache import CompiledRecipe
from webnn_py.core.lru_cache import CacheLimits, LRUCache, MemoryUse
from webnn_py.core.open_dims import likely_sizes
from webnn_py.engines.base import Engine, Executable
from webnn_py.engines.device import DeviceEngine, DeviceExecutable
from webnn_py.engines.executor import Listing
from webnn_py.ir import Array, Graph
from webnn_py.ops.bind_sizes import fix
from webnn_py.passes import Derivations, DerivedConstants, OpenPasses

Sizes = tuple[tuple[str, int], ...]
"""Sizes of the open dimensions: pairs of name and size, in alphabetical order."""

Prepare = Callable[[Sizes, bool], "Prepared"]
"""Compiles for sizes. Arguments: the sizes, and whether kernels compiled for far sizes are
acceptable, which are available sooner."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Prepared:
    """Graph compiled for one set of sizes.

    Attributes:
        executable: Executable for these sizes.
        constants: The contents of its constants.
        make_listing: Creates the printed listing on demand, as this may take long.
        derivations: Constants that passes derived, which other sizes reuse.
        improve: Compiles a faster executable for these sizes.
        go_on: Compiles ahead for sizes that are likely to follow.
        compiled: The compiled recipe, kept alive for equal graphs.
    """

    executable: Executable
    constants: Collection[Array]
    make_listing: Callable[[], Listing]
    derivations: Derivations | None = None
    improve: Callable[[], Prepared] | None = None
    go_on: Callable[[], None] | None = None
    compiled: CompiledRecipe | None = None

    @staticmethod
    def of(
        listing: Listing, executable: Executable, derivations: Derivations | None = None
    ) -> Prepared:
        """Create it from an existing listing."""
        constants = listing.graph.constants.values()
        return Prepared(executable, constants, lambda: listing, derivations)

    @property
    def listing(self) -> Listing:
        """Return the printed listing."""
        return self.make_listing()

    @property
    def is_far(self) -> bool:
        """Whether its kernels were compiled for far sizes, and may be much slower."""
        return isinstance(self.executable, DeviceExecutable) and self.executable.is_far

    def memory_use(self) -> MemoryUse:
        """Return the memory pieces it holds, including constants the engine does not report."""
        pieces = dict(self.executable.memory_use())
        for array in self.constants:
            if id(array) not in pieces:
                pieces[id(self.executable), id(array)] = array.nbytes
        return pieces


def prepare_open(compiler: GraphCompiler, recipe: Graph) -> Prepare:
    """Return a function that compiles a graph for sizes; share the size-independent work."""
    optimized = compiler.optimize_open(recipe)
    shared = DerivedConstants()
    if isinstance(compiler.engine, DeviceEngine):
        return _OnDevice(compiler, compiler.engine, optimized, shared).prepare
    for_all = LRUCache(lambda engine: compiler.compile_open(optimized, engine), CacheLimits())

    def prepare(sizes: Sizes, nearly: bool) -> Prepared:
        numbers = dict(sizes)

        def opened(engine: Engine) -> Compiled | None:
            at_sizes = for_all.get(engine)
            return None if at_sizes is None else at_sizes(numbers)

        made = opened(compiler.engine)
        if made is not None:
            return Prepared.of(*made)
        derivations = Derivations(shared)
        made = compiler.compile(fix(optimized, numbers), derivations, opened)
        return Prepared.of(*made, derivations)

    return prepare


class _OnDevice:
    """Shape specialization on a device, where kernels compiled for some sizes may serve others.

    The first sizes get kernels of their own, as many graphs see no other sizes: at once, or in the
    background if the GPU leaves processors free to compile. Its results reference this object but
    not vice versa, so that reference counting frees the memory.
    """

    def __init__(
        self,
        compiler: GraphCompiler,
        engine: DeviceEngine,
        optimized: Graph,
        shared: DerivedConstants,
    ) -> None:
        self._compiler = compiler
        self._engine = engine
        self._shared = shared
        self._for_sizes = engine.for_sizes()
        of_all = Derivations(shared)
        self._passes = OpenPasses(optimized, lambda graph: compiler.optimize(graph, of_all))
        self._first: Sizes | None = None

    def prepare(self, sizes: Sizes, nearly: bool) -> Prepared:
        """Compile for sizes, reusing kernels compiled for other sizes if they suffice."""
        first = self._first in (None, sizes)
        self._first = self._first or sizes
        known = self._known(sizes)
        if known is not None and (nearly or known.improve is None):
            return known
        if not (first and self._engine.compiles_ahead):
            return self._compiled(sizes, for_any=nearly)
        go_on = functools.partial(self._compile_ahead, dict(sizes))
        if nearly:
            self._passes.decide()
        if not nearly or self._passes.opened is None:
            return replace(self._by_themselves(sizes), go_on=go_on)
        improve = functools.partial(self._by_themselves, sizes)
        return replace(self._compiled(sizes, for_any=True), improve=improve, go_on=go_on)

    def _known(self, sizes: Sizes) -> Prepared | None:
        opened, numbers = self._passes.opened, dict(sizes)
        if opened is None:
            return None
        known = self._compiler.load(lambda: self._for_sizes.known(numbers))
        if known is None:
            return None
        remark = known.remark
        return self._improvable(
            Prepared(
                known,
                opened.constants.values(),
                lambda: Listing(fix(opened, numbers), {}, remark),
            ),
            sizes,
        )

    def _improvable(self, made: Prepared, sizes: Sizes) -> Prepared:
        if not made.is_far:
            return made
        return replace(made, improve=functools.partial(self.prepare, sizes, nearly=False))

    def _compiled(self, sizes: Sizes, for_any: bool) -> Prepared:
        """Compile shape-generic kernels, if the passes can run on the graph with open sizes."""
        compiler, numbers = self._compiler, dict(sizes)
        derivations = Derivations(self._shared)
        fixed = self._passes.at(numbers, lambda graph: compiler.optimize(graph, derivations))
        opened = self._passes.opened

        def compile(engine: Engine, graph: Graph) -> Executable:
            if opened is None:
                return engine.compile(graph)
            return self._for_sizes.compile(opened, numbers, graph, for_any)

        made = Prepared.of(*compiler.compile_as(fixed, compile), derivations)
        return self._improvable(made, sizes)

    def _by_themselves(self, sizes: Sizes) -> Prepared:
        """Compile kernels for exactly these sizes."""
        compiler, derivations = self._compiler, Derivations(self._shared)
        fixed = self._passes.alone(dict(sizes), lambda graph: compiler.optimize(graph, derivations))
        return Prepared.of(*compiler.compile_as(fixed), derivations)

    def _compile_ahead(self, first: Mapping[str, int]) -> None:
        """Compile ahead for sizes that are likely to follow the first ones."""
        self._passes.decide()
        opened = self._passes.opened
        if opened is not None:
            for sizes in likely_sizes(opened.open_sizes, first):
                self._for_sizes.compile_ahead(opened, sizes)
