"""The shapes of attention's kernel, and which of them suits a node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from webnn_py.core.traced_queries import sampled
from webnn_py.engines.webgpu.program.storage import Features
from webnn_py.ir import Node

DOWN, ACROSS = 4, 16
"""Invocations of a team by the queries and by the keys that they take."""

TEAM = DOWN * ACROSS

DEPTH = 8
"""Vec4s along the depth that are in workgroup memory at once, at most."""

FEW_WORKGROUPS = 150
"""Of one vec4 of queries each: up to here processors are left for more teams."""

LONG = 512
"""Keys from which workgroups of more queries pay, as they read the keys less often."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """The shape of a kernel.

    Attributes:
        fours: Vec4s of queries of an invocation.
        keys: Keys of an invocation, of those that a team takes at once.
        teams: Teams of a workgroup, which share its queries and divide the keys.
    """

    fours: int = 1
    keys: int = 4
    teams: int = 1

    @property
    def each(self) -> int:
        """Queries of an invocation."""
        return 4 * self.fours

    @property
    def rows(self) -> int:
        """Queries of a workgroup."""
        return DOWN * self.each

    @property
    def columns(self) -> int:
        """Keys that a team takes at once."""
        return ACROSS * self.keys

    @property
    def invocations(self) -> int:
        """Of a workgroup."""
        return TEAM * self.teams

    def fits(self, compute: Literal["f32", "f16"], features: Features) -> bool:
        """Whether a device has the memory and the invocations that a workgroup takes, at most."""
        size = {"f32": 4, "f16": 2}[compute]
        held = self.columns * (DEPTH + 1)
        weights = self.columns * DOWN * self.fours
        shared = DEPTH * self.rows + (held + weights) * self.teams
        needed = 4 * (shared * size + self.invocations * self.fours * 4)
        return needed <= features.workgroup_bytes and self.invocations <= features.invocations


SMALLEST = AttentionTile()
"""The shape that the limits of every device allow: all of 16 KiB."""


def tile_for(node: Node, compute: Literal["f32", "f16"], features: Features) -> AttentionTile:
    """The shape with which a node of ATTENTION takes the least time, of those that are possible."""
    _, keys, *_ = node.operands
    *batch, rows, _ = node.output.shape
    workgroups = sampled(math.prod(batch) * -(-rows // SMALLEST.rows))
    if compute == "f16" or workgroups <= FEW_WORKGROUPS:
        wanted = AttentionTile(teams=2)
    else:
        wanted = AttentionTile(fours=2 if keys.shape[-1] >= LONG else 1)
    return wanted if wanted.fits(compute, features) else SMALLEST
