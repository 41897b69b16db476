"""The picture of a partition."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from companion.plotting.picture import counts_picture
from fedlib.partition import Partition


@pytest.fixture
def ax():
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot.subplots()[1]
    pyplot.close("all")


def test_the_picture_has_a_dot_for_every_class_that_a_client_holds(ax):
    counts = Partition.from_lists([[0, 1, 2, 3], [4]]).counts([0, 0, 0, 0, 2], 3)
    counts_picture(counts, ax, ["cat", "dog", "cow"])
    (dots,) = ax.collections
    assert dots.get_offsets().tolist() == [[0, 0], [1, 2]]
    assert dots.get_array().tolist() == [4, 1]
    assert dots.get_widths() == pytest.approx([0.95, 0.95 / 2])  # the area is the count
    assert [text.get_text() for text in ax.get_yticklabels()] == ["cat", "dog", "cow"]
    with pytest.raises(ValueError, match="2 names for 3 classes"):
        counts_picture(counts, ax, ["cat", "dog"])


def test_the_picture_of_many_clients_is_made_of_tiles(ax):
    counts = np.arange(400).reshape(100, 4) % 7
    counts_picture(counts, ax)
    (tiles,) = ax.images
    shown = tiles.get_array()
    assert np.array_equal(shown.filled(0), counts.T) and shown.mask.any()


def test_nobody_can_be_drawn(ax):
    counts_picture(np.zeros((1, 4), dtype=int), ax, bar=False)
    assert not len(ax.collections[0].get_offsets())
