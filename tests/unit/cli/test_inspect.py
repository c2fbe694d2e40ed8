"""`webnn-py inspect`: tables, JSON, and the page with the graph drawn."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.public import DEFAULT_ENGINE
from tests.unit.cli.commands import told
from webnn_py import MLContext, MLGraph, MLGraphBuilder
from webnn_py.cli.main import main


def test_json_tells_what_runs(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = told(capsys, "inspect", network)
    assert facts["engine"] == DEFAULT_ENGINE
    assert facts["inputs"] == [{"name": "x", "data_type": "float32", "shape": [1, 3, 8, 8]}]
    assert [node["operator"] for node in facts["nodes"]] == [
        "conv2d", "relu", "max_pool2d", "reshape", "matmul",
    ]  # fmt: skip
    assert facts["operators"]["conv2d"] == 1
    assert facts["parameters"] == 4 * 3 * 3 * 3 + 4 + 64 * 5
    assert facts["constant_bytes"] == 4 * facts["parameters"]
    assert [node["inputs"] for node in facts["nodes"]] == [[], [0], [1], [2], [3]]
    stem = facts["nodes"][0]
    assert (stem["label"], stem["graph_inputs"]) == ("stem", ["x"])
    assert [constant["shape"] for constant in stem["constants"]] == [[4, 3, 3, 3], [4]]
    assert stem["options"]["padding"] == "[1,1,1,1]"
    assert stem["outputs"][0]["shape"] == [1, 4, 8, 8]
    ((output, maker),) = facts["outputs"]
    assert (output["name"], maker) == ("y", 4)
    # At most two results live at a time: of 4 * 8 * 8 elements.
    assert facts["intermediate_bytes"] == 2 * 4 * 4 * 8 * 8


def test_kernels_compute_all_nodes(
    network: str, gpu: MLContext, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = told(capsys, "inspect", network, "--device", "gpu")
    assert len(facts["steps"]) < len(facts["nodes"])
    for place, node in enumerate(facts["nodes"]):
        assert node["steps"]
        assert all(place in facts["steps"][number]["nodes"] for number in node["steps"])
    conv2d, relu = facts["nodes"][:2]
    assert conv2d["steps"] == relu["steps"] == [0]
    first = facts["steps"][0]
    assert first["name"] == "conv2d"
    assert first["reads"] == 4 * (3 * 8 * 8 + 4 * 3 * 3 * 3 + 4)
    assert first["writes"] == 4 * 4 * 8 * 8


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_tables_tell_the_same(
    device: str, network: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(device)
    assert main(["inspect", network, "--device", device]) == 0
    out = capsys.readouterr().out
    assert "float32[1,3,8,8]" in out
    assert "stem" in out
    assert ("0 conv2d" in out) == (device == "gpu")
    assert (DEFAULT_ENGINE in out) == (device == "cpu")


def test_the_parts_of_other_engines_are_told(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    facts = told(capsys, "inspect", network, "--engine", "onnxruntime")
    assert {node["engine"] for node in facts["nodes"]} == {"onnxruntime"}


def pages(graph: MLGraph, path: Path, *options: str) -> str:
    """The page of a graph, which is saved for that."""
    graph.save(path)
    assert main(["inspect", str(path), "--html", f"{path}.html", *options]) == 0
    return Path(f"{path}.html").read_text(encoding="utf-8")


def test_open_graphs_are_told_as_they_are(
    cpu: MLContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = MLGraphBuilder(cpu)
    x = b.input("x", "float32", ["batch", 2])
    page = pages(b.build_sync({"y": b.sin(b.relu(x))}), tmp_path / "open.mlgraph")
    assert "float32[batch,2]" in page
    facts = told(capsys, "inspect", str(tmp_path / "open.mlgraph"))
    assert facts["inputs"][0]["shape"] == ["batch", 2]
    assert facts["intermediate_bytes"] is None
    facts = told(capsys, "inspect", str(tmp_path / "open.mlgraph"), "--shape", "batch=3")
    assert facts["intermediate_bytes"] == 4 * 3 * 2


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_outputs_may_be_known_at_build(
    device: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    b = MLGraphBuilder(request.getfixturevalue(device))  # skips where there is no adapter
    one = b.constant(1.0, "float32")
    x = b.input("x", "float32", [2])
    graph = b.build_sync({"sum": b.add(one, one), "same": b.identity(x), "y": b.relu(x)})
    page = pages(graph, tmp_path / "known.mlgraph", "--device", device)
    assert page.count('class="box output"') == 3
    facts = told(capsys, "inspect", str(tmp_path / "known.mlgraph"), "--device", device)
    assert [tensor["name"] for tensor, _ in facts["outputs"]] == ["sum", "same", "y"]


class Page(HTMLParser):
    """The tags of a page, and the texts of its boxes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "text":
            self.texts.append(data)


def test_the_page_draws_every_node_and_every_line(network: str, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert main(["inspect", network, "--html", str(target)]) == 0
    text = target.read_text()
    page = Page(text)
    boxes = [a for tag, a in page.tags if tag == "g" and str(a.get("class")).startswith("box")]
    lines = [a for tag, a in page.tags if tag == "path"]
    assert len(boxes) == 1 + 5 + 1
    assert [(a["data-from"], a["data-to"]) for a in lines] == [
        (str(n), str(n + 1)) for n in range(6)
    ]
    assert {"input", "conv2d", "stem", "matmul", "float32[1,5]", "output"} <= set(page.texts)
    # Nothing comes from elsewhere, and no text ends the data's element early.
    assert not re.search(r"(src|href)=|https?:|@import", text)
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', text)
    assert data is not None
    assert len(json.loads(data[1])["boxes"]) == len(boxes)


def test_names_are_no_markup(cpu: MLContext, tmp_path: Path) -> None:
    b = MLGraphBuilder(cpu)
    x = b.input("<b>x</b>", "float32", [2])
    evil = "</script><script>alert(1)</script>{{data}}"
    graph = b.build_sync({"y": b.relu(x, label=evil)})
    page = pages(graph, tmp_path / "<b>evil.mlgraph")
    assert "alert(1)" in page
    assert page.count("<script") == 2
    assert "<b>" not in page
