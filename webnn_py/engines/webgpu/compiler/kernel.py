"""Kernels as data: bindings, workgroup arrays, functions and entry point; `Shader` prints WGSL."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from webnn_py.core.shape_tracing import has_mark
from webnn_py.engines.webgpu.compiler.code.functions import PRELUDE, Function, count_uses
from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.loop_bounds import iterations_of
from webnn_py.engines.webgpu.program.pieces import Code
from webnn_py.engines.webgpu.program.plan import BindingType
from webnn_py.ir import Value

Feature = Literal["shader-f16", "shader-int64", "chromium-experimental-subgroup-matrix"]

_DIRECTIVES: dict[Feature, str] = {
    "shader-f16": "enable f16;",
    # Offsets of matrices come from the number of the subgroup, which Tint takes for non-uniform.
    "chromium-experimental-subgroup-matrix": (
        "enable chromium_experimental_subgroup_matrix;\n"
        "diagnostic(off, chromium.subgroup_matrix_uniformity);"
    ),
}
"""Directives of the features that have any, in the order in which they are printed."""

_SCALAR_BYTES = {"f16": 2, "i64": 8, "u64": 8}
"""Bytes of the scalar types that do not take four."""

_BUILTIN_TYPES = {"local_invocation_index": "u32"}
"""Types of the builtin values that are no vec3<u32>."""

Builtins = tuple[tuple[str, str], ...]
"""Builtin values that an entry point takes, each with the name of its parameter."""

BY_INVOCATION: Builtins = (("global_invocation_id", "g"),)
BY_TILE: Builtins = (("workgroup_id", "wid"), ("local_invocation_index", "lid"))
BY_WORKGROUP: Builtins = (("workgroup_id", "g"), ("local_invocation_index", "t"))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a value's buffer that one binding shows: all of it, within the binding limit.

    Attributes:
        value: The value.
        offset: Bytes from the tensor's beginning.
        size: Bytes.
    """

    value: Value
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Binding:
    """A storage buffer that a shader declares.

    Attributes:
        name: Its variable.
        access: "read" or "read_write".
        type: WGSL type of the variable.
    """

    name: str
    access: Literal["read", "read_write"]
    type: str


@dataclass(frozen=True, slots=True)
class WorkgroupArray:
    """An array in workgroup memory.

    Attributes:
        name: Its variable.
        element: WGSL type of an element.
        lengths: Elements along each dimension, the outermost first.
    """

    name: str
    element: str
    lengths: tuple[int, ...]

    @property
    def type(self) -> str:
        """WGSL type of the variable."""
        type_ = self.element
        for length in reversed(self.lengths):
            type_ = f"array<{type_}, {length}>"
        return type_

    @property
    def bytes(self) -> int:
        """Bytes of workgroup memory."""
        lanes, scalar = 1, self.element
        if self.element.startswith("vec"):
            lanes, scalar = int(self.element[3]), self.element[5:-1]
        return math.prod(self.lengths) * lanes * _SCALAR_BYTES.get(scalar, 4)


