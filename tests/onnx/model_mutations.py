"""Models with something wrong, or something strange: ONNX's node tests, changed at random.

What is changed follows from a number alone, so that each mutant can be made again.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from tests.onnx import official
from tests.onnx.test_damaged_models import WHOLE
from tests.onnx.test_embeddings import CASES as EMBEDDINGS
from tests.onnx.test_fused import CASES as FUSED
from tests.onnx.test_fused import alone, only
from tests.onnx.test_group_query import CASES as GROUPS
from tests.onnx.test_group_query import group_query
from tests.onnx.test_multi_head import CASES as HEADS
from tests.onnx.test_multi_head import trimmed

MAX_FROZEN = 4096
"""Elements of an input that becomes a constant, as models have shapes and weights."""
NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 16, 100, 255, 1024, -1, -2, -3, -7, 2**15, 2**31 - 1, 2**31]
NUMBERS += [2**32, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**62), -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30, -1e30, 3.4e38, 1e-45]
FLOATS += [float("nan"), float("inf"), float("-inf")]
TEXTS = ["", "x", "NOTSET", "SAME_UPPER", "VALID", "linear", "cubic", "nearest", "reflect", "edge"]
TEXTS += ["wrap", "constant", "max", "min", "mul", "add", "none", "tanh", "forward", "reverse"]
TEXTS += ["bidirectional", "mean", "sum", "DCR", "CRD", "ij,jk->ik", "...i->i", "->", "é" * 9]
NAMES = ["", "a", "x y", "\x1b[31m", "n" * 300, "é", "a/b:0", "__class__", "self", "label"]
DIMENSIONS = [0, 1, 2, 3, 4, 5, 8, 64, 1000, -1, 2**16, 2**31, 2**40, 2**62]
TEXT_DIMENSIONS = ["n", "m", "", "?", "n + 1", "2*n", "n // 2", "n*m", "None", "(((", "n" * 99]
ELEMENTS = [int(number) for number in TensorProto.DataType.values()] + [99, -1]


@dataclass(frozen=True)
class Source:
    """A model to change.

    Attributes:
        name: What it is called in reports.
        contents: The model's bytes.
    """

    name: str
    contents: bytes


def sources() -> list[Source]:
    """All models that are changed, in an order that depends on the version of onnx alone."""
    found = []
    for kind in ("node", "simple", "pytorch-operator"):
        for name, model, pairs, _, _ in official.cases(kind):
            found.append(Source(name, model.SerializeToString()))
            frozen = with_constants(model, pairs[0][0] if pairs else ())
            if frozen is not None:
                found.append(Source(f"{name}, constants", frozen.SerializeToString()))
    found += [Source(name, model.SerializeToString()) for name, model in of_onnx_runtime()]
    found += [Source(f"export {i}", whole) for i, whole in enumerate(WHOLE)]
    return found


def of_onnx_runtime() -> list[tuple[str, Any]]:
    """Names and models with its own operators."""
    made = [(name, only(*case)) for name, case in FUSED.items()]
    made += [(f"{kind} {name}", alone(kind, *case)[0]) for kind, name, case in EMBEDDINGS]
    made += [(f"groups {name}", group_query(**case)[0]) for name, case in GROUPS.items()]
    for kind, name, (given, outputs, attributes) in HEADS:
        made.append((f"{kind} {name}", alone(kind, trimmed(given), outputs, attributes)[0]))
    return made


@functools.cache
def operators() -> dict[tuple[str, str], list[str]]:
    """Names of attributes by domain and name of an operator, in all its versions."""
    found: dict[tuple[str, str], set[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(("", schema.name), set()).update(schema.attributes)
    for _, model in of_onnx_runtime():
        for node in model.graph.node:
            names = {attribute.name for attribute in node.attribute}
            found.setdefault((node.domain, node.op_type), set()).update(names)
    return {key: sorted(names) for key, names in sorted(found.items())}


def with_constants(model: Any, inputs: Sequence[Any]) -> Any:
    """A copy whose inputs are constants but for the first one; None where that is the same."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value, array in list(zip(model.graph.input, inputs, strict=False))[1:]:
        if isinstance(array, np.ndarray) and array.size <= MAX_FROZEN:
            copy.graph.input.remove(value)
            copy.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return copy if len(copy.graph.initializer) > len(model.graph.initializer) else None


