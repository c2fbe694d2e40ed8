"""The kernel of values that no template is for: each invocation computes by the lowering.

It writes one element of the bound array: a word, which holds several of a packed type. Of what is
large, hardware writes four at once, and reads so what lies side by side: workgroups are begun one
after the other, which takes longer than to move an element.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from webnn_py.core.traced_queries import divides, sampled
from webnn_py.engines.webgpu.compiler.code.affine import slice_map
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.kernel import Kernel, Part, grid, place_in
from webnn_py.engines.webgpu.compiler.kernel_builder import FOURS, Body, KernelBuilder
from webnn_py.engines.webgpu.program.storage import Storage
from webnn_py.ir import Node, Value

WORKGROUP = {"gpu": 128, "cpu": 64}
"""Invocations of a workgroup, by kind of device."""
MOST_EACH = 64
"""Words that an invocation writes one after the other on a software adapter, at most: to begin one
takes it longer than most words do."""
SHORT = 4000
"""Characters of an element's code, of which four are as quick to compile."""
LONG_ROW = 1 << 9
"""Elements of a row, neighbours in which lie so far apart that four for each invocation are too
many sectors of memory at once."""
FEWEST = 1 << 10
"""Invocations that there are to be all the same, so that all cores have some."""


def emit(builder: KernelBuilder, node: Node | None, part: Part) -> Kernel:
    """Compute each element of a part of the root by its lowering."""
    root = builder.root
    storage = builder.storage(root)
    body = Body(builder, times=storage.per_word)
    result = body.load(root, symbol("i"))
    body.line(f"return {result};")
    builder.function("value", "i: u32", storage.compute, body)
    if _writes_fours(builder):
        return _emit_fours(builder, node)
    words = part.size // storage.word_bytes if part.offset else storage.words(root.size)
    words = min(words, -(-part.size // storage.word_bytes))
    first = part.offset // storage.word_bytes
    each = _words_each(builder, words)
    workgroup = min(WORKGROUP[builder.features.kind], builder.features.invocations)
    groups = grid(-(-words // (workgroup * each)), builder.features.grid)
    number = place_in(groups, workgroup)
    lines = [
        f"@compute @workgroup_size({workgroup})",
        "fn main(@builtin(global_invocation_id) g: vec3<u32>) {",
        *([] if each == 1 else [f"  for (var n = 0u; n < {each}u; n++) {{"]),
        f"  let w = {number if each == 1 else number * each + symbol('n', each)};",
        f"  if (w >= {words}u) {{ return; }}",
    ]
    place = symbol("w", words) + first
    if storage.per_word == 1:
        to = builder.places.at(root, symbol("w", words))
        lines.append(f"  out0[{to}] = {storage.pack([f'value({place})'])};")
    else:
        parts = []
        for lane in range(storage.per_word):
            index = place * storage.per_word + lane
            lines.append(f"  let e{lane} = value({index.min(root.size - 1)});")
            parts.append(f"e{lane}")
        own = int(root.size % storage.per_word) if first + words == storage.words(root.size) else 0
        lines += _packed(storage, parts, words - 1, own)
    name = node.op if node is not None else builder.producers[root].op
    ends = ["}"] if each == 1 else ["  }", "}"]
    return builder.finish(name, "\n".join([*lines, *ends]), groups, part)


def _writes_fours(builder: KernelBuilder) -> bool:
    """Whether the root is large, and as quick to compute as to write."""
    root, features = builder.root, builder.features
    return (
        features.kind != "cpu"
        and sampled(root.size) >= features.large
        and not any("for (" in code for code in builder.functions)
        and sum(map(len, builder.functions)) <= SHORT
        and builder.is_whole(root)
        and _holds_fours(builder.storage(root))
        and divides(4, root.size)
        and builder.places.in_runs(root, 4)
        and not _turns_long_rows(builder)
    )


def _holds_fours(storage: Storage) -> bool:
    """Whether four elements lie in a vector, or in a word."""
    return storage.per_word == 4 or (storage.per_word == 1 and storage.element in FOURS)


def _turns_long_rows(builder: KernelBuilder) -> bool:
    """Whether the root is a matrix that is transposed: it is read along neither of its rows."""
    node = builder.producers[builder.root]
    if node.op != "transpose":
        return False
    last = node.output.rank - 1
    moves = node.attrs["permutation"][-1] != last
    return moves and sampled(node.output.shape[last]) >= LONG_ROW


def _emit_fours(builder: KernelBuilder, node: Node | None) -> Kernel:
    """Compute four elements of the root with each invocation."""
    root = builder.root
    storage = builder.storage(root)
    count = root.size // 4
    builder.spare = unbound(builder)
    builder.vector_out = storage.per_word == 1
    body = Body(builder, by_fours=True)
    first = symbol("i", count) * 4
    made = [body.load(root, first + lane) for lane in range(4)]
    if builder.vector_out:
        packed = f"vec4<{storage.element}>({', '.join(storage.pack([one]) for one in made)})"
    else:
        packed = storage.pack(made)
    body.line(f"out0[{builder.places.at(root, first) // 4}] = {packed};")
    name = node.op if node is not None else builder.producers[root].op
    return for_each(builder, body, name, count, workgroup=WORKGROUP["gpu"])


def _words_each(builder: KernelBuilder, words: int) -> int:
    """How many words an invocation writes: several where none of them takes long by itself."""
    if builder.features.kind != "cpu" or any("for (" in code for code in builder.functions):
        return 1
    return min(MOST_EACH, 1 << max(0, int(sampled(words // FEWEST)).bit_length() - 1))


def _packed(storage: Storage, parts: list[str], last: int, own: int) -> list[str]:
    """The store of a word; of the last one just the first `own` elements, unless that is 0.

    What lies behind the root may be the user's.
    """
    if not own:
        return [f"  out0[w] = {storage.pack(parts)};"]
    mask = (1 << own * 32 // storage.per_word) - 1
    return [
        f"  let word = {storage.pack(parts)};",
        f"  if (w == {last}u) {{",
        f"    out0[w] = (word & {mask}u) | (out0[w] & {mask ^ 0xFFFFFFFF}u);",
        "    return;",
        "  }",
        "  out0[w] = word;",
    ]


def for_each(
    builder: KernelBuilder,
    body: Body,
    name: str,
    count: int,
    part: Part | None = None,
    workgroup: int = 64,
) -> Kernel:
    """A kernel that runs the body with each number `i` below the count.

    Args:
        builder: Of the kernel.
        body: What it does, without a result.
        name: For labels and listings.
        count: How many numbers.
        part: What it writes of the root; None for the whole.
        workgroup: Invocations of a workgroup, where the device has as many.
    """
    builder.function("write", "i: u32", "", body)
    workgroup = min(workgroup, builder.features.invocations)
    groups = grid(-(-count // workgroup), builder.features.grid)
    main = f"""@compute @workgroup_size({workgroup})
fn main(@builtin(global_invocation_id) g: vec3<u32>) {{
  let i = {place_in(groups, workgroup)};
  if (i < {count}u) {{ write(i); }}
}}"""
    return builder.finish(name, main, groups, part)


def unbound(builder: KernelBuilder) -> int:
    """How many buffers may be bound beside the root's and those from which it is computed."""
    taken = sum(len(builder.parts(value)) for value in _read(builder))
    return builder.features.max_bindings - 1 - taken


def _read(builder: KernelBuilder) -> set[Value]:
    """The buffers from which the root is computed."""
    found, todo = set(), [builder.root]
    for value in todo:
        if builder.computes(value):
            node = builder.producers[value]
            scratch = [builder.scratch[v] for v in node.outputs if v in builder.scratch]
            todo += [v for v in (*node.operands, *scratch) if v not in todo]
        elif builder.scalar(value) is None:
            found.add(builder.places.buffer_of(builder.sums.get(value, value)))
    return found


def emit_concat_rest(builder: KernelBuilder, node: Node, left: Sequence[int]) -> Kernel:
    """The kernel that writes some operands to their places.

    Args:
        builder: Of the kernel.
        node: The concat.
        left: The operands, by their number.
    """
    operands, axis, shape = list(node.operands), node.attrs["axis"], node.output.shape
    starts = list(itertools.accumulate((v.shape[axis] for v in operands), initial=0))
    count = sum(operands[number].size for number in left)
    body = Body(builder)
    first = 0
    for number in left:
        value = operands[number]
        own = symbol("i", count) - first
        first += value.size
        start = [starts[number] if d == axis else 0 for d in range(value.rank)]
        with body.block(f"if (i < {first}u)" if first < count else ""):
            own = body.let(own.below(value.size), "own")
            view = slice_map(shape, start, value.shape, [1] * value.rank)
            body.store(view.at(own), body.load(value, own))
            body.line("return;")
    return for_each(builder, body, node.op, count)
