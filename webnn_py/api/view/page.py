"""HTML of a graph: its drawing with facts, as a page of its own or as part of a notebook."""

from __future__ import annotations

import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from webnn_py.api.view.drawing import BOX_HEIGHT, Drawing, draw
from webnn_py.api.view.facts import Facts, NodeFacts
from webnn_py.api.view.formats import format_bytes, format_value
from webnn_py.core.messages import printable

LETTER_PIXELS = 6.6
MAX_LINE_LETTERS = 32
LINE_PIXELS = 15
"""Distance of the lines in a box."""
MAX_NOTEBOOK_BOXES, MAX_NOTEBOOK_ROWS = 400, 1000
"""Most boxes and rows for a notebook, which saves them in its file."""
NOTEBOOK_STYLE = """
.webnn-graph td { text-align: left; vertical-align: top; }
.webnn-drawing { overflow: auto; max-height: 480px; }
.webnn-graph .line { fill: none; stroke: currentColor; stroke-opacity: .5; }
.webnn-graph rect { fill: hsl(var(--hue) 60% 50% / .25); stroke: hsl(var(--hue) 45% 50%); }
.webnn-graph text { text-anchor: middle; font: 11.5px sans-serif; fill: currentColor; }
.webnn-graph text:first-of-type { font-weight: 600; }
"""
"""Style of the drawing in light and dark notebooks; it concerns nothing else on the page."""


@dataclass(frozen=True)
class Box:
    """A box of the drawing: an input, a node or an output.

    Attributes:
        kind: "input", "node" or "output".
        lines: Its text lines; the first one is the title.
        steps: Numbers of the kernels that compute it.
        facts: Details by name.
    """

    kind: str
    lines: tuple[str, ...]
    steps: tuple[int, ...]
    facts: dict[str, str]

    @property
    def width(self) -> float:
        """Return the width in pixels."""
        return max(60.0, 18 + LETTER_PIXELS * max(map(len, self.lines)))

    @property
    def hue(self) -> int:
        """Return the operator's hue in degrees."""
        return zlib.crc32(self.lines[0].encode()) % 360


def page_of(title: str, facts: Facts) -> str:
    """Return a self-contained HTML page of a graph."""
    boxes, lines = _parts(facts)
    drawing = draw([box.width for box in boxes], lines)
    data = {
        "size": [drawing.width, drawing.height],
        "boxes": [{"steps": box.steps, "facts": box.facts} for box in boxes],
        "summary": {name: format_value(value) for name, value in facts.summary().items()},
        "operators": facts.operators,
        "kernels": [
            f"{step.name}: reads {format_bytes(step.reads)}, writes {format_bytes(step.writes)}"
            for step in facts.steps
        ],
    }
    filled = {
        "title": html.escape(printable(title)),
        "picture": _picture(boxes, drawing),
        "data": json.dumps(data).replace("<", "\\u003c"),
    }
    template = (
        resources.files("webnn_py.api.view").joinpath("page.html").read_text(encoding="utf-8")
    )
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], template)


def fragment_of(facts: Facts) -> str:
    """Return HTML for a cell of a notebook: tables, and the drawing unless it would be huge."""
    boxes, lines = _parts(facts)
    parts = [f'<div class="webnn-graph"><style>{NOTEBOOK_STYLE}</style>', _rows(facts.summary())]
    if len(boxes) <= MAX_NOTEBOOK_BOXES:
        drawing = draw([box.width for box in boxes], lines)
        parts.append(
            f'<details open="open"><summary>Drawing</summary><div class="webnn-drawing"><svg'
            f' width="{drawing.width:.0f}" height="{drawing.height:.0f}">'
            f"{_picture(boxes, drawing)}</svg></div></details>"
        )
    nodes = {
        f"{number} {node.operator} {node.label}": f"{', '.join(map(str, node.outputs))}"
        f" — {facts.where(node)}"
        for number, node in enumerate(facts.nodes[:MAX_NOTEBOOK_ROWS])
    }
    more = len(facts.nodes) - len(nodes)
    title = f"{len(facts.nodes)} nodes{f', the first {len(nodes)}' if more else ''}"
    parts.append(f"<details><summary>{title}</summary>{_rows(nodes)}</details></div>")
    return "".join(parts)


def _rows(facts: Mapping[str, object]) -> str:
    rows = (
        f"<tr><td>{html.escape(printable(name))}</td>"
        f"<td>{html.escape(format_value(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _picture(boxes: Sequence[Box], drawing: Drawing) -> str:
    """Return the SVG elements of lines and boxes."""
    picture = [
        f'<path class="line" data-from="{upper}" data-to="{lower}" d="{_curve(points)}"/>'
        for upper, lower, points in drawing.lines
    ]
    places = enumerate(zip(boxes, drawing.boxes, strict=True))
    picture += [_drawn(number, box, x, y) for number, (box, (x, y)) in places]
    return "\n".join(picture)


def _parts(facts: Facts) -> tuple[list[Box], list[tuple[int, int]]]:
    """Return the boxes, and pairs of box numbers: a producer and its reader."""
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
    """Shorten a text at its start, as the end of a long name is more specific."""
    return text if len(text) <= MAX_LINE_LETTERS else f"…{text[1 - MAX_LINE_LETTERS :]}"


def _drawn(number: int, box: Box, x: float, y: float) -> str:
    first = (BOX_HEIGHT - LINE_PIXELS * len(box.lines)) // 2 + LINE_PIXELS - 3
    texts = "".join(
        f'<text y="{first + LINE_PIXELS * row}">{html.escape(printable(text))}</text>'
        for row, text in enumerate(box.lines)
    )
    return (
        f'<g class="box {box.kind}" data-number="{number}" style="--hue:{box.hue}"'
        f' transform="translate({x:.1f} {y:.1f})"><rect x="{-box.width / 2:.1f}"'
        f' width="{box.width:.1f}" height="{BOX_HEIGHT}" rx="6"/>{texts}</g>'
    )


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Return an SVG path: straight down through layers, S-shaped between them."""
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
