"""Draw the pictures of docs/architecture.md as SVG files: python scripts/diagrams.py.

Each picture is 400 units wide, so that a phone shows its text without zooming. Text stays text, and
the colours follow the reader's light or dark scheme. A line that begins with a backtick is code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs/images"
WIDTH = 400
LINE = 17
STYLE = """
    svg { --page: #ffffff; --ink: #1c2636; --soft: #4b5a70; --line: #68778f; --box: #edf1f7;
          --kept: #d9e6fd; --yours: #ffedbf; --bad: #fbdcd7 }
    @media (prefers-color-scheme: dark) {
      svg { --page: #1b2029; --ink: #e9edf4; --soft: #b4c0d2; --line: #8fa0ba; --box: #2c3443;
            --kept: #22406f; --yours: #5b4715; --bad: #6b2f27 } }
    text { font: 13px sans-serif; fill: var(--ink) }
    .title { font-weight: bold }
    .code { font: 12px monospace; fill: var(--soft) }
    .note { font: 12px sans-serif; fill: var(--soft) }
    .middle { text-anchor: middle }
    rect { fill: var(--box); stroke: var(--line) }
    .page { fill: var(--page); stroke: none }
    .kept { fill: var(--kept) } .yours { fill: var(--yours) } .bad { fill: var(--bad) }
    .arrow { fill: none; stroke: var(--line); stroke-width: 1.6; marker-end: url(#head) }
    #head path { fill: var(--line) }
"""


class Picture:
    """One picture; every method adds to it, and coordinates are units from the top left."""

    def __init__(self, title: str, height: int) -> None:
        self._height = height
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH * 5 // 4}" role="img" aria-labelledby="title">',
            f'  <title id="title">{escape(title)}</title>',
            f"  <style>{STYLE}  </style>",
            '  <defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            ' markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 Z"/></marker></defs>',
            f'  <rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        ]

    def text(self, x: int, y: int, line: str, kind: str = "") -> None:
        """Write one line; `kind` is a class of the style sheet."""
        if line.startswith("`"):
            kind, line = f"{kind} code".strip(), line[1:]
        self._parts.append(f'  <text class="{kind}" x="{x}" y="{y}">{escape(line)}</text>')

    def box(
        self, x: int, y: int, width: int, title: str, lines: Sequence[str] = (), kind: str = "box"
    ) -> int:
        """Draw a box with a bold title and lines below it; return the y of its lower edge."""
        height = 12 + LINE * (1 + len(lines))
        self._parts.append(
            f'  <rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        self.text(x + 10, y + LINE + 2, title, "title")
        for number, line in enumerate(lines, 2):
            self.text(x + 10, y + LINE * number + 2, line)
        return y + height

    def arrow(self, *points: tuple[int, int]) -> None:
        """Draw an arrow through these points."""
        path = " L".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'  <path class="arrow" d="M{path}"/>')

    def printed(self) -> str:
        """Return the text of the file."""
        return "\n".join([*self._parts, "</svg>", ""])


def layers() -> Picture:
    """Draw the packages; each row imports only rows below it."""
    picture = Picture("The packages in layers: each row imports only from the rows below it.", 616)
    picture.box(10, 10, 380, "cli/", ["the command line, one file a command"])
    picture.box(10, 62, 380, "onnx/", ["ONNX models to graphs, and back"])
    picture.box(10, 114, 380, "api/", ["contexts, builders, graphs, tensors, executions"], "yours")
    picture.box(
        10, 166, 185, "engines/webgpu/", ["runtime/: wgpu", "compiler/", "program/"], "kept"
    )
    picture.box(205, 166, 185, "engines/", ["onnxruntime/", "openvino/", "reference/"], "kept")
    picture.box(10, 252, 185, "engines/", ["the interface of an engine"], "kept")
    picture.box(205, 252, 185, "engines/", ["onnx_lowering/"], "kept")
    picture.box(10, 304, 380, "passes/", ["graph to graph, one file a pass"])
    picture.box(10, 356, 380, "storage/", ["files of graphs and weights"])
    picture.box(10, 408, 120, "ordering/", ["timelines,", "parked work"])
    picture.box(140, 408, 120, "ops/", ["operators,", "declared once"])
    picture.box(270, 408, 120, "memory/", ["arrays, overlap,", "plans of buffers"])
    picture.box(10, 477, 380, "ir/", ["Value, Node, Graph: the recipe"])
    picture.box(10, 529, 380, "core/", ["errors, data types, shapes, threads, caches"])
    picture.text(200, 602, "each row imports only rows below it", "note middle")
    return picture


def build() -> Picture:
    """Draw the way from a builder's calls to executables."""
    picture = Picture("A build: calls become a recipe, segments, and executables.", 568)
    picture.box(10, 10, 380, "Your calls", ["b.relu(b.conv2d(x, w))"], "yours")
    picture.arrow((70, 56), (70, 84))
    picture.text(84, 74, "`operand.apply")
    picture.box(10, 86, 380, "Nodes", ["checked, with inferred data types and shapes"])
    picture.arrow((70, 132), (70, 160))
    picture.text(84, 150, "`builder.MLGraphBuilder.build_sync")
    picture.box(
        10, 162, 380, "Recipe", ["the graph as recorded; never changed", "`graph.Graph"], "kept"
    )
    picture.arrow((70, 225), (70, 253))
    picture.text(84, 243, "`pipeline.optimize")
    picture.box(10, 255, 380, "Optimized graph", ["rewritten by the passes that the engine wants"])
    picture.arrow((70, 301), (70, 329))
    picture.text(84, 319, "`partition.split")
    picture.box(10, 331, 380, "Segments", ["each for the first engine that supports its nodes"])
    for x in (70, 240, 330):
        picture.arrow((x, 377), (x, 405))
    picture.text(84, 395, "`base.Engine.compile")
    picture.box(10, 407, 120, "CPU library", ["ONNX model,", "session"])
    picture.box(140, 407, 120, "Reference", ["NumPy function", "of each node"])
    picture.box(270, 407, 120, "WebGPU", ["kernels, plan,", "device buffers"])
    for x in (70, 200, 330):
        picture.arrow((x, 470), (x, 496))
    picture.box(
        10,
        498,
        380,
        "Executable",
        ["cached by the sizes of open dimensions", "`compiled.CompiledGraph"],
        "kept",
    )
    return picture


def awaited_run() -> Picture:
    """Draw the states of an awaited run, and the threads that may take each step."""
    picture = Picture("An awaited run: its states, and the threads that take it on.", 672)
    picture.text(85, 24, "state", "note middle")
    picture.text(176, 24, "thread that takes the run there", "note")
    rows = [
        ("checked", "yours", ["event loop"]),
        ("inputs read", "yours", ["event loop; it copies arrays,", "so you may change them now"]),
        ("in its turn", "kept", ["at once, or parked until whoever", "ends the work before it"]),
        ("recorded", "box", ["context's worker, or event loop;", "often before the call"]),
        ("submitted", "box", ["context's worker, or event loop"]),
        ("ended", "box", ["GPU; seen by reader thread,", "worker or event loop"]),
        ("read back", "box", ["whoever saw the end; the reader", "if it came late"]),
        ("done", "yours", ["event loop; the await returns"]),
    ]
    y = 34
    for number, (state, kind, threads) in enumerate(rows):
        picture.box(10, y, 150, state, [], kind)
        for line, text in enumerate(threads):
            picture.text(176, y + (19 if len(threads) == 1 else 11) + line * LINE, text)
        if number < len(rows) - 1:
            picture.arrow((85, y + 29), (85, y + 60))
        y += 62
    picture.box(
        10,
        y + 4,
        380,
        "failed, cancelled or lost",
        ["from every state; copies are freed, signals fail"],
        "bad",
    )
    picture.box(
        10,
        y + 60,
        380,
        "On a CPU",
        [
            "the worker or a helper computes in place of the four",
            "steps from recorded to read back",
        ],
    )
    return picture


def kernel() -> Picture:
    """Draw the way of one kernel from nodes to a pipeline."""
    picture = Picture("A kernel: from nodes through a shader as data to a pipeline.", 606)
    steps = [
        ("Nodes", ["of a segment for a GPU"], "box", "legalize.legalize"),
        (
            "Legal graph",
            ["long loops split, attention as one node"],
            "box",
            "fusion.Fusion",
        ),
        (
            "Roots",
            ["values that get a kernel; the rest is inlined"],
            "box",
            "kernel_list.kernels_of",
        ),
        (
            "Shader",
            [
                "bindings, functions, loops with bounds: data",
                "a template asks lowerings for its elements",
            ],
            "kept",
            "kernel.Kernel.with_shader",
        ),
        (
            "Kernel",
            ["WGSL, buffers, workgroups"],
            "kept",
            "horizontal_fusion.py, pipeline_sharing.py",
        ),
        ("Template", ["all kernels, a plan of buffers"], "kept", "pipelines.PipelineCache"),
        (
            "Pipelines",
            ["one for each distinct text, with a layout"],
            "box",
            "device_graph.LoadedGraph",
        ),
        ("Loaded graph", ["constants, bind groups: ready to record"], "kept", ""),
    ]
    y = 10
    for title, lines, kind, then in steps:
        bottom = picture.box(10, y, 380, title, lines, kind)
        if then:
            picture.arrow((40, bottom), (40, bottom + 28))
            picture.text(54, bottom + 18, f"`{then}")
        y = bottom + 30
    return picture


def parked_work() -> Picture:
    """Draw the order of operations on one context."""
    picture = Picture("The order of work: submitted, parked while it must wait, run.", 470)
    picture.box(110, 10, 180, "submitted", ["a number in the order"], "yours")
    picture.arrow((150, 56), (80, 100))
    picture.text(10, 84, "must wait")
    picture.arrow((250, 56), (340, 196))
    picture.text(302, 84, "may run now")
    picture.box(
        10,
        102,
        260,
        "parked",
        ["awaits a timeline, or follows parked", "work in the same memory"],
        "kept",
    )
    picture.arrow((80, 165), (80, 196))
    picture.text(90, 185, "may run")
    picture.box(10, 198, 150, "ready", ["lowest number first"])
    picture.arrow((160, 221), (228, 221))
    picture.box(230, 198, 160, "running", ["no lock is held"])
    picture.arrow((340, 244), (340, 272))
    picture.box(230, 274, 160, "done", ["raises its timelines"])
    picture.arrow((230, 297), (195, 297), (195, 167))
    picture.text(10, 278, "resumes followers")
    picture.text(10, 295, "and waiters, on")
    picture.text(10, 312, "any context")
    picture.box(
        10,
        336,
        380,
        "failed",
        [
            "a timeline failed, it was cancelled, the context was",
            "lost, or it waits for itself (deadlock)",
        ],
        "bad",
    )
    picture.text(10, 422, "`hazards.py: which parked work shares memory")
    picture.text(10, 440, "`deadlock.py, wait_graph.py: what can never run")
    picture.text(10, 458, "`parked.py, schedule.py: what may run, and where")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "layers": layers,
    "build": build,
    "awaited_run": awaited_run,
    "kernel": kernel,
    "parked_work": parked_work,
}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw().printed(), encoding="utf-8")


if __name__ == "__main__":
    main()
