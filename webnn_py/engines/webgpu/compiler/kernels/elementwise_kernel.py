"""Kernels that compute each element by its lowering, without a template.

An invocation writes one array element: a word, which holds several elements of a packed type. On
GPUs it writes four elements of a large root, and loads their operands as vec4s: launching
workgroups takes longer than moving an element.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from webnn_py.core.traced_queries import divides, sampled
from webnn_py.engines.webgpu.compiler.code.affine import slice_map
from webnn_py.engines.webgpu.compiler.code.index import symbol
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_INVOCATION,
    EntryPoint,
    Kernel,
    Part,
    grid,
    place_in,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import OUT, VEC4_ELEMENTS, Body, KernelBuilder
from webnn_py.engines.webgpu.program.pieces import END_LOOP, declared, loop, u32
from webnn_py.engines.webgpu.program.storage import Storage
from webnn_py.ir import Node, Value

_VALUE, _WRITE = declared("value"), declared("write")

WORKGROUP_SIZE = {"gpu": 128, "cpu": 64}
"""Invocations of a workgroup, by kind of device."""
MAX_INVOCATION_WORDS = 64
"""Words per invocation of a software adapter: starting one costs more than most words."""
MAX_REPEATED_CHARS = 4000
"""Characters of an element's code up to which four copies compile as fast."""
MIN_LONG_ROW = 1 << 9
"""Elements of a row from which four reads across rows touch too many memory sectors at once."""
MIN_INVOCATIONS = 1 << 10
"""Minimum invocations, so that all cores have work."""


