"""The shape of a matrix multiplication through shared memory, and the memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem

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
