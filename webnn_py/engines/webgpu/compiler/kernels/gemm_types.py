"""What a matrix multiplication kernel is made from: the problem, the limits, and the result.

The templates beside this file turn a `GemmProblem` into WGSL. A problem knows nothing of buffers:
hooks, Python callables that return WGSL, read the operands and write the product, so that the same
templates serve matmul, gemm, convolution (with an im2col gather as a hook) and fused epilogues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from webnn_py.core.traced_queries import divides, with_sampled
from webnn_py.engines.webgpu.compiler.code.index import Index

LoadHook = Callable[[Index, Index, Index], str]
StoreHook = Callable[[Index, Index, Index, str], str]

_SIZES = {"f32": 4, "f16": 2, "i32": 4, "u32": 4}


@dataclass(frozen=True, slots=True)
class Limits:
    """The device limits a kernel must stay within.

    Attributes:
        max_workgroup_storage: Bytes of `var<workgroup>` memory.
        max_invocations: Invocations in one workgroup.
        max_workgroups_per_dim: Workgroups in one dimension of a dispatch.
        beside: Other products may run in the same dispatch.
    """

    max_workgroup_storage: int = 16384
    max_invocations: int = 256
    max_workgroups_per_dim: int = 65535
    beside: bool = False


@dataclass(frozen=True, slots=True)
class TileKernel:
    """A kernel without its bindings.

    Attributes:
        code: WGSL with the entry point `main`; the caller prepends `enable` directives and the
            declarations its hooks name. Every module-scope name in it begins with `gemm_`.
        workgroups: The arguments of `dispatch_workgroups`.
    """

    code: str
    workgroups: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Product:
    """A node as a matrix multiplication.

    Attributes:
        problem: What it is; its hooks store by the functions of the epilogue.
        place: The flat index in the node's output of an element of C.
        put: The call of a function of the epilogue, `put` or `put4`, for a flat index and a value.
        emit_epilogue: Adds these functions.
    """

    problem: GemmProblem
    place: Callable[[Index, Index, Index], Index]
    put: Callable[[str, Index, str], str]
    emit_epilogue: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """C[batch, m, n] = A[batch, m, k] · B[batch, k, n], seen through hooks.

    Each hook receives indices and, for `value`, the name of a `total` variable; it returns WGSL.
    Indices are in range whenever a hook is called; the template pads with zeros outside.

    Attributes:
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A, rows of B.
        batch: Number of independent products.
        compute: WGSL type of what the load hooks return. Sums are of the same type, but for f16.
        a: `a(batch, row, k)`: an expression for one element of A.
        b: `b(batch, k, col)`: an expression for one element of B.
        a4: The same for a vec4 of elements that are consecutive along `a_major`; the extent
            along it is then a multiple of 4.
        b4: The same for B along `b_major`.
        a8: The same for eight halves that are consecutive along k, two to a word of a vec4<u32>,
            where that is `a_major`; k is then a multiple of 8.
        b8: The same for B, where k is `b_major`.
        store: `store(batch, row, col, value)`: statements that write one element of C.
        store4: The same for a vec4 of consecutive columns; n is then a multiple of 4.
        k_run: Runs of k, of which k is a multiple, that the hooks of B divide it by; 1 for none.
            A tile within one run divides for all of its elements at once.
        looped: Steps of small tiles are a loop, however large the product.
        long_stores: What stores an element is long code, as it computes a gelu, say.
        a_major: The index along which A is contiguous in memory.
        b_major: The index along which B is contiguous in memory.
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
    store: StoreHook
    store4: StoreHook | None = None
    k_run: int = 1
    looped: bool = False
    long_stores: bool = False
    a_major: Literal["k", "m"] = "k"
    b_major: Literal["n", "k"] = "n"

    def __post_init__(self) -> None:
        """Reject what no kernel can be emitted for."""
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
        for hook, major in ((self.a8, self.a_major), (self.b8, self.b_major)):
            if hook is not None and (major != "k" or not divides(8, self.k)):
                raise ValueError(f"eight halves need k divisible by 8, got {self.k} by {major}")

    def sampled(self) -> GemmProblem:
        """The problem for the sizes that are traced, for which one is chosen that serves others."""
        return with_sampled(self, "m", "n", "k", "batch")

    def divided(self, parts: int) -> GemmProblem:
        """The problem whose batches are parts of k, which follow one another in each of these."""
        depth = self.k // parts

        def of_a(hook: LoadHook) -> LoadHook:
            return lambda batch, row, k: hook(batch // parts, row, batch % parts * depth + k)

        def of_b(hook: LoadHook) -> LoadHook:
            return lambda batch, k, col: hook(batch // parts, batch % parts * depth + k, col)

        return replace(
            self,
            k=depth,
            batch=self.batch * parts,
            a=of_a(self.a),
            b=of_b(self.b),
            a4=None if self.a4 is None else of_a(self.a4),
            b4=None if self.b4 is None else of_b(self.b4),
            a8=None if self.a8 is None or depth % 8 else of_a(self.a8),
            b8=None if self.b8 is None or depth % 8 else of_b(self.b8),
            k_run=self.k_run if depth % self.k_run == 0 else 1,
        )

    @property
    def vec4(self) -> str:
        """The WGSL type of four elements."""
        return f"vec4<{self.compute}>"

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the compute type."""
        return _SIZES[self.compute]

    @property
    def total(self) -> str:
        """The WGSL type of the elements of C: sums of halves are float32."""
        return "f32" if self.compute == "f16" else self.compute

    @property
    def total4(self) -> str:
        """The WGSL type of four elements of C."""
        return f"vec4<{self.total}>"

    @property
    def total_bytes(self) -> int:
        """Bytes of one element of C."""
        return _SIZES[self.total]

    @property
    def in_eights(self) -> bool:
        """Whether both operands can be loaded eight halves at a time."""
        return self.a8 is not None and self.b8 is not None

    @property
    def is_float(self) -> bool:
        """Whether products may be fused into the addition."""
        return self.compute.startswith("f")

    def transposed(self) -> GemmProblem:
        """The problem Cᵀ = Bᵀ·Aᵀ, which writes the same elements of C."""
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
            a_major="m" if self.b_major == "n" else "k",
            b_major="n" if self.a_major == "m" else "k",
        )


LARGE = 64
"""Elements of a large block."""

LARGEST = 128
"""Elements of the largest blocks."""


@dataclass(frozen=True, slots=True)
class SharedTile:
    """The shape of a tiled kernel.

    Attributes:
        rows: Rows of C a workgroup computes, an even number of blocks.
        cols: Columns of C a workgroup computes.
        depth: Extent of the shared tiles along k, a multiple of 4.
        block_rows: Rows of C an invocation computes, a multiple of 4.
        block_cols: Columns of C an invocation computes, a multiple of 4.
        slices: Groups of invocations that share the tile and split its depth between them.
    """

    rows: int
    cols: int
    depth: int
    block_rows: int = 8
    block_cols: int = 8
    slices: int = 1

    @property
    def across(self) -> int:
        """Invocations side by side along the columns."""
        return self.cols // self.block_cols

    @property
    def down(self) -> int:
        """Invocations below one another along the rows."""
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
    def written(self) -> int:
        """Multiplications that are written out, if its steps are no loop."""
        return self.block_rows * self.block_cols * self.depth // self.slices

    @property
    def share(self) -> int:
        """Of these, what each slice adds up for all of them, or some slices, if there are more."""
        return -(-self.block // self.slices)

    def steps(self, problem: GemmProblem) -> int:
        """Steps of k whose products are computed together."""
        return 2 if problem.compute == "f16" and not self._is_large else 1

    def copies(self, problem: GemmProblem) -> int:
        """How often each element of A lies in its shared tile."""
        return 2 if problem.compute == "f16" and self._is_large else 1

    @property
    def _is_large(self) -> bool:
        """Whether the block of an invocation leaves no registers for twice the sums."""
        return self.block_rows * self.block_cols >= LARGE and self.slices == 1

    @property
    def fills_registers(self) -> bool:
        """Whether the block of an invocation leaves few registers for what is loaded."""
        return self.block_rows * self.block_cols >= LARGEST

    def storage(self, problem: GemmProblem) -> int:
        """Bytes of shared memory, at least."""
        shared = self._tiles(problem)
        return shared + self.share * self._exchange(problem) if self.slices > 1 else shared

    def exchanged(self, problem: GemmProblem, most: int) -> int:
        """How many vec4s of C the slices exchange at once, within so many bytes."""
        fitting = (most - self._tiles(problem)) // self._exchange(problem)
        return min(max(fitting // self.share, 1) * self.share, self.block)

    def padding(self, turned: bool) -> int:
        """Units by which steps of k of a shared tile lie further apart than they need be.

        Where vectors along k are transposed, invocations side by side write different steps of k,
        and would write to the same banks. Others have few of them, or more to do besides.
        """
        return int(turned and self.block == 4 and self.slices <= 2)

    def _tiles(self, problem: GemmProblem) -> int:
        rows = self.rows + 4 * self.padding(problem.a_major == "k")
        cols = self.cols + 4 * self.padding(problem.b_major == "k")
        elements = rows * self.copies(problem) + cols
        return elements * self.depth * problem.element_bytes

    def _exchange(self, problem: GemmProblem) -> int:
        return self.invocations * 4 * problem.total_bytes
