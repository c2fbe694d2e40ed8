"""The browser's runtime gives what Python gives, and refuses what is broken, in Chromium.

WEBNN_RANDOM_CASES is the number of broken files (100 if not set).
"""

from __future__ import annotations

import base64
import collections
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from samples import digits
from samples.browser import PAGES, save_programs, served
from tests.backend.program_cases import X, expected_total
from tests.conformance.compare import first_difference
from tests.pages import Reader, blocks, read_blocks
from tests.runtime.chromium import Page, chromium, find_chromium
from tests.runtime.programs import CASES, FAULTS, Arrays, broken, changed, run_by_python, verdict
from webnn_py import MLContext, MLExecution, ml

FILES = int(os.environ.get("WEBNN_RANDOM_CASES", "100"))
COMMAND = find_chromium()
PAGE = "docs/how-to/browser.md"
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    COMMAND is None, reason="there is no Chromium; scripts/test.sh installs it where it may"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the browser finds at /files."""
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    assert COMMAND is not None
    with served({"js": PAGES, "files": folder}) as address, chromium(COMMAND) as found:
        found.open(f"{address}/js/tests/")
        yield found


@pytest.fixture(scope="module")
def programs(folder: Path, gpu: MLContext) -> Path:
    """A folder of all cases, written on the context that tests run on."""
    for name, (write, _) in CASES.items():
        write(gpu, folder / f"{name}.mlprogram")
    return folder


@pytest.fixture(scope="module")
def same_driver(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Python makes of the cases on the driver that Chromium has."""
    driver = swiftshader()
    if driver is None:
        pytest.skip("there is no SwiftShader for Python besides Chromium's own")
    results = tmp_path_factory.mktemp("results")
    subprocess.run(
        [sys.executable, "-m", "tests.runtime.programs", str(programs), str(results)],
        cwd=ROOT,
        env=os.environ | {"VK_DRIVER_FILES": str(driver)},
        check=True,
    )
    return results


def swiftshader() -> Path | None:
    assert COMMAND is not None
    installed = Path(COMMAND).resolve().parent
    places = installed, Path("/usr/lib/chromium"), Path(sys.prefix) / "swiftshader"
    found = (place / "vk_swiftshader_icd.json" for place in places)
    return next((path for path in found if path.exists()), None)


def call(page: Page, function: str, *arguments: object) -> Any:
    code = "async (name, ...given) => (await import('/js/tests/browser.mjs'))[name](...given)"
    return page.run(code, function, *arguments)


READ_BACK = """
const staging = device.createBuffer({ size: scores.size, usage: 9 });
const reading = device.createCommandEncoder();
reading.copyBufferToBuffer(scores, 0, staging, 0, scores.size);
device.queue.submit([reading.finish()]);
await staging.mapAsync(1);
window.encoded = [...new Float32Array(staging.getMappedRange())];
window.told = [...probabilities];
"""
COLLECT = """<script>
window.said = [];
console.log = (...words) => said.push(words.join(" "));
</script>"""


