"""Awaited runs, by a name that is a keyword and cannot be imported: see `async_latency`."""  # noqa: N999

from __future__ import annotations

from benchmarks.async_latency import main

if __name__ == "__main__":
    main()
