"""WGSL that drivers cannot take, or not soon, and WGSL just below: for every reader of programs."""

from __future__ import annotations

from collections.abc import Callable

BINDING = "@group(0) @binding(0) var<storage, read_write> y: array<f32>;\n"


def module(body: str, before: str = "") -> str:
    main = f"@compute @workgroup_size(1) fn main() {{ var a = y[0]; {body} y[0] = a; }}"
    return f"{BINDING}{before}{main}"


def calling(count: int, uses: str, last: str) -> str:
    """Functions that each use the one before."""
    functions = ["fn f0(x: f32) -> f32 { return x * 1.5; }"]
    functions += [f"fn f{i + 1}(x: f32) -> f32 {{ {uses.format(f'f{i}')} }}" for i in range(count)]
    return module(last.format(f"f{count}"), "\n".join(functions) + "\n")


def structures(count: int) -> str:
    made = "struct S0 { a: f32 }\n"
    made += "".join(f"struct S{i + 1} {{ a: S{i}, b: S{i} }}\n" for i in range(count))
    return module(f"var s: S{count}; s{'.a' * (count + 1)} = a;", made)


def branches(count: int) -> str:
    return module("if a > 0 { a = 1; }" + " else if a > 1 { a = 2; }" * count)


Kind = tuple[Callable[[int], str], int, int, str]
KINDS: dict[str, Kind] = {
    "blocks": (lambda n: module("{" * n + "}" * n), 120, 3000, "nested"),
    "ifs": (lambda n: module("if a > 1 { " * n + "a = 1;" + "}" * n), 100, 3000, "nested"),
    "parentheses": (lambda n: module(f"a = {'(' * n}a{')' * n};"), 120, 3000, "nested"),
    "indices": (lambda n: module(f"a = {'y[u32(' * n}a{')]' * n};"), 60, 1000, "nested"),
    "calls": (lambda n: module(f"a = {'sin(' * n}a{')' * n};"), 120, 3000, "nested"),
    "minus": (lambda n: module(f"a = {'- ' * n}a;"), 500, 3000, "nested"),
    "comments": (
        lambda n: module(f"a = {'/* ; */-//;'}\n{'-/*/*;*/*/' * n}a;"),
        500,
        3000,
        "nested",
    ),
    "lines": (lambda n: module("a = " + "-//\u2028" * n + "a;"), 500, 3000, "nested"),
    "sums": (lambda n: module(f"a = a{' + a' * n};"), 500, 3000, "nested"),
    "members": (
        lambda n: module(f"var v = vec2(a); v = v{'.xy' * n}; a = v.x;"),
        500,
        3000,
        "nested",
    ),
    "else": (branches, 500, 5000, "nested"),
    "types": (
        lambda n: module("", f"var<private> q: {'array<' * n}f32{', 1>' * n};\n"),
        200,
        3000,
        "nested",
    ),
    "calls of calls": (
        lambda n: calling(n, "return {0}(x) + {0}(x + 1);", "a = {0}(a);"),
        10,
        28,
        "expands",
    ),
    "calls of ñ": (
        lambda n: calling(n, "return {0}ñ(x) + {0}ñ(x);", "a = {0}ñ(a);").replace(
            "(x: f", "ñ(x: f"
        ),
        10,
        28,
        "expands",
    ),
    "calls behind a blank": (
        lambda n: calling(n, "return {0}\u2029(x) + {0}\u0085(x);", "a = {0}(a);"),
        10,
        28,
        "expands",
    ),
    "structures": (structures, 8, 28, "expands"),
    "members of a list": (
        lambda n: module(f"let q = array<f32, {n}>(a{', a' * (n - 1)}); a = q[u32(a)];"),
        2000,
        5000,
        "members",
    ),
    "statements": (lambda n: module("a = a * 1.5 + 1;" * n), 5000, 50_000, "tokens"),
    "functions of each other": (
        lambda n: "fn f(x: f32) -> f32 { return g(x); } fn g(x: f32) -> f32 { return f(x); }"[:n],
        37,
        100,
        "by way of itself",
    ),
}
"""What makes one of some size, a size that is right, one that is not, and what errors say then."""
