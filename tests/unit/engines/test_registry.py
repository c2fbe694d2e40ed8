"""Engines by name: our own, those of packages, those that a program registers."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import assert_works
from tests.internals import engine_of
from tests.toy_engines import Partial
from tests.unit.engines.distributions import ENGINE, install
from webnn_py import MLContext, MLError, NotSupportedError, OperationError, ValidationError, ml
from webnn_py import __main__ as command_line
from webnn_py.engines import registry
from webnn_py.engines.base import Engine
from webnn_py.engines.reference import ReferenceEngine

OWN = [name for name, engine in registry._BUILT_IN.items() if engine.is_installed]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_entry_point_cache", registry._EntryPointCache((), {}))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package with good engines and bad ones."""
    makers = ("Engine", "free", "bare", "picky", "failing", "other", "missing")
    points = {name.lower(): f"acme_engines:{name}" for name in makers}
    gone = {"gone": "acme_gone:Engine", "broken": "acme_broken:Engine"}
    install(tmp_path, "acme_engines", points | gone, code=ENGINE)
    (tmp_path / "acme_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("acme_engines", "acme_broken", "acme_gone"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def context_on(name: Any, **options: Any) -> MLContext:
    return ml.create_context_sync(device_type="cpu", engine=name, engine_options=options)


@pytest.mark.parametrize("name", ["engine", "free", "bare"])
def test_a_package_adds_an_engine(package: Path, name: str) -> None:
    with context_on(name) as context:
        assert context.engine == name
        assert_works(context)


def test_each_context_has_an_engine_of_its_own(package: Path) -> None:
    with context_on("engine") as one, context_on("engine") as two:
        assert engine_of(one) is not engine_of(two)


def test_nothing_but_the_engine_wanted_is_imported(package: Path) -> None:
    with context_on("auto"), context_on("reference"):
        assert "acme_engines" not in sys.modules
    assert "engine" in registry.engine_names()
    assert "acme_engines" not in sys.modules


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "nothing",
            NotSupportedError,
            "engine 'nothing' is not there; use one of 'auto', 'reference', .*'engine', 'free'.*,"
            " 'fastest'",
        ),
        ("failing", OperationError, "engine 'failing' cannot be made: RuntimeError: no licence"),
        ("other", OperationError, "'other': what makes it gave str, expected a HostEngine"),
        ("missing", OperationError, "engine 'missing' cannot be imported: AttributeError"),
        ("gone", NotSupportedError, "engine 'gone' cannot be imported: ModuleNotFoundError"),
        ("broken", OperationError, "engine 'broken' cannot be imported: ZeroDivisionError"),
        ("picky", OperationError, "engine 'picky' cannot be made: TypeError: .*threads"),
    ],
)
def test_engines_that_cannot_be_had(
    package: Path, name: str, kind: type[MLError], message: str
) -> None:
    with pytest.raises(kind, match=message) as raised:
        context_on(name)
    assert type(raised.value) is kind


def test_engines_of_devices_are_none_of_cpu_contexts() -> None:
    class OfDevice(Engine):
        queue = compile = lambda self, *_: None  # type: ignore[assignment]

    registry.register_engine("device", OfDevice)  # type: ignore[arg-type]
    with pytest.raises(OperationError, match="gave OfDevice, expected a HostEngine"):
        context_on("device")


