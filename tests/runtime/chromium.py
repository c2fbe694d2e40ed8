"""Chromium without a screen, driven by its DevTools protocol over pipes.

Source: https://chromedevtools.github.io/devtools-protocol
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--window-size=1000,800"),
    *("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"),
    # Without these, what WebGPU draws on a canvas has no way to the page.
    *("--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    *("--enable-features=Vulkan", "--use-vulkan=swiftshader"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--disable-quic", "--disable-dev-shm-usage"),
)
LONG = 120
"""Seconds after which an answer counts as never coming."""


def find_chromium() -> str | None:
    """The browser's command, if it is installed."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


class Page:
    """A page of a browser.

    Args:
        requests: Where the browser reads commands, a file descriptor.
        answers: Where it writes what came of them.
    """

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._read = b""
        self._count = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a command of the protocol."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self._requests, data) :]
        number = self._count
        answer = self._wait(lambda message: message.get("id") == number)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def open(self, address: str) -> None:
        """Show a page, and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def run(self, code: str, *arguments: object) -> Any:
        """Call a function of JavaScript, wait for what it promises, and return that.

        Args:
            code: The function.
            arguments: What it is given; as its result, what JSON can hold.
        """
        result = self.call(
            "Runtime.evaluate",
            expression=f"({code})({', '.join(map(json.dumps, arguments))})",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a function of JavaScript gives true."""
        self.run(f"""async () => {{
            const end = performance.now() + {1000 * LONG / 2};
            while (!({condition})()) {{
                if (performance.now() > end) throw new Error(document.body.innerText);
                await new Promise(requestAnimationFrame);
            }}
        }}""")

    def draw(self, points: list[tuple[float, float]]) -> None:
        """Move the mouse along some points of the page, its button pressed."""
        for number, (x, y) in enumerate([*points, points[-1]]):
            kind = "mousePressed" if number == 0 else "mouseMoved"
            kind = "mouseReleased" if number == len(points) else kind
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self) -> bytes:
        """What the page looks like, a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def _wait(self, wanted: Any) -> Any:
        end = time.monotonic() + LONG
        while True:
            while b"\0" in self._read:
                line, self._read = self._read.split(b"\0", 1)
                message = json.loads(line)
                if wanted(message):
                    return message
            ready, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            assert ready, f"Chromium has not answered for {LONG} s"
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium has ended"
            self._read += data


@contextlib.contextmanager
def chromium(command: str) -> Iterator[Page]:
    """A browser with a profile of its own, and one page.

    Args:
        command: What `find_chromium` found.
    """
    with contextlib.ExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        log = stack.enter_context(open(Path(profile) / "log", "wb"))
        ours: list[int] = []
        theirs: list[int] = []
        for own, other in (1, 0), (0, 1):
            ends = os.pipe()
            ours.append(ends[own])
            theirs.append(fcntl.fcntl(ends[other], fcntl.F_DUPFD, 10))  # not 3 or 4 themselves
            os.close(ends[other])
        process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash"),
                *(command, *FLAGS, f"--user-data-dir={profile}"),
            ],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        for descriptor in theirs:
            os.close(descriptor)
        try:
            yield Page(*ours)
        finally:
            process.terminate()
            process.wait()
            for descriptor in ours:
                os.close(descriptor)