def emit(builder: KernelBuilder, node: Node | None, part: Part) -> Kernel:
    """Return the kernel of a part of the root, by its lowering."""
    root = builder.root
    storage = builder.storage(root)
    body = Body(builder, times=storage.per_word)
    result = body.load(root, symbol("i"))
    body.line(f"return {result};")
    builder.function("value", "i: u32", storage.compute, body)
    if _writes_vec4(builder):
        return _emit_vec4(builder, node)
    words = part.size // storage.word_bytes if part.offset else storage.words(root.size)
    words = min(words, -(-part.size // storage.word_bytes))
    first = part.offset // storage.word_bytes
    each = _words_each(builder, words)
    workgroup = min(WORKGROUP_SIZE[builder.features.kind], builder.features.invocations)
    groups = grid(-(-words // (workgroup * each)), builder.features.grid)
    number = place_in(groups, workgroup)
    lines = [
        *([] if each == 1 else ["  " + loop(f"for (var n = 0u; n < {u32(each)}; n++)", each)]),
        f"  let w = {number if each == 1 else number * each + symbol('n', each)};",
        f"  if (w >= {u32(words)}) {{ return; }}",
    ]
    place = symbol("w", words) + first
    if storage.per_word == 1:
        to = builder.places.at(root, symbol("w", words))
        lines.append(f"  {OUT}[{to}] = {storage.pack([f'{_VALUE}({place})'])};")
    else:
        parts = []
        for lane in range(storage.per_word):
            index = place * storage.per_word + lane
            lines.append(f"  let e{lane} = {_VALUE}({index.min(root.size - 1)});")
            parts.append(f"e{lane}")
        own = int(root.size % storage.per_word) if first + words == storage.words(root.size) else 0
        lines += _packed(storage, parts, words - 1, own)
    name = node.op if node is not None else builder.producers[root].op
    if each > 1:
        lines.append(f"  {END_LOOP}")
    return builder.finish(name, EntryPoint.of(workgroup, BY_INVOCATION, lines), groups, part)


def _writes_vec4(builder: KernelBuilder) -> bool:
    """Whether to write vec4s: the root is large, and as fast to compute as to write."""
    root, features = builder.root, builder.features
    return (
        features.kind != "cpu"
        and sampled(root.size) >= features.large
        and not any(function.code.loops for function in builder.functions)
        and sum(len(function.wgsl) for function in builder.functions) <= MAX_REPEATED_CHARS
        and builder.is_whole(root)
        and _holds_vec4(builder.storage(root))
        and divides(4, root.size)
        and builder.places.in_runs(root, 4)
        and not _transposes_long_rows(builder)
    )


def _holds_vec4(storage: Storage) -> bool:
    """Whether four elements form a vector or a word."""
    return storage.per_word == 4 or (storage.per_word == 1 and storage.element in VEC4_ELEMENTS)


def _transposes_long_rows(builder: KernelBuilder) -> bool:
    """Whether the root transposes a matrix of long rows, so that reads are far apart."""
    node = builder.producers[builder.root]
    if node.op != "transpose":
        return False
    last = node.output.rank - 1
    moves = node.attrs["permutation"][-1] != last
    return moves and sampled(node.output.shape[last]) >= MIN_LONG_ROW


def _emit_vec4(builder: KernelBuilder, node: Node | None) -> Kernel:
    """Return the kernel with four elements per invocation."""
    root = builder.root
    storage = builder.storage(root)
    count = root.size // 4
    builder.spare = free_bindings(builder)
    builder.vector_out = storage.per_word == 1
    body = Body(builder, by_fours=True)
    first = symbol("i", count) * 4
    elements = [body.load(root, first + lane) for lane in range(4)]
    if builder.vector_out:
        packed = f"vec4<{storage.element}>({', '.join(storage.pack([one]) for one in elements)})"
    else:
        packed = storage.pack(elements)
    body.line(f"{OUT}[{builder.places.at(root, first) // 4}] = {packed};")
    name = node.op if node is not None else builder.producers[root].op
    return map_kernel(builder, body, name, count, workgroup=WORKGROUP_SIZE["gpu"])


def _words_each(builder: KernelBuilder, words: int) -> int:
    """Return the words per invocation: several on software adapters, without loops."""
    loops = any(function.code.loops for function in builder.functions)
    if builder.features.kind != "cpu" or loops:
        return 1
    return min(
        MAX_INVOCATION_WORDS, 1 << max(0, int(sampled(words // MIN_INVOCATIONS)).bit_length() - 1)
    )


def _packed(storage: Storage, parts: list[str], last: int, own: int) -> list[str]:
    """Emit the store of a word; of the last word, just the first `own` elements unless that is 0.

    The memory behind the root may belong to the user.
    """
    if not own:
        return [f"  {OUT}[w] = {storage.pack(parts)};"]
    mask = (1 << own * 32 // storage.per_word) - 1
    return [
        f"  let word = {storage.pack(parts)};",
        f"  if (w == {u32(last)}) {{",
        f"    {OUT}[w] = (word & {u32(mask)}) | ({OUT}[w] & {u32(mask ^ 0xFFFFFFFF)});",
        "    return;",
        "  }",
        f"  {OUT}[w] = word;",
    ]


def map_kernel(
    builder: KernelBuilder,
    body: Body,
    name: str,
    count: int,
    part: Part | None = None,
    workgroup: int = 64,
) -> Kernel:
    """Return a kernel that runs `body` for each index `i` below `count`.

    Args:
        builder: The kernel's builder.
        body: Statements without a result.
        name: Name for labels and listings.
        count: Number of indices.
        part: The part of the root to write; None for the whole.
        workgroup: Invocations of a workgroup, if the device allows as many.
    """
    builder.function("write", "i: u32", "", body)
    workgroup = min(workgroup, builder.features.invocations)
    groups = grid(-(-count // workgroup), builder.features.grid)
    lines = [
        f"  let i = {place_in(groups, workgroup)};",
        f"  if (i < {u32(count)}) {{ {_WRITE}(i); }}",
    ]
    return builder.finish(name, EntryPoint.of(workgroup, BY_INVOCATION, lines), groups, part)


def free_bindings(builder: KernelBuilder) -> int:
    """Return how many more buffers a kernel may bind, besides the root's and its operands'."""
    taken = sum(len(builder.parts(value)) for value in _buffers_read(builder))
    return builder.features.max_bindings - 1 - taken


def _buffers_read(builder: KernelBuilder) -> set[Value]:
    """Return the buffers that the root is computed from."""
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
    """Return the kernel that writes the operands of a concat that no other kernel writes in place.

    Args:
        builder: The kernel's builder.
        node: The concat.
        left: Indices of the remaining operands.
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
        with body.block(f"if (i < {u32(first)})" if first < count else ""):
            own = body.let(own.below(value.size), "own")
            view = slice_map(shape, start, value.shape, [1] * value.rank)
            body.store(view.at(own), body.load(value, own))
            body.line("return;")
    return map_kernel(builder, body, node.op, count)
