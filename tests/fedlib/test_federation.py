"""A federation in memory: who holds what, and what is computed once and never for another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from conftest import make_federation

from fedlib.federation import OPTED_IN

SIZES = (5, 2, 4)


def opting(fed, flag):
    side = {OPTED_IN: torch.tensor(flag)}
    return replace(fed, train=replace(fed.train, side=side))


def test_padding_is_not_real():
    real = make_federation(SIZES).train.real
    assert real.dtype is torch.bool and real.shape == (3, 5)
    assert real.sum(1).tolist() == list(SIZES) and real[1].tolist() == [True, True] + [False] * 3


def test_counts_leave_the_padding_out():
    fed = make_federation(SIZES)
    counts = fed.train.counts(fed.classes)
    by_hand = [
        np.bincount(fed.train.y[row[:n]], minlength=3)
        for row, n in zip(fed.train.index, SIZES, strict=True)
    ]
    assert counts.tolist() == np.stack(by_hand).tolist()
    torch.testing.assert_close(fed.shares("label").sum(1), torch.ones(3))


def test_rows_by_id_undo_a_permutation():
    fed = make_federation(SIZES)
    order = np.array([2, 0, 1])
    moved = fed.permuted(order)
    assert fed.by_id.tolist() == [0, 1, 2]
    assert moved.ids[moved.by_id].tolist() == [0, 1, 2]
    assert torch.equal(moved.train.index[moved.by_id], fed.train.index)


def test_a_changed_copy_forgets_what_was_counted():
    fed = opting(make_federation(SIZES), [[1, 1, 0, 0, 1], [1, 1, 1, 1, 1], [0] * 5])
    before, inside = fed.shares("label"), fed.taking_part()
    assert fed.shares("label") is before and fed.taking_part() is inside
    other = replace(fed, train=replace(fed.train, y=(fed.train.y + 1) % 3))
    assert not torch.equal(other.shares("label"), before)
    torch.testing.assert_close(other.shares("label"), before.roll(1, 1))
    assert other.taking_part() is not inside


def test_what_opted_out_is_in_no_index():
    fed = opting(make_federation(SIZES), [[1, 0, 1, 0, 1], [1, 1, 0, 0, 0], [0] * 5])
    inside = fed.taking_part()
    assert inside.train.sizes.tolist() == [3, 2, 0] and inside.members.tolist() == [0, 1]
    assert inside is fed and inside.train.index[0].tolist() == [0, 2, 4, -1, -1]
    assert (inside.train.index[2] == -1).all() and (inside.validation.index[2] == -1).all()
    assert inside.validation.sizes.tolist() == [6, 6, 0]
    assert OPTED_IN not in inside.train.side and inside.taking_part() is inside


def both(fed):
    """The indices, sizes and members of a federation and of what its clients have at home."""
    views = fed, fed.at_home()
    return [(v.train.index.tolist(), v.train.sizes.tolist(), v.members) for v in views]


def test_what_opted_out_is_there_for_who_asks_for_it_only():
    flag = [[1, 0, 1, 0, 1], [1, 1, 0, 0, 0], [0] * 5]
    fed, plain = opting(make_federation(SIZES), flag), make_federation(SIZES)
    home = fed.at_home()
    assert home is fed.at_home() and home.taking_part() is fed and home.at_home() is home
    for name in ("train", "validation"):
        assert torch.equal(getattr(home, name).index, getattr(plain, name).index)
    assert home.members is None and home.train.side[OPTED_IN].tolist() == flag
    deciding = fed.predicting()
    assert deciding is home.predicting() is fed.predicting()
    assert deciding.taking_part() is fed and deciding.at_home() is home
    assert deciding.train.sizes.tolist() == [3, 2, 4], "who is no member knows all of its own"
    assert deciding.validation.sizes.tolist() == [6, 6, 6]


def test_a_changed_federation_hides_the_same():
    flag = [[0] * 5, [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]]
    fed = opting(make_federation(SIZES), flag)
    other = replace(fed, classes=4)
    assert str(both(other)) == str(both(fed)) and other.at_home().classes == 4
    assert str(both(fed.to("cpu"))) == str(both(fed))
    order = np.array([2, 0, 1])
    moved = fed.permuted(order)
    assert moved.members.tolist() == [0, 2] and moved.train.sizes.tolist() == [2, 0, 2]
    assert str(both(moved)) == str(both(home_first(fed, order)))
    assert fed.at_home().pooled().train.index.tolist() == fed.pooled().train.index.tolist()


def home_first(fed, order):
    return fed.at_home().permuted(order).taking_part()
