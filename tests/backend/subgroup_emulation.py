"""Subgroup matrices in plain WGSL, so that kernels which use them run on any adapter.

An invocation holds eight elements of a result matrix, all in one row. It holds that row of left
matrices and those eight columns of right ones. Slow, but equal to the definition: places, strides,
guards and epilogues are tested so without a tensor core.
"""

from __future__ import annotations

import re

SIZE = 16
"""Rows and columns of the emulated matrices."""
INVOCATIONS = 32
EACH = SIZE * SIZE // INVOCATIONS
"""Elements of a result matrix that one invocation holds."""

_LOAD = re.compile(r"subgroupMatrixLoad<subgroup_matrix_(\w+)<[^>]*>, (\w+)>\(&(\w+), ")
_STORE = re.compile(r"subgroupMatrixStore<row_major>\(&(\w+), ")
_ARRAY = re.compile(r"var<workgroup> (\w+): array<vec4<(?:f16|f32)>, \d+>;")
_TYPE = re.compile(r"subgroup_matrix_result<[^>]*>")
_INDEX = re.compile(r"@builtin\(local_invocation_index\) (\w+)")


def emulated(code: str) -> str:
    """Return a shader with its subgroup matrices in plain WGSL."""
    if "subgroupMatrix" not in code:
        return code
    loads, stores = sorted(set(_LOAD.findall(code))), sorted(set(_STORE.findall(code)))
    assert {name for *_, name in loads} | set(stores) <= set(_ARRAY.findall(code))
    code = _LOAD.sub(r"emulated_load_\1_\2_\3(", code)
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
    parts = [*(_load(*each) for each in loads), *(_store(name) for name in stores), _MULTIPLY]
    directives, _, rest = head.partition("@group")
    return "\n".join([directives, *parts, f"@group{rest}{name}{body}"])


_MULTIPLY = f"""
var<private> emulated_lane: u32;
alias EmulatedLeft = array<f32, {SIZE}>;
alias EmulatedRight = array<f32, {SIZE * EACH}>;
alias EmulatedResult = array<f32, {EACH}>;
fn emulated_halves(words: vec2<u32>) -> vec4<f16> {{
  return vec4<f16>(vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)));
}}
fn emulated_multiply(
  left: EmulatedLeft, right: EmulatedRight, start: EmulatedResult
) -> EmulatedResult {{
  var l = left; var r = right; var result = start;
  for (var k = 0u; k < {SIZE}u; k++) {{
    for (var i = 0u; i < {EACH}u; i++) {{ result[i] += l[k] * r[k * {EACH}u + i]; }}
  }}
  return result;
}}
"""

_ROW = f"emulated_lane * {EACH}u / {SIZE}u"
_COLUMN = f"emulated_lane * {EACH}u % {SIZE}u"
_PLACES = {
    "left": ("EmulatedLeft", SIZE, _ROW, "i"),
    "right": ("EmulatedRight", SIZE * EACH, f"i / {EACH}u", f"{_COLUMN} + i % {EACH}u"),
    "result": ("EmulatedResult", EACH, _ROW, f"{_COLUMN} + i"),
}
"""Type, elements, row and column of element `i` that an invocation holds of each kind."""


def _element(name: str, row: str, column: str) -> str:
    place = f"(offset + ({row}) * stride) * 4u + ({column})"
    return f"{name}[({place}) / 4u][({place}) % 4u]"


def _load(side: str, order: str, name: str) -> str:
    kind, count, row, column = _PLACES[side]
    at = (row, column) if order == "row_major" else (column, row)
    return f"""
fn emulated_load_{side}_{order}_{name}(offset: u32, stride: u32) -> {kind} {{
  var matrix: {kind};
  for (var i = 0u; i < {count}u; i++) {{ matrix[i] = f32({_element(name, *at)}); }}
  return matrix;
}}
"""


def _store(name: str) -> str:
    kind, count, row, column = _PLACES["result"]
    return f"""
fn emulated_store_{name}(offset: u32, matrix: {kind}, stride: u32) {{
  var m = matrix;
  for (var i = 0u; i < {count}u; i++) {{ {_element(name, row, column)} = m[i]; }}
}}
"""