def test_the_page_from_top_to_bottom(
    page: Page, folder: Path, gpu: MLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program and its module, one block behind the other, in a folder of their own."""
    home = folder / "page"
    home.mkdir()
    monkeypatch.chdir(home)
    with Reader(PAGE, home, print) as reader:
        reader.follow(read_blocks(PAGE))
    (home / "page.mjs").write_text("\n".join([*blocks(PAGE, "js"), READ_BACK]))
    html = (home / "index.html").read_text()
    (home / "index.html").write_text(f"{COLLECT}{html}")
    address = page.run("() => location.origin")
    page.open(f"{address}/files/page/index.html")
    page.wait_for("() => window.told")
    said, told, encoded = page.run("() => [said, told, encoded]")
    image = np.zeros((1, 1, 8, 8), np.float32)
    image[0, 0, 1:7, 4] = 1
    reference = ml.create_context_sync(engine="reference")
    results = MLExecution(reference).compute(digits.build(reference, 1), {"image": image})
    expected = results["probabilities"][0]
    assert said == [str(expected.argmax())]
    np.testing.assert_allclose(told, expected, atol=1e-5)
    assert encoded == told
    page.open(f"{address}/js/tests/")


DRAWN = {
    1: [(0.4, 0.3), (0.55, 0.1), (0.55, 0.9)],
    2: [
        (0.25, 0.3),
        (0.35, 0.15),
        (0.6, 0.12),
        (0.75, 0.3),
        (0.6, 0.55),
        (0.25, 0.88),
        (0.8, 0.88),
    ],
    3: [
        (0.25, 0.15),
        (0.6, 0.12),
        (0.75, 0.3),
        (0.5, 0.48),
        (0.75, 0.65),
        (0.6, 0.88),
        (0.25, 0.85),
    ],
}
"""Points along a digit, from 0 to 1, down and to the right."""


def run(page: Page, name: str, inputs: Arrays, runs: Any) -> dict[str, bytes]:
    given = {key: base64.b64encode(array.tobytes()).decode() for key, array in inputs.items()}
    how = "encode" if runs == "encode" else "run"
    results = call(page, how, f"/files/{name}.mlprogram", given, runs)
    return {key: base64.b64decode(text) for key, text in results.items()}


@pytest.mark.parametrize("runs", [1, 3, "encode"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bytes_as_python_on_the_same_driver(
    page: Page, programs: Path, same_driver: Path, name: str, runs: Any
) -> None:
    expected = np.load(same_driver / f"{name} {1 if runs == 'encode' else runs}.npz")
    got = run(page, name, CASES[name][1], runs)
    assert got == {key: expected[key].tobytes() for key in expected}


@pytest.mark.parametrize("name", CASES)
def test_the_same_results_as_python_on_another_driver(
    page: Page, programs: Path, gpu: MLContext, name: str
) -> None:
    inputs = CASES[name][1]
    expected = run_by_python(gpu, programs / f"{name}.mlprogram", inputs, 1)
    got = run(page, name, inputs, 1)
    assert got.keys() == expected.keys()
    for key, array in expected.items():
        result = np.frombuffer(got[key], array.dtype).reshape(array.shape)
        assert first_difference(result, array, "ATOL", 1e-6) is None


REFUSED = {
    "a later version": (
        "NotSupportedError: .*program.json: version 2 of the format; this reader knows 1"
    ),
    "a member too many": 'DataError: .*program.json: member "more" is not expected here',
    "a fraction": (
        r"DataError: .*: variants\[0\].steps\[0\].times: got 1, expected an integer in 1\.\."
    ),
    "an index": (
        r"DataError: .*: variants\[0\].steps\[0\].kernel: got 99, expected an integer in 0\.\."
    ),
    "a place": r"DataError: .*: variants\[0\].steps\[0\].places\[0\]: bytes 0\.\.1048576 exceed ",
    "a feature": (
        "NotSupportedError: this device cannot run the program: variant 0 needs .*the feature"
    ),
    "a limit": r"NotSupportedError: .*maxBufferSize of 1099511627776 \(it has \d+\)",
    "hardware": r"NotSupportedError: .*needs a hardware adapter \(it has a software one\)",
    "workgroups": r"NotSupportedError: .*maxComputeWorkgroupsPerDimension of 1048576 \(it has",
    "a large buffer": r"NotSupportedError: .*maxBufferSize of 549755813888 \(it has \d+\)",
    "code": "OperationError: compiling the kernel '[^']+': line 1:1: ",
}
"""What is said of each of FAULTS."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(page: Page, programs: Path, what: str) -> None:
    file = changed(programs / "steps.mlprogram", FAULTS[what])
    error = call(page, "refused", f"/files/{file.name}")
    assert re.match(REFUSED[what], error), error


def test_a_file_that_is_not_there(page: Page) -> None:
    assert call(page, "refused", "/files/no.mlprogram") == (
        "ProgramError: /files/no.mlprogram: HTTP status 404"
    )


NO_MATCH: dict[str, tuple[str, str]] = {
    "missing": ("() => ({})", "argument 'x': it is missing"),
    "unknown": ("() => ({ z: 1 })", "argument 'z': the program has no argument of this name"),
    "size": ("() => ({ x: new Float32Array(1) })", "argument 'x': 4 bytes, expected 128"),
    "type": (
        "() => ({ x: new Int32Array(32) })",
        "argument 'x': got Int32Array, expected Float32Array, ArrayBuffer, GPUBuffer or"
        " GPUBufferBinding",
    ),
    "usage": (
        "(device) => ({ x: device.createBuffer({ size: 128, usage: 8 }) })",
        "argument 'x': the buffer's usage lacks STORAGE",
    ),
    "offset": (
        "(device) => { const buffer = device.createBuffer({ size: 256, usage: 128 });"
        " return { x: { buffer, offset: 4 } } }",
        "argument 'x': an offset of 4, expected a multiple of 256",
    ),
    "too small": (
        "(device) => ({ x: device.createBuffer({ size: 64, usage: 128 }) })",
        "argument 'x': 64 bytes from 0 of a buffer of 64, expected 128",
    ),
    "shared memory": (
        "() => { const x = new Float32Array(32); return { x, total: x.subarray(4, 16) } }",
        "argument 'total': it is written, and 'x' shares memory with it",
    ),
    "one buffer": (
        "(device) => { const b = device.createBuffer({ size: 512, usage: 128 });"
        " return { x: b, total: { buffer: b, offset: 256 } } }",
        "argument 'total': it is written, and 'x' is in the same buffer",
    ),
}


@pytest.mark.parametrize("what", NO_MATCH)
def test_arguments_that_do_not_fit(page: Page, programs: Path, what: str) -> None:
    given, message = NO_MATCH[what]
    code = f"async (url) => (await import('/js/tests/browser.mjs')).refused(url, {given})"
    error = page.run(code, "/files/in place.mlprogram")
    assert error == f"ProgramError: {message}"


def test_runs_overlap_and_write_in_place(page: Page, programs: Path) -> None:
    """Arrays are read before `run` returns; a total that is left out begins as zeros."""
    got = call(page, "overlapping", "/files/in place.mlprogram", X.reshape(-1).tolist())
    assert got["inPlace"]
    added = expected_total(X).reshape(-1)
    np.testing.assert_allclose(got["totals"], [start + added for start in (1, 2, 3, 0)], 1e-6)


def test_memory_that_is_transferred_while_it_runs(page: Page, programs: Path) -> None:
    got = call(page, "transferred", "/files/in place.mlprogram", X.reshape(-1).tolist())
    assert got["error"] == (
        "ProgramError: argument 'total': its memory was transferred while the program ran"
    )
    np.testing.assert_allclose(got["total"], expected_total(X).reshape(-1), 1e-6)


def test_buffers_of_the_device_are_returned(page: Page, programs: Path) -> None:
    got = call(page, "onDevice", "/files/in place.mlprogram", X.reshape(-1).tolist())
    assert got["same"]
    np.testing.assert_allclose(got["total"], expected_total(X).reshape(-1), 1e-6)


def test_a_device_that_is_lost(page: Page, programs: Path) -> None:
    error = call(page, "lost", "/files/in place.mlprogram", X.reshape(-1).tolist())
    assert error.startswith("OperationError: running a program: "), error


def place_of(page: Page, element: str) -> tuple[float, float, float]:
    """Left, top and width of an element."""
    code = "(id) => { const r = document.getElementById(id).getBoundingClientRect();"
    left, top, width = page.run(code + " return [r.x, r.y, r.width] }", element)
    return left, top, width


def test_the_demo(gpu: MLContext, tmp_path: Path) -> None:
    """Digits are classified as they are drawn, and the liquid moves."""
    save_programs(gpu, tmp_path)
    folders = {"js": PAGES, "programs": tmp_path}
    assert COMMAND is not None
    with served(folders) as address, chromium(COMMAND) as page:
        page.open(f"{address}/js/demo/index.html")
        shown = "() => document.getElementById('%s').textContent"
        page.wait_for("() => document.getElementById('rate').textContent !== ''")
        left, top, size = place_of(page, "paper")
        for digit, points in DRAWN.items():
            page.run("() => document.getElementById('wipe').click()")
            page.draw([(left + x * size, top + y * size) for x, y in points])
            page.wait_for(f"() => document.getElementById('scores').dataset.digit === '{digit}'")
        assert page.run(shown % "error") == ""
        assert "frames a second" in page.run(shown % "rate")
        picture = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        left, top, size = place_of(page, "water")
        water = picture[int(top) : int(top + size), int(left) : int(left + size), 2] > 150
        assert 0.02 < water.mean() < 0.5


def test_broken_files_are_read_as_by_python(page: Page, programs: Path) -> None:
    """Each is refused, with the same kind of error, or read by both; in Node.js too.

    What is read is also run: it ends well, or in an error of ours.
    """
    originals = [(programs / f"{name}.mlprogram").read_bytes() for name in CASES]
    files = broken(originals, FILES)
    node = shutil.which("node")
    counts = collections.Counter[str]()
    code = """async (url) => {
      const { verdicts } = await import("/js/tests/read.mjs");
      return verdicts(new Uint8Array(await (await fetch(url)).arrayBuffer()));
    }"""
    while some := list(itertools.islice(files, 300)):
        expected = []
        for data in some:
            (programs / "file").write_bytes(data)
            expected.append(verdict(programs / "file"))
            if expected[-1] == "read":
                error = call(page, "refused", "/files/file")
                assert re.match("$|(ProgramError|NotSupportedError|OperationError): ", error), error
        packed = b"".join(len(data).to_bytes(4, "little") + data for data in some)
        (programs / "many").write_bytes(packed)
        assert page.run(code, "/files/many") == expected
        if node is not None:
            command = [node, PAGES / "tests" / "read.mjs", programs / "many"]
            done = subprocess.run(command, capture_output=True, check=True)
            assert json.loads(done.stdout) == expected
        counts.update(expected)
    assert counts["DataError"] > 0.9 * FILES
