"""The importer, which walks a model's nodes in order and calls their handlers."""

from __future__ import annotations

import functools
import math
from collections import ChainMap
from collections.abc import Container, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx

from webnn_py.api.builder import MLGraphBuilder, check_made_by, keeps_what_it_is_given
from webnn_py.core.errors import DataError, MLError, NotSupportedError, ValidationError
from webnn_py.core.messages import Deferred, printable, type_name
from webnn_py.core.polynomials import TooLargeError
from webnn_py.onnx import control, folding, function_bodies, schema
from webnn_py.onnx.data_sizes import DataSizes
from webnn_py.onnx.emitter import BOOL, Emitter
from webnn_py.onnx.functions import MAX_NODES, called_by, is_standard
from webnn_py.onnx.handlers import handler_of
from webnn_py.onnx.initializers import Initializers
from webnn_py.onnx.inputs import Inputs
from webnn_py.onnx.liveness import Liveness, LiveNode
from webnn_py.onnx.model import Model, check_once, imports_of, opsets_of
from webnn_py.onnx.repeated_nodes import RepeatedNodes
from webnn_py.onnx.tensor import (
    ELEMENT_TYPES,
    BrokenModelError,
    Lacking,
    NarrowerError,
    Tensor,
    UnknownValueError,
    UnmappableError,
    element_name,
    of_array,
    of_sizes,
    webnn_type,
    without_elements,
)
from webnn_py.onnx.unsupported_reasons import operator_of, reason_of
from webnn_py.ops.operand import MLOperand

Scope = MutableMapping[str, Any]
FAILED = object()
"""Scope value for the result of a node that WebNN cannot express."""
FAILED_SIZES = object()
"""Scope value for the result of shape arithmetic on failed tensors."""

WITHOUT_HANDLERS = frozenset([*control.CONTROL, "Constant", "Shape", "Size"])
"""Operators of ONNX that the importer itself knows."""

FOR_MODELS = {
    "; take the dimension itself where a size is expected, or give the size with dimensions=": (
        "; give the size with input_shapes="
    ),
    "; divide them with //, or give the size with dimensions=": (
        "; give the size with input_shapes="
    ),
    "give dimensions=": "give input_shapes=",
}
"""Replacements of advice for users of a builder by advice for users of `load`."""