@dataclass(frozen=True, slots=True)
class PrivateVariable:
    """A variable of each invocation, in module scope.

    Attributes:
        name: Its name.
        type: WGSL type.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The function `main` of a shader, with the declarations that belong to its template.

    Attributes:
        invocations: Of a workgroup.
        builtins: The builtin values that it takes.
        code: Its statements.
        arrays: Workgroup arrays.
        functions: Functions of the template, all of which it calls.
        struct: Declaration of a structure, or "".
        features: Features of the device that the template uses.
    """

    invocations: int
    builtins: Builtins
    code: Code
    arrays: tuple[WorkgroupArray, ...] = ()
    functions: tuple[Function, ...] = ()
    struct: str = ""
    features: frozenset[Feature] = frozenset()

    @classmethod
    def of(
        cls,
        invocations: int,
        builtins: Builtins,
        lines: Iterable[str],
        arrays: Iterable[WorkgroupArray] = (),
        functions: Iterable[Function] = (),
        struct: str = "",
        features: frozenset[Feature] = frozenset(),
    ) -> EntryPoint:
        """Return an entry point by the lines of a template."""
        code = Code.of("\n".join(lines))
        return cls(invocations, builtins, code, tuple(arrays), tuple(functions), struct, features)

    @property
    def wgsl(self) -> str:
        """Its declarations and the function in WGSL, without directives."""
        parameters = ", ".join(
            f"@builtin({builtin}) {name}: {_BUILTIN_TYPES.get(builtin, 'vec3<u32>')}"
            for builtin, name in self.builtins
        )
        lines = [
            *([self.struct] if self.struct else []),
            *(f"var<workgroup> {array.name}: {array.type};" for array in self.arrays),
            *(function.wgsl for function in self.functions),
            f"@compute @workgroup_size({self.invocations})",
            f"fn main({parameters}) {{",
            self.code.wgsl,
            "}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Shader:
    """The parts of a shader module, which are printed last.

    Attributes:
        bindings: Storage buffers, in the order of their numbers from 0.
        functions: Functions besides the entry point's own, callees first.
        entry: The entry point.
        features: Features of the device that it uses.
        numbers: Vectors of the array `numbers`, a uniform buffer that is bound last; 0 for none.
        variables: Private variables.
    """

    bindings: tuple[Binding, ...]
    functions: tuple[Function, ...]
    entry: EntryPoint
    features: frozenset[Feature]
    numbers: int = 0
    variables: tuple[PrivateVariable, ...] = ()

    @property
    def wgsl(self) -> str:
        """The module in WGSL."""
        lines = [text for name, text in _DIRECTIVES.items() if name in self.features]
        if self.numbers:
            lines.append(
                f"@group(0) @binding({len(self.bindings)}) var<uniform> numbers:"
                f" array<vec4<u32>, {self.numbers}>;"
            )
        lines += [f"var<private> {each.name}: {each.type};" for each in self.variables]
        lines += [
            f"@group(0) @binding({number}) var<storage, {binding.access}> {binding.name}:"
            f" {binding.type};"
            for number, binding in enumerate(self.bindings)
        ]
        lines += [function.wgsl for function in self.functions]
        return "\n".join([*lines, self.entry.wgsl, ""])

    @property
    def codes(self) -> list[Code]:
        """The codes of its functions, then of the entry point's, and of the entry point."""
        functions = (*self.functions, *self.entry.functions)
        return [*(function.code for function in functions), self.entry.code]

    def with_codes(self, codes: Sequence[Code]) -> Shader:
        """Return the shader with other `codes`."""
        *of_functions, main = codes
        functions = [
            function if function.code is code else replace(function, code=code)
            for function, code in zip(
                (*self.functions, *self.entry.functions), of_functions, strict=True
            )
        ]
        count = len(self.functions)
        entry = replace(self.entry, code=main, functions=tuple(functions[count:]))
        return replace(self, functions=tuple(functions[:count]), entry=entry)

    @property
    def iterations(self) -> int:
        """The most iterations that one invocation makes in all loops together."""
        functions = (*self.functions, *self.entry.functions)
        codes = {function.name: function.code for function in functions}
        return iterations_of(self.entry.code, codes)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its code, the buffers that it binds, and its dispatch.

    Attributes:
        name: For labels and listings.
        code: WGSL, with the entry point `main`.
        reads: Parts of values that are bound for reading, in the order of their bindings from 0.
        writes: Parts of values that are bound after them, for writing.
        workgroups: The dispatch.
        times: Dispatches in a row. The kernel may count them in its output.
        numbers: Words of the uniform buffer that is bound last.
        roots: Values of the graph that the kernel computes, alone or with others.
        tile: Name of the kernel's tile, if the tile was measured on the adapter.
        features: Features of the device that the code uses.
        reads_words: The kernel binds a uniform buffer, whether its words are known or not.
        shader: The parts of the code; None once no stage rewrites it.
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
    features: frozenset[Feature] = frozenset()
    reads_words: bool = False
    shader: Shader | None = None

    @classmethod
    def of(
        cls,
        name: str,
        shader: Shader,
        reads: Iterable[Part],
        writes: Iterable[Part],
        workgroups: tuple[int, int, int],
    ) -> Kernel:
        """Return the kernel of a shader."""
        plain = cls(name, "", tuple(reads), tuple(writes), workgroups, features=shader.features)
        return plain.with_shader(shader)

    def with_shader(self, shader: Shader) -> Kernel:
        """Return the kernel with another shader, printed. WEBNN_VERIFY=1 verifies the shader."""
        code = shader.wgsl
        if os.environ.get("WEBNN_VERIFY") == "1":
            _verify(shader, code)
        return replace(self, code=code, shader=shader, reads_words=shader.numbers > 0)

    def without_shader(self) -> Kernel:
        """Return the kernel with its code alone: pieces take several times the memory of WGSL."""
        return replace(self, shader=None)

    @property
    def bindings(self) -> list[BindingType]:
        """Types of its bindings, in the order of their numbers from 0."""
        bound: list[BindingType] = ["read-only-storage"] * len(self.reads)
        bound += ["storage"] * len(self.writes)
        return [*bound, "uniform"] if self.reads_words else bound


def reachable(functions: Sequence[Function], codes: Iterable[Code]) -> list[Function]:
    """Return the functions that codes call, directly or not.

    Args:
        functions: Functions that they may call. Templates may leave some of them unused.
        codes: The codes.
    """
    bodies = {function.name: function.code for function in functions}
    wanted: set[str] = set()
    frontier = list(codes)
    while frontier:
        code = frontier.pop()
        called = (bodies.keys() & set(code.names)) - wanted
        wanted |= called
        frontier += [bodies[name] for name in called]
    return [function for function in functions if function.name in wanted]


def _verify(shader: Shader, code: str) -> None:
    """Check that a shader declares each name once, the bounds of its loops, and traced numbers.

    Raises:
        ValueError: It does not.
    """
    functions = (*shader.functions, *shader.entry.functions)
    declared = [
        *(binding.name for binding in shader.bindings),
        *(function.name for function in functions),
        *(array.name for array in shader.entry.arrays),
    ]
    if len(set(declared)) < len(declared):
        raise ValueError(f"a shader declares a name twice: {sorted(declared)}")
    bounds = sum(each.loops for each in shader.codes)
    loops = code.count("for (") + code.count("while (")
    if bounds != loops:
        raise ValueError(f"a shader has {loops} loops, {bounds} of them with a bound:\n{code}")
    plain = "".join(each for code in shader.codes for each in code.pieces if isinstance(each, str))
    if has_mark(plain):
        raise ValueError(f"a shader has a traced number outside a literal:\n{code}")
    brackets = dict.fromkeys(declared, "[") | {function.name: "(" for function in functions}
    for name, bracket in brackets.items():
        if not name.startswith(PRELUDE) and count_uses(plain, name, bracket):
            raise ValueError(f"a shader uses {name} without `pieces.declared`:\n{code}")


def grid(count: int, limit: int) -> tuple[int, int, int]:
    """Return the workgroups of a linear dispatch, folded over y where x alone exceeds the limit."""
    if count <= limit:
        return (count, 1, 1)
    rows = -(-count // limit)
    return (-(-count // rows), rows, 1)


def place_in(groups: Sequence[int], each: int = 1) -> Index:
    """Return the number of an invocation of a `grid` by its `g`.

    Args:
        groups: The workgroups.
        each: Invocations of a workgroup if `g` numbers invocations, 1 if it numbers workgroups.
    """
    return symbol("g.x") + symbol("g.y", groups[1]) * (groups[0] * each)
