"""Kernels that do not depend on each other, as one dispatch."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence

from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Value

_BINDING = re.compile(r"@group\(0\) @binding\((\d+)\) var<(.*?)> (\w+): (.*?);\n")
_SIZE = re.compile(r"@compute @workgroup_size\((\d+)\)\n")
_NAMES = re.compile(r"^(?:fn|var<workgroup>|struct|const|alias) (\w+)", re.M)
MOST = int(os.environ.get("JOIN_MOST", "3000"))
WHAT = os.environ.get("JOIN", "1")


def levels(kernels: Sequence[Kernel]) -> list[int]:
    written: dict[Value, list[int]] = {}
    read: dict[Value, list[int]] = {}
    found: list[int] = []
    for number, kernel in enumerate(kernels):
        before: set[int] = set()
        for part in kernel.reads:
            before.update(written.get(part.value, ()))
        for part in kernel.writes:
            before.update(read.get(part.value, ()))
            before.update(n for n in written.get(part.value, ()) if kernels[n].roots == kernel.roots)
        found.append(1 + max((found[n] for n in before), default=-1))
        for part in kernel.reads:
            read.setdefault(part.value, []).append(number)
        for part in kernel.writes:
            written.setdefault(part.value, []).append(number)
    return found


def _size(kernel: Kernel) -> int:
    return int(_SIZE.search(kernel.code)[1])


def _free(kernel: Kernel) -> bool:
    """May have any workgroup size."""
    return (
        "fn main(@builtin(global_invocation_id) g: vec3<u32>) {" in kernel.code
        and kernel.workgroups[1:] == (1, 1)
        and "workgroup" not in kernel.code.replace("@workgroup_size", "")
    )


def _shared(kernel: Kernel) -> int:
    total = 0
    for kind in re.findall(r"^var<workgroup> \w+: (.*);$", kernel.code, re.M):
        count = 1
        for n in re.findall(r", (\d+)>", kind):
            count *= int(n)
        count *= 2 if "f16" in kind else 4
        count *= 4 if "vec4" in kind else 2 if "vec2" in kind else 1
        total += count
    return total


def _groups(kernel: Kernel) -> int:
    x, y, z = kernel.workgroups
    return x * y * z


def join(kernels: Sequence[Kernel], features: Features) -> list[Kernel]:
    if WHAT == "0" or features.kind == "cpu":
        return list(kernels)
    rows: dict[int, list[Kernel]] = {}
    for level, kernel in zip(levels(kernels), kernels, strict=True):
        rows.setdefault(level, []).append(kernel)
    made: list[Kernel] = []
    for _, row in sorted(rows.items()):
        groups: list[list[Kernel]] = []
        small = [k for k in row if k.times == 1 and _groups(k) * _size(k) <= MOST * 64]
        made += [k for k in row if k not in small]
        # by size, the free ones to whichever is there
        for kernel in sorted(small, key=lambda k: (_free(k), -len(k.code))):
            for group in groups:
                if _fits([*group, kernel], features):
                    group.append(kernel)
                    break
            else:
                groups.append([kernel])
        made += [_joined(group) if len(group) > 1 else group[0] for group in groups]
    return made


def _fits(group: Sequence[Kernel], features: Features) -> bool:
    sizes = {_size(k) for k in group if not _free(k)}
    if len(sizes) > 1:
        return False
    if not sizes and len({_size(k) for k in group}) > 1:
        return False
    written = {p.value for k in group for p in k.writes}
    read = {p.value for k in group for p in k.reads}
    if written & read:
        return False
    bindings = _bound(group)
    if len(bindings) > features.max_bindings:
        return False
    targets = [part for (part, kind, access) in bindings if "write" in access]
    if len({p.value for p in targets}) < len(targets):
        return False
    if sum(map(_shared, group)) > features.workgroup_bytes:
        return False
    return sum(map(_groups, group)) < features.grid


def _parts(kernel: Kernel) -> list[tuple[Part, str, str, str]]:
    found = []
    for n, access, name, kind in _BINDING.findall(kernel.code):
        part = [*kernel.reads, *kernel.writes][int(n)]
        found.append((part, kind, access, name))
    return found


def _bound(group: Sequence[Kernel]) -> dict[tuple[Part, str, str], str]:
    found: dict[tuple[Part, str, str], str] = {}
    for kernel in group:
        for part, kind, access, _ in _parts(kernel):
            found.setdefault((part, kind, access), f"at{len(found)}")
    ordered = sorted(found, key=lambda b: "write" in b[2])
    return {key: f"at{n}" for n, key in enumerate(ordered)}


def _joined(group: Sequence[Kernel]) -> Kernel:
    sizes = [_size(k) for k in group if not _free(k)] or [_size(group[0])]
    size = sizes[0]
    bindings = _bound(group)
    head = ["enable f16;"] if any("enable f16;" in k.code for k in group) else []
    for n, ((_, kind, access), name) in enumerate(bindings.items()):
        head.append(f"@group(0) @binding({n}) var<{access}> {name}: {kind};")
    declared: dict[str, None] = {}
    main = []
    begin = 0
    # few but long workgroups first
    for number, kernel in enumerate(group):
        names = {name: bindings[part, kind, access] for part, kind, access, name in _parts(kernel)}
        code = _BINDING.sub("", kernel.code).replace("enable f16;\n", "")
        names |= {
            name: f"{name}_{number}"
            for name in _NAMES.findall(code)
            if not name.startswith("wn_") and name != "main"
        }
        pattern = re.compile(r"(?<![\w.])(?:" + "|".join(names) + r")\b")
        code = pattern.sub(lambda m: names[m[0]], code)
        # declarations
        place = code.index("@compute")
        block: list[str] = []
        for line in code[:place].splitlines():
            if line and line[0] not in " }" and block:
                declared["\n".join(block)] = None
                block = []
            block.append(line)
        if block:
            declared["\n".join(block)] = None
        rest = code[place:]
        entry = rest.index("{\n")
        parameters, body = rest[:entry], rest[entry + 2 :].rstrip()
        assert body.endswith("}"), body[-50:]
        body = body[:-1].rstrip()
        assert "\n}" not in body, body
        x, y, z = kernel.workgroups
        count = _groups(kernel)
        if _free(kernel) and size != _size(kernel):
            count = -(-count * _size(kernel) // size)
        end = begin + count
        test = f"if (wg.x < {end}u) {{" if number < len(group) - 1 else "{"
        main.append(("} else " if number else "  ") + test)
        here = f"wg.x - {begin}u" if begin else "wg.x"
        if "global_invocation_id" in parameters:
            name = re.search(r"global_invocation_id\) (\w+)", parameters)[1]
            assert y == z == 1
            main.append(f"  let {name} = vec3<u32>(({here}) * {size}u + lane, 0u, 0u);")
        else:
            name = re.search(r"workgroup_id\) (\w+)", parameters)[1]
            if z > 1:
                main.append(
                    f"  let here = {here}; let {name} = vec3<u32>(here % {x}u, here / {x}u % {y}u,"
                    f" here / {x * y}u);"
                )
            elif y > 1:
                main.append(
                    f"  let here = {here}; let {name} = vec3<u32>(here % {x}u, here / {x}u, 0u);"
                )
            else:
                main.append(f"  let {name} = vec3<u32>({here}, 0u, 0u);")
            lane = re.search(r"local_invocation_index\) (\w+)", parameters)
            if lane:
                main.append(f"  let {lane[1]} = lane;")
        main.append(body)
        begin = end
    lines = [
        *head,
        *declared,
        f"@compute @workgroup_size({size})",
        "fn main(@builtin(workgroup_id) wg: vec3<u32>,"
        " @builtin(local_invocation_index) lane: u32) {",
        *main,
        "  }",
        "}",
    ]
    reads = tuple(part for part, _, access in bindings if "write" not in access)
    writes = tuple(part for part, _, access in bindings if "write" in access)
    return Kernel(
        " | ".join(k.name for k in group),
        "\n".join(lines) + "\n",
        reads,
        writes,
        (begin, 1, 1),
        roots=tuple(root for k in group for root in k.roots),
    )
