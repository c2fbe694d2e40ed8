"""Kernels of matrix products and convolutions: one GEMM, or split-K in two kernels.

For products of long k and few elements, workgroups split k; a second kernel adds the partial sums.
"""

from __future__ import annotations

from dataclasses import replace

from webnn_py.engines.webgpu.compiler.code.index import Index, symbol
from webnn_py.engines.webgpu.compiler.code.prelude import used
from webnn_py.engines.webgpu.compiler.kernel import (
    BY_INVOCATION,
    EntryPoint,
    Kernel,
    grid,
    place_in,
    reachable,
)
from webnn_py.engines.webgpu.compiler.kernel_builder import OUT, KernelBuilder, Make
from webnn_py.engines.webgpu.compiler.kernels import (
    conv_kernel,
    matmul,
    matmul_kernel,
    packed_kernel,
    row_kernel,
)
from webnn_py.engines.webgpu.compiler.kernels.epilogue import PUT, PUT4
from webnn_py.engines.webgpu.compiler.kernels.gemm_types import LoadHook, Product
from webnn_py.engines.webgpu.compiler.kernels.matmul import Split
from webnn_py.engines.webgpu.compiler.kernels.matmul_kernel import gemm_limits
from webnn_py.engines.webgpu.compiler.legalize.integer_products import (
    CODES_CONVOLUTION,
    CODES_PRODUCT,
)
from webnn_py.engines.webgpu.compiler.legalize.packed_products import PACKED_PRODUCT
from webnn_py.engines.webgpu.compiler.legalize.split_products import (
    SPLIT_CONVOLUTION,
    SPLIT_PRODUCT,
)
from webnn_py.engines.webgpu.compiler.lower.registry import VIEWS
from webnn_py.engines.webgpu.program.pieces import Code, u32
from webnn_py.ir import Node, Value

WORKGROUP_SIZE = 64

MIN_LONG_EPILOGUE_CHARS = 1_200
"""Characters of an epilogue's functions from which its code should appear once. A gelu has more, a
sigmoid fewer; that one is faster unrolled."""

_PRODUCTS = {
    "matmul": matmul_kernel.product,
    CODES_PRODUCT: matmul_kernel.product,
    PACKED_PRODUCT: packed_kernel.product,
    "conv2d": conv_kernel.product,
    CODES_CONVOLUTION: conv_kernel.product,
    SPLIT_PRODUCT: matmul_kernel.product,
    SPLIT_CONVOLUTION: conv_kernel.product,
}


def product_of(builder: KernelBuilder, node: Node | None) -> Product | None:
    """Return the node as a product; None if it is none."""
    return _PRODUCTS[node.op](builder, node) if node is not None and node.op in _PRODUCTS else None


def emit(builder: KernelBuilder, node: Node) -> Kernel | None:
    """Return the kernel of a product with its fused epilogue; None if the node is no product."""
    product = product_of(builder, node)
    if product is None:
        return None
    product.emit_epilogue()
    limits, kind = gemm_limits(builder), builder.features.kind
    problem = replace(
        product.problem,
        result4=None if _adds_bias_only(builder, node) else product.problem.result4,
        long_stores=_is_long(builder),
        partial=_partial(builder, product),
    )
    tile = matmul.emit_gemm(problem, limits, kind, builder.tile)
    return builder.finish(node.op, tile.entry, tile.workgroups)


def emit_whole(make: Make, node: Node) -> list[Kernel]:
    """Return the kernel of a node that is a product in every form."""
    kernel = emit(make(), node)
    assert kernel is not None
    return [kernel]


def emit_product(make: Make, node: Node) -> list[Kernel]:
    """Return the kernels of a node that is a product in every form, split along k if that pays."""
    return emit_split_k(make, node) or emit_whole(make, node)


def emit_packed(make: Make, node: Node) -> list[Kernel]:
    """Return the kernels of a product by packed weights, of few rows or of many."""
    few = packed_kernel.emit(make(), node)
    return [few] if few is not None else emit_product(make, node)


def _partial(builder: KernelBuilder, product: Product) -> LoadHook | None:
    """Return the place in the output where sums of float32 may wait; None if it has another type.

    Only the invocation that stores an element reads and writes its place.
    """
    if builder.storage(builder.root).element != "f32":
        return None

    def partial(batch: Index, row: Index, col: Index) -> str:
        place = builder.places.at(builder.root, product.place(batch, row, col))
        return f"{OUT}[{place.enclosed} >> 2u]" if builder.vector_out else f"{OUT}[{place}]"

    return partial


