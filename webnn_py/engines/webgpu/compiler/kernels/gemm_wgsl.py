"""WGSL shared by all GEMM templates: guarded loads, stores, the grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from webnn_py.core.traced_queries import may_leave_remainder
from webnn_py.engines.webgpu.compiler.code.functions import Function
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_TILE,
    EntryPoint,
    Feature,
    WorkgroupArray,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import F16X8
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import GemmProblem, Limits, LoadHook
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, loop, u32

_GEMM_STORE, _GEMM_STORE4 = declared("gemm_store"), declared("gemm_store4")

MIN_LOOPED_STORES = 4
"""Stores per invocation from which a long epilogue is a loop.

Unrolled, it takes NVIDIA's compiler seconds, and runs at half the speed once it exceeds the
instruction cache.
"""


@dataclass(frozen=True, slots=True)
class Guards:
    """Which indices may be outside the matrices in a load."""

    m: bool
    n: bool
    k: bool

    @classmethod
    def of(cls, problem: GemmProblem, rows: int, columns: int, depth: int) -> Guards:
        """Return the guards of a product in blocks; open extents may leave a remainder."""
        extents = (problem.m, rows), (problem.n, columns), (problem.k, depth)
        return cls(*(may_leave_remainder(extent, block) for extent, block in extents))


@dataclass(frozen=True, slots=True)
class Grid:
    """The workgroup counts, and statements that name this workgroup's place in the grid."""

    workgroups: tuple[int, int, int]
    prologue: tuple[str, ...]


