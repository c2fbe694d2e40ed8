"""The site builds without warnings, its pages fit a phone, its search leads to the right pages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.browser import served
from tests.pages import ROOT
from tests.runtime.chromium import Page, chromium, find_chromium

COMMAND = find_chromium()
PHONE = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
MIN_PAGE_CHARS = 150
SEARCHED = {
    "FastAPI": "how-to/fastapi",
    "Starlette": "how-to/fastapi",
    "thread": "how-to/threads",
    "NHWC": "how-to/photos",
    "GPU": "how-to/engines",
    "timeline": "how-to/timelines",
    "pygfx": "how-to/pygfx",
    "quantised": "how-to/quantised-models",
    "Docker": "troubleshooting",
    "onnxruntime": "moving-from/onnxruntime",
    "notebook": "how-to/notebooks",
    "browser": "how-to/browser",
    "profile": "how-to/profiling",
    "relu": "reference/operators/activation",
}
"""Terms, with the page that is to come first."""

FIRST_RESULT = """async (term) => {
    const input = document.querySelector("input[name=query]");
    input.focus();
    input.value = term;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    input.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
    const end = performance.now() + 30000;
    while (performance.now() < end) {
        const found = document.querySelector(".md-search-result__item > a");
        if (found) return new URL(found.href).pathname;
        await new Promise((done) => setTimeout(done, 50));
    }
    return null;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="module")
def page(site: Path) -> Iterator[Page]:
    if COMMAND is None:
        pytest.skip("there is no Chromium")
    with served({"site": site}) as address, chromium(COMMAND) as found:
        found.open(f"{address}/site/index.html")
        yield found


@pytest.mark.parametrize("term", SEARCHED)
def test_the_search_leads_to_the_right_page(page: Page, term: str) -> None:
    address = page.run("() => location.origin")
    page.open(f"{address}/site/index.html")
    assert page.run(FIRST_RESULT, term) == f"/site/{SEARCHED[term]}.html"


def test_pages_have_contents_and_fit_a_phone(page: Page, site: Path) -> None:
    page.call("Emulation.setDeviceMetricsOverride", **PHONE)
    page.call("Network.enable")
    page.call("Network.setBlockedURLs", urls=["*/search/*"])  # each page would load the index
    address = page.run("() => location.origin")
    faults = {}
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        if name == "404.html" or name.startswith("decisions/"):  # these are all alike
            continue
        page.open(f"{address}/site/{name}")
        width, chars, pictures = page.run("""() => [
            document.documentElement.scrollWidth,
            document.querySelector("article").innerText.length,
            [...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src),
        ]""")
        if width > PHONE["width"] or chars < MIN_PAGE_CHARS or pictures:
            faults[name] = width, chars, pictures
    page.call("Network.setBlockedURLs", urls=[])
    page.call("Emulation.clearDeviceMetricsOverride")
    assert not faults
