"""What is installed is what is imported: dependencies, extras, and the commands that use them."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import webnn_py

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OWN = {"webnn_py", "samples", "benchmarks", "tests", "spec"}

# Distributions that have another name than the module.
DISTRIBUTIONS = {"PIL": "pillow", "ml_dtypes": "ml-dtypes", "sklearn": "scikit-learn"}
# Modules that are looked for and done without.
OPTIONAL = {
    "webnn_py": {"IPython", "PIL", "rich", "onnx", "onnxruntime", "openvino", "wgpudawn"},
    "samples": {"piper", "torch", "rapidocr"},
    "benchmarks": {"gguf", "onnxruntime_genai", "torch", "webnn", "wonnx", "xllamacpp"},
}

WITHOUT = """
import importlib, pkgutil, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"onnx", "onnxruntime", "openvino"}:
            raise ImportError(f"{name} is not to be imported")

sys.meta_path.insert(0, Refusing())
import webnn_py
rooms = (
    "webnn_py.onnx",
    "webnn_py.engines.onnx_lowering",
    "webnn_py.engines.onnxruntime",
    "webnn_py.engines.openvino",
)
for module in pkgutil.walk_packages(webnn_py.__path__, "webnn_py.", onerror=lambda name: None):
    if not module.name.startswith(rooms):
        importlib.import_module(module.name)

import numpy as np
with webnn_py.ml.create_context_sync(device_type="cpu") as context:
    builder = webnn_py.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2])
    graph = builder.build_sync({"y": builder.add(x, x)})
    y = webnn_py.MLExecution(context).compute(graph, {"x": np.ones(2, np.float32)})["y"]
    assert y.tolist() == [2, 2]
assert webnn_py.cli.main.main(["info"]) == 0
assert not {"onnx", "onnxruntime", "openvino"} & set(sys.modules)
"""


def installed(requirements: Iterable[str]) -> set[str]:
    """Names of distributions; extras of this project in full."""
    found: set[str] = set()
    for requirement in requirements:
        named = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement)
        assert named is not None, requirement
        if named[1] == PROJECT["name"]:
            found |= {name for extra in named[2].split(",") for name in installed(EXTRAS[extra])}
        else:
            found.add(named[1])
    return found


def imported(paths: Iterable[Path]) -> Iterator[str]:
    """Modules from elsewhere that files import."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            yield from (name.partition(".")[0] for name in names)


def missing(paths: Iterable[Path], folder: str, extra: str | None = None) -> set[str]:
    """What files import and an installation lacks, with an extra if one is named."""
    wanted = set(imported(paths)) - OWN - OPTIONAL.get(folder, set()) - sys.stdlib_module_names
    have = installed([*PROJECT["dependencies"], *EXTRAS.get(extra or "", ())])
    return {DISTRIBUTIONS.get(name, name) for name in wanted} - have


def needed_by(sample: str) -> set[Path]:
    """A sample and the samples that it imports from."""
    found: set[Path] = set()
    waiting = [ROOT / sample]
    while waiting:
        path = waiting.pop()
        found.add(path)
        names = re.findall(r"^from samples\.(\w+) import", path.read_text("utf-8"), re.MULTILINE)
        waiting += [p for name in names if (p := ROOT / f"samples/{name}.py") not in found]
    return found


def test_the_package_imports_its_dependencies_alone() -> None:
    assert installed(PROJECT["dependencies"]) == {"numpy", "wgpu"}
    assert not missing((ROOT / "webnn_py").rglob("*.py"), "webnn_py")


@pytest.mark.parametrize(
    ("folder", "extra"), [("tests", "test"), ("samples", "test"), ("benchmarks", "bench")]
)
def test_commands_install_what_they_import(folder: str, extra: str) -> None:
    paths = [p for p in (ROOT / folder).rglob("*.py") if "training" not in p.parts]
    assert paths
    assert not missing(paths, folder, extra)


def test_the_demo_installs_what_it_shows() -> None:
    script = (ROOT / "scripts/demo.sh").read_text()
    (extra,) = re.findall(r"^make_venv (\w+)$", script, re.MULTILINE)
    shown = re.findall(r"^ *sample (samples/\w+\.py)", script, re.MULTILINE)
    assert len(shown) > 1
    for sample in shown:
        assert not missing(needed_by(sample), "samples", extra), sample


def test_optional_features_are_extras() -> None:
    assert installed(EXTRAS["onnx"]) == {"onnx"}
    assert installed(EXTRAS["ort"]) == {"onnx", "onnxruntime"}
    assert installed(EXTRAS["dawn"]) == {"wgpudawn"}
    assert installed(EXTRAS["openvino"]) == {"onnx", "openvino"}
    assert installed(EXTRAS["all"]) == {"onnx", "onnxruntime", "openvino", "pillow", "rich"}


TOO_OLD = """
import importlib, sys
name, found, used = sys.argv[1:]
library = importlib.import_module(name)
library.__version__ = found
import webnn_py
try:
    exec(used)
except webnn_py.NotSupportedError as error:
    print(error)
"""
MODEL = "webnn_py.onnx.load(b'', webnn_py.ml.create_context_sync(engine='reference'))"


