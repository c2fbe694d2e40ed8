"""What writes the kernels of graphs, told from the code itself: templates, functions and lines."""

from __future__ import annotations

import ast
import importlib
import math
import pkgutil
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.internals import executable_of
from webnn_py import MLGraph
from webnn_py.engines.webgpu.compiler import kernels
from webnn_py.engines.webgpu.compiler.kernel import Kernel
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import TileKernel
from webnn_py.engines.webgpu.compiler.kernels.matmul import named_tiles

FOLDER = Path(str(kernels.__file__)).parent
FILES = {
    str(FOLDER / f"{info.name}.py"): info.name
    for info in pkgutil.iter_modules(kernels.__path__)
    if not info.name.endswith("_subgroup")  # which few adapters can run: test_subgroup_matrices
}
TEMPLATES = {
    f"{name}.{function}"
    for name in FILES.values()
    for function in vars(importlib.import_module(f"{kernels.__name__}.{name}"))
    if function == "emit" or (function.startswith("emit_") and name == f"gemm_{function[5:]}")
}
"""Functions that write a kernel, each the one of its file."""

Line = tuple[str, int]


class AnyTiles(Mapping[str, str]):
    """For each product a tile of those that could be the quickest, and for some one unknown."""

    def __init__(self, kind: str) -> None:
        self._names = [*named_tiles(kind), "of another release"]

    def __getitem__(self, key: str) -> str:
        return self._names[zlib.crc32(key.encode()) % len(self._names)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    __eq__, __hash__ = object.__eq__, object.__hash__


@dataclass
class Record:
    """What was executed while kernels were written.

    Attributes:
        lines: Lines of the files in `kernels`.
        grids: By template, the workgroups of the kernels it made.
    """

    lines: set[Line] = field(default_factory=set)
    grids: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)

    def trace(self, write: Callable[[], Any]) -> Any:
        """Call a function that writes kernels, and note what it executes."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            return write()
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._step if frame.f_code.co_filename in FILES else None

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = FILES[frame.f_code.co_filename]
        if event == "line":
            self.lines.add((name, frame.f_lineno))
        template = f"{name}.{frame.f_code.co_name}"
        if event == "return" and template in TEMPLATES:
            made = argument if isinstance(argument, list) else [argument]
            grids = [each.workgroups for each in made if isinstance(each, (Kernel, TileKernel))]
            self.grids.setdefault(template, []).extend(grids)
        return self._step


def code_of(graph: MLGraph) -> str:
    """Return the WGSL of all kernels of a graph."""
    code: str = executable_of(graph).code()
    return code


def invocations(code: str) -> int:
    """Invocations of a workgroup."""
    found = re.search(r"@workgroup_size\((\d+)\)", code)
    assert found is not None
    return int(found[1])


def shared_bytes(code: str) -> int:
    """Bytes that a workgroup shares."""
    members = dict(re.findall(r"struct (\w+) \{ (.*) \}", code))
    total = 0
    for kind in re.findall(r"var<workgroup> \w+: (.*);", code):
        counts = [int(count) for count in re.findall(r", (\d+)>", kind)]
        element = kind.replace("array<", "").split(",")[0]
        scalars = re.findall(r"[fiu](?:16|32|64)", members.get(element, element))
        lanes = 4 if "vec4" in element else 2 if "vec2" in element else 1
        total += math.prod(counts) * lanes * sum(int(scalar[1:]) // 8 for scalar in scalars)
    return total


def all_lines() -> set[Line]:
    """The lines inside functions of the files in `kernels`, but for those that raise."""
    return {
        (name, line)
        for path, name in FILES.items()
        for line in _written(Path(path).read_text(), path)
    }


def _written(source: str, path: str) -> Iterator[int]:
    raising = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for code in _functions(compile(source, path, "exec")):
        for _, _, line in code.co_lines():
            if line is not None and line != code.co_firstlineno and line not in raising:
                yield line


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            # A class body is not a function; its methods are.
            if constant.co_flags & 0x2:
                yield constant
            yield from _functions(constant)
