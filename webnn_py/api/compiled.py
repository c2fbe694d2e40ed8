"""A built graph: its recipe, its signature, and the executables made of it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from webnn_py.api.env_profile import profile_built
from webnn_py.api.profile import MLProfile, measure
from webnn_py.api.session import Compiled, Session
from webnn_py.api.shape_specialization import Prepared, Sizes, prepare_open
from webnn_py.api.signature import Signature
from webnn_py.core import gil_yield
from webnn_py.core.errors import DataError, InvalidStateError, MLError
from webnn_py.core.lru_cache import LRUCache
from webnn_py.core.open_dims import check_sizes
from webnn_py.engines.base import Executable
from webnn_py.engines.executor import Listing
from webnn_py.engines.initialization import BoundInputs, Constants
from webnn_py.ir import Graph

DESTROYED = "this MLGraph is destroyed"
MOST_SHAPES = 64
"""Shapes of arrays from which it is remembered what sizes follow."""


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
            prepare_open(session, recipe)
            if self.is_open
            else lambda *_: Prepared.of(*(compile or session.compile)(recipe))
        )
        self._wanted = wanted = set[Sizes]()  # with kernels that are meant for them

        def prepare_and_profile(sizes: Sizes) -> Prepared:
            with gil_yield.awaited():
                prepared = prepare(sizes, sizes not in wanted)
            profile_built(session, signature, dict(sizes), prepared.executable)
            return prepared

        self._prepared: LRUCache[Prepared] | None = LRUCache(
            prepare_and_profile,
            session.room,
            lambda prepared: prepared.memory_use(),
            functools.partial(_go_on_later, session),
        )
        self._signatures: LRUCache[Signature] = LRUCache(
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
        self._wanted.add(sizes)
        try:
            found = executables.get(sizes)
        finally:
            self._wanted.discard(sizes)
        if found.improve is None or not found.is_far:
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
    ) -> LRUCache[Prepared]:
        """The executables, if the graph can run on a context now.

        Args:
            session: The context's.
            error: What to raise for a graph of another context.

        Raises:
            MLError: As `executable`.
        """
        if not session.alive:
            session.check_alive()
        if self.session is not session:
            raise error("this MLGraph was built by another context")
        prepared = self._prepared  # another thread may destroy the graph
        if prepared is None:
            session.check_alive()
            raise InvalidStateError(DESTROYED)
        return prepared

    def destroy(self) -> None:
        """Give back memory and device objects; work that is under way still completes."""
        self._listing = str(self._listing)  # without the constants' contents
        self._recipe = self._prepared = None
        self.bound.release()

    def release(self) -> None:
        """Give back memory and device objects; the context is gone, and the recipe can be saved."""
        self._prepared = None
        self.bound.release()

    def __str__(self) -> str:
        """The listing of what runs; also once it is destroyed."""
        return str(self._listing)


def _go_on_later(
    session: Session, executables: LRUCache[Prepared], sizes: Sizes, found: Prepared
) -> None:
    """Compile more, while runs use what there is; left when the graph goes."""
    kept, before = weakref.ref(executables), weakref.ref(found)

    def improve() -> None:
        """Not if nobody has it any more when its turn comes."""
        there, prepared = kept(), before()
        if there is None or prepared is None or there.find(sizes) is not prepared:
            return
        compiled = prepared.improve
        assert compiled is not None
        del there, prepared  # the end of the one tells that this is needless, the other has memory
        made = compiled()
        if (there := kept()) is not None and (prepared := before()) is not None:
            there.replace(sizes, prepared, made)

    for work in (found.go_on, improve if found.improve else None):
        if work is not None:
            session.improve(work, lambda: kept() is None)


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