class Importer:
    """Importer of one model into a graph builder.

    Args:
        builder: The builder that receives the nodes.
        model: The model to import.
        no_help: None if the caller cannot narrow the bounds of open dimensions. Else a node that
            needs narrower bounds raises a NarrowerError for the caller to retry. Errors whose
            `args` are in the container become failures, because narrowing did not help.
        data_sizes: Collects sizes that contents of tensors decide; None to refuse them.

    Attributes:
        needed: Names of inputs whose contents some node needs at import.
        liveness: Liveness of the model's nodes; only nodes that outputs depend on are imported.
    """

    def __init__(
        self,
        builder: MLGraphBuilder,
        model: Model,
        no_help: Container[object] | None = None,
        data_sizes: DataSizes | None = None,
    ) -> None:
        self.emitter = Emitter(builder, narrows=no_help is not None, data_sizes=data_sizes)
        self.model = model
        self._no_help = no_help
        self.needed: set[str] = set()
        self.liveness = Liveness(model.functions)
        self._repeated = RepeatedNodes(self.emitter)
        self._failures: list[tuple[str, str, str]] = []
        self._count = 0

    def run(
        self, inputs: Mapping[str, Any] | None = None, shapes: Inputs | None = None
    ) -> dict[str, Tensor]:
        """Import the model's graph.

        Args:
            inputs: Operands and arrays that replace inputs, by name. All other inputs become
                inputs of the builder.
            shapes: The shapes of the inputs; by default those in the model.

        Returns:
            The tensors of the model's outputs, by name.

        Raises:
            NotSupportedError: WebNN cannot express some nodes; the message lists all of them.
            DataError: The model contradicts itself.
            NarrowerError: A node needs narrower bounds of open dimensions.
        """
        try:
            return self._run(inputs or {}, shapes or Inputs(self.model.inputs, {}))
        except (MLError, NarrowerError, MemoryError):
            raise
        except Exception as error:  # an invalid model can raise any error
            raise DataError(f"onnx: the model is damaged: {error}") from error

    def _run(self, inputs: Mapping[str, Any], shapes: Inputs) -> dict[str, Tensor]:
        graph = self.model.graph
        check_once(graph.input, "inputs")
        check_once(graph.initializer, "initializers")
        keeps = keeps_what_it_is_given(self.emitter.builder)
        scope = Initializers(self.model, self.emitter.affords, keeps)
        self._inputs(scope, inputs, shapes)
        self.nodes(graph.node, scope, self.model.opsets, self.liveness.of_graph(graph, None)[0])
        outputs = {}
        for value in graph.output:
            found = self.lookup(scope, value.name, "the graph's outputs")
            if isinstance(found, Tensor):
                outputs[value.name] = found
                self._check_output(value, found)
            elif not _is_failed(found):
                self._failures.append(("output", value.name, "it is no tensor"))
        scope.check_unread()
        self._raise_failures()
        return outputs

    def _check_output(self, value: Any, found: Tensor) -> None:
        name, declared = value.name, value.type.tensor_type.elem_type
        if declared and declared != found.elem:
            raise DataError(
                f"onnx: output {name!r} is {element_name(found.elem)}, and declared as"
                f" {element_name(declared)}"
            )
        try:
            self.emitter.operand(found)
        except UnmappableError as error:
            self._failures.append(("output", name, str(error)))

    def _inputs(self, scope: Scope, given: Mapping[str, Any], shapes: Inputs) -> None:
        values = {value.name: value for value in self.model.graph.input}
        for name, value in given.items():
            if name not in values:
                raise ValidationError(
                    f"onnx: the model has no input {name!r}; it has {', '.join(values)}"
                )
            if isinstance(value, MLOperand):
                check_made_by(self.emitter.builder, value, name)
            tensor = _given(name, value, values[name].type.tensor_type.elem_type)
            if name in shapes.in_order():
                shapes.check_given(name, tensor.shape)
            scope[name] = tensor
            shapes.made(name, tensor.shape)
        for name in shapes.in_order():
            if name not in given:
                try:
                    scope[name] = self._input(values[name], shapes)
                except (UnmappableError, TooLargeError) as error:
                    scope[name] = Lacking("input", name, self._remedied(str(error)))

    def _input(self, value: Any, shapes: Inputs) -> Tensor:
        if not value.type.HasField("tensor_type"):
            raise UnmappableError(f"WebNN has no {value.type.WhichOneof('value') or 'no type'}")
        kind = value.type.tensor_type.elem_type
        data_type: Any = webnn_type(kind)
        shape = shapes.shape(value.name)
        if 0 in shape:  # WebNN has no such inputs, and the contents are known: none
            return without_elements(kind, shape)
        operand = self.emitter.builder.input(value.name, data_type, shape)
        shapes.made(value.name, operand.shape)
        return Tensor(kind, operand.shape, None, operand, frozenset([value.name]), is_input=True)

    def lookup(self, scope: Scope, name: str, where: object) -> Any:
        """Return the value of a name in a scope; record a failure if WebNN lacks it.

        Args:
            scope: Values by name.
            name: The name.
            where: The reader of the name, for the error message.

        Raises:
            DataError: No earlier node, input or initializer has the name.
        """
        if name not in scope:
            raise DataError(
                f"onnx: {where}: nothing before makes {name!r}; the model is cyclic, not in order,"
                " or lacks an input"
            )
        found = scope[name]
        if isinstance(found, Lacking):
            if found not in self._failures:
                self._failures.append(found)
            return FAILED
        return found

    def nodes(
        self,
        nodes: Sequence[Any],
        scope: Scope,
        opsets: Mapping[str, int],
        needed: Sequence[LiveNode],
    ) -> None:
        """Import nodes in order.

        Args:
            nodes: All nodes of a graph or function, whose names are checked.
            scope: Values by name; the results are added to it.
            opsets: Versions of the operator sets by domain.
            needed: The live nodes among them, which are imported.
        """
        own = scope.maps[0] if isinstance(scope, ChainMap) else scope
        _check_names(nodes, own)
        for live in needed:
            node = live.node
            self._count += 1
            self.check_count(0)
            title = Deferred(_title, node)
            inputs = [self.lookup(scope, n, title) if n else None for n in live.inputs]
            results = self._results(live, inputs, scope, opsets, title)
            own.update((n, r) for n, r in zip(node.output, results, strict=False) if n)

    def check_count(self, more: int) -> None:
        """Check that the imported nodes and `more` nodes of a loop do not exceed `MAX_NODES`.

        Raises:
            NotSupportedError: They exceed it.
        """
        if self._count + more > MAX_NODES:
            raise NotSupportedError(
                f"onnx: over {MAX_NODES} nodes after unrolling its loops; make them operators on"
                " whole tensors, or give them fewer rounds"
            )

    def _results(
        self,
        live: LiveNode,
        inputs: Sequence[Any],
        scope: Scope,
        opsets: Mapping[str, int],
        title: object,
    ) -> Sequence[Any]:
        node, outer = live.node, self.emitter.label
        self.emitter.outputs = live.outputs
        lost = [FAILED] * len(node.output)
        name = node.name or next(filter(None, node.output), node.op_type)
        if outer:  # prefix the label of the enclosing node
            name = f"{outer}/{node.name}" if node.name else outer
        self.emitter.label = name
        try:
            function = self.model.functions.get(called_by(node))
            if function is not None:
                results = self._called(function, live, inputs, opsets)
            elif any(map(_is_failed, inputs)):
                return self._behind_failures(live, inputs, scope, opsets)
            else:
                results = [*self._import(live, inputs, scope, opsets)]
            results += [None] * (len(node.output) - len(results))
            if all(one is not None for one in results):
                return results
            told = "its output {} has no counterpart in WebNN".format
            lacking = [Lacking(operator_of(node), name, told(i)) for i in range(len(results))]
            return [a if a is not None else b for a, b in zip(results, lacking, strict=True)]
        except NarrowerError as error:
            helps = self._no_help is not None and error.args not in self._no_help
            if helps and self.emitter.may_narrow(error):
                raise
            self._fail(node, str(error.__cause__))
        except UnmappableError as error:
            if isinstance(error, UnknownValueError):
                self.needed |= error.inputs
            self._fail(node, str(error))
        except (DataError, NotSupportedError) as error:
            if str(error).startswith("onnx: "):
                raise
            self._fail(node, str(error))
        except BrokenModelError as error:
            raise DataError(f"onnx: {title}: {error}") from error
        except MLError as error:
            self._fail(node, str(error))
        except MemoryError:
            raise
        except RecursionError as error:
            raise DataError(f"onnx: {title}: it nests without an end") from error
        except Exception as error:  # an invalid node makes a handler raise any error
            raise DataError(f"onnx: {title}: it is not valid: {_shown(inputs)}") from error
        finally:
            self.emitter.label = outer
        return lost

    def _called(
        self, function: Any, live: LiveNode, inputs: Sequence[Any], opsets: Mapping[str, int]
    ) -> list[Any]:
        """Import a call of a local function: inline its nodes in a scope of its own."""
        node = live.node
        for got, expected, what in (
            (node.input, function.input, "inputs"),
            (node.output, function.output, "outputs"),
        ):
            if len(got) > len(expected):
                raise BrokenModelError(
                    f"got {len(got)} {what}, expected at most {len(expected)}, as local function"
                    f" {operator_of(node)} has"
                )
        own = {**opsets, **imports_of(function.opset_import)}
        inner = self._inlined(function, live, inputs, own)
        where = f"the outputs of local function {operator_of(node)}"
        outputs = zip(function.output, live.outputs, strict=False)
        return [self.lookup(inner, n, where) if n and is_read else None for n, is_read in outputs]

    def _inlined(
        self,
        body: Any,
        live: LiveNode,
        inputs: Sequence[Any],
        opsets: Mapping[str, int],
        definition: Any = None,
    ) -> Scope:
        """Import the nodes of a function's body in a scope of its own, and return the scope.

        Args:
            body: The onnx.FunctionProto.
            live: The node that it replaces.
            inputs: The values of the node's inputs; None for those that it omits.
            opsets: Versions of the body's operator sets by domain.
            definition: The onnx.defs.OpSchema with default values of attributes, or None.
        """
        inner: Scope = dict.fromkeys(body.input)
        inner.update(zip(body.input, inputs, strict=False))
        nodes = function_bodies.bound(body, live.node, definition)
        outputs = [n for n, o in zip(body.output, live.outputs, strict=False) if o]
        self.nodes(nodes, inner, opsets, self.liveness.of(nodes, outputs)[0])
        return inner

    def _behind_failures(
        self, live: LiveNode, inputs: Sequence[Any], scope: Scope, opsets: Mapping[str, int]
    ) -> Sequence[Any]:
        """Return the failed results of a node with failed inputs.

        Record a failure if the node's own operator is unsupported; check its subgraphs as well.
        """
        node = live.node
        of_sizes_alone = is_standard(node) and (
            node.op_type in ("Shape", "Size")
            or (node.op_type in folding.FOLDED and all(map(_may_be_known, inputs)))
        )
        if not of_sizes_alone and not self._is_known(node, opsets):
            self._fail(node, reason_of(operator_of(node)))
        needed = self.liveness.needed_outputs(node, live.outputs)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                given = [FAILED] * len(attribute.g.input)
                self.subgraph(attribute.g, scope, opsets, given, needed)
        return [FAILED_SIZES if of_sizes_alone else FAILED] * len(node.output)

    def _fail(self, node: Any, reason: str) -> None:
        failure = (operator_of(node), self.emitter.label, self._remedied(reason))
        if failure not in self._failures:
            self._failures.append(failure)

    def _remedied(self, reason: str) -> str:
        if self._no_help is not None:  # users of `load` have no builder
            for before, after in FOR_MODELS.items():
                reason = reason.replace(before, after)
        return reason

    def _raise_failures(self) -> None:
        if not self._failures:
            return
        lines: dict[tuple[str, str], list[str]] = {}
        for operator, name, reason in self._failures:
            lines.setdefault((printable(operator), printable(reason)), []).append(printable(name))
        text = [f"{o} [{', '.join(names)}]: {reason}" for (o, reason), names in lines.items()]
        raise NotSupportedError("onnx: the model cannot be mapped:\n  " + "\n  ".join(text))

    def _is_known(self, node: Any, opsets: Mapping[str, int]) -> bool:
        if is_standard(node) and node.op_type in WITHOUT_HANDLERS:
            return True
        domain = "" if is_standard(node) else node.domain
        handler = handler_of(domain, node.op_type, opsets.get(domain, 1))
        return bool(handler or function_bodies.has_body(schema.schema_of(node, opsets)))

    def _import(
        self, live: LiveNode, inputs: Sequence[Any], scope: Scope, opsets: Mapping[str, int]
    ) -> Sequence[Any]:
        node = live.node
        domain = schema.domain_of(node)
        version = opsets.get(domain, 1)
        handler = handler_of(domain, node.op_type, version)
        key = None if handler is None else self._repeated.key(live, inputs, domain, version)
        if key is not None and (copies := self._repeated.copy(key, inputs)) is not None:
            return copies
        schema.check(node, inputs, opsets, handler)
        if not domain and node.op_type == "Constant":
            return [self._constant(node)]
        is_control = node.op_type in control.CONTROL and schema.schema_of(node, opsets) is not None
        if not domain and is_control:
            needed = self.liveness.needed_outputs(node, live.outputs)
            found = control.ControlNode(self, node, inputs, scope, opsets, needed)
            return control.CONTROL[node.op_type](found)
        folded = self._folded(node, inputs, opsets)
        if folded is not None:
            return folded
        if handler is not None:
            attributes = self._attributes(node)
            unknown = sorted(set(attributes) - handler.attributes.keys())
            if unknown:  # a later version of the operator may add attributes
                raise UnmappableError(f"attribute {unknown[0]!r} is not known")
            handle = functools.partial(handler.function, self.emitter, *inputs, **attributes)
            made = handle() if key is None else self._repeated.record(key, inputs, handle)
            if made is not None:
                return made if isinstance(made, (tuple, list)) else [made]
        return self._by_definition(live, inputs, opsets)

    def _by_definition(
        self, live: LiveNode, inputs: Sequence[Any], opsets: Mapping[str, int]
    ) -> list[Any]:
        """Import a node by the body that ONNX defines its operator with."""
        node = live.node
        definition = schema.schema_of(node, opsets)
        body = function_bodies.body_of(node, inputs, definition, opsets)
        if body is None:
            if node.op_type in folding.MADE:
                arrays = [one.known("its operands") for one in inputs]
                self.emitter.afford(folding.MADE[node.op_type](arrays), "it")
            raise UnmappableError(reason_of(operator_of(node)))
        before = len(self._failures)
        inner = self._inlined(body, live, inputs, opsets_of(body.opset_import), definition)
        results = [inner.get(name) for name in body.output]
        if len(self._failures) > before and any(map(_is_failed, results)):
            return [FAILED if r is None else r for r in results]
        return results

    def _attributes(self, node: Any) -> dict[str, Any]:
        """Return a node's attributes by name for its handler, with tensors as arrays."""
        return {
            name: self.model.contents(value) if isinstance(value, onnx.TensorProto) else value
            for name, value in attributes_of(node).items()
        }

    def _constant(self, node: Any) -> Tensor:
        given = attributes_of(node)
        if len(given) != 1:
            raise BrokenModelError(f"it has {len(given)} attributes, expected one with its value")
        ((name, value),) = given.items()
        if name == "value":
            return of_array(self.model.contents(value), node.output[0])
        if name == "sparse_value":
            return of_array(self.model.dense(value, self.emitter.affords), node.output[0])
        if name in ("value_float", "value_floats"):
            return of_array(np.asarray(value, np.float32))
        if name in ("value_int", "value_ints"):
            return of_array(np.asarray(value, np.int64))
        raise UnmappableError(f"WebNN has no constants by {name!r}")

    def _folded(
        self, node: Any, inputs: Sequence[Any], opsets: Mapping[str, int]
    ) -> list[Tensor] | None:
        if not all(one is None or isinstance(one, Tensor) for one in inputs):
            return None
        if is_standard(node) and node.op_type in ("Shape", "Size"):
            of = _shape if node.op_type == "Shape" else _size
            return [of_sizes(of(inputs[0].shape, **attributes_of(node)), onnx.TensorProto.INT64)]
        given = [one for one in inputs if one is not None]
        if any(one.array is None and one.sizes is None for one in given):
            return None
        has_sizes = any(one.sizes is not None for one in given)
        arrays = [None if one is None else one.array for one in inputs]
        if not (has_sizes or folding.can_fold(node, arrays, self.emitter.affords)):
            return None
        found = folding.FoldedNode(self.emitter, node, self._attributes(node), opsets)
        return folding.fold_sizes(found, inputs) if has_sizes else folding.fold(found, arrays)

    def subgraph(
        self,
        graph: Any,
        scope: Scope,
        opsets: Mapping[str, int],
        inputs: Sequence[Any],
        needed: Sequence[bool] | None,
    ) -> list[Any]:
        """Import a subgraph of a node, such as a branch or the body of a loop.

        Args:
            graph: The onnx.GraphProto.
            scope: The enclosing scope, whose names the subgraph can read.
            opsets: Versions of the operator sets by domain.
            inputs: The values of its inputs, in order.
            needed: For each output, whether something reads it; None means all.

        Returns:
            The values of its outputs; None for outputs that are not needed.
        """
        self._count += 1  # an iteration counts even if the body has no nodes
        inner: Scope = ChainMap({}, scope)
        for name, array in self.model.contents_in(graph, self.emitter.affords):
            inner[name] = of_array(array, name)
        if len(graph.input) != len(inputs):
            raise BrokenModelError(
                f"its graph {graph.name!r} has {len(graph.input)} inputs, expected {len(inputs)}"
            )
        for value, given in zip(graph.input, inputs, strict=True):
            inner[value.name] = given
        names = [value.name for value in graph.output]
        if needed is not None:
            names = [n if i < len(needed) and needed[i] else "" for i, n in enumerate(names)]
        self.nodes(graph.node, inner, opsets, self.liveness.of_graph(graph, needed)[0])
        return [self.lookup(inner, n, "the outputs of a branch") if n else None for n in names]


