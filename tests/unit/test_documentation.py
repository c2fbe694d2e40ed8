"""The documentation's own machinery: the table of operators, the settings of the pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from webnn_py.ops.declare import REGISTRY

ROOT = Path(__file__).parents[2]
HOOKS = """
import runpy, sys
hooks = runpy.run_path("scripts/mkdocs_hooks.py")
sys.stdout.write(hooks["on_page_markdown"](open("docs/operators.md", encoding="utf-8").read()))
"""


def operators_page() -> str:
    """The page as mkdocs gets it: in a process that has not imported the operators before."""
    made = subprocess.run(
        [sys.executable, "-c", HOOKS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return made.stdout


def test_the_table_of_operators_lists_all_of_them() -> None:
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in operators_page().splitlines()
        if line.startswith("| `")
    ]
    rows = {name.strip("`"): rest for name, *rest in cells}
    assert len(cells) == len(rows)
    assert set(rows) == set(REGISTRY)
    for name, (summary, parameters, types, _) in rows.items():
        first = next(iter(REGISTRY[name].limits))
        assert summary, name
        assert parameters.split(", ")[0] == first
        assert types.split(", ") == list(REGISTRY[name].operand_types(first))


def test_no_setting_of_the_pages_stands_twice() -> None:
    seen: dict[int, set[str]] = {}  # keys of the mappings that are open, by indentation
    for line in (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines():
        found = re.match(r"( *(- )?)([\w ]+):( |$)", line)
        if found is None:
            continue
        depth = len(found[1])
        seen = {d: keys for d, keys in seen.items() if d < depth or (d == depth and not found[2])}
        assert found[3] not in seen.setdefault(depth, set()), line
        seen[depth].add(found[3])
