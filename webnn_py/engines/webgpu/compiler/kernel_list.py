"""The kernels of a graph, in order; those that would be alike are written once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webnn_py.core.gil_yield import checkpoints
from webnn_py.engines.webgpu.compiler.fusing.fusion import Fusion
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernel_builder import KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.kernel_key import Structures, key_of
from webnn_py.engines.webgpu.compiler.kernels import elementwise_kernel, emit, product_kernel
from webnn_py.engines.webgpu.compiler.kernels.costs import prefer_equal_workgroups
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem
from webnn_py.engines.webgpu.compiler.kernels.matmul import is_narrow
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import gemm_limits
from webnn_py.engines.webgpu.compiler.lower import lowering_of
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Graph, Value

PRODUCTS = ("matmul", "conv2d")
"""Operators whose kernels have tiles."""

PRODUCT_WINDOW = 12
"""Roots among which parallel products are looked for: about `horizontal_fusion.WINDOW` kernels."""


def kernels_of(graph: Graph, features: Features) -> Iterator[Kernel]:
    """Yield the kernels of a graph for a device with these features, in order."""
    fusion = Fusion(graph, features)
    writer = _Writer(graph, features, fusion)
    behind = _rows_behind(fusion) if features.kind != "cpu" else {}
    with_product: dict[Value, list[Kernel]] = {}
    for root in checkpoints(fusion.roots):
        if fusion.places.left.get(root) == ():  # a concat that the kernels of its operands write
            continue
        rows = behind.get(root)
        if rows is not None and (made := writer.into_rows(root, rows)):
            with_product[rows] = made
            continue
        yield from with_product.pop(root, None) or writer.write(root)


class _Writer:
    """Writer of the kernels of roots, once for roots with equal structures."""

    def __init__(self, graph: Graph, features: Features, fusion: Fusion) -> None:
        self._features = features
        self._fusion = fusion
        self._producers = graph.producers
        computed: set[Value] = set()  # inside other kernels, although fusion stores them
        self._computed = computed

        def is_stored(value: Value) -> bool:  # makes no reference cycle with this object
            return value not in computed and fusion.is_stored(value)

        self._shared = (
            graph,
            graph.producers,
            is_stored,
            fusion.places,
            lowering_of,
            features,
        )
        self._structures = Structures(graph, graph.producers, is_stored, fusion.places)
        self._written: dict[tuple[Any, ...], tuple[list[Kernel], tuple[Value, ...]]] = {}
        self._beside: set[Value] = set()
        if features.kind != "cpu":
            self._beside = _of_one_size(
                fusion, self._structures, lambda v: KernelBuilder(*self._shared, v, "", True)
            )

    def _make(self, root: Value) -> tuple[Make, str]:
        """Return what begins the kernels of a root, and the name of its tuned tile or ""."""
        tiles = self._features.tiles
        tile = tiles.get(key_of(self._structures.of(root)), "") if tiles else ""

        def make(writes: Value | None = None) -> KernelBuilder:
            target = root if writes is None else writes
            return KernelBuilder(*self._shared, target, tile, root in self._beside)

        return make, tile

    def write(self, root: Value) -> list[Kernel]:
        """Return the kernels of a root."""
        make, tile = self._make(root)
        fusion = self._fusion
        left = fusion.places.left.get(root)
        most = self._features.max_bindings

        def make_once(writes: Value | None = None) -> KernelBuilder:
            return _BoundOnce(*self._shared, root if writes is None else writes)

        def emitted() -> list[Kernel]:
            if left is not None:
                return [elementwise_kernel.emit_concat_rest(make(), self._producers[root], left)]
            anchor = fusion.anchor_of(root)
            kernels = emit(make, anchor)
            if any(len(kernel.reads) + len(kernel.writes) > most for kernel in kernels):
                return emit(make_once, anchor)
            return kernels

        return self._once((root in self._beside,), root, emitted, tile)

    def into_rows(self, product: Value, rows: Value) -> list[Kernel]:
        """Return the kernels of a split-K product and of the rows that add up its partial sums.

        The list is empty if the two cannot be joined so.
        """
        make, _ = self._make(product)
        node, reduction = self._fusion.anchor_of(product), self._fusion.anchor_of(rows)
        assert node is not None
        assert reduction is not None
        self._computed.add(product)
        make_rows, tile = self._make(rows)
        made = self._once(
            (product in self._beside, "rows"),
            rows,
            lambda: product_kernel.emit_split_k_into_rows(make, node, make_rows, reduction) or [],
            tile,
        )
        if not made:
            self._computed.remove(product)
        return made

    def _once(
        self, how: tuple[Any, ...], root: Value, write: Callable[[], list[Kernel]], tile: str
    ) -> list[Kernel]:
        """Return the kernels of a root: those of an equal structure, or new ones."""
        structure = self._structures.of(root)
        key = (*how, *structure.key)
        if key in self._written:
            made, values = self._written[key]
            made = _with_values(made, dict(zip(values, structure.values, strict=True)))
        else:
            made = write()
            self._written[key] = made, structure.values
        return [dataclasses.replace(kernel, roots=(root,), tile=tile) for kernel in made]


class _BoundOnce(KernelBuilder):
    """A builder that binds each of the graph's values once, where bindings are few."""

    def vector(self, value: Value) -> Callable[[str], str] | None:
        """Return a vector view of scratch values only."""
        return None if self._stored(value) else super().vector(value)

    def eights(self, value: Value) -> Callable[[str], str] | None:
        """Return a view of eight float16 of scratch values only."""
        return None if self._stored(value) else super().eights(value)


