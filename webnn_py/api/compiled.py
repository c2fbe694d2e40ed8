"""CompiledGraph: a built graph with its recipe, its signature and its executables."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from webnn_py.api.env_profile import profile_built
from webnn_py.api.graph_compiler import Compiled, GraphCompiler
from webnn_py.api.profile import MLProfile, measure
from webnn_py.api.recipe_cache import CompiledRecipe
from webnn_py.api.session import Session
from webnn_py.api.shape_specialization import Prepared, Sizes, prepare_open
from webnn_py.api.signature import Signature
from webnn_py.core import gil_yield
from webnn_py.core.errors import DataError, InvalidStateError, MLError, ValidationError
from webnn_py.core.lru_cache import LRUCache
from webnn_py.core.messages import shown
from webnn_py.core.open_dims import check_sizes
from webnn_py.engines.base import Executable
from webnn_py.engines.executor import Listing
from webnn_py.engines.initialization import BoundInputs, Constants
from webnn_py.ir import Graph
from webnn_py.ops.bind_sizes import check_assumed
from webnn_py.passes import debug_level

DESTROYED = "this MLGraph is destroyed"
MAX_SHAPES = 64
"""Maximum entries of the cache from input shapes to open sizes."""


class CompiledGraph:
    """Graph built by a context, and a cache of its executables by open sizes.

    Args:
        session: Session of the context.
        recipe: The graph as recorded, before any pass.
        compile: Compiles a graph without open dimensions; `GraphCompiler.compile` by default.
        shares: Whether to use the compiled form of an equal recipe, if there is one.

    Attributes:
        signature: Inputs and outputs of the executions.
        bound: The inputs that `initialize_graph` turned into constants.
        latest: The signature and the open sizes of the latest run, None before the first one.
    """

    def __init__(
        self,
        session: Session,
        recipe: Graph,
        compile: Callable[[Graph], Compiled] | None = None,
        shares: bool = True,
    ) -> None:
        self.session = session
        self.is_open = bool(recipe.open_sizes)
        looks = shares and not (self.is_open or debug_level())
        same = session.compiler.recipes.find(recipe) if looks else None
        if same is not None:
            recipe = same.recipe
        self.signature = signature = Signature.of(recipe)
        self.latest: tuple[Signature, Sizes] | None = None if self.is_open else (signature, ())
        self.bound = BoundInputs()
        self._recipe: Graph | None = recipe
        # No reference back to this object: a cycle would delay the release of its memory.
        prepare = (
            prepare_open(session.compiler, recipe)
            if self.is_open
            else lambda *_: _prepare_fixed(session.compiler, recipe, compile, same)
        )
        self._wanted = wanted = set[Sizes]()  # sizes that need kernels of their own

        def prepare_and_profile(sizes: Sizes) -> Prepared:
            with gil_yield.awaited():
                prepared = prepare(sizes, sizes not in wanted)
            profile_built(session, signature, dict(sizes), prepared.executable)
            return prepared

        self._prepared: LRUCache[Prepared] | None = (
            LRUCache(
                prepare_and_profile,
                session.room,
                lambda prepared: prepared.memory_use(),
                functools.partial(_go_on_later, session),
            )
            if self.is_open
            else LRUCache(prepare_and_profile, session.room)
        )
        assumed = [node for node in recipe.nodes if node.is_assumed]

        def signature_at(sizes: Sizes) -> Signature:
            check_assumed(assumed, dict(sizes))
            return signature.at(dict(sizes))

        self._signatures: LRUCache[Signature] = LRUCache(signature_at, session.room)
        self._listing: Listing | str = (
            str(recipe) if self.is_open else self._prepared.get(()).listing
        )
        self._fixed: dict[Hashable, tuple[Signature, Sizes]] = {}  # by input shapes
        session.register_holder(self)

    def fixed(
        self,
        inputs: object,
        error: type[MLError] = DataError,
        constants: Constants | None = None,
    ) -> tuple[Signature, Sizes]:
        """Return the signature with open dimensions bound by these inputs, and their sizes.

        Args:
            inputs: Inputs of the execution, by name.
            error: Type of the error to raise.
            constants: Inputs that are constants in this execution; by default those of the graph.

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
            self.latest = remembered
            return remembered
        solved = self.signature.sizes_of(self.session, inputs, self.bound, known, error)
        sizes = tuple(sorted(solved.items()))
        found = self.signature_at(sizes), sizes
        if shapes is not None:
            if len(self._fixed) >= MAX_SHAPES:
                self._fixed.clear()
            self._fixed[shapes] = self.latest = found
        return found

    def signature_at(self, sizes: Sizes) -> Signature:
        """Return the signature with open dimensions bound to `sizes`."""
        return self._signatures.get(sizes)

    def prepare(self, sizes: object) -> None:
        """Compile for these sizes; raise as `MLGraph.prepare_sync` does."""
        numbers = check_sizes(self.recipe.open_sizes, sizes)
        self._improved(tuple(sorted(numbers.items())))

    def key_of(self, tensors: Hashable) -> Hashable:
        """Return the key of a run's cached work, by the key of its tensors."""
        return len(self.bound.constants.places), tensors

    def profile(self, inputs: Mapping[str, Any], runs: int) -> MLProfile:
        """Run the graph several times and measure; raise as `MLGraph.profile` does."""
        self.check_usable(self.session)
        signature, sizes = self.fixed(inputs)
        executable = self._improved(sizes).executable
        return measure(self.session, signature, executable, self.bound, inputs, runs)

    def _improved(self, sizes: Sizes) -> Prepared:
        """Return the graph compiled for these sizes, recompiled if its kernels suit far sizes."""
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
        """Return the graph as recorded, before any pass.

        Raises:
            InvalidStateError: The graph is destroyed.
        """
        recipe = self._recipe
        if recipe is None:
            raise InvalidStateError(DESTROYED)
        return recipe

    @property
    def destroyed(self) -> bool:
        """Whether `destroy` released the memory."""
        return self._recipe is None

    def executable(self, session: Session, sizes: Sizes = ()) -> Executable:
        """Return the executable for these sizes, after checking that the graph can run now.

        Args:
            session: Session of the context that runs the graph.
            sizes: Sizes of the graph's open dimensions.

        Raises:
            ContextLostError: The context is destroyed or lost.
            InvalidStateError: The graph is destroyed.
            DataError: The graph belongs to another context.
        """
        return self.check_usable(session).get(sizes).executable

    def check_usable(
        self, session: Session, error: type[MLError] = DataError
    ) -> LRUCache[Prepared]:
        """Return the cache of executables, after checking that the graph can run now.

        Args:
            session: Session of the context that runs the graph.
            error: Type of the error for a graph of another context.

        Raises:
            MLError: As in `executable`.
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
        """Release memory and device objects; runs in flight still complete."""
        self._listing = str(self._listing)  # without the constants' contents
        self._recipe = self._prepared = None
        self.bound.release()

    def release(self) -> None:
        """Release memory after the loss of the context; the recipe can still be saved."""
        self._prepared = None
        self.bound.release()

    def __str__(self) -> str:
        """Return the listing of the graph as it runs, also after `destroy`."""
        return str(self._listing)


def _prepare_fixed(
    compiler: GraphCompiler,
    recipe: Graph,
    compile: Callable[[Graph], Compiled] | None,
    same: CompiledRecipe | None,
) -> Prepared:
    """Compile a recipe without open dimensions, unless an equal one is compiled already."""
    if same is None:
        listing, executable = (compile or compiler.compile)(recipe)
        same = CompiledRecipe(recipe, listing, executable.maker())
        compiler.recipes.add(same)
    else:
        listing, executable = same.listing, compiler.load(same.make)
    return replace(Prepared.of(listing, executable), compiled=same)


class CompiledOwner:
    """Base class of MLGraph, with a reference to its CompiledGraph."""

    _undivided: tuple[Session, Graph] | None = None

    def __init__(self, compiled: CompiledGraph) -> None:
        self._whole = compiled

    @property
    def _compiled(self) -> CompiledGraph:
        return self._whole


def compiled_of(graph: object) -> CompiledGraph:
    """Return the CompiledGraph of an MLGraph.

    Raises:
        ValidationError: `graph` is not an MLGraph.
        NotSupportedError: It is one whose sizes are not known before it runs.
    """
    if not isinstance(graph, CompiledOwner):
        raise ValidationError(f"graph: got {shown(graph)}, expected an MLGraph")
    return graph._compiled


CHOOSE = "choose"
"""The operator in undivided recipes for contents that the host computes between two stages."""


def undivided_of(graph: object) -> tuple[Session, Graph] | None:
    """Return the session and the whole recipe of an MLGraph that is compiled in stages, or None."""
    return graph._undivided if isinstance(graph, CompiledOwner) else None


def _go_on_later(
    session: Session, executables: LRUCache[Prepared], sizes: Sizes, found: Prepared
) -> None:
    """Compile better kernels in the background, until the graph is collected."""
    kept, before = weakref.ref(executables), weakref.ref(found)

    def improve() -> None:
        """Replace the cache entry, unless the graph or the entry is gone by now."""
        there, prepared = kept(), before()
        if there is None or prepared is None or not there.holds(sizes, prepared):
            return
        compiled = prepared.improve
        assert compiled is not None
        del there, prepared  # a reference would keep the cache and its memory alive meanwhile
        made = compiled()
        if (there := kept()) is not None and (prepared := before()) is not None:
            there.replace(sizes, prepared, made)

    for work in (found.go_on, improve if found.improve else None):
        if work is not None:
            session.improve(work, lambda: kept() is None)


def _shapes(inputs: object) -> Hashable:
    """Return the input shapes by name if all inputs are NumPy arrays, else None."""
    if type(inputs) is not dict:
        return None
    shapes: list[Hashable] = []
    for name, value in inputs.items():
        if type(value) is not np.ndarray or type(name) is not str:
            return None
        shapes.append((name, value.shape))
    return tuple(shapes)
