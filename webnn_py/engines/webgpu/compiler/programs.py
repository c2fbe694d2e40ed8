"""Compiler of programs: lowers their graphs, plans their buffers, and makes a `Plan`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace

from webnn_py.engines.webgpu.compiler.compiled import Compiled, compile_graph
from webnn_py.engines.webgpu.compiler.legalize.legalize import has_own_operator
from webnn_py.engines.webgpu.compiler.lower import has_lowering
from webnn_py.engines.webgpu.compiler.program_variant import Tables, VariantBuilder
from webnn_py.engines.webgpu.program.needs import limits_of
from webnn_py.engines.webgpu.program.plan import Adapter, Plan, Variant
from webnn_py.engines.webgpu.program.source import KernelStep, Source
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.engines.webgpu.program.wgsl_interface import features_of
from webnn_py.ir import Graph, Node
from webnn_py.passes import TILES, Pass, Target, optimize
from webnn_py.passes.target import Evaluate

FEATURES = ("shader-f16", "shader-int64")
"""Features of devices that change the code of graphs."""


class ProgramCompiler:
    """Compiler of one program, for one device or for devices with any features.

    All variants of a file use the passes for hardware, so that they share their weights. Software
    adapters are about as fast with these passes.

    Args:
        source: The recorded program.
        evaluate: Computes constant nodes.

    Raises:
        ValidationError: No step uses an argument.
    """

    def __init__(self, source: Source, evaluate: Evaluate) -> None:
        self._source = source
        self._evaluate = evaluate
        self._optimized: dict[Hashable, Graph] = {}
        self._compiled: dict[tuple[Graph, Features, tuple[Pass, ...]], Compiled] = {}
        self._arguments = source.described_arguments()

    def plan_for(self, features: Features, passes: tuple[Pass, ...]) -> Plan:
        """Return the program for one device, with the kernels that its graphs have there.

        Args:
            features: The device.
            passes: The passes for it.

        Raises:
            NotSupportedError: A kernel needs more than the device has.
        """
        tables = Tables()
        return self._plan(tables, [self._variant_for(tables, "any", features, passes)])

    def complete_plan(self) -> Plan:
        """Return the program for all devices, whatever device compiles it.

        It has one variant for hardware per set of features that changes the code. It has one
        without features for software adapters, which take long to compile large kernels.

        Raises:
            NotSupportedError: A kernel needs more than WebGPU's default limits.
        """
        used = self._variant(Tables(), "hardware", FEATURES).features
        optional = [name for name in FEATURES if name in used and name not in self._demanded]
        tables = Tables()
        variants = [
            self._variant(tables, "hardware", subset)
            for count in range(len(optional), -1, -1)
            for subset in itertools.combinations(optional, count)
        ]
        software = self._variant(tables, "software", ())
        least = variants[-1]
        if replace(software, adapter=least.adapter) == least:
            variants[-1] = replace(least, adapter="any")
        else:
            variants.append(software)
        return self._plan(tables, variants)

    def _plan(self, tables: Tables, variants: Sequence[Variant]) -> Plan:
        return Plan(
            self._arguments, tuple(tables.shaders), tables.kernels, tuple(variants), tables.tensors
        )

    @functools.cached_property
    def _demanded(self) -> frozenset[str]:
        """Features that the user's own kernels enable."""
        steps = (step for step in self._source.steps if isinstance(step, KernelStep))
        return frozenset(name for step in steps for name in features_of(step.code))

    def _variant(self, tables: Tables, adapter: Adapter, offered: Collection[str]) -> Variant:
        """Return the variant for all devices of a kind with these features."""
        there = self._demanded.union(offered)
        features = Features(
            f16="shader-f16" in there,
            int64="shader-int64" in there,
            kind="cpu" if adapter == "software" else "gpu",
        )
        return self._variant_for(tables, adapter, features, TILES)

    def _variant_for(
        self, tables: Tables, adapter: Adapter, features: Features, passes: tuple[Pass, ...]
    ) -> Variant:
        def compiled(recipe: Graph, features: Features) -> Compiled:
            return self._compile(recipe, features, passes)

        builder = VariantBuilder(compiled, tables, features)
        sections = [builder.section(steps, repeat) for steps, repeat in self._source.sections]
        buffers, steps = builder.finish(self._source.arguments)
        sizes = [buffer.size for buffer in buffers]
        kernels, groups = tables.kernels, tables.workgroups
        return Variant(
            adapter,
            tuple(sorted(builder.used | self._demanded)),
            limits_of(self._arguments, kernels, groups, sizes, steps),
            buffers,
            steps,
            tuple(sections),
        )

    def _compile(self, recipe: Graph, features: Features, passes: tuple[Pass, ...]) -> Compiled:
        """Compile a graph, once per set of features and passes."""
        key = recipe, features, passes
        if key not in self._compiled:
            has_kernel = functools.partial(_has_kernel, features=features)
            same = recipe, passes, tuple(map(has_kernel, recipe.nodes))
            if same not in self._optimized:
                target = Target(has_kernel, self._evaluate)
                self._optimized[same] = optimize(recipe, target, passes)
            self._compiled[key] = compile_graph(self._optimized[same], features)
        return self._compiled[key]


def _has_kernel(node: Node, features: Features) -> bool:
    return has_lowering(node.op) or has_own_operator(node, features)
