"""Measures which tiles are the fastest for a graph's products on this adapter."""

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
from webnn_py.engines.webgpu.runtime.wgpu_native.encoding import DispatchCommands
from webnn_py.engines.webgpu.runtime.wgpu_native.fallback import Dispatch
from webnn_py.ir import Graph, Node, Value

if TYPE_CHECKING:
    from webnn_py.engines.webgpu.compiler.compiled import Compiled
    from webnn_py.engines.webgpu.compiler.tuning import Candidates

GAIN = 0.03
"""What a tile must save of the time of the one that is chosen without: less may be chance."""
SLOW = 1.3
"""Tiles that take so many times the best one's time are measured no further."""
ROUNDS = 5
SECONDS = 4e-3
"""Of one measurement, about; but at least one run."""
MOST_RUNS = 500


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found for a product or convolution.

    Attributes:
        node: The node.
        count: How many of the graph's are alike.
        tile: The name of its tile; "" where what is taken without tuning is as fast.
        before: Seconds without tuning, of all alike.
        after: Seconds with the tile.
    """

    node: Node
    count: int
    tile: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found for a graph.

    Attributes:
        found: For each of its products and convolutions, alike ones once.
        before: Seconds of the whole graph without tuning.
        after: Seconds with the tiles found.
        kept: Whether they are remembered: the graph is faster with them.
    """

    found: Sequence[Tuned]
    before: float
    after: float
    kept: bool


def tune(gpu: Device, graph: Graph, progress: BuildProgress = lambda done, total: None) -> Tuning:
    """Measure the tiles of a graph and remember them: graphs built later on this adapter have them.

    Nothing else should run on the device meanwhile.

    Args:
        gpu: The device.
        graph: As it was compiled for it (`Compiled.graph`).
        progress: Called with how many kinds of products are measured, and of how many.

    Raises:
        OperationError: The device refused a kernel, or has no memory left.
        ContextLostError: It was lost; nothing is remembered.
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
        others = known_tiles(adapter, plain)  # read anew: another process may have tuned
        tiles |= {key: tile for key, tile in others.items() if key not in measured}
        remember_tiles(adapter, plain, tiles)
        gpu.features = replace(plain, tiles=MappingProxyType(tiles))
    return Tuning(found, before, after, kept)


def _fastest(gpu: Device, kind: Candidates, features: Features) -> tuple[str, float, float]:
    """A tile, and the seconds of all alike without it and with it."""
    kernels = [kernel for made in kind.kernels.values() for kernel in made]
    loaded = _loaded(gpu, _side_by_side(kernels, features))
    dispatches = iter(loaded.dispatches({}))
    runs = {name: [next(dispatches) for _ in made] for name, made in kind.kernels.items()}
    seconds = _medians(gpu, runs)
    tile = min(seconds, key=seconds.__getitem__)
    if seconds[tile] > (1 - GAIN) * seconds[""]:
        tile = ""
    return tile, kind.count * seconds[""], kind.count * seconds[tile]


def _loaded(gpu: Device, compiled: Compiled) -> LoadedGraph:
    return LoadedGraph(gpu, compiled, LoadedTemplate(gpu, compiled))


def _side_by_side(kernels: Sequence[Any], features: Features) -> Compiled:
    """Kernels over buffers of their own."""
    from webnn_py.engines.webgpu.compiler.compiled import Compiled
    from webnn_py.engines.webgpu.compiler.template import Template

    values: dict[Value, None] = {}
    for kernel in kernels:
        values |= dict.fromkeys(part.value for part in (*kernel.reads, *kernel.writes))
    nothing = Graph((), {}, (), ())
    made = Compiled.of(nothing, features, kernels)
    own: Template = replace(
        made.template,
        slots={value: slot for slot, value in enumerate(values)},
        sizes={value: buffer_bytes(value) for value in values},
    )
    return replace(made, template=own)


def _whole(gpu: Device, graph: Graph, ways: Sequence[Features]) -> list[float]:
    """The seconds of a graph with some features."""
    from webnn_py.engines.webgpu.compiler.compiled import compile_graph

    runs = {}
    for number, features in enumerate(ways):
        loaded = _loaded(gpu, compile_graph(graph, features))
        ends = (*loaded.graph.inputs, *(value for _, value in loaded.graph.outputs))
        places = {value: loaded.io_buffer(value) for value in ends}
        runs[str(number)] = loaded.dispatches(places)
    return list(_medians(gpu, runs).values())


def _medians(gpu: Device, runs: Mapping[str, Sequence[Dispatch]]) -> dict[str, float]:
    """The seconds of a run of each, in turn; what is much slower than the best is run but twice."""
    measure = _clock(gpu)

    def timed(names: Sequence[str], times: int) -> dict[str, float]:
        commands = [DispatchCommands([*runs[name]] * times) for name in names]
        return dict(zip(names, (s / times for s in measure(commands)), strict=True))

    def times_in(seconds: float, each: float) -> int:
        return max(1, min(MOST_RUNS, int(seconds / max(each, 1e-6))))

    first = next(iter(runs))
    slowest = max(timed(list(runs), 1).values())  # the first run of a pipeline takes longer
    wake(gpu)
    once = timed(list(runs), times_in(SECONDS / 10, slowest))
    best = min(once.values())
    names = [name for name in runs if once[name] <= SLOW * best or name == first]
    times = times_in(SECONDS, best)
    rounds = [timed(names[:: -1 if n % 2 else 1], times) for n in range(ROUNDS)]
    return once | {name: statistics.median(each[name] for each in rounds) for name in names}


def _clock(gpu: Device) -> Callable[[Sequence[DispatchCommands]], list[float]]:
    """The device's clock; the host's for software, whose timestamps are not to be trusted."""
    if gpu.hardware and has_clock(gpu):
        return DeviceClock(gpu).measure
    return HostClock(gpu).measure