def _of_one_size(
    fusion: Fusion, structures: Structures, make: Callable[[Value], KernelBuilder]
) -> set[Value]:
    """Return the parallel products whose tiles should have workgroups of one size."""
    problems: dict[tuple[Any, ...], GemmProblem | None] = {}

    def problem_of(builder: KernelBuilder) -> GemmProblem | None:
        """Return the problem of a tiled float16 product, else None."""
        key = structures.of(builder.root).key
        if key not in problems:
            found = product_kernel.product_of(builder, fusion.anchor_of(builder.root))
            tiled = found is not None and not is_narrow(found.problem)
            halves = found is not None and found.problem.compute == "f16"
            problems[key] = found.problem if found is not None and tiled and halves else None
        return problems[key]

    alike: set[Value] = set()
    for group in parallel_products(fusion):
        builders = [make(root) for root in group]
        found = [problem for builder in builders if (problem := problem_of(builder)) is not None]
        if not found or prefer_equal_workgroups(found, gemm_limits(builders[0])):
            alike.update(group)
    return alike


def _with_values(kernels: Sequence[Kernel], values: dict[Value, Value]) -> list[Kernel]:
    """Return kernels with the same code for other values, and with scratch values of their own."""

    def other(value: Value) -> Value:
        if value not in values:
            values[value] = Value(value.data_type, value.shape, value.name)
        return values[value]

    return [
        dataclasses.replace(
            kernel,
            reads=tuple(
                dataclasses.replace(part, value=other(part.value)) for part in kernel.reads
            ),
            writes=tuple(
                dataclasses.replace(part, value=other(part.value)) for part in kernel.writes
            ),
        )
        for kernel in kernels
    ]


def parallel_products(fusion: Fusion) -> list[list[Value]]:
    """Return groups of nearby products that depend on equally long chains of kernels.

    They may run in one dispatch. Their tiles follow from that, so it is decided before the kernels
    are written.
    """
    depths: dict[Value, int] = {}
    last: dict[int, tuple[int, list[Value]]] = {}
    found: list[list[Value]] = []
    for number, root in enumerate(fusion.roots):
        depth = max((depths.get(leaf, 0) for leaf in fusion.leaves_of(root)), default=0)
        # A concat whose operands are all in place has no kernel.
        depths[root] = depth + (fusion.places.left.get(root) != ())
        anchor = fusion.anchor_of(root)
        if anchor is None or anchor.op not in PRODUCTS:
            continue
        before = last.get(depths[root])
        if before is None or number - before[0] >= PRODUCT_WINDOW:
            found.append([])
            before = number, found[-1]
        before[1].append(root)
        last[depths[root]] = number, before[1]
    return [group for group in found if len(group) > 1]


def _rows_behind(fusion: Fusion) -> dict[Value, Value]:
    """Return the products that only a row kernel reads, each with the root of that kernel.

    The row kernel may add up the partial sums of a split-K product as it reads them.
    """
    readers: dict[Value, list[Value]] = {}
    for root in fusion.roots:
        for leaf in fusion.leaves_of(root):
            readers.setdefault(leaf, []).append(root)
    found: dict[Value, Value] = {}
    for value in fusion.roots:
        anchor = fusion.anchor_of(value)
        if anchor is None or anchor.op != "matmul" or fusion.is_needed_whole(value):
            continue
        (*others, reader) = readers.get(value, [None])
        if reader is None or others or reader in found.values():
            continue
        rows = fusion.rows_at(reader)
        if rows is not None and rows.shape == value.shape == anchor.output.shape:
            found[value] = reader
    return found
