"""What messages show of what they got."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.wrong_objects import WRONG
from webnn_py.core.messages import MAX_SHOWN_CHARS, describe_error, python_name, shown, suggestion


@pytest.mark.parametrize("name", WRONG)
def test_anything_can_be_shown(name: str) -> None:
    text = shown(WRONG[name]())
    assert 0 < len(text) <= MAX_SHOWN_CHARS
    assert text.isprintable()
    text.encode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (2**64, "18446744073709551616"),
        (-(10**5000), "an integer of 16610 bits"),
        ("a\n'b'", "\"a\\n'b'\""),
        ([1, "x", (2.5, None)], "[1, 'x', (2.5, None)]"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]"),
        (np.zeros((2, 3), np.float32), "array float32[2,3]"),
        (np.array(5), "array int64[]"),
        (b"abc", "b'abc'"),
        (bytes(10**6), "… (1000000 bytes)"),
        (True, "True"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_shown(value: object, text: str) -> None:
    assert shown(value).endswith(text)


@given(st.text())
def test_a_string_stays_one_that_can_be_read(text: str) -> None:
    assert shown(text).isprintable()


def test_errors_of_others_are_said_in_short() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("nothing")

    assert describe_error(ValueError("a\nb")) == "ValueError: a\\nb"
    assert describe_error(Silent()) == "Silent"
    assert len(describe_error(ValueError("x" * 10_000))) < 200


@pytest.mark.parametrize(
    ("given_name", "name"),
    [("convTranspose2d", "conv_transpose2d"), ("isNaN", "is_nan"), ("gatherND", "gather_nd")],
)
def test_names_of_the_idl(given_name: str, name: str) -> None:
    assert python_name(given_name) == name
    assert suggestion(given_name, [name, "other"]) == f"; names are in snake_case here: {name}"


def test_a_suggestion_is_made_only_of_what_is_near() -> None:
    assert suggestion("sofmax", ["softmax", "softplus"]) == "; did you mean softmax?"
    assert suggestion("createTensor", ["create_tensor_sync"]).endswith("create_tensor_sync?")
    assert suggestion("zzz", ["softmax"]) == ""