def test_options_reach_the_engine_that_declares_them(package: Path) -> None:
    with context_on("engine", threads=4, precise=False) as context:
        assert (engine_of(context).threads, engine_of(context).precise) == (4, False)
    with context_on("free", anything=1) as context:
        assert_works(context)
    with context_on("picky", threads=2) as context:
        assert engine_of(context).threads == 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("engine", {"thread": 4}, "'engine' has no option 'thread'; it has 'threads', 'precise'"),
        ("bare", {"threads": 4}, "engine 'bare' has no option 'threads'; it has none"),
        ("reference", {"threads": 4}, "engine 'reference' has no option 'threads'; it has none"),
        ("auto", {"rounds": 4}, "engine '.*' has no option 'rounds'; it has "),
        ("fastest", {"rounds": 4}, "engine '.*' has no option 'rounds'; it has "),
        ("picky", {"threads": 0}, "^threads: got 0, expected at least 1"),
        ("engine", {3: 4}, "option 'engine_options': got 3 as a name, expected a string"),
        ("engine", [3], "option 'engine_options': got list, expected a mapping"),
    ],
)
def test_options_that_cannot_be(package: Path, name: str, options: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ml.create_context_sync(device_type="cpu", engine=name, engine_options=options)


def test_the_engine_of_gpus_has_no_options(gpu: MLContext) -> None:
    with pytest.raises(ValidationError, match="engine 'webgpu' has no option 'threads'"):
        ml.create_context_sync(gpu.device, engine_options={"threads": 2})
    with ml.create_context_sync(gpu.device, engine_options={}) as context:
        assert context.engine == "webgpu"


@pytest.mark.parametrize("name", ["reference", "auto", "fastest", "webgpu"])
def test_names_of_our_own_are_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(tmp_path, "acme_taken", {name: "acme_taken:Engine"})
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.engine_names() == OWN
    with ml.create_context_sync(device_type="cpu", engine=registry.FALLBACK) as context:
        assert isinstance(engine_of(context), ReferenceEngine)
    with ml.create_context_sync(device_type="cpu") as context:
        assert context.engine in OWN
    with pytest.raises(ValidationError, match=f"name '{name}' is webnn_py's own"):
        registry.register_engine(name, ReferenceEngine)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [("", ReferenceEngine, "name: got ''"), (3, ReferenceEngine, "name: got 3"), ("x", 3, "make:")],
)
def test_what_cannot_be_registered(name: Any, make: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        registry.register_engine(name, make)


def test_a_program_registers_an_engine_of_its_own(package: Path) -> None:
    registry.register_engine("mine", lambda: Partial("?", lambda node: True))
    with context_on("mine") as context:
        assert context.engine == "mine"
        assert_works(context)
    registry.register_engine("engine", lambda: Partial("?", lambda node: True))
    with context_on("engine") as context:
        assert isinstance(engine_of(context), Partial)
    assert registry.engine_names().count("engine") == 1


def test_of_two_packages_the_first_on_the_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acme_late", "acme_early"):
        install(tmp_path / name, name, {"twice": f"{name}:Engine"}, code=ENGINE)
        monkeypatch.syspath_prepend(tmp_path / name)
    with context_on("twice") as context:
        assert type(engine_of(context)).__module__ == "acme_early"


def test_packages_are_looked_through_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a name is not found, or the path is another one."""
    looks = []
    real = importlib.metadata.entry_points

    def counted(**selected: str) -> Any:
        looks.append(selected)
        return real(**selected)

    monkeypatch.setattr(importlib.metadata, "entry_points", counted)
    for name in ("auto", "reference"):
        context_on(name).destroy()
    assert not looks
    for name in ("engine", "free", "engine"):
        context_on(name).destroy()
    assert looks == [{"group": "webnn_py.engines"}]
    later = package / "later"
    install(later, "acme_later", {"later": "acme_later:Engine"}, code=ENGINE)
    with pytest.raises(NotSupportedError, match="engine 'later' is not there"):
        context_on("later")
    monkeypatch.syspath_prepend(later)
    context_on("later").destroy()


def test_info_lists_packages_engines(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry.register_engine("mine", ReferenceEngine)
    assert command_line.main(["info", "--json"]) == 0
    engines = json.loads(capsys.readouterr().out)["engines"]
    assert engines["reference"] == f"numpy {np.__version__}"
    assert engines["picky"] == "acme_engines 1.0"
    assert command_line.main(["info"]) == 0
    assert "acme_engines 1.0" in capsys.readouterr().out


@pytest.mark.parametrize(("engine", "extra"), [("onnxruntime", "ort"), ("openvino", "openvino")])
def test_an_engine_that_is_not_installed_says_how_to_install_it(
    engine: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(
        NotSupportedError, match=rf'not installed: pip install "webnn-py\[{extra}\]"'
    ):
        ml.create_context_sync(engine=engine)
