"""Flight: steps that a device runs ahead of the host, as it chooses the tokens itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from webnn_py.api.decoding.cache_rows import CacheRows
from webnn_py.api.decoding.device_steps import MAX_STEPS, DeviceSteps, RowOptions
from webnn_py.api.decoding.layout import DecoderLayout
from webnn_py.api.decoding.row import Row
from webnn_py.api.graph import MLGraph

MIN_STEPS = 2
"""Steps of a submission while a row waits for a slot."""


class Flight:
    """Steps for the same rows, of which the device runs several before the host reads a token.

    Args:
        steps: Runs of the decoder's graph.
        layout: The roles of the graph's inputs and outputs.
        caches: The caches, with room for one more token in each row.
        rows: The rows that take part, each with one token to read and a taker.
    """

    def __init__(
        self, steps: DeviceSteps, layout: DecoderLayout, caches: CacheRows, rows: Sequence[Row]
    ) -> None:
        self._layout = layout
        self._caches = caches
        self._batches: deque[tuple[int, int]] = deque()  # steps of a submission, and their half
        self._draws = any(row.is_drawn for row in rows)
        slots = [row.slot for row in rows if row.slot is not None]
        first, count = caches.rows_of_run(slots)
        self._rows = [(row, slot - first) for row, slot in zip(rows, slots, strict=True)]
        lengths = np.minimum(caches.lengths[first : first + count], caches.most_keys - 1)
        ids, active = np.zeros([count, 1], np.int64), np.zeros(count, np.int64)
        graphs: list[MLGraph | None] = [None] * count
        for row, place in self._rows:
            ids[place, 0], active[place] = row.pending[0], 1
            graphs[place] = row.taker.sampler.options.graph if row.taker is not None else None
        given = layout.inputs(ids, lengths, caches.keys)
        self._steps = steps.ahead(first, given, self._draws, tuple(graphs))
        self._steps.begin(given, lengths, active, self._options(count) if self._draws else None)

    def is_of(self, rows: Sequence[Row]) -> bool:
        """Return whether these are the rows that take part."""
        return [row for row, _ in self._rows] == rows

    @property
    def takers(self) -> list[Row]:
        """Return the rows that still take tokens."""
        return [row for row, _ in self._rows if row.taker is not None]

    @property
    def submissions(self) -> int:
        """Return the number of submissions whose tokens are not read yet."""
        return len(self._batches)

    def _options(self, count: int) -> RowOptions:
        """Return how the device chooses the tokens of each of `count` rows."""
        vocabulary = self._layout.vocabulary
        temperature, top_k, top_p, penalty = np.ones((4, count), np.float32)
        seen = np.zeros((count, vocabulary), np.uint8)
        for row, place in self._rows:
            if row.taker is None:
                continue
            options = row.taker.sampler.options
            if options.temperature:
                temperature[place] = options.temperature
                top_k[place] = min(options.top_k or vocabulary, vocabulary)
                top_p[place] = options.top_p
            penalty[place] = options.repetition_penalty
            if options.repetition_penalty != 1:
                seen[place, row.taker.ids] = 1
        return RowOptions(temperature, top_k, top_p, penalty, seen)

    def steps_to_submit(self, is_awaited: bool) -> int:
        """Return how many steps to submit next.

        Args:
            is_awaited: Whether a row waits for a slot, for which one that ends makes room.
        """
        ahead = sum(count for count, _ in self._batches)
        takers = [row.taker for row, _ in self._rows if row.taker is not None]
        wanted = max(taker.tokens_left for taker in takers)
        room = min(
            *(self._caches.most_keys - row.length for row, _ in self._rows),
            *(taker.room for taker in takers),
        )
        most = MAX_STEPS if len(self._batches) < 2 else 0
        if is_awaited:
            most = min(most, MIN_STEPS)
        return max(0, min(most, wanted - ahead, room - ahead))

    def submit(self, count: int) -> None:
        """Submit some steps."""
        noise = None
        if self._draws:
            places = max(place for _, place in self._rows) + 1
            noise = np.zeros((count, places), np.float32)
            for row, place in self._rows:
                if row.taker is not None:
                    noise[:, place] = row.taker.sampler.noise(count)
        self._batches.append((count, self._steps.submit(count, noise)))

    def take_tokens(self) -> None:
        """Hand out the tokens of the oldest submission; surplus ones are dropped."""
        count, half = self._batches.popleft()
        tokens = self._steps.tokens(half, count)
        for row, place in self._rows:
            taker = row.taker
            for token in map(int, tokens[:, place]):
                if taker is None or row.slot is None or row.taker is not taker:
                    break  # the row has ended
                row.length += 1
                self._caches.lengths[row.slot] = row.length
                row.pending[0] = token
                taker.take(token)