def mutant(found: Sequence[Source], seed: int) -> tuple[str, bytes]:
    """What is changed, and how, for messages; and the changed model."""
    rng = random.Random(seed)
    source = rng.choice(found)
    if rng.random() < 0.12:
        change: Any = rng.choice(OF_BYTES)
        return f"{source.name}: {change.__name__}", change(rng, source.contents, found)
    model = onnx.ModelProto.FromString(source.contents)
    told = []
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
        change = rng.choice(CHANGES)
        told.append(change.__name__)
        try:
            change(rng, model, found)
        except Exception:  # it has none of these, or a change before made it strange
            told[-1] += " (not done)"
    contents = model.SerializeToString()
    if rng.random() < 0.02:
        contents = rng.choice(OF_BYTES)(rng, contents, found)
    return f"{source.name}: {', '.join(told)}", contents


def graphs_of(graph: Any) -> Iterator[Any]:
    """A graph and those of its nodes' attributes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if attribute.HasField("g") or attribute.graphs:
                    yield from graphs_of(inner)


def a_graph(rng: random.Random, model: Any) -> Any:
    return rng.choice([*graphs_of(model.graph)])


def a_node(rng: random.Random, model: Any) -> Any:
    return rng.choice([node for graph in graphs_of(model.graph) for node in graph.node])


def an_attribute(rng: random.Random, model: Any) -> Any:
    nodes = [node for graph in graphs_of(model.graph) for node in graph.node]
    return rng.choice([one for node in nodes for one in node.attribute])


def a_tensor(rng: random.Random, model: Any) -> Any:
    found = []
    for graph in graphs_of(model.graph):
        found += graph.initializer
        found += [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
        found += [sparse.values for sparse in graph.sparse_initializer]
        found += [sparse.indices for sparse in graph.sparse_initializer]
    return rng.choice(found)


def a_value(rng: random.Random, model: Any) -> Any:
    graph = a_graph(rng, model)
    return rng.choice([*graph.input, *graph.input, *graph.output])


def a_name(rng: random.Random, model: Any) -> str:
    """A name that stands for something in the model, or any."""
    names = list(NAMES)
    for graph in graphs_of(model.graph):
        for node in graph.node:
            names += [*node.input, *node.output] * 3
        names += [one.name for one in [*graph.input, *graph.initializer]] * 3
    return rng.choice(names)


def another(rng: random.Random, found: Sequence[Source]) -> Any:
    return onnx.ModelProto.FromString(rng.choice(found).contents)


def a_number(rng: random.Random) -> int:
    return rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(-10, 40)


def change_names(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """Drop, double, move, leave out or replace an input or an output of a node."""
    node = a_node(rng, model)
    names = rng.choice([node.input, node.input, node.output])
    kept, what = list(names), rng.randrange(7)
    at = rng.randrange(len(kept) + (what == 6))
    if what == 0:
        del kept[at]
    elif what == 1:
        kept.insert(at, kept[at])
    elif what == 2:
        rng.shuffle(kept)
    elif what == 3:
        kept[at] = ""
    elif what == 4:
        kept[at] = a_name(rng, model)
    elif what == 5:
        kept += [a_name(rng, model)] * rng.choice([1, 1, 2, 5, 40])
    else:
        kept.insert(at, a_name(rng, model))
    del names[:]
    names.extend(kept)


def change_operator(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    node = a_node(rng, model)
    what = rng.randrange(4)
    if what == 0:
        node.op_type = a_node(rng, another(rng, found)).op_type
    elif what == 1:
        node.domain, node.op_type = rng.choice(list(operators()))
        own = {one.domain for one in model.opset_import}
        if node.domain and node.domain not in own:
            model.opset_import.append(onnx.helper.make_opsetid(node.domain, 1))
    elif what == 2:
        node.domain = rng.choice(["", "ai.onnx", "com.microsoft", "ai.onnx.ml", "d", "\x1b[1m"])
    else:
        node.op_type = rng.choice([*NAMES, "If", "Loop", "Scan", "Constant", "SequenceMap"])


def replace_node(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """An operator of ONNX or of ONNX Runtime, with inputs and attributes at random."""
    node = a_node(rng, model)
    key = rng.choice(list(operators()))
    node.domain, node.op_type = key
    if node.domain:
        model.opset_import.append(onnx.helper.make_opsetid(node.domain, 1))
    names = [a_name(rng, model) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 3, 4, 5, 8]))]
    del node.input[:], node.attribute[:]
    node.input.extend(names)
    for name in operators()[key]:
        if rng.random() < 0.5:
            node.attribute.append(an_own_attribute(rng, name))


def an_own_attribute(rng: random.Random, name: str) -> Any:
    one = AttributeProto(name=name)
    fill(rng, one, rng.choice(["i", "i", "ints", "f", "s", "floats", "strings"]))
    return one


def fill(rng: random.Random, attribute: Any, kind: str) -> None:
    """Give an attribute a value of some kind."""
    length = rng.choice([0, 1, 1, 2, 2, 3, 4, 4, 6, 9, 300])
    name = attribute.name
    attribute.Clear()
    attribute.name = name
    attribute.type = {
        "i": AttributeProto.INT,
        "f": AttributeProto.FLOAT,
        "s": AttributeProto.STRING,
        "ints": AttributeProto.INTS,
        "floats": AttributeProto.FLOATS,
        "strings": AttributeProto.STRINGS,
        "t": AttributeProto.TENSOR,
        "g": AttributeProto.GRAPH,
    }[kind]
    if kind == "i":
        attribute.i = a_number(rng)
    elif kind == "f":
        attribute.f = rng.choice(FLOATS)
    elif kind == "s":
        attribute.s = rng.choice([text.encode() for text in TEXTS] + [b"\xff\xfe"])
    elif kind == "ints":
        attribute.ints.extend(a_number(rng) for _ in range(length))
    elif kind == "floats":
        attribute.floats.extend(rng.choice(FLOATS) for _ in range(length))
    elif kind == "strings":
        attribute.strings.extend(rng.choice(TEXTS).encode() for _ in range(length))
    elif kind == "t":
        attribute.t.CopyFrom(numpy_helper.from_array(np.zeros(length, np.float32)))
    else:
        attribute.g.name = "g"


KINDS = ["i", "f", "s", "ints", "floats", "strings", "t", "g"]


def change_attribute_value(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    one = an_attribute(rng, model)
    kind = one.type
    if kind == AttributeProto.INTS and one.ints and rng.random() < 0.7:
        values, what = list(one.ints), rng.randrange(4)
        at = rng.randrange(len(values))
        if what < 2:
            values[at] = a_number(rng)
        elif what == 2:
            del values[at]
        else:
            values.insert(at, a_number(rng))
        del one.ints[:]
        one.ints.extend(values)
    elif kind == AttributeProto.STRING and one.s and rng.random() < 0.3:
        at = rng.randrange(len(one.s))
        one.s = one.s[:at] + rng.choice([b"", b"i", b".", b",", b"->", b"zz"]) + one.s[at + 1 :]
    elif kind in range(1, 9):
        fields = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings"}
        fill(rng, one, fields[kind])


def change_attribute(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    node = a_node(rng, model)
    what = rng.randrange(7)
    if what == 0:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif what == 1:
        fill(rng, rng.choice(node.attribute), rng.choice(KINDS))
    elif what == 2:
        rng.choice(node.attribute).name = rng.choice(NAMES)
    elif what == 3:
        node.attribute.append(rng.choice(node.attribute))
    elif what == 4:
        node.attribute.append(an_attribute(rng, another(rng, found)))
    elif what == 5:
        rng.choice(node.attribute).type = rng.randrange(0, 15)
    else:
        names = operators().get((node.domain, node.op_type), [])
        node.attribute.append(an_own_attribute(rng, rng.choice([*names, "axis", "axes"])))


def change_element_type(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    value = a_value(rng, model)
    if rng.random() < 0.9:
        value.type.tensor_type.elem_type = rng.choice(ELEMENTS)
    elif rng.random() < 0.5:
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    else:
        value.ClearField("type")


def change_shape(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    value = a_value(rng, model)
    shape = value.type.tensor_type.shape
    what = rng.randrange(6)
    if what == 0:
        value.type.tensor_type.ClearField("shape")
    elif what == 1:
        del shape.dim[rng.randrange(len(shape.dim))]
    elif what == 2:
        shape.dim.add().dim_value = rng.choice(DIMENSIONS)
    elif what == 3:
        rng.choice(shape.dim).dim_param = rng.choice(TEXT_DIMENSIONS)
    elif what == 4:
        for dim in shape.dim:
            if rng.random() < 0.5:
                dim.dim_param = rng.choice(TEXT_DIMENSIONS)
    else:
        rng.choice(shape.dim).dim_value = rng.choice(DIMENSIONS)


def change_contents(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """Other numbers in a constant, or another shape or type of it."""
    tensor = a_tensor(rng, model)
    array = numpy_helper.to_array(tensor).copy()
    what = rng.randrange(5)
    if what < 2:
        flat = array.reshape(-1)
        at = rng.randrange(flat.size)
        number: Any = rng.choice(FLOATS) if array.dtype.kind == "f" else a_number(rng)
        flat[at] = np.asarray(number).astype(array.dtype)
    elif what == 2:
        array = np.resize(array, [rng.choice([0, 1, 2, 3, 7]) for _ in range(rng.randrange(4))])
    elif what == 3:
        with np.errstate(all="ignore"):
            array = array.astype(rng.choice(["int64", "int32", "float32", "float16", "uint8", "?"]))
    else:
        array = np.asarray([a_number(rng) for _ in range(rng.choice([1, 2, 4]))], np.int64)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def change_tensor(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """What contradicts itself in a constant."""
    tensor = a_tensor(rng, model)
    what = rng.randrange(8)
    if what == 0:
        tensor.data_type = rng.choice(ELEMENTS)
    elif what == 1:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(DIMENSIONS)
    elif what == 2:
        tensor.dims.append(rng.choice(DIMENSIONS))
    elif what == 3:
        del tensor.dims[rng.randrange(len(tensor.dims))]
    elif what == 4:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif what == 5:
        tensor.ClearField("raw_data")
        tensor.float_data.extend([1.0] * rng.randrange(5))
    elif what == 6:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key=rng.choice(["location", "place", "offset"]), value="9 x")
    else:
        tensor.name = rng.choice(NAMES)


def make_sparse(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    graph = a_graph(rng, model)
    tensor = rng.choice(graph.initializer)
    graph.initializer.remove(tensor)
    size = int(np.prod(tensor.dims)) if len(tensor.dims) else 1
    values = np.resize(numpy_helper.to_array(tensor), size)
    sparse = graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(values, tensor.name))
    places = np.arange(size) + rng.choice([0, 0, 1, -1])
    sparse.indices.CopyFrom(numpy_helper.from_array(places.astype(np.int64), "i"))
    sparse.dims.extend(tensor.dims)
    if rng.random() < 0.5:
        sparse.dims[rng.randrange(len(sparse.dims))] = rng.choice(DIMENSIONS)


def change_version(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    what = rng.randrange(5)
    if what < 3:
        rng.choice(model.opset_import).version = rng.choice([*range(1, 29), a_number(rng)])
    elif what == 3:
        del model.opset_import[:]
    else:
        model.opset_import.append(onnx.helper.make_opsetid(rng.choice(["", "d"]), 7))
    if rng.random() < 0.2:
        model.ir_version = a_number(rng)


def change_nodes(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """Drop, double or move a node, or take one from elsewhere."""
    graph = a_graph(rng, model)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    what = rng.randrange(4)
    if what == 0:
        del nodes[rng.randrange(len(nodes))]
    elif what == 1:
        nodes.insert(rng.randrange(len(nodes) + 1), rng.choice(nodes))
    elif what == 2:
        rng.shuffle(nodes)
    else:
        node = a_node(rng, another(rng, found))
        inputs = [a_name(rng, model) for _ in node.input]
        del node.input[:]
        node.input.extend(inputs)
        at = rng.randrange(len(nodes) + 1)
        if rng.random() < 0.7 and nodes:  # in the way of what there is
            target = rng.choice(nodes)
            slot = rng.randrange(len(target.input))
            del node.output[0]
            node.output.insert(0, "between")
            if target.input[slot]:
                del node.input[0]
                node.input.insert(0, target.input[slot])
            target.input[slot] = "between"
            at = nodes.index(target)
        nodes.insert(at, node)
    del graph.node[:]
    graph.node.extend(nodes)


def change_ends(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """Other inputs, outputs and initializers of a graph."""
    graph = a_graph(rng, model)
    ends = rng.choice([graph.input, graph.output, graph.initializer])
    what = rng.randrange(4)
    if what == 0:
        del ends[rng.randrange(len(ends))]
    elif what == 1:
        ends.append(rng.choice(ends))
    elif what == 2:
        rng.choice(ends).name = a_name(rng, model)
    else:
        ends.extend([*getattr(another(rng, found).graph, "output" if ends else "initializer")])


def rename(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """Another name for a tensor everywhere, or for a node."""
    if rng.random() < 0.3:
        a_node(rng, model).name = rng.choice(NAMES)
        return
    old, new = a_name(rng, model), a_name(rng, model)
    for graph in graphs_of(model.graph):
        for node in graph.node:
            for names in (node.input, node.output):
                renamed = [new if name == old else name for name in names]
                del names[:]
                names.extend(renamed)
        for one in [*graph.input, *graph.output, *graph.initializer]:
            one.name = new if one.name == old else one.name


def make_function(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """A node in a local function, whose version of the operators may be another one."""
    node = a_node(rng, model)
    inputs, outputs = [f"i{i}" for i in range(len(node.input))], [f"o{i}" for i in node.output]
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    del inner.input[:], inner.output[:]
    inner.input.extend(inputs)
    inner.output.extend(outputs)
    opsets = [onnx.OperatorSetIdProto.FromString(o.SerializeToString()) for o in model.opset_import]
    if rng.random() < 0.3:
        rng.choice(opsets).version = rng.randrange(1, 28)
    if rng.random() < 0.2:
        inputs = inputs[: rng.randrange(len(inputs) + 1)]
    if rng.random() < 0.1:
        inner.domain, inner.op_type = "d", "F"
    function = onnx.helper.make_function("d", "F", inputs, outputs, [inner], opsets)
    for one in inner.attribute:
        if rng.random() < 0.2:
            function.attribute.append(one.name)
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("d", 1))
    node.domain, node.op_type = "d", "F"


def make_branch(rng: random.Random, model: Any, found: Sequence[Source]) -> None:
    """A node in both branches of an If, or in the body of a Loop."""
    graph = a_graph(rng, model)
    at = rng.randrange(len(graph.node))
    node = onnx.NodeProto.FromString(graph.node[at].SerializeToString())
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    condition = rng.choice(["k", a_name(rng, model)])
    graph.initializer.append(numpy_helper.from_array(np.asarray(rng.random() < 0.5), "k"))
    body = onnx.helper.make_graph([node], "b", [], outputs)
    made = graph.node[at]
    del made.input[:], made.attribute[:]
    made.domain = ""
    if rng.random() < 0.6:
        made.op_type = "If"
        made.input.append(condition)
        for name in ("then_branch", "else_branch"):
            made.attribute.append(onnx.helper.make_attribute(name, body))
        return
    made.op_type = "Loop"
    graph.initializer.append(numpy_helper.from_array(np.asarray(rng.randrange(4)), "trips"))
    for name in ("round", "on"):
        body.input.append(onnx.ValueInfoProto(name=name))
    body.output.insert(0, onnx.ValueInfoProto(name="on"))
    made.input.extend(["trips", rng.choice(["", "k"])])
    made.attribute.append(onnx.helper.make_attribute("body", body))


CHANGES: list[Callable[[random.Random, Any, Sequence[Source]], None]] = [
    *[change_names] * 4,
    *[change_attribute] * 4,
    *[change_attribute_value] * 5,
    *[change_contents] * 5,
    *[change_tensor] * 2,
    *[change_shape] * 4,
    *[change_element_type] * 2,
    *[change_operator] * 2,
    *[replace_node] * 3,
    change_version,
    change_nodes,
    change_nodes,
    change_ends,
    rename,
    make_sparse,
    make_function,
    make_branch,
]


def cut_off(rng: random.Random, contents: bytes, found: Sequence[Source]) -> bytes:
    return contents[: rng.randrange(len(contents) + 1)]


def flip_bits(rng: random.Random, contents: bytes, found: Sequence[Source]) -> bytes:
    made = bytearray(contents or b"\0")
    for _ in range(rng.randrange(1, 5)):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def set_bytes(rng: random.Random, contents: bytes, found: Sequence[Source]) -> bytes:
    made = bytearray(contents or b"\0")
    for _ in range(rng.randrange(1, 5)):
        made[rng.randrange(len(made))] = rng.choice([0, 1, 127, 128, 255])
    return bytes(made)


def splice(rng: random.Random, contents: bytes, found: Sequence[Source]) -> bytes:
    other = rng.choice(found).contents
    at, start = rng.randrange(len(contents) + 1), rng.randrange(len(other))
    part = other[start : start + rng.randrange(1, 40)]
    return contents[:at] + part + contents[at + rng.choice([0, len(part)]) :]


def repeat(rng: random.Random, contents: bytes, found: Sequence[Source]) -> bytes:
    start = rng.randrange(len(contents) + 1)
    part = contents[start : start + rng.randrange(1, 60)]
    return contents[:start] + part * rng.choice([2, 3, 50]) + contents[start + len(part) :]


OF_BYTES = [cut_off, flip_bits, flip_bits, set_bytes, splice, repeat]
