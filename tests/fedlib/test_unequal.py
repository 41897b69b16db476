"""Clients of very unequal sizes: what is stored and padded goes with what clients hold."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import every, play
from test_modules import Own
from torch import nn

from fedlib import MLP, LocalHoldout, NaturalPartition, OptOut, Task, data, sgd
from fedlib.algorithms import FedAvg, FedPer, PMMoE
from fedlib.engine import evaluate, evaluate_everywhere, evaluate_global, play_round, width
from fedlib.federation import OPTED_IN

few = settings(max_examples=40)
sizes_of = st.lists(st.integers(0, 7), min_size=1, max_size=6)


def held_in_words(table):
    """Each client's examples and side information, by walking through the flat array."""
    rows, start = [], 0
    for n in table.sizes.tolist():
        stop = start + n
        rows.append((table.indices[start:stop].tolist(), table.side["angle"][start:stop].tolist()))
        start = stop
    return rows


@few
@given(sizes_of, st.data())
def test_rows_padded_or_alone_are_those_of_a_plain_loop(sizes, data):
    fed = make_federation([*sizes, 1], side="angle")
    table = fed.permuted(np.random.default_rng(len(sizes)).permutation(fed.num_clients)).train
    rows = held_in_words(table)
    who = np.array(data.draw(st.lists(st.integers(0, len(sizes)), min_size=1, max_size=9)))
    width = data.draw(st.sampled_from([0, 9]))
    held, real = table.padded(who, width)
    assert held.shape == real.shape == (len(who), width or max(len(rows[i][0]) for i in who))
    assert not held[~real].any()
    angles, _ = table.padded(who, width, table.side["angle"])
    some = held_in_words(table.subset(who))
    for place, row in enumerate(who.tolist()):
        there, mine = real[place], rows[row]
        assert (held[place][there].tolist(), angles[place][there].tolist()) == mine == some[place]
        assert there[: len(mine[0])].all() and int(there.sum()) == len(mine[0])
        assert table.client(row).tolist() == mine[0]
    for most in (2, np.arange(len(who)) % 4):
        fewer = table.subset(who, most)
        ends = np.broadcast_to(most, who.shape).tolist()
        wanted = [tuple(held[:end] for held in row) for row, end in zip(some, ends, strict=True)]
        assert held_in_words(fewer) == wanted
        assert fewer.counts(3).sum(1).tolist() == fewer.sizes.tolist()
    labels = [table.y[mine].bincount(minlength=3).tolist() for mine, _ in rows]
    assert table.counts(3).tolist() == labels
    assert table.owners.tolist() == [i for i, n in enumerate(table.sizes) for _ in range(n)]


@few
@given(sizes_of, st.integers(1, 5))
def test_blocks_show_each_client_its_own_examples_and_no_others(sizes, block):
    """Nobody's row shows what another holds, not even as padding, and an empty one nothing."""
    fed = make_federation([*sizes, 1, 0], side="angle")
    table, everyone = fed.train, torch.arange(fed.num_clients)
    seen = [[] for _ in range(fed.num_clients)]
    for batch in table.blocks(everyone, block):
        shown = zip(batch["y"], batch.side["angle"], batch["weight"] > 0, strict=True)
        for row, (labels, angles, there) in enumerate(shown):
            seen[row] += [*zip(labels[there].tolist(), angles[there].tolist(), strict=True)]
            mine = {*table.y[table.client(row)].tolist()} or {int(table.y[0])}
            assert {*labels[~there].tolist()} <= mine
    held = ((torch.tensor(h).long(), a) for h, a in held_in_words(table))
    expected = [[*zip(table.y[h].tolist(), angles, strict=True)] for h, angles in held]
    assert seen == expected


def test_a_table_that_nobody_holds_anything_of_is_all_padding():
    fed, out = make_federation((3, 2), side="angle"), torch.zeros(5, dtype=torch.int64)
    nothing = replace(fed, train=replace(fed.train, side={OPTED_IN: out})).train
    held, real = nothing.padded(np.arange(2), 3)
    assert held.shape == (2, 3) and not real.any() and nothing.sizes.tolist() == [0, 0]
    assert not len(nothing.subset(np.array([1])).indices)
    batch = nothing.all_examples(torch.arange(2))
    assert not batch["weight"].any() and batch["x"].shape[0] == 2


class Somebody(nn.Module):
    """Flattens as tutorials do, which no batch of nobody survives."""

    def forward(self, x):
        return x.reshape(x.shape[0], -1)


