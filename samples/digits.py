"""Classify held-out handwritten digits in all three modes and compare the answers.

    python samples/digits.py
    python samples/digits.py --program digits.mlprogram

The second command saves the network as a program for C++ and the browser.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import wgpu
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

sys.path.insert(0, str(Path(__file__).parents[1]))

from samples.models import digits, load_weights
from webnn_py import (
    MLAwaitedExecution,
    MLCommandEncoder,
    MLContext,
    MLExecution,
    MLGraph,
    MLGraphBuilder,
    NotSupportedError,
    ml,
)

Images = NDArray[np.float32]


def held_out() -> tuple[Images, NDArray[np.int64]]:
    """The quarter of the images that the network was not trained on."""
    data = load_digits()
    images = (data.images[:, None] / 16).astype(np.float32)
    split = train_test_split(
        images, data.target, test_size=0.25, stratify=data.target, random_state=0
    )
    return split[1], split[3]


def build(context: MLContext, batch: int) -> MLGraph:
    builder = MLGraphBuilder(context)
    return builder.build_sync({"probabilities": digits(builder, load_weights("digits"), batch)})


def synchronous(images: Images) -> NDArray[np.float32]:
    """MLExecution: on the CPU, on this thread."""
    context = ml.create_context_sync(device_type="cpu")
    graph = build(context, len(images))
    return MLExecution(context).compute(graph, {"image": images})["probabilities"]


def awaited(images: Images, device_type: str) -> NDArray[np.float32]:
    """MLAwaitedExecution: awaited, on the CPU or the GPU."""

    async def run() -> NDArray[np.float32]:
        context = await ml.create_context_async(device_type=device_type)  # type: ignore[arg-type]
        graph = build(context, len(images))
        result = await MLAwaitedExecution(context).compute(graph, {"image": images})
        return result["probabilities"]

    return asyncio.run(run())


def recorded(images: Images) -> NDArray[np.float32]:
    """MLCommandEncoder: recorded into the device's queue, from buffer to buffer."""
    context = ml.create_context_sync(device_type="gpu")
    device, graph = context.device, build(context, len(images))
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    image = device.create_buffer_with_data(data=images, usage=usage)
    result = device.create_buffer(size=len(images) * 10 * 4, usage=usage)
    encoder = MLCommandEncoder(context)
    encoder.initialize_graph(graph)
    encoder.dispatch(graph, {"image": image}, {"probabilities": result})
    device.queue.submit([encoder.finish()])
    return np.frombuffer(device.queue.read_buffer(result), np.float32).reshape(-1, 10)


def main() -> dict[str, tuple[NDArray[np.int64], float]]:
    """Predictions and accuracy by mode; modes that need a GPU adapter only where there is one."""
    images, labels = held_out()
    modes: dict[str, Callable[[], NDArray[np.float32]]] = {
        "MLExecution (cpu)": lambda: synchronous(images),
        "MLAwaitedExecution (cpu)": lambda: awaited(images, "cpu"),
        "MLAwaitedExecution (gpu)": lambda: awaited(images, "gpu"),
        "MLCommandEncoder (gpu)": lambda: recorded(images),
    }
    results: dict[str, tuple[NDArray[np.int64], float]] = {}
    print(f"{len(images)} held-out digits; the first answers and the share that is right:")
    for mode, run in modes.items():
        try:
            predictions = run().argmax(axis=1)
        except NotSupportedError as error:
            print(f"  {mode:25} not run: {error}")
            continue
        accuracy = float((predictions == labels).mean())
        results[mode] = predictions, accuracy
        print(f"  {mode:25} {' '.join(map(str, predictions[:16]))} …  {accuracy:.2%}")
    first = next(iter(results.values()))[0]
    same = all(np.array_equal(first, predictions) for predictions, _ in results.values())
    print(f"  all {len(results)} runs give the same answers: {'yes' if same else 'NO'}")
    return results


def save_program(path: Path) -> None:
    """Save the network for one image as a program, and print its arguments."""
    graph = build(ml.create_context_sync(device_type="gpu"), batch=1)
    graph.compile_to(path)
    for role, operands in (("input", graph.inputs), ("output", graph.outputs)):
        for name, operand in operands.items():
            print(f"{role} {name}: {operand.data_type} {list(operand.shape)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, help="save a program there instead")
    options = parser.parse_args()
    if options.program is None:
        main()
    else:
        save_program(options.program)
