"""The shape of a matrix multiplication through shared memory, and the memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem


@dataclass(frozen=True, slots=True)
class SharedTile:
    """The shape of a tiled kernel.

    Attributes:
        rows: Rows of C a workgroup computes.
        cols: Columns of C a workgroup computes.
        depth: Extent of the shared tiles along k, a multiple of 4.
        block_rows: Rows of C an invocation computes, a multiple of 4.
        block_cols: Columns of C an invocation computes, a multiple of 4.
        slices: Groups of invocations that share the tile and split its depth between them.
        merge: Slices added at a time in the end, each of which takes shared memory.
    """

    rows: int
    cols: int
    depth: int
    block_rows: int = 8
    block_cols: int = 8
    slices: int = 1
    merge: int = 1

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

    def storage(self, problem: GemmProblem) -> int:
        """Bytes of shared memory."""
        copies = copies_of(problem)
        shared = (self.rows * copies + self.cols) * self.depth * problem.element_bytes
        if self.slices > 1:
            shared += self.rows * self.cols * self.merge * problem.total_bytes
        return shared


def copies_of(problem: GemmProblem) -> int:
    """How often each element of A lies in its shared tile.

    Halves are multiplied in pairs. Repeating one element in both halves of a register takes as
    long as a multiplication, unless it comes so from memory.
    """
    return 2 if problem.compute == "f16" else 1
