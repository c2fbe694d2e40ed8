"""Tuning: measure the fastest tile for each product and convolution of a graph on an adapter."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from webnn_py.core.progress import BuildProgress
from webnn_py.engines.webgpu.program.storage import NO_TILES, Features, buffer_bytes
from webnn_py.engines.webgpu.runtime.device_graph import LoadedGraph
from webnn_py.engines.webgpu.runtime.device_template import LoadedTemplate
from webnn_py.engines.webgpu.runtime.devices.device import Device
from webnn_py.engines.webgpu.runtime.devices.errors import device_errors
from webnn_py.engines.webgpu.runtime.devices.tile_cache import known_tiles, remember_tiles
from webnn_py.engines.webgpu.runtime.profiling import DeviceClock, HostClock, has_clock
from webnn_py.engines.webgpu.runtime.roofline import wake
from webnn_py.engines.webgpu.runtime.webgpu_api import Dispatch, DispatchCommands
from webnn_py.ir import Graph, Node, Value

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled
    from webnn_py.engines.webgpu.compiler.tuning import Candidates

MIN_GAIN = 0.03
"""Share of the default tile's time that another one must save; less may be chance."""
SLOW_RATIO = 1.3
"""Tiles slower than the best one by this factor are measured no further."""
REPETITIONS = 5
MEASUREMENT_SECONDS = 4e-3
"""Approximate time of one measurement, but at least one run."""
MAX_RUNS_PER_MEASUREMENT = 500


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result for one kind of product or convolution.

    Attributes:
        node: One node of the kind.
        count: Number of nodes of the kind in the graph.
        tile: The name of the fastest tile; "" if the default is as fast.
        before: Seconds of all nodes of the kind without tuning.
        after: Seconds of all nodes of the kind with the tile.
    """

    node: Node
    count: int
    tile: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result for a graph.

    Attributes:
        found: One result for each kind of product and convolution.
        before: Seconds of the whole graph without tuning.
        after: Seconds of the whole graph with the fastest tiles.
        kept: Whether the tiles are remembered, as the graph is faster with them.
    """

    found: Sequence[Tuned]
    before: float
    after: float
    kept: bool


def tune(gpu: Device, graph: Graph, progress: BuildProgress = lambda done, total: None) -> Tuning:
    """Measure the tiles of a graph and remember the fastest for later graphs on this adapter.

    Nothing else should run on the device meanwhile.

    Args:
        gpu: The device.
        graph: The graph as it was compiled (`Compiled.graph`).
        progress: Called with the number of measured kinds of products, and the number of all.

    Raises:
        OperationError: The device refused a kernel, or has no memory left.
        ContextLostError: The device was lost; nothing is remembered.
    """
    from webnn_py.engines.webgpu.compiler.tuning import candidates

    plain = replace(gpu.features, tiles=NO_TILES)
    with device_errors("tuning a graph"):
        kinds = list(candidates(graph, plain))
        found, tiles = [], {}
        for number, each in enumerate(kinds):
            progress(number, len(kinds))
            tile, before, after = _fastest(gpu, each, plain)
            found.append(Tuned(each.node, each.count, tile, before, after))
            if tile:
                tiles[each.key] = tile
        before, after = _whole(gpu, graph, [plain, replace(plain, tiles=tiles)])
        progress(len(kinds), len(kinds))
    kept = bool(tiles) and after < before
    if kept:
        adapter = gpu.handle.adapter
        measured = {each.key for each in kinds}
        others = known_tiles(adapter, plain)  # read again, as another process may have tuned
        tiles |= {key: tile for key, tile in others.items() if key not in measured}
        remember_tiles(adapter, plain, tiles)
        gpu.features = replace(plain, tiles=MappingProxyType(tiles))
    return Tuning(found, before, after, kept)


def _fastest(gpu: Device, kind: Candidates, features: Features) -> tuple[str, float, float]:
    """Return the fastest tile of a kind, and the seconds of all its nodes without and with it."""
    kernels = [kernel for made in kind.kernels.values() for kernel in made]
    loaded = _loaded(gpu, _side_by_side(kernels, features))
    dispatches = iter(loaded.dispatches({}))
    runs = {name: [next(dispatches) for _ in made] for name, made in kind.kernels.items()}
    seconds = _medians(gpu, runs)
    tile = min(seconds, key=seconds.__getitem__)
    if seconds[tile] > (1 - MIN_GAIN) * seconds[""]:
        tile = ""
    return tile, kind.count * seconds[""], kind.count * seconds[tile]


def _loaded(gpu: Device, compiled: Compiled) -> LoadedGraph:
    return LoadedGraph(gpu, compiled, LoadedTemplate(gpu, compiled))


def _side_by_side(kernels: Sequence[Any], features: Features) -> Compiled:
    """Compile independent kernels, each over buffers of its own, as one graph."""
    from webnn_py.engines.webgpu.compiler.compiled import Compiled
    from webnn_py.engines.webgpu.compiler.template import Template

    values: dict[Value, None] = {}
    for kernel in kernels:
        values |= dict.fromkeys(part.value for part in (*kernel.reads, *kernel.writes))
    nothing = Graph((), {}, (), ())
    compiled = Compiled.of(nothing, features, kernels)
    own: Template = replace(
        compiled.template,
        slots={value: slot for slot, value in enumerate(values)},
        sizes={value: buffer_bytes(value) for value in values},
    )
    return replace(compiled, template=own)


def _whole(gpu: Device, graph: Graph, ways: Sequence[Features]) -> list[float]:
    """Measure the seconds of a whole graph for each set of features."""
    from webnn_py.engines.webgpu.compiler.compiled import compile_graph

    runs = {}
    for number, features in enumerate(ways):
        loaded = _loaded(gpu, compile_graph(graph, features))
        ends = (*loaded.graph.inputs, *(value for _, value in loaded.graph.outputs))
        places = {value: loaded.io_buffer(value) for value in ends}
        runs[str(number)] = loaded.dispatches(places)
    return list(_medians(gpu, runs).values())


def _medians(gpu: Device, runs: Mapping[str, Sequence[Dispatch]]) -> dict[str, float]:
    """Return the median seconds of one run of each.

    The runs alternate. Those much slower than the best are run only twice, except the first one.
    """
    measure = _clock(gpu)

    def timed(names: Sequence[str], times: int) -> dict[str, float]:
        commands = [gpu.webgpu.DispatchCommands([*runs[name]] * times) for name in names]
        return dict(zip(names, (s / times for s in measure(commands)), strict=True))

    def times_in(seconds: float, each: float) -> int:
        return max(1, min(MAX_RUNS_PER_MEASUREMENT, int(seconds / max(each, 1e-6))))

    first = next(iter(runs))
    slowest = max(timed(list(runs), 1).values())  # the first run of a pipeline takes longer
    wake(gpu)
    once = timed(list(runs), times_in(MEASUREMENT_SECONDS / 10, slowest))
    best = min(once.values())
    names = [name for name in runs if once[name] <= SLOW_RATIO * best or name == first]
    times = times_in(MEASUREMENT_SECONDS, best)
    measured = [timed(names[:: -1 if n % 2 else 1], times) for n in range(REPETITIONS)]
    return once | {name: statistics.median(each[name] for each in measured) for name in names}


def _clock(gpu: Device) -> Callable[[Sequence[DispatchCommands]], list[float]]:
    """Return the device's clock; the host's for software, whose timestamps are unreliable."""
    if gpu.hardware and has_clock(gpu):
        return DeviceClock(gpu).measure
    return HostClock(gpu).measure
