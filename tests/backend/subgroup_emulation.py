"""Subgroup matrices in plain WGSL, so that kernels which use them run on any adapter.

An invocation holds eight elements of a result matrix, all in one row. It holds that row of left
matrices and those eight columns of right ones. Slow, but equal to the definition: places, strides,
guards and epilogues are tested so without a tensor core.
"""

from __future__ import annotations

import re

SIZE = 16
"""Rows and columns of the emulated matrices."""
DEPTHS = {"f16": 16, "i8": 32}
"""Columns of left matrices and rows of right ones, by the type of their elements."""
TOTALS = {"f16": "f32", "i8": "i32"}
INVOCATIONS = 32
EACH = SIZE * SIZE // INVOCATIONS
"""Elements of a result matrix that one invocation holds."""

_LOAD = re.compile(r"subgroupMatrixLoad<subgroup_matrix_(\w+)<(\w+)[^>]*>, (\w+)>\(&(\w+), ")
_STORE = re.compile(r"subgroupMatrixStore<row_major>\(&(\w+), ")
_ARRAY = re.compile(r"var<workgroup> (\w+): array<(vec4<(?:f16|f32|i32)>|i32), \d+>;")
_TYPE = re.compile(r"subgroup_matrix_result<(\w+)[^>]*>")
_INDEX = re.compile(r"@builtin\(local_invocation_index\) (\w+)")


def emulated(code: str) -> str:
    """Return a shader with its subgroup matrices in plain WGSL."""
    if "bitcast<vec2<f16>>" in code:  # naga has no such bitcast
        code = f"{code.replace('bitcast<vec2<f16>>', 'emulated_pair')}{_PAIR}"
    if "subgroupMatrix" not in code:
        return code
    loads, stores = sorted(set(_LOAD.findall(code))), sorted(set(_STORE.findall(code)))
    arrays = dict(_ARRAY.findall(code))
    assert {name for *_, name in loads} | set(stores) <= arrays.keys()
    (kind,) = {kind for side, kind, *_ in loads if side != "result"}
    assert set(_TYPE.findall(code)) == {TOTALS[kind]}
    code = _LOAD.sub(r"emulated_load_\1_\3_\4(", code)
    code = _STORE.sub(r"emulated_store_\1(", code)
    code = _TYPE.sub("EmulatedResult", code)
    code = code.replace("subgroupMatrixMultiplyAccumulate", "emulated_multiply")
    code = code.replace("enable chromium_experimental_subgroup_matrix;\n", "")
    code = code.replace("diagnostic(off, chromium.subgroup_matrix_uniformity);\n", "")
    code = code.replace("bitcast<vec4<f16>>", "emulated_halves")  # naga has no such bitcast
    index = _INDEX.search(code)
    assert index is not None
    head, name, body = code.partition("fn main(")
    start = body.index("{") + 1
    body = f"{body[:start]}\n  emulated_lane = {index[1]} % {INVOCATIONS}u;{body[start:]}"
    parts = [
        *(_load(side, order, name, kind, arrays[name]) for side, _, order, name in loads),
        *(_store(name) for name in stores),
        _multiply(kind),
        _HALVES if kind == "f16" else "",
    ]
    directives, _, rest = head.partition("@group")
    return "\n".join([directives, *parts, f"@group{rest}{name}{body}"])


_PAIR = """
fn emulated_pair(word: u32) -> vec2<f16> { return vec2<f16>(unpack2x16float(word)); }
"""
_HALVES = """
fn emulated_halves(words: vec2<u32>) -> vec4<f16> {
  return vec4<f16>(vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)));
}
"""


def _multiply(kind: str) -> str:
    depth, total = DEPTHS[kind], TOTALS[kind]
    return f"""
var<private> emulated_lane: u32;
alias EmulatedLeft = array<{total}, {depth}>;
alias EmulatedRight = array<{total}, {depth * EACH}>;
alias EmulatedResult = array<{total}, {EACH}>;
fn emulated_multiply(
  left: EmulatedLeft, right: EmulatedRight, start: EmulatedResult
) -> EmulatedResult {{
  var l = left; var r = right; var result = start;
  for (var k = 0u; k < {depth}u; k++) {{
    for (var i = 0u; i < {EACH}u; i++) {{ result[i] += l[k] * r[k * {EACH}u + i]; }}
  }}
  return result;
}}
"""


_ROW = f"emulated_lane * {EACH}u / {SIZE}u"
_COLUMN = f"emulated_lane * {EACH}u % {SIZE}u"
_PLACES = {
    "left": ("EmulatedLeft", _ROW, "i"),
    "right": ("EmulatedRight", f"i / {EACH}u", f"{_COLUMN} + i % {EACH}u"),
    "result": ("EmulatedResult", _ROW, f"{_COLUMN} + i"),
}
"""Type, row and column of element `i` that an invocation holds of each kind."""


def _place(row: str, column: str, unit: int = 4) -> str:
    return f"((offset + ({row}) * stride) * {unit}u + ({column}))"


def _load(side: str, order: str, name: str, kind: str, array: str) -> str:
    type_, row, column = _PLACES[side]
    count = {"left": DEPTHS[kind], "right": DEPTHS[kind] * EACH, "result": EACH}[side]
    unit = 16 if array == "vec4<i32>" else 4
    place = _place(*((row, column) if order == "row_major" else (column, row)), unit)
    element = f"f32({name}[{place} / 4u][{place} % 4u])"
    if kind == "i8":
        word = f"[{place} / 4u]" if unit == 4 else f"[{place} / 16u][{place} / 4u % 4u]"
        element = f"extractBits({name}{word}, {place} % 4u * 8u, 8u)"
    return f"""
fn emulated_load_{side}_{order}_{name}(offset: u32, stride: u32) -> {type_} {{
  var matrix: {type_};
  for (var i = 0u; i < {count}u; i++) {{ matrix[i] = {element}; }}
  return matrix;
}}
"""


def _store(name: str) -> str:
    type_, row, column = _PLACES["result"]
    place = _place(row, column)
    return f"""
fn emulated_store_{name}(offset: u32, matrix: {type_}, stride: u32) {{
  var m = matrix;
  for (var i = 0u; i < {EACH}u; i++) {{ {name}[{place} / 4u][{place} % 4u] = m[i]; }}
}}
"""
