"""The sample about Dask: a worker is killed, and nothing is lost."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from samples import dask_batches


def test_a_killed_worker_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    figures = dask_batches.main(images=32, workers=2)
    assert figures.scores.shape == (32, 1000)
    np.testing.assert_array_equal(figures.scores, figures.expected)
    assert len(np.unique(figures.scores, axis=0)) > 16
    assert figures.killed
    assert figures.again
    assert sum(figures.by_process.values()) == 8
    printed = capsys.readouterr().out
    assert f"batches done again: {len(figures.again)}" in printed
    assert "the scores are those of one process: yes" in printed
    assert not multiprocessing.active_children()
