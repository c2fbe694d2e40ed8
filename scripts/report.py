"""Print what tells where the code is hard to read: long functions, large classes, lone modules.

The tables are for people to look at; nothing fails by them.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "webnn_py"
ROWS = 15
"""How many rows a table has at most."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Trees = dict[Path, ast.Module]


def parsed(folder: str) -> Trees:
    """Return the syntax tree of each Python file in a folder."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}


def module_name(path: Path) -> str:
    """Return the dotted name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted name of each module that a file imports, also inside functions.

    `from a import b` yields `a` and `a.b`, because `b` may be a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def line_count(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_text(encoding="utf-8").count("\n")


def longest_functions(trees: Trees) -> list[tuple[int, str]]:
    """Return the lines and the place of each function, the longest first."""
    found = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{module_name(path)}.{node.name}")
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    ]
    return sorted(found, reverse=True)


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return the names that a class declares or assigns to on `self`."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    return declared | assigned


def largest_classes(trees: Trees) -> list[tuple[int, int, str]]:
    """Return fields, methods and place of each class, those with most of both first."""
    found = [
        (
            len(fields_of(node)),
            sum(isinstance(each, Function) for each in node.body),
            f"{module_name(path)}.{node.name}",
        )
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    return sorted(found, key=lambda row: (-(row[0] + row[1]), row[2]))


def single_importers(trees: Trees) -> list[tuple[int, str, str]]:
    """Return lines, name and only importer of each module that one other module imports."""
    names = {module_name(path): path for path in trees}
    importers: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for name in imported(tree):
            if name in names and names[name] != path:
                importers[name].add(module_name(path))
    found = [
        (line_count(names[name]), name, *users)
        for name, users in importers.items()
        if len(users) == 1
    ]
    return sorted(found)


def duplicate_basenames(trees: Trees) -> list[tuple[int, str]]:
    """Return the count and the name of files that have the same name, the most frequent first."""
    counts = Counter(path.name for path in trees if path.name != "__init__.py")
    return [(count, name) for name, count in counts.most_common() if count > 1]


def public_modules() -> set[str]:
    """Return the modules that the documentation lets users import, and those of the commands."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        commands = tomllib.load(file)["project"]["scripts"].values()
    documented = {PACKAGE, f"{PACKAGE}.engines", f"{PACKAGE}.onnx", f"{PACKAGE}.onnx.backend"}
    return documented | {command.split(":")[0] for command in commands}


def public_names() -> set[str]:
    """Return what `__all__` of each public module lists, or else what it defines."""
    found = set()
    for module in public_modules():
        path = ROOT.joinpath(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        body = ast.parse(file.read_text(encoding="utf-8")).body
        names = [each.name for each in body if isinstance(each, Function | ast.ClassDef)]
        for node in body:
            match node:
                # A method of a class under a function's name.
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute()):
                    names.append(name)
                case ast.Assign(targets=[ast.Name(id="__all__")]):
                    names = ast.literal_eval(node.value)
        found |= {f"{module}.{name}" for name in names}
    return found


def internal_test_files(trees: Trees) -> list[tuple[int, str]]:
    """Return lines and path of the test files that import what users cannot, the longest first."""
    public = public_modules() | public_names()
    found = [
        (line_count(path), str(path.relative_to(ROOT)))
        for path, tree in trees.items()
        if any(
            name == "tests.internals" or (name.split(".")[0] == PACKAGE and name not in public)
            for name in imported(tree)
        )
    ]
    return sorted(found, reverse=True)


def print_table(title: str, heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Print the first `ROWS` rows below a title, in aligned columns."""
    shown = [heads, *(tuple(map(str, row)) for row in rows[:ROWS])]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    print(f"\n{title} ({len(rows)})")
    for row in shown:
        print("  " + "  ".join(map(str.ljust, row, widths)).rstrip())


def main() -> None:
    """Print the tables."""
    trees, tests = parsed(PACKAGE), parsed("tests")
    print(f"{PACKAGE}: {sum(map(line_count, trees))} lines in {len(trees)} files")
    total, internal = sum(map(line_count, tests)), internal_test_files(tests)
    share = sum(lines for lines, _ in internal) / total
    print(f"tests: {total} lines in {len(tests)} files, {share:.0%} in files that import internals")
    print_table("Longest functions", ("lines", "function"), [*longest_functions(trees)])
    print_table("Largest classes", ("fields", "methods", "class"), [*largest_classes(trees)])
    print_table(
        "Modules with one importer", ("lines", "module", "importer"), [*single_importers(trees)]
    )
    print_table("Names of several files", ("files", "name"), [*duplicate_basenames(trees)])
    print_table("Tests that import internals", ("lines", "file"), [*internal])


if __name__ == "__main__":
    main()
