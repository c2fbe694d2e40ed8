"""Graphs and builds as notebooks show them."""

from __future__ import annotations

import io
import sys
import types
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from webnn_py import MLContext, MLGraph, MLGraphBuilder, show_progress
from webnn_py.api.view import page


def network(context: MLContext, rows: int | str = 2, nodes: int = 2) -> MLGraph:
    """A chain of operators, whose label is no HTML."""
    builder = MLGraphBuilder(context)
    y = builder.input("x", "float32", [rows, 4])
    for _ in range(nodes):
        y = builder.softmax(y, 1, label="<first> & last")
    return builder.build_sync({"y": y})


def html(graph: MLGraph) -> ET.Element:
    """What a notebook gets, which is well-formed."""
    return ET.fromstring(graph._repr_html_())  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [2, "rows"])
def test_a_graph_is_tables_and_a_drawing(cpu: MLContext, rows: int | str) -> None:
    found = html(network(cpu, rows))
    texts = ["".join(cell.itertext()) for cell in found.iter("td")]
    assert f"float32[{rows},4]" in texts
    assert "0 softmax <first> & last" in texts
    boxes = [box.get("class") for box in found.iter("g")]
    assert boxes == ["box input", "box node", "box node", "box output"]
    assert len(list(found.iter("path"))) == 3


def test_a_huge_graph_is_not_drawn(cpu: MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_NOTEBOOK_BOXES", 10)
    monkeypatch.setattr(page, "MAX_NOTEBOOK_ROWS", 3)
    found = html(network(cpu, nodes=20))
    assert not list(found.iter("svg"))
    assert "".join(found.find("details/summary").itertext()) == "20 nodes, the first 3"  # type: ignore[union-attr]
    assert len(found.findall("details/table/tr")) == 3


def test_a_graph_that_is_gone_says_so(cpu: MLContext) -> None:
    graph = network(cpu)
    graph.destroy()
    assert "destroyed MLGraph" in "".join(html(graph).itertext())


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_builds_are_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        monkeypatch.setattr(sys, "stderr", stream)
        for done in range(4):
            show_progress(done, 3)
    lines = terminal.getvalue().split("\r")[1:]
    assert lines[0] == f"[{'.' * 30}] 0 of 3 compiled"
    assert lines[1] == f"[{'#' * 10}{'.' * 20}] 1 of 3 compiled"
    assert lines[3] == f"[{'#' * 30}] 3 of 3 compiled\n"
    assert not log.getvalue()


def test_builds_are_a_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[str]] = []

    class Handle:
        def update(self, value: str) -> None:
            shown[-1].append(value)

    def display(value: str, display_id: bool) -> Handle:
        assert display_id
        shown.append([value])
        return Handle()

    shell = types.SimpleNamespace(kernel=None)
    module: Any = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    module.display = types.ModuleType("IPython.display")
    module.display.HTML = str
    module.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    for total in (2, 1):  # two builds, a bar each
        for done in range(total + 1):
            show_progress(done, total)
    first, second = shown
    assert first[1] == '<progress value="1" max="2"></progress> 1 of 2 compiled'
    assert (len(first), len(second)) == (3, 2)