def _shape(shape: tuple[int, ...], start: int = 0, end: int | None = None) -> Any:
    rank = len(shape)
    first, last = (
        min(max(i + rank if i < 0 else i, 0), rank) for i in (start, rank if end is None else end)
    )
    return np.asarray(shape[first:last], object)


def _size(shape: tuple[int, ...]) -> Any:
    return np.asarray(math.prod(shape), object)


def _given(name: str, value: Any, elem: int) -> Tensor:
    if isinstance(value, MLOperand):
        expected = webnn_type(elem)
        if value.data_type != expected:
            raise ValidationError(
                f"onnx: inputs[{name!r}]: got an operand of {value.data_type}, the model has"
                f" {expected}"
            )
        kind = elem if elem == BOOL else ELEMENT_TYPES[value.data_type]
        return Tensor(kind, value.shape, None, value, frozenset([name]), is_input=True)
    try:
        array = np.asarray(value)
    except ValueError:  # NumPy rejects lists whose rows differ in length
        array = np.empty(0, object)
    if not isinstance(value, np.ndarray) and array.dtype.kind not in "biuf":
        raise ValidationError(
            f"onnx: inputs[{name!r}]: got {type_name(value)}, expected an MLOperand or an array of"
            " numbers"
        )
    made = of_array(array)
    if made.elem != elem:
        raise ValidationError(
            f"onnx: inputs[{name!r}]: got {element_name(made.elem)}, the model has"
            f" {element_name(elem)}"
        )
    return made