@every
@pytest.mark.parametrize("chunk", [1, None])
def test_no_network_is_asked_about_nobody(algorithm, chunk):
    """No client has validation examples, one no training and two no test examples."""
    layers = lambda: (Somebody(), nn.Linear(64, 7), nn.ReLU())  # noqa: E731
    fed = make_federation((11, 0, 9, 4), model=Own(lambda: (nn.Sequential(*layers()), 7)))
    for name, sizes in (("validation", [0, 0, 0, 0]), ("test", [6, 0, 6, 0])):
        table, sizes = getattr(fed, name), np.array(sizes)
        held = table.indices[(table.owners % 2 == 0) & bool(sizes.any())]
        setattr(fed, name, replace(table, indices=held, sizes=sizes))
    state, report = play(algorithm, fed, 2, chunk=chunk, score=True)
    assert report.adapted["validation"].isnan().all()
    assert report.adapted["test"].isnan().tolist() == [bool(row % 2) for row in report.clients]
    algorithm.log_metrics(fed, state)
    for table in (fed.validation, fed.test):
        found = evaluate(fed, algorithm, state, table).nll
        np.testing.assert_array_equal(np.isfinite(found), table.sizes > 0)
    assert np.isfinite(evaluate_everywhere(fed, algorithm, state)).all()
    assert 0 <= evaluate_global(fed, algorithm, state) <= 1


@few
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=300), st.integers(0, 3), st.integers(1, 9)
)
def test_padding_stays_in_proportion_to_what_is_held(sizes, giants, most):
    sizes = np.array(sizes + [10**5] * giants)
    groups = width.group_by_size(sizes, lambda width: most)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    padded = sum(len(group) * int(sizes[group].max()) for group in groups)
    assert padded <= (width.UNEQUAL + 1) * sizes.sum()
    if not width.oversized(sizes).any():
        cut = np.split(np.arange(len(sizes)), range(most, len(sizes), most))
        assert all(np.array_equal(a, b) for a, b in zip(groups, cut, strict=True))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_who_is_alone_is_trained_and_scored_as_in_company(batch_size, monkeypatch):
    fed, found = make_federation((3, 40, 2, 0, 5)), []
    for unequal in (64, 2):
        monkeypatch.setattr(width, "UNEQUAL", unequal)
        algorithm = FedAvg(batch_size=batch_size, client=sgd(0.1), epochs=2)
        how = {"round": 0, "seed": 0, "cohort": 5, "chunk": 5}
        state, report = play_round(algorithm, fed, algorithm.init(fed, 0), **how)
        scores = evaluate(fed, algorithm, state, fed.train)
        of = FedPer(batch_size=batch_size, client=sgd(0.1))
        first, _ = play_round(of, fed, of.init(fed, 0), round=0, seed=0, cohort=5)
        mixture = PMMoE(of=of)
        energies = mixture.energies(fed, mixture.init(fed, 0, first))
        found.append([*state.server_params.values(), report.losses, energies,
                      torch.tensor(scores.accuracy), torch.tensor(scores.nll)])  # fmt: skip
    for together, alone in zip(*found, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6, equal_nan=True)


TINY, LARGE = 2000, 20_000


@pytest.mark.parametrize("opt_out", [None, OptOut(0.3, share=0.5)], ids=["all", "some"])
def test_a_large_client_among_many_costs_what_all_hold(places, opt_out):
    """Tables of clients x the largest client would be a hundred times the bound."""
    who, rng = np.r_[np.repeat(np.arange(TINY), 2), np.full(LARGE, TINY)], np.random.default_rng(0)
    x, y = rng.normal(size=(len(who), 2)).astype(np.float32), rng.integers(2, size=len(who))
    data.add_data("unequal", (x, y, {"who": who}))
    held_out = LocalHoldout(0.3, 0.1)
    task = Task("unequal", NaturalPartition("who"), MLP((2,)), held_out, opt_out=opt_out)
    tracemalloc.start()
    fed, algorithm = task.build(0), FedAvg(batch_size=None)
    state, _ = play_round(algorithm, fed, algorithm.init(fed, 0), round=0, seed=0, cohort=1.0)
    evaluate(fed, algorithm, state, fed.test)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2048 * len(who), "of all that torch does not hold"
    stored = sum(t.indices.nbytes + t.sizes.nbytes for t in (fed.train, fed.validation, fed.test))
    assert stored <= 8 * (len(who) + 3 * fed.num_clients)
