"""Many threads run one graph: each takes the next image, nobody waits for the others.

Usage: python samples/thread_workers.py [--workers 4]
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.digits import Images, build, held_out
from webnn_py import MLContext, MLExecution, MLGraph, ml


class Figures(NamedTuple):
    """Predicted digits in the images' order, images by thread, seconds, share that is right."""

    predictions: NDArray[np.int64]
    by_thread: list[int]
    seconds: float
    accuracy: float


def classify(
    context: MLContext, graph: MLGraph, images: Images, workers: int
) -> tuple[Images, list[int]]:
    """Probabilities by image, and how many images each thread took."""
    execution = MLExecution(context)
    answers = np.empty((len(images), 10), np.float32)
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(images)):
        todo.put(number)

    def work(_: int) -> int:
        done = 0
        with contextlib.suppress(queue.Empty):
            while True:
                number = todo.get_nowait()
                own = slice(number, number + 1)  # each result is written straight into its place
                execution.compute(graph, {"image": images[own]}, {"probabilities": answers[own]})
                done += 1
        return done

    with ThreadPoolExecutor(workers) as pool:
        return answers, list(pool.map(work, range(workers)))


def main(workers: int = 4) -> Figures:
    images, labels = held_out()
    with ml.create_context_sync(device_type="cpu") as context:
        graph = build(context, 1)
        start = time.perf_counter()
        answers, by_thread = classify(context, graph, images, workers)
        seconds = time.perf_counter() - start
    predictions = answers.argmax(axis=1)
    accuracy = float((predictions == labels).mean())
    print(f"{len(images)} images on {workers} threads: {len(images) / seconds:.0f} a second")
    print(f"images by thread: {by_thread}; right: {accuracy:.2%}")
    return Figures(predictions, by_thread, seconds, accuracy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    main(**vars(parser.parse_args()))
