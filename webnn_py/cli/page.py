"""The page that `inspect --html` writes: the graph drawn, with all there is to say of its nodes."""

from __future__ import annotations

import html
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from webnn_py.cli.drawing import HEIGHT, draw
from webnn_py.cli.facts import Facts, NodeFacts
from webnn_py.cli.printing import in_bytes, shown
from webnn_py.core.messages import printable

LETTER = 6.6
"""Pixels that a letter in a box takes."""
MOST_LETTERS = 32
LINE = 15
"""Pixels between the lines in a box."""


@dataclass(frozen=True)
class Box:
    """What is drawn: an input, a node or an output.

    Attributes:
        kind: "input", "node" or "output".
        lines: What stands in it; the first one is its title.
        steps: Numbers of the kernels that compute it.
        facts: What else there is to say of it.
    """

    kind: str
    lines: tuple[str, ...]
    steps: tuple[int, ...]
    facts: dict[str, str]

    @property
    def width(self) -> float:
        """In pixels."""
        return max(60.0, 18 + LETTER * max(map(len, self.lines)))

    @property
    def hue(self) -> int:
        """A colour for each operator, in degrees."""
        return zlib.crc32(self.lines[0].encode()) % 360


def page_of(title: str, facts: Facts) -> str:
    """A page that needs no other files."""
    boxes, lines = _parts(facts)
    drawing = draw([box.width for box in boxes], lines)
    data = {
        "size": [drawing.width, drawing.height],
        "boxes": [{"steps": box.steps, "facts": box.facts} for box in boxes],
        "summary": {name: shown(value) for name, value in facts.summary().items()},
        "operators": facts.operators,
        "kernels": [
            f"{step.name}: reads {in_bytes(step.reads)}, writes {in_bytes(step.writes)}"
            for step in facts.steps
        ],
    }
    picture = [
        f'<path class="line" data-from="{upper}" data-to="{lower}" d="{_curve(points)}"/>'
        for upper, lower, points in drawing.lines
    ]
    places = enumerate(zip(boxes, drawing.boxes, strict=True))
    picture += [_drawn(number, box, x, y) for number, (box, (x, y)) in places]
    filled = {
        "title": html.escape(printable(title)),
        "picture": "\n".join(picture),
        "data": json.dumps(data).replace("<", "\\u003c"),
    }
    template = resources.files("webnn_py.cli").joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], template)


def _parts(facts: Facts) -> tuple[list[Box], list[tuple[int, int]]]:
    """The boxes, and which is read by which."""
    inputs = {tensor.name: number for number, tensor in enumerate(facts.inputs)}
    boxes = [
        Box("input", ("input", tensor.name, str(tensor)), (), {"input": tensor.name})
        for tensor in facts.inputs
    ]
    lines = []
    for place, node in enumerate(facts.nodes, len(inputs)):
        lines += [(inputs[name], place) for name in node.graph_inputs]
        lines += [(len(inputs) + other, place) for other in node.inputs]
        boxes.append(_box(facts, node))
    for tensor, maker in facts.outputs:
        if maker is not None:
            lines.append((len(inputs) + maker, len(boxes)))
        boxes.append(Box("output", ("output", tensor.name, str(tensor)), (), {}))
    return boxes, lines


def _box(facts: Facts, node: NodeFacts) -> Box:
    makes = [str(tensor) for tensor in node.outputs]
    first = f"{makes[0]} …" if len(makes) > 1 else makes[0]
    return Box(
        "node",
        tuple(_short(text) for text in (node.operator, node.label, first) if text),
        node.steps,
        {
            "operator": node.operator,
            "name": node.label,
            "makes": ", ".join(makes),
            "runs in": facts.where(node),
            **node.options,
            **{f"constant {tensor.name}": str(tensor) for tensor in node.constants},
        },
    )


def _short(text: str) -> str:
    """The end of a long name says more than its beginning."""
    return text if len(text) <= MOST_LETTERS else f"…{text[1 - MOST_LETTERS :]}"


def _drawn(number: int, box: Box, x: float, y: float) -> str:
    first = (HEIGHT - LINE * len(box.lines)) // 2 + LINE - 3
    texts = "".join(
        f'<text y="{first + LINE * row}">{html.escape(printable(text))}</text>'
        for row, text in enumerate(box.lines)
    )
    return (
        f'<g class="box {box.kind}" data-number="{number}" style="--hue:{box.hue}"'
        f' transform="translate({x:.1f} {y:.1f})"><rect x="{-box.width / 2:.1f}"'
        f' width="{box.width:.1f}" height="{HEIGHT}" rx="6"/>{texts}</g>'
    )


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Through layers straight down, between them in an S."""
    (x, y), *others = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for number, (to_x, to_y) in enumerate(others):
        if number % 2:
            parts.append(f"V{to_y:.1f}")
        else:
            middle = (y + to_y) / 2
            parts.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return "".join(parts)
