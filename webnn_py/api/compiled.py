"""A built graph: its recipe, its signature, and the executables made of it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from webnn_py.api.profile import MLProfile, measure
from webnn_py.api.profile_built import profile_built
from webnn_py.api.session import Compiled, Session
from webnn_py.api.signature import Signature
from webnn_py.core import cooperation
from webnn_py.core.errors import DataError, InvalidStateError, MLError
from webnn_py.core.recently_used import Held, RecentlyUsed, Room
from webnn_py.core.sizes import check_sizes, sizes_to_come
from webnn_py.engines.base import Engine, Executable
from webnn_py.engines.device import DeviceEngine, DeviceExecutable
from webnn_py.engines.executor import Listing
from webnn_py.engines.initialization import BoundInputs, Constants
from webnn_py.ir import Array, Graph
from webnn_py.ops.replay import fix
from webnn_py.passes import Derivations, DerivedConstants, OpenPasses

Sizes = tuple[tuple[str, int], ...]
"""Open sizes by name, in alphabetical order."""

DESTROYED = "this MLGraph is destroyed"
MOST_SHAPES = 64
"""Shapes of arrays from which it is remembered what sizes follow."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Prepared:
    """A graph compiled for some sizes.

    Attributes:
        executable: What runs.
        constants: The contents of its constants.
        make_listing: Makes what is printed; seldom asked for, and may take long.
        derivations: What passes computed from its constants, for other sizes to have it, too.
        improve: Compiles for these sizes, where the executable was compiled for ones far from them.
        go_on: Compiles for sizes that may come.
    """

    executable: Executable
    constants: Collection[Array]
    make_listing: Callable[[], Listing]
    derivations: Derivations | None = None
    improve: Callable[[], Prepared] | None = None
    go_on: Callable[[], None] | None = None

    @staticmethod
    def of(
        listing: Listing, executable: Executable, derivations: Derivations | None = None
    ) -> Prepared:
        """Of a graph that is listed already."""
        constants = listing.graph.constants.values()
        return Prepared(executable, constants, lambda: listing, derivations)

    @property
    def listing(self) -> Listing:
        """What is printed."""
        return self.make_listing()

    def held(self) -> Held:
        """The memory that goes with it. Engines that do not say so have weights for themselves."""
        pieces = dict(self.executable.held())
        for array in self.constants:
            if id(array) not in pieces:
                pieces[id(self.executable), id(array)] = array.nbytes
        return pieces


def _prepare_open(session: Session, recipe: Graph) -> Callable[[Sizes], Prepared]:
    """What compiles a graph for sizes; what does not depend on them is done once."""
    optimized = session.optimize_open(recipe)
    shared = DerivedConstants()
    if isinstance(session.engine, DeviceEngine):
        return _OnDevice(session, session.engine, optimized, shared).prepare
    for_all = RecentlyUsed(lambda engine: session.compile_open(optimized, engine), Room())

    def prepare(sizes: Sizes) -> Prepared:
        numbers = dict(sizes)

        def opened(engine: Engine) -> Compiled | None:
            at_sizes = for_all.get(engine)
            return None if at_sizes is None else at_sizes(numbers)

        made = opened(session.engine)
        if made is not None:
            return Prepared.of(*made)
        derivations = Derivations(shared)
        made = session.compile(fix(optimized, numbers), derivations, opened)
        return Prepared.of(*made, derivations)

    return prepare


