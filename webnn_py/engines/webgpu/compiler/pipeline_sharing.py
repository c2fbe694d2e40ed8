"""Pipeline sharing: kernels that differ only in numbers read these from a uniform buffer.

Compiling is by far the most expensive part of a small kernel, and a network has layers of one kind
in many sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from webnn_py.engines.webgpu.compiler.code.functions import Function, count_calls
from webnn_py.engines.webgpu.compiler.kernel import Kernel, PrivateVariable, Shader
from webnn_py.engines.webgpu.program.pieces import Branch, Code, Literal, Loop, LoopBody, Piece
from webnn_py.engines.webgpu.program.storage import Features

MAX_SHARED_NUMBERS = 64
"""Differing numbers up to which kernels share their code."""

MAX_UNROLLED_ITERATIONS = 8
"""Iterations up to which drivers unroll a loop if its bound is a literal."""

_SHARED_TYPES = ("u", "f")
"""Types of the literals that kernels may read; shape-generic kernels read all."""

_READS = {
    "u": "{}",
    "f": "bitcast<f32>({})",
    "i": "bitcast<i32>({})",
    "li": "i64(bitcast<i32>({}))",
    "lu": "u64({})",
}
"""For the type of a literal, the expression that reads it from a word."""

_FIRST = PrivateVariable("wn_first", "u32")
_SET_FIRST = "  let wn_own_first = wn_groups.x >> 31u;\n  wn_first = wn_own_first;\n"
"""A 0 that drivers cannot fold, for functions. The entry point has its own: a private variable is
not uniform, and loops with barriers must end alike for a workgroup.

