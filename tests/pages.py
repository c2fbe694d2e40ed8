"""Pages of the documentation: their code blocks, and running these as a reader does."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
INSTALLS = re.compile(
    r"(pip install|make|sudo|apt|docker|git clone|cd|npm|(python3? -m|\.) \.?venv)\b"
)
"""Commands that change the reader's machine; they are checked instead of run."""
ELSEWHERE = {"ray", "webnn"}
"""Packages that the tests need not have; code that imports a missing one is compiled, not run."""
START_SECONDS = 60


class Block(NamedTuple):
    """A code block: its language, the file that it is, and its text."""

    language: str
    title: str
    text: str


def read_blocks(page: str) -> list[Block]:
    """Return the code blocks of a page, those in tabs included."""
    return parse_blocks((ROOT / page).read_text(encoding="utf-8"))


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the texts of a page's blocks in one language."""
    return [block.text for block in read_blocks(page) if block.language == language]


def parse_blocks(markdown: str) -> list[Block]:
    """Return the code blocks of a text."""
    return [
        Block(found["language"], found["title"] or "", textwrap.dedent(found["text"]))
        for found in BLOCK.finditer(markdown)
    ]


def printed_by(code: str) -> list[str]:
    """Return what comments behind calls of `print` say, with single spaces."""
    return [" ".join(text.split()) for text in PRINTS.findall(code)]


def missing_modules(code: str) -> set[str]:
    """Return the names of the modules that code imports and that are not installed."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return {name for name in names if importlib.util.find_spec(name) is None}


class Reader:
    """A reader who follows a page in an empty folder.

    Args:
        page: Name of the page, for messages.
        folder: The current directory.
        show: Receives what commands print.
    """

    def __init__(self, page: str, folder: Path, show: Callable[[str], object]) -> None:
        self._page = page
        self._folder = folder
        self._show = show
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._servers = ExitStack()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def follow(self, blocks: list[Block]) -> None:
        """Do what the blocks say, top to bottom."""
        for number, block in enumerate(blocks):
            if block.title:
                path = self._folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                code = compile(block.text, f"<{self._page}, block {number}>", "exec")
                if not missing_modules(block.text) & ELSEWHERE:
                    exec(code, self._names)
            elif block.language == "sh":
                self._run(block.text)

    def _run(self, commands: str) -> None:
        lines = [line for line in joined_lines(commands) if not INSTALLS.match(line)]
        for line in lines:
            script = re.fullmatch(r"python (\w+\.py)", line)
            if script:
                code = (self._folder / script[1]).read_text(encoding="utf-8")
                compile(code, script[1], "exec")
                if missing_modules(code) & ELSEWHERE:
                    continue
            if line.startswith("uvicorn "):
                self._serve(shlex.split(line, comments=True))
            else:
                self._show(self._shell(line))

    def _shell(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def _serve(self, command: list[str]) -> None:
        """Start a server and wait until its port accepts connections."""
        port = int(command[command.index("--port") + 1])
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._servers.callback(process.wait)
        self._servers.callback(process.terminate)
        end = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None, f"{command} has ended"
            assert time.monotonic() < end, f"{command} does not listen"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)

    def _environment(self) -> dict[str, str]:
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        modules = [str(self._folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PATH": os.pathsep.join(paths),
            "PYTHONPATH": os.pathsep.join(filter(None, modules)),
            "CHECKOUT": str(ROOT),
        }


def joined_lines(commands: str) -> Iterator[str]:
    """Yield the commands of a block, one a line; those that depend on each other are one."""
    text = commands.replace("\\\n", " ").strip()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if any(re.match(r"\w+=", line) for line in lines):  # a variable holds for what follows
        yield "\n".join(lines)
    else:
        yield from lines


def check_installs(commands: str) -> None:
    """Check that extras and targets which commands name exist."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    targets = re.findall(
        r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    for line in joined_lines(commands):
        for names in re.findall(r"(?:webnn-py|\.)\[([\w,]+)\]", line):
            assert set(names.split(",")) <= set(extras), line
        if line.startswith("make "):
            assert line.split()[1] in targets, line