class _OnDevice:
    """The same on a device, for the first sizes by themselves.

    What it makes knows it, and not the other way round, so that memory goes without a collection.
    """

    def __init__(
        self, session: Session, engine: DeviceEngine, optimized: Graph, shared: DerivedConstants
    ) -> None:
        self._session = session
        self._engine = engine
        self._shared = shared
        self._for_sizes = engine.for_sizes()
        of_all = Derivations(shared)
        self._passes = OpenPasses(optimized, lambda graph: session.optimize(graph, of_all))

    def prepare(self, sizes: Sizes) -> Prepared:
        """By kernels that were compiled for other sizes, if these will do."""
        return self._known(sizes) or self._compiled(sizes, for_any=True)

    def _improved(self, sizes: Sizes) -> Prepared:
        """By kernels that are meant for these sizes."""
        known = self._known(sizes)
        return known if known and known.improve is None else self._compiled(sizes, for_any=False)

    def _known(self, sizes: Sizes) -> Prepared | None:
        opened, numbers = self._passes.opened, dict(sizes)
        if opened is None:
            return None
        known = self._session.load(lambda: self._for_sizes.known(numbers))
        if known is None:
            return None
        remark = known.remark
        return Prepared(
            known,
            opened.constants.values(),
            lambda: Listing(fix(opened, numbers), {}, remark),
            improve=self._improvement(known, sizes),
        )

    def _improvement(self, made: Executable, sizes: Sizes) -> Callable[[], Prepared] | None:
        is_far = isinstance(made, DeviceExecutable) and made.is_far
        return functools.partial(self._improved, sizes) if is_far else None

    def _compiled(self, sizes: Sizes, for_any: bool) -> Prepared:
        session, engine, numbers = self._session, self._engine, dict(sizes)
        derivations = Derivations(self._shared)
        fixed = self._passes.at(numbers, lambda graph: session.optimize(graph, derivations))
        opened = self._passes.opened

        def compile(_: Engine, graph: Graph) -> Executable:
            if opened is None:
                return engine.compile(graph)
            return self._for_sizes.compile(opened, numbers, graph, for_any)

        made = Prepared.of(*session.compile_as(fixed, compile), derivations)
        if opened is None and engine.compiles_ahead:
            return replace(made, go_on=functools.partial(self._compile_ahead, numbers))
        return replace(made, improve=self._improvement(made.executable, sizes))

    def _compile_ahead(self, first: Mapping[str, int]) -> None:
        """Behind the first sizes, which have kernels of their own, for others."""
        self._passes.decide()
        opened = self._passes.opened
        if opened is not None:
            for sizes in sizes_to_come(opened.open_sizes, first):
                self._for_sizes.compile_ahead(opened, sizes)


