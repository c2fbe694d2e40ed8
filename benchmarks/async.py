"""Awaited runs, by a name that is a keyword and cannot be imported: see `async_latency`."""  # noqa: N999

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.async_latency import main

if __name__ == "__main__":
    main()