def fold_grid(columns: int, rows: int, batch: int, limits: Limits) -> Grid:
    """Fit `batch` grids of `rows` by `columns` workgroups into the device's limits.

    The prologue defines the u32 values `gemm_col`, `gemm_row` and `gemm_batch`.
    """
    most = limits.max_workgroups_per_dim
    if all(count <= most for count in (columns, rows, batch)):
        names = ("let gemm_col = wid.x;", "let gemm_row = wid.y;", "let gemm_batch = wid.z;")
        return Grid((columns, rows, batch), names)
    total = columns * rows * batch
    if total > 0xFFFFFFFF:
        raise ValueError(f"{total} workgroups cannot be counted in 32 bits")
    x = min(total, most)
    y = min(-(-total // x), most)
    z = -(-total // (x * y))
    if z > most:
        raise ValueError(f"{total} workgroups exceed a grid of {most} in each dimension")
    place = symbol("wid.x", x) + symbol("wid.y", y) * x + symbol("wid.z", z) * (x * y)
    index = symbol("gemm_index", total)
    return Grid(
        (x, y, z),
        (
            f"let gemm_index = {place};",
            f"if (gemm_index >= {u32(total)}) {{ return; }}",
            f"let gemm_col = {index % columns};",
            f"let gemm_row = {index // columns % rows};",
            f"let gemm_batch = {index // (columns * rows)};",
        ),
    )


def name_batch(problem: GemmProblem) -> list[str]:
    """Emit the name of the batch index.

    With a single batch it is a constant, which lets compilers fold the index arithmetic.
    """
    return ["let batch = gemm_batch;" if problem.batch > 1 else "const batch = 0u;"]


def entry_point(
    invocations: int,
    body: Sequence[str],
    functions: Sequence[Function],
    arrays: Sequence[WorkgroupArray] = (),
    features: frozenset[Feature] = frozenset(),
) -> EntryPoint:
    """Return the entry point of a workgroup of `invocations` around the statements of `body`."""
    lines = [f"  {line}" for line in body]
    return EntryPoint.of(invocations, BY_TILE, lines, arrays, functions, features=features)


def load_functions(
    problem: GemmProblem, guards: Guards, a_width: int, b_width: int, run: int = 1
) -> list[Function]:
    """Emit functions that load one element, a vec4, or eight f16 of each operand.

    They are `gemm_a`, `gemm_a4` or `gemm_a8` (`gemm_a16` of bytes), and the same for B;
    `gemm_a_low8` loads low halves. Past the end of k they return zeros, so a ragged last step adds
    nothing. Rows and columns past the end are clamped, as their results are never stored. With a
    run, those of B take k as two parameters: the run, and the place within it.
    """
    functions: list[Function] = []
    a_name = _Operand("a", "row", problem.m, guards.m, problem.k, guards.k, problem.a_major == "k")
    b_name = _Operand(
        "b", "col", problem.n, guards.n, problem.k, guards.k, problem.b_major == "k", run
    )
    for operand, width, hook, several, low8 in (  # of f32, four elements are wide, too
        (a_name, a_width, problem.a, {problem.wide: problem.a8, 4: problem.a4}, problem.a_low8),
        (b_name, b_width, problem.b, {problem.wide: problem.b8, 4: problem.b4}, problem.b_low8),
    ):
        if low8 is not None:
            functions.append(replace(operand, part="_low").function(problem, low8, width))
        wide = several.get(width)
        if wide is not None:
            functions.append(operand.function(problem, wide, width))
            continue
        functions.append(operand.function(problem, hook, 1))
        if width > 1:
            functions.append(operand.composed(problem))
    return functions


@dataclass(frozen=True, slots=True)
class _Operand:
    """One operand of the product, as the load functions see it."""

    name: str
    free: str
    extent: int
    guard_free: bool
    depth: int
    guard_k: bool
    along_k: bool
    run: int = 1
    part: str = ""

    def _name(self, width: int) -> str:
        name = f"gemm_{self.name}{self.part}"
        return f"{name}{width}" if width > 1 else name

    def _function(
        self, result: str, width: int, free: str, k: str, lines: Sequence[str]
    ) -> Function:
        ks = (k,) if self.run == 1 else ("run", "within")
        order = (free, *ks) if self.name == "a" else (*ks, free)
        parameters = ", ".join(f"{name}: u32" for name in ("batch", *order))
        text = "\n".join(["", *lines, ""])
        return Function.of(self._name(width), parameters, result, text)

    def _arguments(self, batch: Index, free: Index, k: Index) -> tuple[Index, Index, Index]:
        return (batch, free, k) if self.name == "a" else (batch, k, free)

    def function(self, problem: GemmProblem, hook: LoadHook, width: int) -> Function:
        """Emit a guarded call of the hook."""
        result = {1: problem.loaded, 4: problem.vec4}.get(width, F16X8)
        free = f"{self.free}_in" if self.guard_free else self.free
        k = "k_in" if self.guard_k else "k"
        lines: list[str] = []
        if self.guard_free:
            last = self.extent - (width if not self.along_k else 1)
            lines.append(f"  let {self.free} = {symbol(free).min(last)};")
        batch = symbol("batch", problem.batch)
        depth = symbol("k", self.depth)
        if self.run > 1:
            depth = symbol("run", self.depth // self.run) * self.run + symbol("within", self.run)
        value = hook(*self._arguments(batch, symbol(self.free, self.extent), depth))
        if self.guard_k:
            last = self.depth - (width if self.along_k else 1)
            lines.append(f"  let k = {symbol('k_in').min(last)};")
            lines.append(f"  return select({result}(), {value}, k_in < {u32(self.depth)});")
        else:
            lines.append(f"  return {value};")
        return self._function(result, width, free, k, lines)

    def composed(self, problem: GemmProblem) -> Function:
        """Emit a vec4 of four single loads."""
        calls = []
        for i in range(4):
            free, k = symbol(self.free), symbol("k")
            free, k = (free, k + i) if self.along_k else (free + i, k)
            order = self._arguments(symbol("batch"), free, k)
            arguments = ", ".join(map(str, order))
            if self.run > 1:
                arguments = f"batch, run, within, {free}"
            calls.append(f"{declared(f'gemm_{self.name}')}({arguments})")
        lines = [f"  return {problem.vec4}({', '.join(calls)});"]
        if problem.compute == "i8":
            codes = (f"((u32({call}) & 0xffu) << {u32(8 * i)})" for i, call in enumerate(calls))
            lines = [f"  return {' | '.join(codes)};"]
        return self._function(problem.vec4, 4, self.free, "k", lines)


def top_functions(problem: GemmProblem, guards: Guards) -> list[Function]:
    """Emit `gemm_a_top` and `gemm_b_top`, and `gemm_unit`, the unit of a row with a magnitude.

    A number divided by its unit, a power of 2, is below 2^15, so that its halves are finite in
    f16. Units are normal numbers, and so are their reciprocals.
    """
    functions = [
        Function.of(
            "gemm_unit",
            "top: f32",
            "f32",
            """
  let exponent = max((bitcast<u32>(top) >> 23u) & 255u, 15u);
  return bitcast<f32>((exponent - 14u) << 23u);
""",
        )
    ]
    for name, hook, extent, is_guarded in (
        ("a", problem.a_top, problem.m, guards.m),
        ("b", problem.b_top, problem.n, guards.n),
    ):
        assert hook is not None
        place = symbol("place").min(extent - 1) if is_guarded else symbol("place", extent)
        text = f"\n  return {hook(symbol('batch', problem.batch), place)};\n"
        functions.append(Function.of(f"gemm_{name}_top", "batch: u32, place: u32", "f32", text))
    return functions


def store_functions(problem: GemmProblem, *, wide: bool) -> list[Function]:
    """Emit `gemm_store4` (with `wide` and a `store4` hook) or `gemm_store`, without guards."""
    if wide and problem.store4 is not None:
        function, hook, type_ = "gemm_store4", problem.store4, problem.total4
    else:
        function, hook, type_ = "gemm_store", problem.store, problem.total
    indices = symbol("batch", problem.batch), symbol("row", problem.m), symbol("col", problem.n)
    parameters = f"batch: u32, row: u32, col: u32, value: {type_}"
    # In a block: the hook may declare any name, even those of the parameters.
    text = f"\n  {{ {hook(*indices, 'value')} }}\n"
    return [Function.of(function, parameters, "", text)]


def store_values(
    problem: GemmProblem, row: Index, col: Index, value: str, *, wide: bool, guard: bool
) -> list[str]:
    """Emit the store of one element of a row, or with `wide` of four consecutive ones."""
    if wide and problem.store4 is not None:
        call = f"{_GEMM_STORE4}(batch, {row}, {col}, {value});"
        return [f"if ({col} < {u32(problem.n)}) {{ {call} }}" if guard else call]
    lines = []
    for i in range(4 if wide else 1):
        element = f"{value}.{'xyzw'[i]}" if wide else value
        call = f"{_GEMM_STORE}(batch, {row}, {col + i}, {element});"
        lines.append(f"if ({col + i} < {u32(problem.n)}) {{ {call} }}" if guard else call)
    return lines


VECTORS_AT_ONCE = 8
"""Vec4s of an invocation that are computed before any of them is stored."""


def store_together(
    problem: GemmProblem, guards: Guards, places: Mapping[str, tuple[Index, Index]]
) -> list[str]:
    """Emit the stores of vec4s, several of which are computed before any of these is stored.

    No driver moves an epilogue's load before a store to another buffer, so that each load between
    stores takes its whole latency.

    Args:
        problem: The problem, with `result4`.
        guards: Which places may be outside.
        places: Row and column of each vec4, by the name of its variable.
    """
    assert problem.result4 is not None
    assert problem.write4 is not None
    batch, lines = symbol("batch", problem.batch), ["{"]
    puts: list[str] = []
    for number, (value, (row, col)) in enumerate(places.items()):
        if number and number % VECTORS_AT_ONCE == 0:
            lines += [*puts, "}", "{"]
            puts = []
        names = symbol(f"row_{number}", problem.m), symbol(f"col_{number}", problem.n)
        lines += [
            f"let row_{number} = {row};",
            f"let col_{number} = {col};",
            f"let stored_{number} = {problem.result4(batch, *names, value)};",
        ]
        inside = [
            *([f"row_{number} < {u32(problem.m)}"] if guards.m else ()),
            *([f"col_{number} < {u32(problem.n)}"] if guards.n else ()),
        ]
        put = problem.write4(batch, *names, f"stored_{number}")
        puts.append(f"if ({' && '.join(inside)}) {{ {put} }}" if inside else put)
    return [*lines, *puts, "}"]


def loops_stores(problem: GemmProblem, stores: int) -> bool:
    """Whether to store in a loop, so that the epilogue's code appears once."""
    return problem.long_stores and stores >= MIN_LOOPED_STORES


def store_loop(
    values: Sequence[str], type_: str, zero: str, store: Callable[[str, Index], list[str]]
) -> list[str]:
    """Emit a loop that stores one value after the other; the epilogue's code appears once.

    Args:
        values: The variables to store.
        type_: Their type.
        zero: An expression whose value 0 compilers cannot prove, so that they do not unroll the
            loop.
        store: Emits the store of a variable, by name and number.
    """
    count = len(values)
    cases = " ".join(f"case {i}u: {{ stored = {value}; }}" for i, value in enumerate(values))
    return [
        loop(f"for (var s = 0u; s < {u32(count)} + ({zero}); s++)", count + 1),
        f"var stored = {type_}();",
        f"switch s {{ {cases} default: {{}} }}",
        *store("stored", symbol("s", count)),
        END_LOOP,
    ]


def add_product(problem: GemmProblem, target: str, left: str, right: str, width: int) -> str:
    """Emit `target += left * right` of `width` elements."""
    if problem.total != problem.compute:
        type_ = problem.total4 if width == 4 else problem.total
        left, right = f"{type_}({left})", f"{type_}({right})"
    return f"{target} = fma({left}, {right}, {target});"


def multiply_add(problem: GemmProblem, target: str, scalar: str, vector: str, width: int) -> str:
    """Emit `target += scalar * vector` of `width` elements."""
    factor = f"{problem.vec4}({scalar})" if width == 4 else scalar
    return add_product(problem, target, factor, vector, width)