def _title(node: Any) -> str:
    name = node.name or next(filter(None, node.output), "")
    return f"node {name!r} ({printable(node.op_type)})"


def _check_names(nodes: Iterable[Any], own: Container[str]) -> None:
    """Check that all names are texts and that no two nodes have an output of the same name.

    Args:
        nodes: The nodes of a graph or function.
        own: The names that already exist in its scope.

    Raises:
        DataError: A name is no text, or an output's name already exists.
    """
    made: set[str] = set()
    for node in nodes:
        for name in (node.op_type, node.domain, node.name, *node.input, *node.output):
            if not isinstance(name, str):  # bytes that are no UTF-8
                raise DataError(f"onnx: a node has the name {name!r}, which is no text")
        for name in filter(None, node.output):
            if name in made or name in own:
                raise DataError(f"onnx: {_title(node)}: it makes {name!r}, which there is already")
            made.add(name)


def _shown(inputs: Sequence[Any]) -> str:
    """Describe a node's operands for the message of an error in its handler."""
    shown = [
        f"{element_name(one.elem)} {list(one.shape)}" if isinstance(one, Tensor) else "none"
        for one in inputs[:8]
    ]
    return f"its operands ({', '.join(shown)}) and attributes do not fit each other"


def _is_failed(found: Any) -> bool:
    return found is FAILED or found is FAILED_SIZES


def _may_be_known(found: Any) -> bool:
    """Return whether contents are known at import, or would be without a failure."""
    if isinstance(found, Tensor):
        return found.array is not None or found.sizes is not None
    return found is None or found is FAILED_SIZES


def attributes_of(node: Any) -> dict[str, Any]:
    """Return a node's attributes by name: numbers, strings, lists, and protobuf messages."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, (list, tuple)) or type(value).__name__.startswith("Repeated"):
            value = [
                item.decode("utf-8", "replace") if isinstance(item, bytes) else item
                for item in value
            ]
        found[attribute.name] = value
    return found
