"""Awaited runs: how long the event loop stalls, and requests a second; see `async_latency`."""  # noqa: N999

from __future__ import annotations

from benchmarks.async_latency import main

if __name__ == "__main__":
    main()