class CompiledGraph:
    """A graph that was built by a context, and what runs it there.

    Args:
        session: The context's.
        recipe: The graph as the user gave it.
        compile: Compiles it where it has no open dimensions, if not as the session does.

    Attributes:
        signature: What its executions are given.
        bound: The inputs that `initialize_graph` made constant.
    """

    def __init__(
        self,
        session: Session,
        recipe: Graph,
        compile: Callable[[Graph], Compiled] | None = None,
    ) -> None:
        self.session = session
        self.signature = signature = Signature.of(recipe)
        self.bound = BoundInputs()
        self._recipe: Graph | None = recipe
        self.is_open = bool(recipe.open_sizes)
        # Without a way from it back to this object, whose memory goes when nobody has it any more.
        prepare = (
            _prepare_open(session, recipe)
            if self.is_open
            else lambda _: Prepared.of(*(compile or session.compile)(recipe))
        )

        def prepare_and_profile(sizes: Sizes) -> Prepared:
            with cooperation.awaited():
                prepared = prepare(sizes)
            profile_built(session, signature, dict(sizes), prepared.executable)
            return prepared

        self._prepared: RecentlyUsed[Prepared] | None = RecentlyUsed(
            prepare_and_profile,
            session.room,
            lambda prepared: prepared.held(),
            functools.partial(_go_on_later, session),
        )
        self._signatures: RecentlyUsed[Signature] = RecentlyUsed(
            lambda sizes: signature.at(dict(sizes)), session.room
        )
        self._listing: Listing | str = (
            str(recipe) if self.is_open else self._prepared.get(()).listing
        )
        self._fixed: dict[Hashable, tuple[Signature, Sizes]] = {}  # by the shapes of arrays
        session.has(self)

    def fixed(
        self,
        inputs: object,
        error: type[MLError] = DataError,
        constants: Constants | None = None,
    ) -> tuple[Signature, Sizes]:
        """What an execution with these inputs is given, and the sizes that follow from them.

        Args:
            inputs: What it is given, by name.
            error: What to raise.
            constants: The inputs that are constants for it, if not those of the graph.

        Raises:
            DataError: (or `error`) Open sizes do not follow from the inputs, or contradict.
            InvalidStateError: An input becomes a constant with commands that are not submitted.
        """
        if not self.is_open:
            return self.signature, ()
        known = self.bound.constants if constants is None else constants
        shapes = None if known.places else _shapes(inputs)
        remembered = None if shapes is None else self._fixed.get(shapes)
        if remembered is not None:
            return remembered
        solved = self.signature.sizes_of(self.session, inputs, self.bound, known, error)
        sizes = tuple(sorted(solved.items()))
        found = self.signature_at(sizes), sizes
        if shapes is not None:
            if len(self._fixed) >= MOST_SHAPES:
                self._fixed.clear()
            self._fixed[shapes] = found
        return found

    def signature_at(self, sizes: Sizes) -> Signature:
        """What an execution with these sizes is given."""
        return self._signatures.get(sizes)

    def prepare(self, sizes: object) -> None:
        """Compile for these sizes; raises as `MLGraph.prepare_sync`."""
        numbers = check_sizes(self.recipe.open_sizes, sizes)
        self._improved(tuple(sorted(numbers.items())))

    def profile(self, inputs: Mapping[str, Any], runs: int) -> MLProfile:
        """Run it several times and measure; raises as `MLGraph.profile`."""
        self.check_usable(self.session)
        signature, sizes = self.fixed(inputs)
        executable = self._improved(sizes).executable
        return measure(self.session, signature, executable, self.bound, inputs, runs)

    def _improved(self, sizes: Sizes) -> Prepared:
        """Compiled for some sizes, and not for ones far from them."""
        executables = self.check_usable(self.session)
        found = executables.get(sizes)
        if found.improve is None:
            return found
        made = found.improve()
        executables.replace(sizes, found, made)
        return made

    @property
    def recipe(self) -> Graph:
        """The graph as the user gave it, before any pass.

        Raises:
            InvalidStateError: The graph is destroyed.
        """
        recipe = self._recipe
        if recipe is None:
            raise InvalidStateError(DESTROYED)
        return recipe

    @property
    def destroyed(self) -> bool:
        """Whether its memory was given back."""
        return self._recipe is None

    def executable(self, session: Session, sizes: Sizes = ()) -> Executable:
        """What runs, if the graph can run on a context now.

        Args:
            session: The context's.
            sizes: The graph's open sizes.

        Raises:
            ContextLostError: The context is destroyed or lost.
            InvalidStateError: The graph is destroyed.
            DataError: The graph belongs to another context.
        """
        return self.check_usable(session).get(sizes).executable

    def check_usable(
        self, session: Session, error: type[MLError] = DataError
    ) -> RecentlyUsed[Prepared]:
        """The executables, if the graph can run on a context now.

        Args:
            session: The context's.
            error: What to raise for a graph of another context.

        Raises:
            MLError: As `executable`.
        """
        if not session.alive:
            session.check_alive()
        prepared = self._prepared  # another thread may destroy the graph
        if prepared is None:
            session.check_alive()
            raise InvalidStateError(DESTROYED)
        if self.session is not session:
            raise error("this MLGraph was built by another context")
        return prepared

    def destroy(self) -> None:
        """Give back memory and device objects; work that is under way still completes."""
        self._listing = str(self._listing)  # without the constants' contents
        self._recipe = self._prepared = None

    def let_go(self) -> None:
        """Give back memory and device objects; the context is gone, and the recipe can be saved."""
        self._prepared = None
        self.bound.let_go()

    def __str__(self) -> str:
        """The listing of what runs; also once it is destroyed."""
        return str(self._listing)


def _go_on_later(
    session: Session, executables: RecentlyUsed[Prepared], sizes: Sizes, found: Prepared
) -> None:
    """Compile more, while runs use what there is; left when the graph goes."""
    kept = weakref.ref(executables)
    if found.go_on is not None:
        session.improve(found.go_on, lambda: kept() is None)
    elif found.improve is not None:
        _improve_later(session, kept, sizes, weakref.ref(found))


def _improve_later(
    session: Session,
    kept: weakref.ref[RecentlyUsed[Prepared]],
    sizes: Sizes,
    before: weakref.ref[Prepared],
) -> None:
    """Replace what was compiled for sizes far from these.

    Not if nobody has it any more when its turn comes.
    """

    def improve() -> None:
        there, found = kept(), before()
        if there is None or found is None or there.find(sizes) is not found:
            return
        del there  # whose end tells that this is needless
        assert found.improve is not None
        made = found.improve()
        if (there := kept()) is not None:
            there.replace(sizes, found, made)

    session.improve(improve, lambda: kept() is None)


def _shapes(inputs: object) -> Hashable:
    """The shapes of arrays by name, where all inputs are arrays; else None."""
    if type(inputs) is not dict:
        return None
    shapes: list[Hashable] = []
    for name, value in inputs.items():
        if type(value) is not np.ndarray or type(name) is not str:
            return None
        shapes.append((name, value.shape))
    return tuple(shapes)