@pytest.mark.parametrize(
    ("name", "found", "used"),
    [
        ("onnxruntime", "1.20.1", "webnn_py.ml.create_context_sync(engine='onnxruntime')"),
        ("onnxruntime", "1.26.0", "webnn_py.ml.create_context_sync(engine='auto')"),
        ("onnxruntime", "1.20.1", "webnn_py.ml.create_context_sync(engine='fastest')"),
        ("openvino", "2025.3.0-1", "webnn_py.ml.create_context_sync(engine='openvino')"),
        ("onnx", "1.16.2", "webnn_py.ml.create_context_sync(engine='onnxruntime')"),
        ("onnx", "1.16.2", MODEL),
        ("wgpu", "0.28.1", "webnn_py.ml.create_context_sync(device_type='gpu')"),
    ],
)
def test_libraries_that_are_too_old_are_refused(name: str, found: str, used: str) -> None:
    pytest.importorskip(name)
    ran = subprocess.run(
        [sys.executable, "-c", TOO_OLD, name, found, used],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [*PROJECT["dependencies"], *(row for rows in EXTRAS.values() for row in rows)]
    # The first one: an extra may need a newer one than the package.
    least = next(row.split(">=")[1] for row in rows if row.startswith(f"{name}>="))
    assert ran.stdout.strip() == (
        f'{name} {found} is installed, expected {least} or newer: pip install "{name}>={least}"'
    )


def test_the_first_page_names_the_extras_of_users() -> None:
    text = (ROOT / "docs/start/index.md").read_text(encoding="utf-8")
    named = set(re.findall(r'\| `pip install "\.\[(\w+)\]"` \|', text))
    assert named == EXTRAS.keys() - {"bench", "docs", "test"}


def test_the_page_on_compatibility_has_the_bounds() -> None:
    text = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| (\w+) \| ([\d.]+)[^|]* \| [\d.]+ \|$", text, re.MULTILINE))
    rows = [*PROJECT["dependencies"], *(row for rows in EXTRAS.values() for row in rows)]
    least = {tuple(re.split("[>=]=", row)) for row in rows}
    assert told
    assert not told.items() - least


def test_everything_works_without_onnx_and_the_engines_that_need_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SUBMODULES = """
import webnn_py
assert "onnx" not in vars(webnn_py)
assert webnn_py.onnx.load and webnn_py.onnx.backend.prepare
assert not hasattr(webnn_py.onnx, "backends") and not hasattr(webnn_py, "onyx")
"""


def test_submodules_need_no_import_of_their_own() -> None:
    pytest.importorskip("onnx")
    code = [sys.executable, "-c", SUBMODULES]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SETUP = runpy.run_path(str(ROOT / "setup.py"))
NPM = json.loads((ROOT / "runtime/js/package.json").read_text(encoding="utf-8"))
REPOSITORY = PROJECT["urls"]["Repository"]


def test_the_readme_of_a_package_index_links_to_the_repository() -> None:
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", SETUP["readme"]())
    own = [(mark, link) for mark, link in links if link.startswith(f"{REPOSITORY}/")]
    others = {link for _, link in links} - {link for _, link in own}
    assert all(link.startswith("https://") for link in others)
    assert len({mark for mark, _ in own}) == 2  # pictures and pages
    for mark, link in own:
        start = f"{REPOSITORY}/{'raw' if mark else 'blob'}/main/"
        assert link.startswith(start)
        assert (ROOT / link.removeprefix(start).partition("#")[0]).is_file(), link


def test_the_address_of_the_repository_is_one() -> None:
    assert all(url.startswith(REPOSITORY) for url in PROJECT["urls"].values())
    assert NPM["repository"]["url"] == f"git+{REPOSITORY}.git"
    owner = REPOSITORY.rpartition("/")[0]
    for path in (ROOT / "runtime").glob("*/README.md"):
        links = re.findall(r"https://\S+?(?=\))", path.read_text(encoding="utf-8"))
        own = [link for link in links if link.startswith(owner)]
        assert own
        assert all(f"{link}/".startswith(f"{REPOSITORY}/") for link in own)


def test_wheels_hold_the_runtimes_but_their_tests() -> None:
    runtime = ROOT / "runtime"
    packed = {path for each in SETUP["RUNTIME_FILES"] for path in runtime.glob(each)}
    left_out = {path for path in runtime.rglob("*") if path.is_file()} - packed
    assert {path.relative_to(runtime).parts[1] for path in left_out} == {"tests", "demo"}


def test_runtimes_are_found_by_name() -> None:
    assert (webnn_py.runtime_path("cpp") / "webnn_program.hpp").is_file()
    assert (webnn_py.runtime_path("browser") / "webnn-program.mjs").is_file()
    with pytest.raises(webnn_py.ValidationError, match="got 'rust', expected 'cpp' or 'browser'"):
        webnn_py.runtime_path("rust")  # type: ignore[arg-type]


def test_the_npm_package_is_of_this_version_and_holds_what_it_exports() -> None:
    assert NPM["version"] == webnn_py.__version__
    exported = {path.removeprefix("./") for path in NPM["exports"]["."].values()}
    assert exported <= set(NPM["files"])
    assert (ROOT / "runtime/js/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    command = [npm, "pack", "--dry-run", "--json", "--offline"]
    made = subprocess.run(
        command, cwd=ROOT / "runtime/js", capture_output=True, text=True, check=True
    )
    (packed,) = json.loads(made.stdout)
    names = {file["path"] for file in packed["files"]}
    assert names == {*NPM["files"], "LICENSE", "README.md", "package.json"}
