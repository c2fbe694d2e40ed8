"""Tiles of the attention kernel, and the choice of a node's tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from webnn_py.core.traced_queries import sampled
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Node

DOWN, ACROSS = 4, 16
"""Invocations of a team along its queries and along its keys."""

TEAM = DOWN * ACROSS

DEPTH = 8
"""The most vec4s along the depth that workgroup memory holds at once."""

MAX_TEAM_WORKGROUPS = 150
"""Workgroups of the smallest tile up to which processors are left for a second team."""

MIN_WIDE_KEYS = 512
"""Keys from which workgroups of more queries are faster, as they read the keys less often."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A tile of the attention kernel.

    Attributes:
        fours: Vec4s of queries per invocation.
        keys: Keys per invocation, among those that a team processes at once.
        teams: Teams per workgroup. They share its queries and divide the keys.
    """

    fours: int = 1
    keys: int = 4
    teams: int = 1

    @property
    def each(self) -> int:
        """Queries per invocation."""
        return 4 * self.fours

    @property
    def rows(self) -> int:
        """Queries per workgroup."""
        return DOWN * self.each

    @property
    def columns(self) -> int:
        """Keys that a team processes at once."""
        return ACROSS * self.keys

    @property
    def invocations(self) -> int:
        """Invocations per workgroup."""
        return TEAM * self.teams

    def fits(self, compute: Literal["f32", "f16"], features: Features) -> bool:
        """Whether a device has the memory and invocations that a workgroup needs at most."""
        size = {"f32": 4, "f16": 2}[compute]
        held = self.columns * (DEPTH + 1)
        weights = self.columns * DOWN * self.fours
        shared = DEPTH * self.rows + (held + weights) * self.teams
        needed = 4 * (shared * size + self.invocations * self.fours * 4)
        return needed <= features.workgroup_bytes and self.invocations <= features.invocations


SMALLEST = AttentionTile()
"""The tile that fits every device: it uses all of 16 KiB."""


def tile_for(node: Node, compute: Literal["f32", "f16"], features: Features) -> AttentionTile:
    """Return the fastest tile for a node of ATTENTION that fits the device."""
    _, keys, *_ = node.operands
    *batch, rows, _ = node.output.shape
    workgroups = sampled(math.prod(batch) * -(-rows // SMALLEST.rows))
    if compute == "f16" or workgroups <= MAX_TEAM_WORKGROUPS:
        wanted = AttentionTile(teams=2)
    else:
        wanted = AttentionTile(fours=2 if keys.shape[-1] >= MIN_WIDE_KEYS else 1)
    return wanted if wanted.fits(compute, features) else SMALLEST
