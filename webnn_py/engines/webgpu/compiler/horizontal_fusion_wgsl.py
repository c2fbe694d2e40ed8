"""The shaders of several kernels as one: the workgroup's number selects the kernel.

The number is the same for all of a workgroup, so barriers may stand in the code of each kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from webnn_py.engines.webgpu.compiler.code.functions import PRELUDE, Function
from webnn_py.engines.webgpu.compiler.kernel import (
    Binding,
    EntryPoint,
    Kernel,
    Part,
    Shader,
    WorkgroupArray,
)
from webnn_py.engines.webgpu.program.pieces import BRANCH, Code, Declared, Name, divisor, u32

_BUILTINS = (("workgroup_id", "wn_group"), ("local_invocation_index", "wn_lane"))


@dataclass(frozen=True, slots=True)
class Bound:
    """A part of a value, as a fused shader binds it.

    Attributes:
        part: The part.
        access: "read" or "read_write".
        type: WGSL type of the variable.
    """

    part: Part
    access: Literal["read", "read_write"]
    type: str

    @property
    def is_written(self) -> bool:
        """Whether the binding is written."""
        return self.access != "read"


def fusible_shader(kernel: Kernel) -> Shader | None:
    """Return the shader of a kernel, or None if it cannot be fused with others.

    Structures of different kernels may have one name.
    """
    shader = kernel.shader
    return None if shader is None or shader.entry.struct or kernel.reads_words else shader


def is_independent(shader: Shader) -> bool:
    """Whether the invocations may be divided into workgroups of any size."""
    return "global_invocation_id" in dict(shader.entry.builtins) and not shader.entry.arrays


def bound_parts(kernel: Kernel, shader: Shader) -> list[Bound]:
    """Return the bindings of a kernel with the parts of values that they show."""
    parts = (*kernel.reads, *kernel.writes)
    return [
        Bound(part, binding.access, binding.type)
        for part, binding in zip(parts, shader.bindings, strict=True)
    ]


def common_arrays(shaders: Sequence[Shader]) -> dict[tuple[int, str], WorkgroupArray]:
    """Return the workgroup arrays of a fused shader, by type and number among that type's arrays.

    Each kernel uses the arrays of its types from the first on.
    """
    arrays: dict[tuple[int, str], WorkgroupArray] = {}
    for shader in shaders:
        for key, array in zip(_array_keys(shader), shader.entry.arrays, strict=True):
            arrays.setdefault(key, array)
    return arrays


def _array_keys(shader: Shader) -> Iterator[tuple[int, str]]:
    """Yield for each workgroup array how many of its type precede it, and its type."""
    types = [array.type for array in shader.entry.arrays]
    for number, type_ in enumerate(types):
        yield types[:number].count(type_), type_


def common_invocations(shaders: Sequence[Shader]) -> int:
    """Return the invocations of a workgroup of a fused shader."""
    own = [shader.entry.invocations for shader in shaders if not is_independent(shader)]
    return own[0] if own else max(shader.entry.invocations for shader in shaders)


def fused_kernel(pairs: Sequence[tuple[Kernel, Shader]]) -> Kernel:
    """Return several kernels as one.

    Args:
        pairs: Kernels and their shaders. No kernel reads what another one writes; workgroups have
            one size, except those of independent invocations.
    """
    kernels, shaders = zip(*pairs, strict=True)
    found = dict.fromkeys(bound for pair in pairs for bound in bound_parts(*pair))
    parts = sorted(found, key=lambda bound: bound.is_written)
    arrays = common_arrays(shaders)
    array_names = {key: f"shared{number}" for number, key in enumerate(arrays)}
    invocations = common_invocations(shaders)
    functions: dict[str, Function] = {}  # by their text
    lines: list[str] = []
    end = 0
    for number, (kernel, shader) in enumerate(pairs):
        places = [parts.index(part) for part in bound_parts(kernel, shader)]
        names = _fused_names(shader, number, places, array_names)
        for function in (*shader.functions, *shader.entry.functions):
            made = replace(
                function,
                name=names.get(function.name, function.name),
                code=_renamed(function.code, names),
            )
            functions[made.wgsl] = made
        begin, end = end, end + workgroups_of(kernel, shader, invocations)
        head = "{" if number == len(pairs) - 1 else f"if (wn_group.x < {u32(end)}) {{"
        lines.append(f"{BRANCH}  }} else {head}" if number else f"{BRANCH}  {head}")
        lines += _builtin_values(kernel, shader, begin, invocations)
        lines.append(_renamed(shader.entry.code, names).tagged)
    lines.append("  }")
    fused = Shader(
        tuple(Binding(f"data{n}", b.access, b.type) for n, b in enumerate(parts)),
        (),
        EntryPoint.of(
            invocations,
            _BUILTINS,
            lines,
            (
                WorkgroupArray(name, array.element, array.lengths)
                for name, array in zip(array_names.values(), arrays.values(), strict=True)
            ),
            functions.values(),
        ),
        frozenset().union(*(shader.features for shader in shaders)),
    )
    kernel = Kernel.of(
        " | ".join(kernel.name for kernel in kernels),
        fused,
        (bound.part for bound in parts if not bound.is_written),
        (bound.part for bound in parts if bound.is_written),
        (end, 1, 1),
    )
    return replace(
        kernel,
        roots=tuple(root for kernel in kernels for root in kernel.roots),
        tile=", ".join(dict.fromkeys(kernel.tile for kernel in kernels if kernel.tile)),
    )


def _fused_names(
    shader: Shader, number: int, places: Sequence[int], arrays: Mapping[tuple[int, str], str]
) -> dict[str, str]:
    """Return the names that the declarations of a shader have in a fused one.

    Args:
        shader: The shader.
        number: Its number.
        places: Numbers of its bindings.
        arrays: Names of the workgroup arrays, by the keys of `common_arrays`.
    """
    bindings = zip(shader.bindings, places, strict=True)
    keys = zip(shader.entry.arrays, _array_keys(shader), strict=True)
    own = (*shader.functions, *shader.entry.functions)
    return {
        **{binding.name: f"data{place}" for binding, place in bindings},
        **{array.name: arrays[key] for array, key in keys},
        **{f.name: f"{f.name}_{number}" for f in own if not f.name.startswith(PRELUDE)},
    }


def workgroups_of(kernel: Kernel, shader: Shader, invocations: int) -> int:
    """Return how many workgroups of `invocations` a kernel takes."""
    x, y, z = kernel.workgroups
    if is_independent(shader):
        return -(-x * y * z * shader.entry.invocations // invocations)
    return x * y * z


def _builtin_values(kernel: Kernel, shader: Shader, begin: int, invocations: int) -> list[str]:
    """Return the statements that name the builtin values of a kernel.

    Args:
        kernel: The kernel.
        shader: Its shader.
        begin: Its first workgroup.
        invocations: Of a workgroup.
    """
    x, y, z = kernel.workgroups
    here = f"(wn_group.x - {u32(begin)})" if begin else "wn_group.x"
    names = dict(shader.entry.builtins)
    if is_independent(shader):
        name = names["global_invocation_id"]
        return [f"  let {name} = vec3<u32>({here} * {u32(invocations)} + wn_lane, 0u, 0u);"]
    across = f"{here} % {divisor(x)}" if y * z > 1 else here
    down = f"{here} / {divisor(x)}" + (f" % {divisor(y)}" if z > 1 else "") if y * z > 1 else "0u"
    deep = f"{here} / {divisor(x * y)}" if z > 1 else "0u"
    lines = [f"  let {names['workgroup_id']} = vec3<u32>({across}, {down}, {deep});"]
    if "local_invocation_index" in names:
        lines.append(f"  let {names['local_invocation_index']} = wn_lane;")
    return lines


def _renamed(code: Code, names: Mapping[str, str]) -> Code:
    """Rename declarations."""

    def other(piece: Declared) -> Declared:
        return Name(names.get(piece.text, piece.text)) if isinstance(piece, Name) else piece

    return code.replaced(other)
