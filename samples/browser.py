"""Digits that are classified as you draw them, and a liquid, in the browser, without Python there.

Saves both programs, and serves the page of runtime/js/demo that runs them.

    python samples/browser.py [--port N] [--programs DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.digits import build
from samples.mpm88 import first_positions, simulation
from webnn_py import MLContext, ml

PAGES = Path(__file__).parents[1] / "runtime" / "js"
STEPS = 10
"""Of one run of the simulation; the page runs it several times a frame."""


def save_programs(context: MLContext, folder: Path) -> None:
    """Write what the page loads: both programs, and where particles begin."""
    build(context, 1).compile_to(folder / "digits.mlprogram")
    simulation(context, STEPS).save(folder / "particles.mlprogram")
    first_positions().tofile(folder / "positions.bin")


@contextlib.contextmanager
def served(folders: Mapping[str, Path], port: int = 0) -> Iterator[str]:
    """Serve folders on this machine alone, and tell the address.

    Args:
        folders: By the first part of the path.
        port: 0 for any that is free.
    """

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
            ".mjs": "text/javascript"
        }

        def translate_path(self, path: str) -> str:
            first, _, rest = path.lstrip("/").partition("/")
            self.directory = str(folders.get(first, Path("/nowhere")))
            return super().translate_path("/" + rest)

        def end_headers(self) -> None:
            self.send_header("Cache-Control", "no-store")
            super().end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main(port: int, programs: Path) -> None:
    save_programs(ml.create_context_sync(device_type="gpu"), programs)
    with served({"js": PAGES, "programs": programs}, port) as address:
        print(f"{address}/js/demo/index.html")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8088)
    parser.add_argument("--programs", type=Path, help="where they are saved")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(options.port, options.programs or Path(folder))