def _adds_bias_only(builder: KernelBuilder, node: Node) -> bool:
    """Whether an epilogue is at most a bias: an operand that is smaller than the result."""
    value = builder.root
    while value is not node.output:
        maker = builder.producers[value]
        chain = [one for one in maker.operands if one is node.output or builder.computes(one)]
        others = sum(one.size == value.size for one in maker.operands) - len(chain)
        if len(chain) != 1 or others or not (maker.op == "add" or maker.op in VIEWS):
            return False
        (value,) = chain
    return True


def _is_long(builder: KernelBuilder) -> bool:
    """Whether the epilogue calls long functions."""
    functions = reachable(builder.functions, [Code.of(f"{PUT} {PUT4}")])
    return len(used("\n".join(function.wgsl for function in functions))) > MIN_LONG_EPILOGUE_CHARS


def emit_split_k(make: Make, node: Node) -> list[Kernel] | None:
    """Return the two kernels of a split-K product with its epilogue; None if not worth it."""
    builder = make()
    product = product_of(builder, node)
    if product is None or builder.tile or not builder.is_whole(builder.root):
        return None
    split = matmul.split_of(product.problem, gemm_limits(builder), builder.features.kind)
    if split is None:
        return None
    sums = Value("float32", (split.parts, node.output.size), "sums")
    if not builder.is_whole(sums):
        return None
    return [_partial_sums(make(sums), node, split), _add_parts(builder, product, node, sums)]


def emit_split_k_into_rows(
    make: Make, node: Node, make_rows: Make, reduction: Node
) -> list[Kernel] | None:
    """Return the kernels of a split-K product and of a row kernel that adds the partial sums.

    None where either does not apply.

    Args:
        make: Creates the builder of the product's kernel, with its fused epilogue.
        node: The product.
        make_rows: Creates the builder of the row kernel.
        reduction: The reduction of the row kernel.
    """
    builder = make()
    product = product_of(builder, node)
    if product is None or builder.tile:
        return None
    features = builder.features
    split = matmul.split_of(product.problem, gemm_limits(builder), features.kind, 0.0)
    if split is None:
        return None
    sums = Value("float32", (split.parts, node.output.size), "sums")
    rows = make_rows()
    rows.sums[node.output] = sums
    kernel = row_kernel.emit(rows, reduction)
    if kernel is None or not rows.is_whole(sums) or not _binds(kernel, features.max_bindings):
        return None
    return [_partial_sums(make(sums), node, split), kernel]


def _binds(kernel: Kernel, most: int) -> bool:
    """Whether a kernel binds at most `most` buffers, and reads none that it writes."""
    read, written = ({part.value for part in parts} for parts in (kernel.reads, kernel.writes))
    return len(kernel.reads) + len(kernel.writes) <= most and read.isdisjoint(written)


def _partial_sums(builder: KernelBuilder, node: Node, split: Split) -> Kernel:
    """Return the kernel that writes the partial sums of each part of k."""
    product = product_of(builder, node)
    assert product is not None
    parts = split.parts

    def place(batch: Index, row: Index, col: Index) -> Index:
        return batch % parts * node.output.size + product.place(batch // parts, row, col)

    def store(batch: Index, row: Index, col: Index, value: str) -> str:
        return f"{OUT}[{place(batch, row, col)}] = {value};"

    def store4(batch: Index, row: Index, col: Index, value: str) -> str:
        return f"{OUT}[{place(batch, row, col).enclosed} >> 2u] = {value};"

    wide = product.problem.store4 is not None
    builder.vector_out = wide

    def partial(batch: Index, row: Index, col: Index) -> str:
        index = place(batch, row, col)
        return f"{OUT}[{index.enclosed} >> 2u]" if wide else f"{OUT}[{index}]"

    problem = replace(
        product.problem.divided(parts),
        store=store,
        store4=store4 if wide else None,
        result4=None,
        partial=partial,
    )
    tile = matmul.emit_tile(problem, split.tile, gemm_limits(builder))
    return builder.finish(node.op, tile.entry, tile.workgroups)


def _add_parts(builder: KernelBuilder, product: Product, node: Node, sums: Value) -> Kernel:
    """Return the kernel that adds the partial sums and runs the epilogue."""
    product.emit_epilogue()
    parts, size = sums.shape
    vectors = builder.vector(sums) if builder.vector_out else None
    width, at, put = (4, vectors, "put4") if vectors else (1, builder.element(sums), "put")
    count = size // width
    groups = grid(-(-count // WORKGROUP_SIZE), builder.features.grid)
    terms = [at(str(symbol("w", count) + part * count)) for part in range(parts)]
    lines = [
        f"  let w = {place_in(groups, WORKGROUP_SIZE)};",
        f"  if (w >= {u32(count)}) {{ return; }}",
        f"  let total = {' + '.join(terms)};",
        f"  {product.put(put, symbol('w', count) * width, 'total')}",
    ]
    return builder.finish(node.op, EntryPoint.of(WORKGROUP_SIZE, BY_INVOCATION, lines), groups)
