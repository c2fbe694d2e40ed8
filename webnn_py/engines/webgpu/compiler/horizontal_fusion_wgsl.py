"""The code of several kernels as one: the number of a workgroup says which of them it computes.

That is the same for all of a workgroup, so that barriers may stand in the code of each.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part

_F16 = "enable f16;\n"
_BINDING = re.compile(r"@group\(0\) @binding\((\d+)\) var<storage, (\w+)> (\w+): (.*);\n")
_SHARED = re.compile(r"^var<workgroup> (\w+): (.*);\n", re.MULTILINE)
_ENTRY = re.compile(
    r"@compute @workgroup_size\((\d+)\)\nfn main\(([^{]*)\) \{\n(.*)\n\}\n", re.DOTALL
)
_BUILTIN = re.compile(r"@builtin\((\w+)\) (\w+):")
_DECLARED = re.compile(r"^(?:fn|struct|const) (\w+)", re.MULTILINE)
_PRELUDE = "wn_"
"""What the names of functions begin with that are the same in all kernels."""

MOST_RENAMED = 64
"""Pieces of code kept with their names changed: layers of one kind have the same."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a kernel, taken apart.

    Attributes:
        halves: It has the type f16.
        bindings: The number, access mode, name and type of each.
        shared: The name and type of each variable in workgroup memory.
        declarations: Functions and other declarations.
        invocations: Of a workgroup.
        names: What the entry point calls each builtin value.
        body: The entry point's statements.
    """

    halves: bool
    bindings: tuple[tuple[int, str, str, str], ...]
    shared: tuple[tuple[str, str], ...]
    declarations: str
    invocations: int
    names: dict[str, str]
    body: str

    @property
    def is_independent(self) -> bool:
        """Whether the invocations may be parted into workgroups of any size."""
        return "global_invocation_id" in self.names and not self.shared


@functools.lru_cache(maxsize=256)
def read_code(code: str) -> Code | None:
    """The code of a kernel, taken apart; None where that cannot be put together with others."""
    entry = _ENTRY.search(code)
    if entry is None or "\nstruct " in code:  # whose members may be called as functions are
        return None
    size, parameters, body = entry.groups()
    head = code[: entry.start()]
    bindings = tuple((int(b[1]), b[2], b[3], b[4]) for b in _BINDING.finditer(head))
    shared = tuple((s[1], s[2]) for s in _SHARED.finditer(head))
    declarations = _SHARED.sub("", _BINDING.sub("", head.removeprefix(_F16)))
    return Code(
        code.startswith(_F16),
        bindings,
        shared,
        declarations,
        int(size),
        dict(_BUILTIN.findall(parameters)),
        body,
    )


@dataclass(frozen=True, slots=True)
class Binding:
    """What a binding of the joined code shows.

    Attributes:
        part: Of a value.
        access: "read" or "read_write".
        type: Of its elements.
    """

    part: Part
    access: str
    type: str

    @property
    def is_written(self) -> bool:
        """Whether it is not only read."""
        return self.access != "read"


def bindings_of(kernel: Kernel, code: Code) -> list[Binding]:
    """What the bindings of a kernel show."""
    parts = (*kernel.reads, *kernel.writes)
    return [Binding(parts[number], access, kind) for number, access, _, kind in code.bindings]


def shared_of(codes: Sequence[Code]) -> list[tuple[int, str]]:
    """The variables in workgroup memory: each kernel takes those of its types from the first on."""
    found: dict[tuple[int, str], None] = {}
    for code in codes:
        found |= dict.fromkeys(_numbered(code))
    return list(found)


def bytes_of(kind: str) -> int:
    """What a variable of a type takes: an array of scalars or vectors, or an array of such."""
    scalar, counts = 4, [int(count) for count in re.findall(r"(?<=, )\d+(?=>)|(?<=vec)\d", kind)]
    if "i64" in kind or "u64" in kind:
        scalar = 8
    elif "f16" in kind:
        scalar = 2
    return scalar * math.prod(counts)


def _numbered(code: Code) -> Iterator[tuple[int, str]]:
    """How many variables of its type a variable follows, and that type."""
    types = [kind for _, kind in code.shared]
    for number, kind in enumerate(types):
        yield types[:number].count(kind), kind


def common_invocations(codes: Sequence[Code]) -> int:
    """Invocations of a workgroup of kernels as one."""
    own = [code.invocations for code in codes if not code.is_independent]
    return own[0] if own else max(code.invocations for code in codes)


def joined(pairs: Sequence[tuple[Kernel, Code]]) -> Kernel:
    """Kernels as one.

    Args:
        pairs: Kernels and their code. None needs what another one writes; workgroups are of one
            size, but for those of independent invocations.
    """
    kernels, codes = zip(*pairs, strict=True)
    found = dict.fromkeys(binding for pair in pairs for binding in bindings_of(*pair))
    bindings = sorted(found, key=lambda binding: binding.is_written)
    shared = shared_of(codes)
    invocations = common_invocations(codes)
    declared: dict[str, None] = {}
    main: list[str] = []
    end = 0
    for number, (kernel, code) in enumerate(pairs):
        names = {
            name: f"data{bindings.index(binding)}"
            for (*_, name, _), binding in zip(code.bindings, bindings_of(kernel, code), strict=True)
        }
        variables = zip(code.shared, _numbered(code), strict=True)
        names |= {name: f"shared{shared.index(which)}" for (name, _), which in variables}
        own_names = (n for n in _DECLARED.findall(code.declarations) if not n.startswith(_PRELUDE))
        names |= {name: f"{name}_{number}" for name in own_names}
        declared |= dict.fromkeys(_parted(_renamed(code.declarations, names)))
        begin, end = end, end + workgroups_of(kernel, code, invocations)
        head = "{" if number == len(pairs) - 1 else f"if (wn_group.x < {end}u) {{"
        main.append(f"  }} else {head}" if number else f"  {head}")
        main += _place(kernel, code, begin, invocations)
        main.append(_renamed(code.body, names))
    lines = [
        *(
            f"@group(0) @binding({n}) var<storage, {b.access}> data{n}: {b.type};"
            for n, b in enumerate(bindings)
        ),
        *(f"var<workgroup> shared{n}: {kind};" for n, (_, kind) in enumerate(shared)),
        *declared,
        f"@compute @workgroup_size({invocations})",
        "fn main(@builtin(workgroup_id) wn_group: vec3<u32>,",
        "        @builtin(local_invocation_index) wn_lane: u32) {",
        *main,
        "  }",
        "}\n",
    ]
    return Kernel(
        " | ".join(kernel.name for kernel in kernels),
        (_F16 if any(code.halves for code in codes) else "") + "\n".join(lines),
        tuple(binding.part for binding in bindings if not binding.is_written),
        tuple(binding.part for binding in bindings if binding.is_written),
        (end, 1, 1),
        roots=tuple(root for kernel in kernels for root in kernel.roots),
        tile=", ".join(dict.fromkeys(kernel.tile for kernel in kernels if kernel.tile)),
    )


def workgroups_of(kernel: Kernel, code: Code, invocations: int) -> int:
    """How many workgroups of so many invocations a kernel takes."""
    x, y, z = kernel.workgroups
    if code.is_independent:
        return -(-x * y * z * code.invocations // invocations)
    return x * y * z


def _place(kernel: Kernel, code: Code, begin: int, invocations: int) -> list[str]:
    """The statements that name what the kernel's own builtin values would be."""
    x, y, z = kernel.workgroups
    here = f"(wn_group.x - {begin}u)" if begin else "wn_group.x"
    if code.is_independent:
        name = code.names["global_invocation_id"]
        return [f"  let {name} = vec3<u32>({here} * {invocations}u + wn_lane, 0u, 0u);"]
    across = f"{here} % {x}u" if y * z > 1 else here
    down = f"{here} / {x}u" + (f" % {y}u" if z > 1 else "") if y * z > 1 else "0u"
    deep = f"{here} / {x * y}u" if z > 1 else "0u"
    lines = [f"  let {code.names['workgroup_id']} = vec3<u32>({across}, {down}, {deep});"]
    if "local_invocation_index" in code.names:
        lines.append(f"  let {code.names['local_invocation_index']} = wn_lane;")
    return lines


def _renamed(code: str, names: dict[str, str]) -> str:
    return _with_names(code, tuple(names.items())) if names else code


@functools.lru_cache(MOST_RENAMED)
def _with_names(code: str, pairs: tuple[tuple[str, str], ...]) -> str:
    names = dict(pairs)
    return re.sub(rf"(?<![\w.])(?:{'|'.join(names)})\b", lambda found: names[found[0]], code)


def _parted(declarations: str) -> Iterator[str]:
    """The declarations one by one: each begins at the beginning of a line."""
    lines: list[str] = []
    for line in declarations.splitlines():
        if lines and line[:1] not in (" ", "}", ""):
            yield "\n".join(lines)
            lines = []
        lines.append(line)
    if lines:
        yield "\n".join(lines)
