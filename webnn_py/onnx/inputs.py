"""Shapes of a model's inputs, merged from the model and from the user's `input_shapes`."""

from __future__ import annotations

import ast
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from webnn_py.core.dimensions import named
from webnn_py.core.errors import ValidationError
from webnn_py.core.messages import shown, suggestion
from webnn_py.core.open_dims import ANY_SIZE
from webnn_py.core.polynomials import MAX_DIMENSION
from webnn_py.core.shapes import Shape
from webnn_py.memory.array_remedies import relaid
from webnn_py.onnx.tensor import NarrowerError

Bounds = tuple[int, int | None]
InputShapes = Mapping[str, Sequence[int | str] | int | Bounds]
"""Shapes by input name; sizes or bounds (lowest, highest) by dimension name."""

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
}


class Inputs:
    """Resolver of input shapes: open dimensions, the user's sizes, and constraints of nodes.

    All dimensions with the same `dim_param` are one size: open, or the number that some input
    fixes. A `dim_param` such as "past + 1" is computed from its names. Any other text becomes the
    name of an open size. A dimension without a text is named after its input and axis. A size that
    must be a multiple of 32 becomes 32 times another open size, as in `32*height_by_32`. A size
    that must equal a sum of others becomes this sum.

    Args:
        values: The onnx.ValueInfoProto of the inputs without an initializer.
        given: The user's shapes, sizes and bounds.
        fewer: Errors of earlier import attempts, each of which narrows the open sizes.

    Attributes:
        bounds: Bounds by name, for the argument `dimensions` of MLGraphBuilder.

    Raises:
        ValidationError: The user names an unknown input or dimension, or a shape does not fit.
    """

    def __init__(
        self, values: Iterable[Any], given: InputShapes, fewer: Iterable[NarrowerError] = ()
    ) -> None:
        self._values = {value.name: value for value in values}
        self._sizes: dict[str, Any] = {}
        self._shapes: dict[str, list[int | str]] = {}
        self._called: dict[str, str] = {}
        self._same: dict[str, str] = {}
        self._multiples: dict[str, tuple[str, int]] = {}
        self._parts: dict[str, str] = {}
        self.bounds: dict[str, Bounds] = {}
        texts = {name: _texts(value) for name, value in self._values.items()}
        names = {text for shape in texts.values() for text in shape or () if isinstance(text, str)}
        names |= {name for text in names for name in _names_in(text)}
        spelled = {self._name(text): text for text in sorted(names)}
        for name, said in given.items():
            if name in self._values:
                self._shapes[name] = _shape(name, said, texts[name])
            elif name in names or name in spelled:
                self._fix(name if name in names else spelled[name], said)
            else:
                known = [*self._values, *sorted(names)]
                raise ValidationError(
                    f"onnx: input_shapes: the model has no input or dimension {shown(name)}; it has"
                    f" {', '.join(known) or 'none'}{suggestion(str(name), known)}"
                )
        self._said = dict(self._sizes)
        for name, shape in texts.items():
            self._shapes.setdefault(name, shape)  # type: ignore[arg-type]
            if name in given and shape is not None:
                self._check_sizes(name, shape, self._shapes[name])
                self._learn(shape, self._shapes[name])
        for one in fewer:
            self._narrow(one, texts)

    def _narrow(
        self, error: NarrowerError, texts: Mapping[str, Sequence[int | str] | None]
    ) -> None:
        """Narrow the open sizes as a node needs it, given the shapes that the model has."""
        if error.multiple is not None:
            self._times(*error.multiple)
        elif error.bounds is not None:
            self._bound(*error.bounds)
        elif error.same is not None:
            self._unite(error.same)
        elif error.follows is not None:
            self._follow(*error.follows)
        else:
            alike = [pair for pair in error.likely if self._share_an_axis(pair, texts)]
            if len(alike) == 1:
                self._unite(alike[0])

    def _unite(self, names: tuple[str, str]) -> None:
        first, other = (self._multiples.get(name, (name, 1))[0] for name in names)
        self._same[other] = first

    def _follow(self, name: str, total: str) -> None:
        """Replace a size by the sum `total` in all shapes, unless the user bounds the size."""
        plain = {text for text, called in self._called.items() if text == called}
        if name not in plain or not _names_in(total) <= plain or name in self.bounds:
            return
        old = {text for text in self._called if self._name(text) == name}
        for title, shape in self._shapes.items():
            if shape is not None:
                self._shapes[title] = [total if text in old else text for text in shape]

    def _share_an_axis(
        self, names: tuple[str, str], texts: Mapping[str, Sequence[int | str] | None]
    ) -> bool:
        """Return whether two names occur at the same axes only, as sizes of a batch do."""
        places = [
            {
                axis
                for shape in texts.values()
                for axis, text in enumerate(shape or ())
                if isinstance(text, str) and self._name(text) == name
            }
            for name in names
        ]
        return bool(places[0]) and places[0] == places[1]

    def _bound(self, name: str, low: int, high: int | None) -> None:
        """Intersect the bounds of a size with (low, high)."""
        old_low, old_high = self.bounds.get(name, ANY_SIZE)
        ends = [end for end in (high, old_high) if end is not None]
        self.bounds[name] = max(low, old_low), min(ends)

    def _times(self, name: str, factor: int) -> None:
        """Replace a size by `factor` times a new open size with the bounds divided."""
        whole, before = self._multiples.get(name, (name, 1))
        part = f"{whole}_by_{before * factor}"
        low, high = self.bounds.pop(name, ANY_SIZE)
        self._multiples[part] = whole, before * factor
        self._parts[whole] = part
        highest = MAX_DIMENSION if high is None else high
        self._bound(part, max(1, -(-low // factor)), highest // factor)

    def _fix(self, name: str, said: Any) -> None:
        if isinstance(said, numbers.Integral) and not isinstance(said, bool) and int(said) >= 0:
            self._sizes[name] = int(said)
        elif isinstance(said, (tuple, list)) and _are_bounds(said):
            self.bounds[self._name(name)] = (said[0], said[1])
        else:
            raise ValidationError(
                f"onnx: input_shapes[{name!r}]: got {shown(said)}, expected a size or (lowest,"
                " highest)"
            )

    def _check_sizes(
        self, name: str, texts: Sequence[int | str], shape: Sequence[int | str]
    ) -> None:
        """Check that a shape matches the user's sizes and bounds of its named dimensions."""
        for text, size in zip(texts, shape, strict=True):
            if not isinstance(text, str) or isinstance(size, str):
                continue
            low, high = self.bounds.get(self._name(text), ANY_SIZE)
            fits = low <= size and (high is None or size <= high)
            if self._said.get(text, size) != size or not fits:
                raise ValidationError(
                    f"onnx: input_shapes: dimension {text!r} is {size} by input {name!r}, and"
                    f" {self._said.get(text, (low, high))} by its name"
                )

    def in_order(self) -> list[str]:
        """Return the inputs' names; inputs with computed dimensions come last."""
        plain = {text for s in self._shapes.values() for text in s or () if isinstance(text, str)}

        def follows(name: str) -> bool:
            texts = [text for text in self._shapes[name] or () if isinstance(text, str)]
            return any(_names_in(text) and _names_in(text) <= plain for text in texts)

        return sorted(self._values, key=follows)

    def shape(self, name: str) -> list[Any]:
        """Return the shape of an input: sizes, names and dimensions, for `MLGraphBuilder.input`.

        Raises:
            ValidationError: Neither the model nor the user has a shape for the input.
        """
        shape = self._shapes[name]
        if shape is None:
            raise ValidationError(
                f"onnx: input {name!r} has no shape; give input_shapes={{{name!r}: [...]}}"
            )
        return [self._size(size) if isinstance(size, str) else size for size in shape]

    def check_given(self, name: str, shape: Sequence[int]) -> None:
        """Check that a replacement of an input has its rank and its fixed sizes.

        Args:
            name: The input's name.
            shape: The shape of the replacing operand or array.

        Raises:
            ValidationError: The rank or a fixed size differs.
        """
        texts = self._shapes[name]
        if texts is None:
            return
        fixed = [size if isinstance(size, int) else None for size in texts]
        if len(shape) != len(texts) or any(
            size not in (None, got) for size, got in zip(fixed, shape, strict=True)
        ):
            raise ValidationError(
                f"onnx: inputs[{name!r}]: got shape {list(shape)}, the model has {texts}"
            )

    def made(self, name: str, shape: Sequence[int]) -> None:
        """Record the shape of an input as the sizes of its named dimensions."""
        texts = self._shapes.get(name)
        if texts is not None and len(texts) == len(shape):
            self._learn(texts, shape)

    def _learn(self, texts: Sequence[int | str], shape: Sequence[Any]) -> None:
        for text, size in zip(texts, shape, strict=True):
            if isinstance(text, str) and not isinstance(size, str):
                self._sizes.setdefault(text, size)

    def _size(self, text: str) -> Any:
        if text in self._sizes:
            return self._sizes[text]
        names = _names_in(text)
        if names and names <= self._sizes.keys():
            return _value(ast.parse(text, mode="eval").body, self._sizes)
        if names and _is_multiple(text):
            return _value(ast.parse(text, mode="eval").body, {n: self._open(n) for n in names})
        name = self._name(text)
        return self._open(text) if name in self._parts else name

    def _open(self, text: str) -> Any:
        """Return an open size, or the factor times its part if it must be a multiple."""
        name = self._name(text)
        if name not in self._parts:
            return named(name, *ANY_SIZE)
        part = self._parts[name]
        return self._multiples[part][1] * named(part, *ANY_SIZE)

    def _name(self, text: str) -> str:
        """Return the builder's name of a size: a unique identifier made from the model's text."""
        if text not in self._called:
            wanted = text if text.isidentifier() else f"_{re.sub(r'[^0-9A-Za-z_]+', '_', text)}"
            name, number = wanted, 0
            while name in self._called.values():
                number += 1
                name = f"{wanted}_{number}"
            self._called[text] = name
        name = self._called[text]
        while name in self._same:
            name = self._same[name]
        return name


def _texts(value: Any) -> list[int | str] | None:
    """Return the sizes and names of an input's dimensions; None if the model has no shape.

    A dimension without a name, or with a name such as "?", is named after the input and its axis.
    """
    own = value.type.tensor_type
    if not own.HasField("shape"):
        return None
    dims = [d.dim_value if d.HasField("dim_value") else str(d.dim_param) for d in own.shape.dim]
    return [
        f"{value.name}_{i}" if dim == -1 or not re.search(r"\w", str(dim)) else dim
        for i, dim in enumerate(dims)
    ]


def _are_bounds(said: Sequence[Any]) -> bool:
    if len(said) != 2 or not isinstance(said[0], numbers.Integral):
        return False
    return said[1] is None or isinstance(said[1], numbers.Integral)


def _shape(name: str, said: Any, texts: list[int | str] | None) -> list[int | str]:
    if isinstance(said, (int, str)) or not isinstance(said, Iterable):
        raise ValidationError(
            f"onnx: input_shapes[{name!r}]: got {shown(said)}, expected a list of dimensions"
        )
    shape: list[int | str] = []
    for axis, size in enumerate(said):
        if size is None or (isinstance(size, numbers.Integral) and size == -1):
            size = f"{name}_{axis}"
        elif not isinstance(size, (str, numbers.Integral)):
            raise ValidationError(
                f"onnx: input_shapes[{name!r}]: got {shown(size)} among its dimensions, expected a"
                " size, the name of one, or -1"
            )
        shape.append(size if isinstance(size, str) else int(size))
    fits = texts is None or (
        len(shape) == len(texts)
        and all(isinstance(dim, str) or dim == size for dim, size in zip(texts, shape, strict=True))
    )
    if not fits:
        raise ValidationError(
            f"onnx: input_shapes[{name!r}]: got {shape}, the model has {texts}"
            f"{_reordered(shape, texts or [])}"
        )
    return shape


def _reordered(shape: list[int | str], texts: list[int | str]) -> str:
    """Return the end of a message that tells how to change an array's layout to the model's."""
    wanted = tuple(named("n", *ANY_SIZE) if isinstance(dim, str) else dim for dim in texts)
    sizes = [size for size in shape if isinstance(size, int)]
    moved = relaid(sizes, cast(Shape, wanted)) if len(sizes) == len(shape) else None
    return f"; an array of this shape becomes one of the model's with {moved}" if moved else ""


def _names_in(text: str) -> set[str]:
    """Return the names in an arithmetic expression; an empty set for a plain name or text."""
    if text.isidentifier():
        return set()
    try:
        tree = ast.parse(text, mode="eval").body
        names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
        _value(tree, dict.fromkeys(names, 1))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return set()
    return names


def _is_multiple(text: str) -> bool:
    """Return whether a text is a number times a name, as `to_onnx` writes multiples."""
    return re.fullmatch(r"[1-9][0-9]*\s*\*\s*[^\W\d]\w*", text) is not None


def _value(tree: ast.expr, sizes: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        left, right = (_value(side, sizes) for side in (tree.left, tree.right))
        return _OPERATORS[type(tree.op)](left, right)
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    raise ValueError(f"{ast.unparse(tree)} is no sum or product of sizes")
