"""A finished kernel, what it binds, and how it is dispatched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.program.plan import BindingType
from webnn_py.ir import Value

WORDS = "var<uniform> numbers"
"""How a kernel declares the words that it reads."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one binding shows of a value's buffer; the whole, unless it exceeds the limit.

    Attributes:
        value: The value.
        offset: Bytes from the tensor's beginning.
        size: Bytes.
    """

    value: Value
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A finished kernel.

    Attributes:
        name: For labels and listings.
        code: WGSL, with the entry point `main`.
        reads: The parts of values bound, in the order of their bindings from 0.
        writes: Those bound after them.
        workgroups: The dispatch.
        times: How often it is dispatched in a row. It may count in what it writes.
        numbers: Words of a uniform buffer bound behind the rest, if there are any.
        roots: The values of the graph that it computes, perhaps with other kernels.
        tile: The name of its tile, where that was measured on the adapter.
    """

    name: str
    code: str
    reads: tuple[Part, ...]
    writes: tuple[Part, ...]
    workgroups: tuple[int, int, int]
    times: int = 1
    numbers: tuple[int, ...] = ()
    roots: tuple[Value, ...] = ()
    tile: str = ""

    @property
    def reads_words(self) -> bool:
        """Whether there is such a buffer, for these sizes or any."""
        return WORDS in self.code

    @property
    def bindings(self) -> list[BindingType]:
        """What it binds, in the order of their numbers from 0."""
        bound: list[BindingType] = ["read-only-storage"] * len(self.reads)
        bound += ["storage"] * len(self.writes)
        return [*bound, "uniform"] if self.reads_words else bound


def grid(count: int, limit: int) -> tuple[int, int, int]:
    """Workgroups of a linear dispatch, folded over y where x alone does not reach."""
    if count <= limit:
        return (count, 1, 1)
    rows = -(-count // limit)
    return (-(-count // rows), rows, 1)


def place_in(groups: Sequence[int], each: int = 1) -> Index:
    """The number of an invocation of a `grid` by its `g`, with `each` of them along g.x a group."""
    return symbol("g.x") + symbol("g.y", groups[1]) * (groups[0] * each)