If a loop's bound lies at a constant index of a uniform buffer, lavapipe compiles the kernel for the
value there, anew for each dispatch, which takes 1 to 40 ms.
"""

Place = tuple[int, int]
"""A piece: the index of its code among `Shader.codes`, and its own in that code."""


def share(kernels: Sequence[Kernel], features: Features) -> list[Kernel]:
    """Return the kernels; those that differ only in numbers get the same code."""
    forms: dict[str, _Form] = {}  # by code
    groups: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        if kernel.code not in forms:
            forms[kernel.code] = _Form(kernel)
        groups.setdefault(forms[kernel.code].text, []).append(place)
    shared = list(kernels)
    for places in groups.values():
        made = _shared([kernels[place] for place in places], forms, features)
        for place, kernel in zip(places, made, strict=True):
            shared[place] = kernel
    return shared


def form_of(kernel: Kernel) -> str:
    """Return code without the numbers that it could read: kernels of one form may share code."""
    return _Form(kernel).text


class _Form:
    """A kernel's code apart from its numbers.

    Attributes:
        places: The places of the numbers that the kernel could read, in order.
        literals: These numbers.
        text: The code with the types of these in their place.
    """

    def __init__(self, kernel: Kernel) -> None:
        shader = _shader_of(kernel)
        codes = shader.codes
        functions = (*shader.functions, *shader.entry.functions)
        self.places = list(_readable(codes, functions))
        self.literals = [codes[code].literals[piece] for code, piece in self.places]
        types = ("#" + literal.type for literal in self.literals)
        texts = dict(zip(self.places, types, strict=True))
        self.text = shader.with_codes(_replaced(codes, texts)).wgsl

    @property
    def numbers(self) -> Iterator[str]:
        """The numbers in WGSL."""
        return (literal.wgsl for literal in self.literals)


def _shader_of(kernel: Kernel) -> Shader:
    assert kernel.shader is not None, "no stage rewrites the kernel of a compiled graph"
    return kernel.shader


def _readable(codes: Sequence[Code], functions: Sequence[Function]) -> Iterator[Place]:
    """Yield the places of the numbers that a kernel could read, in order.

    Divisors stay literals, as compilers turn divisions by these into products; except before the
    first loop, where an invocation divides once. Numbers of short loops stay literals, too.
    """
    once: Mapping[int, Sequence[range]] = {}
    if any(code.loops for code in codes):
        once = _divided_once(codes, functions)
    for number, code in enumerate(codes):
        short = set(_short(code)) if code.loops else ()
        parts = once.get(number, ())
        for place, literal in code.literals.items():
            if literal.type not in _SHARED_TYPES or place in short:
                continue
            if not literal.divides or any(place in part for part in parts):
                yield number, place


def _first_loop(code: Code, within: range) -> int:
    """Return the place of the first loop; the end of the range if there is none."""
    loops = (place for place in within if isinstance(code.pieces[place], Loop))
    return next(loops, within.stop)


def _short(code: Code) -> Iterator[int]:
    """Yield the places of the numbers in the heads of short loops, which drivers unroll."""
    in_head = False
    for place, piece in enumerate(code.pieces if code.loops else ()):
        if isinstance(piece, (Loop, LoopBody)):
            in_head = isinstance(piece, Loop)
        elif (
            in_head and isinstance(piece, Literal) and int(piece.number) <= MAX_UNROLLED_ITERATIONS
        ):
            yield place


def _divided_once(
    codes: Sequence[Code], functions: Sequence[Function]
) -> dict[int, Sequence[range]]:
    """Return the parts where an invocation divides once, by the index of their code.

    They are before the first loop, of each branch of a fused kernel, and functions called there.
    """
    main = codes[-1]
    end = len(main.pieces)
    branches = [place for place, piece in enumerate(main.pieces) if isinstance(piece, Branch)]
    parts = [
        range(first, _first_loop(main, range(first, last)))
        for first, last in itertools.pairwise([*branches, end])
    ]
    once: dict[int, Sequence[range]] = {}
    called = [Code(main.pieces[part.start : part.stop]) for part in parts]
    for number, function in enumerate(functions if branches else ()):
        calls = sum(count_calls(code, function.name) for code in codes)
        is_once = calls == 1 and any(count_calls(code, function.name) for code in called)
        if is_once and not function.code.loops:
            once[number] = [range(len(function.code.pieces))]
    once[len(codes) - 1] = [range(_first_loop(main, range(end))), *parts]
    return once


def _replaced(codes: Sequence[Code], texts: Mapping[Place, str]) -> list[Code]:
    """Return the codes with texts in the place of pieces."""
    made: dict[int, list[Piece]] = {}
    for (number, place), text in texts.items():
        if number not in made:
            made[number] = list(codes[number].pieces)
        made[number][place] = text
    return [Code(made[n]) if n in made else code for n, code in enumerate(codes)]


def _shared(kernels: list[Kernel], forms: Mapping[str, _Form], features: Features) -> list[Kernel]:
    """Return kernels of one form with the same code, unless they would read too many numbers."""
    if len({kernel.code for kernel in kernels}) == 1:
        return kernels
    columns = list(zip(*(forms[kernel.code].numbers for kernel in kernels), strict=True))
    differing = dict.fromkeys(column for column in columns if len(set(column)) > 1)
    if not 0 < len(differing) <= MAX_SHARED_NUMBERS:
        return kernels
    words = {column: word for word, column in enumerate(differing)}
    groups = [words.get(column) for column in columns]
    form = forms[kernels[0].code]
    read = {at: word for at, word in zip(form.places, groups, strict=True) if word is not None}
    first = reading(kernels[0], read, features)
    firsts = [
        groups.index(word) for word in range(len(words))
    ]  # places of a word hold equal numbers
    return [
        replace(
            kernel,
            code=first.code,
            shader=first.shader,
            reads_words=True,
            numbers=tuple(forms[kernel.code].literals[number].word for number in firsts),
        )
        for kernel in kernels
    ]


def reading(kernel: Kernel, words: Mapping[Place, int], features: Features) -> Kernel:
    """Return a kernel that reads some of its numbers.

    Args:
        kernel: A kernel with all its numbers in its code.
        words: For each literal that it is to read, by its place, the index of the word.
        features: The devices.
    """
    shader = _shader_of(kernel)
    codes, entry = shader.codes, shader.entry
    hidden = features.kind == "cpu"
    texts: dict[Place, str] = {}
    named: dict[str, str] = {}
    for place in sorted(words):
        code, piece = place
        literal, word = codes[code].literals[piece], words[place]
        in_main = code == len(codes) - 1
        first = f"wn_{'own_' if in_main else ''}first + " if hidden else ""
        vector = f"{first}{word // 4}u"
        value = _READS[literal.type].format(f"numbers[{vector}].{'xyzw'[word % 4]}")
        if in_main:  # read before loops, as not every driver hoists the read
            named[f"number{word}"] = value
            value = f"number{word}"
        texts[place] = value
    lets = "".join(f"  let {name} = {value};\n" for name, value in named.items())
    builtins, variables = entry.builtins, shader.variables
    if hidden:
        lets = _SET_FIRST + lets
        builtins, variables = (("num_workgroups", "wn_groups"), *builtins), (_FIRST, *variables)
    *functions, main = _replaced(codes, texts)
    made = shader.with_codes([*functions, Code([lets]) + main])
    return kernel.with_shader(
        replace(
            made,
            entry=replace(made.entry, builtins=builtins),
            numbers=-(-len({*words.values()}) // 4),
            variables=variables,
        )
    )
