"""Types of the GEMM templates: the problem, the device limits, the tile and the result.

The templates in this folder turn a `GemmProblem` into WGSL. A problem has no buffers, only hooks:
Python functions that return WGSL to load operands and store the product. So the same templates
serve matmul, gemm, convolution (im2col in a hook) and fused epilogues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

from webnn_py.core.traced_queries import divides, with_sampled
from webnn_py.engines.webgpu.compiler.code.index import Index
from webnn_py.engines.webgpu.compiler.kernel import EntryPoint, WorkgroupArray
from webnn_py.engines.webgpu.program.storage import MatrixShape

LoadHook = Callable[[Index, Index, Index], str]
StoreHook = Callable[[Index, Index, Index, str], str]
PlaceHook = Callable[[Index, Index], str]

_SIZES = {"f32": 4, "f16": 2, "i32": 4, "u32": 4, "i8": 1, "split": 2}

MAX_SPLIT_REGISTERS = 160
"""Floats that an invocation may hold of results and of tiles on their way to shared memory.

More of them spill, as the matrices of both halves need registers, too.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Device limits for a kernel.

    Attributes:
        max_workgroup_storage: Bytes of `var<workgroup>` memory.
        max_invocations: Invocations in one workgroup.
        max_workgroups_per_dim: Workgroups in one dimension of a dispatch.
        may_share_dispatch: Whether other products may run in the same dispatch.
        matrix: Shape of the device's matrices of float16 with sums of float32, if it has any.
        i8_matrix: Shape of its matrices of int8 with sums of int32, if it has any.
    """

    max_workgroup_storage: int = 16384
    max_invocations: int = 256
    max_workgroups_per_dim: int = 65535
    may_share_dispatch: bool = False
    matrix: MatrixShape | None = None
    i8_matrix: MatrixShape | None = None

    def matrix_of(self, compute: str) -> MatrixShape | None:
        """Return the shape of the matrices of a type, if the device has any."""
        return {"f16": self.matrix, "split": self.matrix, "i8": self.i8_matrix}.get(compute)


class Prologue(Protocol):
    """What a workgroup computes before its loop, for the hooks of A."""

    def fill(self, invocations: int) -> Sequence[str]:
        """Emit the statements, for all invocations `lid` of a workgroup, and a last barrier."""

    def arrays(self, invocations: int) -> Sequence[WorkgroupArray]:
        """Return the workgroup arrays that they and the hooks use."""


@dataclass(frozen=True, slots=True)
class TileKernel:
    """A kernel without its bindings.

    Attributes:
        entry: The entry point; the caller adds `enable` directives and the declarations that its
            hooks name. Every module-scope name in it begins with `gemm_`.
        workgroups: The arguments of `dispatch_workgroups`.
    """

    entry: EntryPoint
    workgroups: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Product:
    """A node as a matrix multiplication.

    Attributes:
        problem: The problem; its hooks store through the epilogue's functions.
        place: Returns the flat index in the node's output of an element of C.
        put: Emits the call of the epilogue's `put` or `put4`, for a flat index and a value.
        emit_epilogue: Adds these functions.
    """

    problem: GemmProblem
    place: Callable[[Index, Index, Index], Index]
    put: Callable[[str, Index, str], str]
    emit_epilogue: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """C[batch, m, n] = A[batch, m, k] · B[batch, k, n], seen through hooks.

    A hook takes indices and, for `value`, a variable of type `total`; it returns WGSL. Indices are
    always in range; templates pad with zeros outside.

    Attributes:
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A, rows of B.
        batch: Number of independent products.
        compute: WGSL type of loaded elements. Sums have the same type, but f32 for f16. Two are no
            types in WGSL. "i8" are signed bytes, loaded one as i32 or four as u32, and summed as
            i32. "split" are f32 that are scaled and split into two halves of f16, whose products
            are summed in f32.
        a: `a(batch, row, k)`: expression of one element of A.
        b: `b(batch, k, col)`: expression of one element of B.
        a4: The same for a vec4 of elements that are consecutive along `a_major`; the extent along
            it must be a multiple of 4.
        b4: The same for B along `b_major`.
        a8: The same for eight f16 or sixteen bytes, which fill a vec4<u32>; the extent must be a
            multiple of that.
        b8: The same for B.
        a_low8: Where A is stored in scaled halves, `a8` loads eight high ones and this the low
            ones.
        b_low8: The same for B.
        a_top: `a_top(batch, row)`: the largest magnitude in a row of A, by which it is scaled, for
            "split".
        b_top: `b_top(batch, col)`: the same for a column of B.
        partial: `partial(batch, row, col)`: an assignable expression in which sums of an element
            of C may wait, or of four with `store4`.
        store: `store(batch, row, col, value)`: statements that store one element of C.
        store4: The same for a vec4 of consecutive columns; n must be a multiple of 4.
        result4: `result4(batch, row, col, value)`: expression of what `store4` stores, if several
            should be computed before any is stored.
        write4: `write4(batch, row, col, made)`: statements that store it.
        k_run: Extent of k within which B's hooks need no new division; divides k. 1 if there is
            none. A tile within one run divides once for all its elements.
        looped: Whether small tiles loop over steps of k, however large the product.
        long_stores: Whether the epilogue is long code, such as a gelu.
        by_matrices: Whether only subgroup matrices may multiply it, as float16 would be too coarse
            for its sums.
        a_major: The index along which A is contiguous in memory.
        b_major: The index along which B is contiguous in memory.
        prologue: What computes A before the loop of a product with one row, if it is not stored.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    compute: str = "f32"
    a: LoadHook
    b: LoadHook
    a4: LoadHook | None = None
    b4: LoadHook | None = None
    a8: LoadHook | None = None
    b8: LoadHook | None = None
    a_low8: LoadHook | None = None
    b_low8: LoadHook | None = None
    a_top: PlaceHook | None = None
    b_top: PlaceHook | None = None
    partial: LoadHook | None = None
    store: StoreHook
    store4: StoreHook | None = None
    result4: StoreHook | None = None
    write4: StoreHook | None = None
    k_run: int = 1
    looped: bool = False
    long_stores: bool = False
    by_matrices: bool = False
    a_major: Literal["k", "m"] = "k"
    b_major: Literal["n", "k"] = "n"
    prologue: Prologue | None = None

    def __post_init__(self) -> None:
        """Reject problems that no template supports."""
        if any(extent < 1 for extent in (self.m, self.n, self.k, self.batch)):
            raise ValueError(
                f"m, n, k and batch must be at least 1, got {self.m}, {self.n}, {self.k} and "
                f"{self.batch}"
            )
        if self.compute not in _SIZES:
            raise ValueError(f"compute must be one of {sorted(_SIZES)}, got {self.compute!r}")
        along_a = self.k if self.a_major == "k" else self.m
        along_b = self.n if self.b_major == "n" else self.k
        for hook, extent in ((self.a4, along_a), (self.b4, along_b), (self.store4, self.n)):
            if hook is not None and not divides(4, extent):
                raise ValueError(f"a vec4 hook needs an extent divisible by 4, got {extent}")
        for hook, extent in ((self.a8, along_a), (self.b8, along_b)):
            if hook is not None and not divides(self.wide, extent):
                raise ValueError(f"a wide hook needs a multiple of {self.wide}, got {extent}")

    def sampled(self) -> GemmProblem:
        """Return the problem with representative sizes for traced ones, to choose a tile."""
        return with_sampled(self, "m", "n", "k", "batch")

    def divided(self, parts: int) -> GemmProblem:
        """Return the problem whose batches are parts of k; the parts of a batch are consecutive."""
        depth = self.k // parts

        def of_a(hook: LoadHook) -> LoadHook:
            return lambda batch, row, k: hook(batch // parts, row, batch % parts * depth + k)

        def of_b(hook: LoadHook) -> LoadHook:
            return lambda batch, k, col: hook(batch // parts, batch % parts * depth + k, col)

        def of_place(hook: PlaceHook | None) -> PlaceHook | None:
            return None if hook is None else lambda batch, place: hook(batch // parts, place)

        return replace(
            self,
            k=depth,
            batch=self.batch * parts,
            a=of_a(self.a),
            b=of_b(self.b),
            a4=None if self.a4 is None else of_a(self.a4),
            b4=None if self.b4 is None else of_b(self.b4),
            a8=None if self.a8 is None or not self._keeps_eights("a", depth) else of_a(self.a8),
            b8=None if self.b8 is None or not self._keeps_eights("b", depth) else of_b(self.b8),
            a_low8=None if self.a_low8 is None else of_a(self.a_low8),
            b_low8=None if self.b_low8 is None else of_b(self.b_low8),
            a_top=of_place(self.a_top),
            b_top=of_place(self.b_top),
            k_run=self.k_run if depth % self.k_run == 0 else 1,
        )

    def _keeps_eights(self, operand: Literal["a", "b"], depth: int) -> bool:
        """Whether a part of k that is `depth` long consists of whole eights of an operand."""
        major = self.a_major if operand == "a" else self.b_major
        return major != "k" or depth % self.wide == 0

    @property
    def wide(self) -> int:
        """Elements of a vec4<u32>."""
        return 16 // self.element_bytes

    @property
    def loaded(self) -> str:
        """The WGSL type of one loaded element."""
        return {"i8": "i32", "split": "f32"}.get(self.compute, self.compute)

    @property
    def vec4(self) -> str:
        """The WGSL type of four elements."""
        return "u32" if self.compute == "i8" else f"vec4<{self.loaded}>"

    @property
    def multiplied(self) -> str:
        """The type of the elements that matrices hold."""
        return "f16" if self.compute == "split" else self.compute

    @property
    def halves(self) -> int:
        """Numbers in the matrices for each element of an operand: 2 where it is split in halves."""
        return 2 if self.compute == "split" else 1

    @property
    def element_bytes(self) -> int:
        """Bytes of one multiplied element."""
        return _SIZES[self.compute]

    @property
    def total(self) -> str:
        """The WGSL type of the elements of C; f16 is summed in f32, bytes in i32."""
        return {"f16": "f32", "split": "f32", "i8": "i32"}.get(self.compute, self.compute)

    @property
    def total4(self) -> str:
        """The WGSL type of four elements of C."""
        return f"vec4<{self.total}>"

    @property
    def total_bytes(self) -> int:
        """Bytes of one element of C."""
        return _SIZES[self.total]

    @property
    def has_vec8_loads(self) -> bool:
        """Whether both operands can be loaded eight f16 along k at a time."""
        hooks = self.a8, self.b8
        return None not in hooks and self.a_major == self.b_major == "k"

    def transposed(self) -> GemmProblem:
        """Return the problem Cᵀ = Bᵀ·Aᵀ, which stores the same elements of C."""
        a, b, a4, b4, store = self.a, self.b, self.a4, self.b4, self.store
        a8, b8 = self.a8, self.b8
        return replace(
            self,
            m=self.n,
            n=self.m,
            a=lambda batch, row, k: b(batch, k, row),
            b=lambda batch, k, col: a(batch, col, k),
            a4=None if b4 is None else lambda batch, row, k: b4(batch, k, row),
            b4=None if a4 is None else lambda batch, k, col: a4(batch, col, k),
            a8=None if b8 is None else lambda batch, row, k: b8(batch, k, row),
            b8=None if a8 is None else lambda batch, k, col: a8(batch, col, k),
            store=lambda batch, row, col, value: store(batch, col, row, value),
            store4=None,
            result4=None,
            write4=None,
            a_major="m" if self.b_major == "n" else "k",
            b_major="n" if self.a_major == "m" else "k",
        )


LARGE_BLOCK = 64
"""Elements of a large register tile."""

REGISTER_FILLING_BLOCK = 128
"""Elements of a register tile that fills the registers."""


@dataclass(frozen=True, slots=True)
class SharedTile:
    """The shape of a tiled kernel.

    Attributes:
        rows: Rows of C that a workgroup computes, an even number of register tiles.
        cols: Columns of C that a workgroup computes.
        depth: Extent of the shared tiles along k, a multiple of 4.
        block_rows: Rows of an invocation's register tile, a multiple of 4.
        block_cols: Columns of the register tile, a multiple of 4.
        slices: Groups of invocations that split the tile's depth between them.
    """

    rows: int
    cols: int
    depth: int
    block_rows: int = 8
    block_cols: int = 8
    slices: int = 1

    @property
    def across(self) -> int:
        """Invocations along the columns."""
        return self.cols // self.block_cols

    @property
    def down(self) -> int:
        """Invocations along the rows."""
        return self.rows // self.block_rows

    @property
    def team(self) -> int:
        """Invocations of one slice."""
        return self.across * self.down

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return self.team * self.slices

    @property
    def block(self) -> int:
        """Vec4s of C in registers."""
        return self.block_rows * self.block_cols // 4

    @property
    def unrolled_multiplications(self) -> int:
        """Multiplications of the unrolled steps."""
        return self.block_rows * self.block_cols * self.depth // self.slices

    @property
    def share(self) -> int:
        """Vec4s of C that a slice adds up for all slices; the last slices may have none."""
        return -(-self.block // self.slices)

    def steps(self, problem: GemmProblem) -> int:
        """Return the steps of k whose products are computed together."""
        return 2 if problem.compute == "f16" and not self._is_large else 1

    def copies(self, problem: GemmProblem) -> int:
        """Return how often shared memory holds each element of A."""
        return 2 if problem.compute == "f16" and self._is_large else 1

    @property
    def _is_large(self) -> bool:
        """Whether the register tile leaves no registers for twice the sums."""
        return self.block_rows * self.block_cols >= LARGE_BLOCK and self.slices == 1

    @property
    def fills_registers(self) -> bool:
        """Whether the register tile leaves few registers for loads."""
        return self.block_rows * self.block_cols >= REGISTER_FILLING_BLOCK

    def storage(self, problem: GemmProblem) -> int:
        """Return the minimum bytes of shared memory."""
        shared = self._tile_bytes(problem)
        return shared + self.share * self._exchange_bytes(problem) if self.slices > 1 else shared

    def exchanged(self, problem: GemmProblem, most: int) -> int:
        """Return the vec4s of C that slices exchange at once, within `most` bytes."""
        fitting = (most - self._tile_bytes(problem)) // self._exchange_bytes(problem)
        return min(max(fitting // self.share, 1) * self.share, self.block)

    def padding(self, transposed: bool) -> int:
        """Return the padding between steps of k of a shared tile, in vec4s.

        Where loads along k are transposed, adjacent invocations write different steps of k, to the
        same memory banks without padding. Other tiles have few such conflicts, or more work to hide
        them.
        """
        return int(transposed and self.block == 4 and self.slices <= 2)

    def _tile_bytes(self, problem: GemmProblem) -> int:
        """Bytes of the shared tiles."""
        rows = self.rows + 4 * self.padding(problem.a_major == "k")
        cols = self.cols + 4 * self.padding(problem.b_major == "k")
        elements = rows * self.copies(problem) + cols
        return elements * self.depth * problem.element_bytes

    def _exchange_bytes(self, problem: GemmProblem) -> int:
        """Bytes to exchange one vec4 of C of each invocation."""
        return self.invocations * 4 * problem.total_bytes


@dataclass(frozen=True, slots=True)
class SubgroupTile:
    """The shape of a kernel that multiplies by subgroup matrices.

    Attributes:
        rows: Rows of C that a workgroup computes.
        cols: Columns of C that a workgroup computes.
        depth: Extent of the shared tiles along k.
        down: Subgroups along the rows.
        across: Subgroups along the columns.
    """

    rows: int
    cols: int
    depth: int
    down: int
    across: int

    PADDING_BYTES: ClassVar[int] = 16
    """Bytes between two lines of a shared tile, so that they begin in different banks."""
    INVOCATIONS: ClassVar[int] = 32
    """Invocations of a subgroup."""
    RESULT_ELEMENTS: ClassVar[int] = 256
    """Elements of the shared memory through which a subgroup stores a result matrix."""

    @property
    def subgroups(self) -> int:
        """Subgroups of a workgroup."""
        return self.down * self.across

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return self.subgroups * self.INVOCATIONS

    @property
    def unrolled_multiplications(self) -> int:
        """Estimated compile cost, as a number of unrolled scalar multiplications."""
        return self.rows * self.cols * self.depth // self.subgroups // 64

    def storage(self, problem: GemmProblem) -> int:
        """Return the bytes of shared memory: both tiles, and a result matrix of each subgroup."""
        elements = 0
        for extent, major in ((self.rows, problem.a_major), (self.cols, problem.b_major)):
            lines = extent if major == "k" else self.depth
            elements += extent * self.depth + lines * self.PADDING_BYTES // problem.element_bytes
        tiles = elements * problem.element_bytes * problem.halves
        units = self.units * problem.total_bytes if problem.compute == "split" else 0
        return tiles + units + self.subgroups * self.RESULT_ELEMENTS * problem.total_bytes

    @property
    def units(self) -> int:
        """Rows and columns, which have a scale each where operands are split."""
        return self.rows + self.cols

    @property
    def fits_split(self) -> bool:
        """Whether an invocation has the registers to split what it loads."""
        loaded = self.units * self.depth // self.invocations
        return self.rows * self.cols // self.invocations + loaded <= MAX_SPLIT_REGISTERS

    def divides_into(self, shape: MatrixShape | None) -> bool:
        """Whether the tile consists of whole matrices of the device's shape."""
        if shape is None or shape.invocations != self.INVOCATIONS:
            return False
        pairs = (self.rows, self.down * shape.m), (self.cols, self.across * shape.n)
        is_whole = all(size % unit == 0 for size, unit in (*pairs, (self.depth, shape.k)))
        return is_whole and shape.m * shape.n <= self.RESULT_ELEMENTS
