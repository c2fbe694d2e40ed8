"""Saved graphs whose document says what cannot be: each a DataError that says where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.graphs import doubling
from tests.saved import Document, built, document_of, rewrite, validator
from webnn_py import DataError, MLContext


def at(*steps: Any, value: Any) -> Callable[[Document], None]:
    """Put a value somewhere in a document."""

    def change(document: Document) -> None:
        *way, last = steps
        for step in way:
            document = document[step]
        document[last] = value

    return change


def of(*steps: Any) -> Callable[[Document], None]:
    """Take something out of a document."""

    def change(document: Document) -> None:
        *way, last = steps
        for step in way:
            document = document[step]
        del document[last]

    return change


def dimension(*terms: Any) -> Any:
    return at("nodes", 2, "options", "new_shape", value=[{"dimension": list(terms)}])


def quotient(numerator: Any, divisor: Any) -> Any:
    return dimension([1, {"numerator": numerator, "divisor": divisor}])


def deep(depth: int) -> Any:
    inner: Any = [[1, "batch"]]
    for _ in range(depth):
        inner = [[1, {"numerator": inner, "divisor": [[2]]}]]
    return inner


VALID = "does not break the schema"
LIES: dict[str, tuple[Any, str, str]] = {
    "no format": (of("format"), "it has no 'format'", ""),
    "format": (at("format", value="zip"), r": format: got 'zip'", ""),
    "version": (at("version", value=0), r": version: got 0", ""),
    "version's type": (at("version", value=True), r": version: got True", ""),
    "no nodes": (of("nodes"), "member 'nodes' is missing", ""),
    "more": (at("more", value=1), "member 'more' is not expected", ""),
    "producer": (at("producer", value=1), ": producer: got 1, expected a string", ""),
    "size's name": (at("sizes", "a b", value=[1, 2]), r": sizes\.a b: dimensions: got 'a b'", ""),
    "size": (at("sizes", "batch", value=[5, 4]), r"sizes\.batch: dimensions: batch: got", VALID),
    "one size": (at("sizes", "batch", value=[4, 4]), r"sizes\.batch: got \[4, 4\]", VALID),
    "size of nothing": (at("sizes", "m", value=[1, 4]), r"sizes\.m: no input has", VALID),
    "bounds of no name": (at("sizes", "?0", value=[1, 4]), r"sizes\.\?0: dimensions: got", VALID),
    "input's name": (at("inputs", 0, "name", value=""), r"inputs\[0\]\.name: got ''", ""),
    "input's type": (at("inputs", 0, "data_type", value="int4"), "a data type of inputs", VALID),
    "no type": (at("inputs", 0, "data_type", value="f4"), r"inputs\[0\]\.data_type: got 'f4'", ""),
    "input twice": (
        lambda d: d["inputs"].append(d["inputs"][0]),
        r"inputs\[1\]\.name: got 'x', expected a name that no other",
        VALID,
    ),
    "shape": (at("inputs", 0, "shape", value=[0]), r"inputs\[0\]: shape \[0\]: dimension 0", ""),
    "shape's type": (at("inputs", 0, "shape", value=["n"]), r"shape: got \['n'\]", ""),
    "list in shape": (at("inputs", 0, "shape", value=[[1]]), r"shape\[0\]: a list is not", ""),
    "rank": (at("inputs", 0, "shape", value=[1] * 9), r"shape: a list of 9 members", ""),
    "weight": (at("constants", 0, "weight", value="9"), r"weight: got '9', expected the", VALID),
    "weight of another": (at("constants", 0, "weight", value="1"), "it is uint8", VALID),
    "constant's shape": (
        at("constants", 0, "shape", value=[3, 2]),
        r"expected float32\[3,2\]",
        VALID,
    ),
    "constant's size": (at("constants", 0, "shape", value=[2**31 - 1]), "takes 85899", VALID),
    "open constant": (
        at("constants", 0, "shape", value=[{"dimension": [[1, "batch"]]}]),
        r"constants\[0\]\.shape: got .*, expected integers",
        "",
    ),
    "packed size": (
        at("constants", 1, "shape", value=[5]),
        r"uint8\[2\], expected uint8\[3\]",
        VALID,
    ),
    "operator": (at("nodes", 0, "operator", value="nope"), r"operator: got 'nope'", VALID),
    "method": (at("nodes", 0, "operator", value="constant"), "operator: got 'constant'", VALID),
    "operand": (at("nodes", 0, "inputs", 0, value=99), r"inputs\[0\]: got 99", VALID),
    "own operand": (at("nodes", 0, "inputs", 0, value=5), r"inputs\[0\]: got 5", VALID),
    "operand's type": (at("nodes", 0, "inputs", 0, value="x"), r"inputs\[0\]: got 'x'", ""),
    "no operand": (
        at("nodes", 0, "inputs", 0, value=None),
        r"nodes\[0\]: matmul .* got None",
        VALID,
    ),
    "operands": (at("nodes", 0, "inputs", value=[0]), "expected the 2 operands of matmul", VALID),
    "none of many": (at("nodes", 4, "inputs", value=[]), "concat: .* is empty", VALID),
    "unknown option": (at("nodes", 0, "options", "axis", value=1), "'axis' is not expected", VALID),
    "label as option": (at("nodes", 0, "options", "label", value="l"), "'label' is not", VALID),
    "option's type": (
        at("nodes", 4, "options", "axis", value="0"),
        r"nodes\[4\]: concat: .*'0'",
        VALID,
    ),
    "null": (at("nodes", 4, "options", "axis", value=None), r"options\.axis: got None", ""),
    "option is missing": (of("nodes", 4, "options", "axis"), "concat: .*axis", VALID),
    "float": (at("nodes", 1, "options", "max_value", value={"float": "1"}), "got '1'", ""),
    "two in one": (
        at("nodes", 1, "options", "max_value", value={"float": "nan", "dimension": []}),
        "an object of one member",
        "",
    ),
    "lists in lists": (
        at("nodes", 2, "options", "new_shape", value=[[[[[1]]]]]),
        r"new_shape\[0\]\[0\]\[0\]\[0\]: a list",
        VALID,
    ),
    "outputs": (
        at("nodes", 0, "outputs", 0, "data_type", value="int32"),
        r"nodes\[0\]\.outputs: the file says int32.* what follows .* is float32",
        VALID,
    ),
    "label": (at("nodes", 0, "label", value=None), r"label: got None", ""),
    "output's name": (at("outputs", 0, "name", value=""), r"outputs\[0\]\.name", ""),
    "output twice": (at("outputs", 0, "name", value="weights"), r"outputs\[1\]\.name", VALID),
    "output is an input": (
        at("outputs", 0, "value", value=0),
        r"outputs\[0\]\.value: got 0",
        VALID,
    ),
    "no outputs": (at("outputs", value=[]), "outputs: there is no output", ""),
    "no dimension": (dimension([3]), "expected an open dimension, not a number", VALID),
    "no terms": (dimension(), "expected an open dimension, not a number", ""),
    "empty term": (dimension([]), r"\[0\]\.dimension\[0\]", ""),
    "no factor": (dimension(["batch"]), "got 'batch', expected an integer", ""),
    "zero": (dimension([0, "batch"]), "and not 0", VALID),
    "term twice": (dimension([1, "batch"], [2, "batch"]), "another product", VALID),
    "unknown size": (dimension([1, "m"]), "got 'm', expected the name of an open size", VALID),
    "factor's type": (dimension([1, 2]), "expected an object", ""),
    "quotient's members": (dimension([1, {"numerator": []}]), "'divisor' is missing", ""),
    "quotient of a number": (quotient([[7]], [[2]]), "is not how a quotient", VALID),
    "even quotient": (quotient([[2, "batch"]], [[2]]), "is not how a quotient", VALID),
    "divisor": (quotient([[1, "batch"]], [[-2]]), "is not how a quotient", VALID),
    "divided by 0": (quotient([[1, "batch"]], []), "is not how a quotient", ""),
    "long product": (dimension([1, *["batch"] * 11]), "too large an expression", VALID),
    "longer product": (dimension([1, *["batch"] * 500]), "a list of 501 members", VALID),
    "large factor": (dimension([2**63, "batch"]), "expected an integer in", VALID),
    "nested": (
        dimension([1, {"numerator": deep(9), "divisor": [[3]]}]),
        "nested too deeply",
        VALID,
    ),
    "nested quotients": (dimension(*deep(2)), "is not how a quotient", VALID),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_says_where(cpu: MLContext, path: Path, lie: str) -> None:
    change, message, kind = LIES[lie]
    built(cpu).save(path)
    rewrite(path, change)
    with pytest.raises(DataError, match=r"graph\.json: .*; the file is damaged") as caught:
        cpu.load_graph_sync(path)
    caught.match(message)
    assert validator.is_valid(document_of(path)) == (kind == VALID)


def test_a_program_is_no_graph(cpu: MLContext, path: Path) -> None:
    doubling(cpu).compile_to(path)
    with pytest.raises(DataError, match=r"a saved program, which .*load_program_sync") as caught:
        cpu.load_graph_sync(path)
    assert "damaged" not in str(caught.value)
