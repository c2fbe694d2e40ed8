"""A folder of images through a model, over the workers of Dask, one of which is killed meanwhile.

Each process loads the model once, from a file whose weights all of them map; a task is a batch of
paths. What a killed worker had begun, another one does: nothing is lost, and the scores are those
of one process. The task is a plain function, which joblib and Ray run, too: see
docs/how-to/dask-ray.md.

Usage: python samples/dask_batches.py [--images 64] [--workers 2]
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import dask
import numpy as np
import rich
from dask.distributed import Client, as_completed
from numpy.typing import NDArray
from PIL import Image
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples import photo_classifier
from webnn_py import MLExecution, MLGraph, ml, onnx

MODEL, BEGUN = "model.mlgraph", "begun.txt"
BATCH = 4


@dataclass(frozen=True)
class Batch:
    """Images from a first one; the folder has the model, and what processes note there."""

    folder: Path
    first: int
    images: Sequence[Path]


class Done(NamedTuple):
    """Scores [images, 1000] of a batch, and which process computed them."""

    first: int
    process: int
    scores: NDArray[np.float32]


class Figures(NamedTuple):
    """Scores [images, 1000], and of one process; batches by process, and which were done again."""

    scores: NDArray[np.float32]
    expected: NDArray[np.float32]
    by_process: Counter[int]
    killed: int
    again: list[int]


@functools.cache
def loaded(path: Path) -> tuple[MLExecution, MLGraph]:
    """The model, once a process; on one thread, as there is a process for each core."""
    context = ml.create_context_sync(device_type="cpu", engine_options={"threads": 1})
    return MLExecution(context), context.load_graph_sync(path)


def classify(batch: Batch) -> Done:
    """The task: it knows no engine, and gives the same wherever it runs, and however often."""
    with (batch.folder / BEGUN).open("a") as begun:
        begun.write(f"{os.getpid()} {batch.first}\n")
    execution, graph = loaded(batch.folder / MODEL)
    photos = (photo_classifier.photo(path) for path in batch.images)
    scores = [execution.compute(graph, {"image": photo})["scores"] for photo in photos]
    return Done(batch.first, os.getpid(), np.concatenate(scores))


def prepare(folder: Path, images: int) -> list[Batch]:
    """Write the model and the images, which are parts of scikit-learn's photos, into a folder."""
    from sklearn.datasets import load_sample_images  # takes a second, which workers can do without

    with ml.create_context_sync(device_type="cpu", engine="reference") as context:
        onnx.load(photo_classifier.export(), context).save(folder / MODEL)
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    places = np.random.default_rng(0).integers(0, [640 - 256, 427 - 256], (images, 2)).tolist()
    paths = [folder / f"{number:05}.png" for number in range(images)]
    for number, (path, (left, top)) in enumerate(zip(paths, places, strict=True)):
        photos[number % 2].crop((left, top, left + 256, top + 256)).save(path)
    return [Batch(folder, first, paths[first : first + BATCH]) for first in range(0, images, BATCH)]


def begun(folder: Path) -> list[tuple[int, int]]:
    """Process and first image of each task, in the order in which they began."""
    lines = (folder / BEGUN).read_text().splitlines()
    return [(int(process), int(first)) for process, first in map(str.split, lines)]


def run(client: Client, work: list[Batch]) -> tuple[dict[int, Done], int]:
    """The results by batch, and which process was killed when a third of them was there."""
    tasks = [dask.delayed(classify)(batch) for batch in work]
    done: dict[int, Done] = {}
    killed = 0
    with Progress() as progress:
        bar = progress.add_task("batches", total=len(work))
        for _, result in as_completed(client.compute(tasks), with_results=True):
            done[result.first] = result
            progress.advance(bar)
            if not killed and len(done) >= len(work) / 3:
                # The one that began last is in the middle of a batch.
                killed = begun(work[0].folder)[-1][0]
                os.kill(killed, signal.SIGKILL)
    return done, killed


def main(images: int = 64, workers: int = 2) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        work = prepare(Path(name), images)
        with Client(n_workers=workers, threads_per_worker=1, dashboard_address=None) as client:
            done, killed = run(client, work)
        times = Counter(first for _, first in begun(Path(name)))
        expected = np.concatenate([classify(batch).scores for batch in work])
    scores = np.concatenate([done[batch.first].scores for batch in work])
    by_process = Counter(result.process for result in done.values())
    again = sorted(first for first, count in times.items() if count > 1)
    table = Table("process", "batches", title=f"{images} images", title_justify="left")
    for process, count in sorted(by_process.items()):
        table.add_row(f"{process}{' (killed)' * (process == killed)}", str(count))
    rich.print(table)
    print(f"batches done again: {len(again)} {again}")
    print(f"the scores are those of one process: {'yes' if (scores == expected).all() else 'NO'}")
    return Figures(scores, expected, by_process, killed, again)


if __name__ == "__main__":
    # Workers must find the task in this module, where `loaded` is one function for all tasks.
    from samples.dask_batches import main as start

    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    start(**vars(parser.parse_args()))
