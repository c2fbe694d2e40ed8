"""The operator data extracted from the specification is complete and consistent."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spec.extract import snake_case

SPEC = Path(__file__).parents[2] / "spec"
DATA: dict[str, Any] = json.loads((SPEC / "operators.json").read_text(encoding="utf-8"))
OPERATORS: list[dict[str, Any]] = DATA["operators"]
ENUMS: dict[str, list[str]] = DATA["enums"]
DATA_TYPES = set(ENUMS["MLOperandDataType"])
SCALARS = {"boolean", "double", "float", "long", "unsigned long", "MLNumber", "USVString"}


def tensors(operator: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from operator["operands"]
    yield from operator["option_operands"]
    yield from operator["outputs"]


def scalar_types(type_name: str) -> set[str]:
    """The types inside sequences and unions."""
    without_sequences = re.sub(r"sequence<([^<>]+)>", r"\1", type_name).strip("()")
    return set(without_sequences.split(" or "))


def ids(operator: dict[str, Any]) -> str:
    return str(operator["python"])


each_operator = pytest.mark.parametrize("operator", OPERATORS, ids=ids)


def test_there_are_95_operators_with_unique_names() -> None:
    assert len(OPERATORS) == 95
    assert len({operator["name"] for operator in OPERATORS}) == 95
    assert len({operator["python"] for operator in OPERATORS}) == 95


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("convTranspose2d", "conv_transpose2d"),
        ("gatherND", "gather_nd"),
        ("scatterND", "scatter_nd"),
        ("isNaN", "is_nan"),
        ("l2Pool2d", "l2_pool2d"),
        ("reduceL1", "reduce_l1"),
        ("reduceLogSumExp", "reduce_log_sum_exp"),
        ("aTranspose", "a_transpose"),
        ("resample2d", "resample2d"),
        ("keepDimensions", "keep_dimensions"),
    ],
)
def test_names_follow_the_contract(name: str, python: str) -> None:
    assert snake_case(name) == python


@each_operator
def test_names_are_spelt_by_the_rule(operator: dict[str, Any]) -> None:
    named = [operator, *operator["operands"], *operator["option_operands"]]
    named += operator["arguments"] + operator["options"]
    for entry in named:
        assert entry["python"] == snake_case(entry["name"])
        assert entry["python"].isidentifier()
        assert not keyword.iskeyword(entry["python"])
    parameters = [entry["python"] for entry in named[1:]]
    assert len(parameters) == len(set(parameters))


@each_operator
def test_every_type_is_known(operator: dict[str, Any]) -> None:
    for entry in operator["arguments"] + operator["options"]:
        assert scalar_types(entry["type"]) <= SCALARS | ENUMS.keys(), entry


@each_operator
def test_defaults_have_their_type(operator: dict[str, Any]) -> None:
    python_types = {"boolean": bool, "double": int | float, "USVString": str, "MLNumber": int}
    for entry in operator["options"]:
        if "default" not in entry:
            continue
        default, (type_name,) = entry["default"], scalar_types(entry["type"])
        values = default if entry["type"].startswith("sequence") else [default]
        for value in values:
            if type_name in ENUMS:
                assert value in ENUMS[type_name], entry
            else:
                assert isinstance(value, python_types.get(type_name, int | float)), entry
                assert isinstance(value, bool) == (type_name == "boolean"), entry


@each_operator
def test_arguments_are_required_and_label_is_an_option(operator: dict[str, Any]) -> None:
    assert all("default" not in entry for entry in operator["arguments"])
    label = {"name": "label", "python": "label", "type": "USVString", "default": ""}
    assert operator["options"].count(label) == 1


@each_operator
def test_limits_are_consistent(operator: dict[str, Any]) -> None:
    names = {tensor["name"] for tensor in tensors(operator)}
    for tensor in tensors(operator):
        data_types, ranks = tensor["data_types"], tensor["ranks"]
        if isinstance(data_types, list):
            assert set(data_types) <= DATA_TYPES
            assert len(set(data_types)) == len(data_types)
        else:
            assert data_types == "any" or data_types["same_as"] in names - {tensor["name"]}
        assert set(tensor["required_data_types"]) <= DATA_TYPES
        if isinstance(ranks, list):
            low, high = ranks
            assert low >= 0
            assert high is None or low <= high
        else:
            assert ranks["same_as"] in names - {tensor["name"]}
        required_low, required_high = tensor["required_ranks"]
        assert 0 <= required_low <= required_high


@each_operator
def test_required_limits_are_allowed(operator: dict[str, Any]) -> None:
    for tensor in tensors(operator):
        if isinstance(tensor["data_types"], list):
            assert set(tensor["required_data_types"]) <= set(tensor["data_types"])
        if isinstance(tensor["ranks"], list):
            (low, high), (required_low, required_high) = tensor["ranks"], tensor["required_ranks"]
            assert low <= required_low
            assert high is None or required_high <= high


@each_operator
def test_outputs_fit_the_return_type(operator: dict[str, Any]) -> None:
    names = [output["name"] for output in operator["outputs"]]
    if operator["returns"] == "operand":
        assert names == ["output"]
    else:
        assert names in (["outputs"], [f"output{i}" for i in range(len(names))])
    options = {entry["name"] for entry in operator["options"]}
    assert {output["only_if"] for output in operator["outputs"] if "only_if" in output} <= options


def test_every_enum_is_used_and_has_distinct_values() -> None:
    used = {
        type_name
        for operator in OPERATORS
        for entry in operator["arguments"] + operator["options"]
        for type_name in scalar_types(entry["type"])
    }
    assert used & ENUMS.keys() == ENUMS.keys()
    assert all(len(set(values)) == len(values) > 1 for values in ENUMS.values())


def test_deviations_are_numbered_once() -> None:
    """Code and tests refer to a deviation by its number."""
    text = (SPEC / "deviations.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^\| D(\d+) \|", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers
