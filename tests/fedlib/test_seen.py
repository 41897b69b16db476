"""What frozen leaves say is computed once, and training with it is training without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation, scatter
from torch.nn.functional import normalize

from fedlib.algorithms import (
    DBE,
    GPFL,
    MOON,
    FedAvg,
    FedBABU,
    FedCP,
    FedMix,
    FedPer,
    FedRep,
    FedRoD,
    LGFedAvg,
    Local,
    Mixture,
    Newcomers,
    Personal,
    PMMoE,
    PrunedFedMix,
)
from fedlib.algorithms.drift import APART
from fedlib.algorithms.heads import THEIRS as CP_THEIRS
from fedlib.algorithms.pmmoe import ENTRY, REST, SAID
from fedlib.engine import EarlyStop, costs, play_round, rounds
from fedlib.engine.seen import UNSEEN, Known, Seen, look
from fedlib.federation import OPTED_IN
from fedlib.models import MLP, LeNet, Net
from fedlib.optim import adam, sgd
from fedlib.tasks import CropFlip

RAGGED = (11, 0, 4, 17)
FOUR = {"batch_size": 4, "client": sgd(0.1)}
STOP = EarlyStop(every=1, patience=2)
LATER = {**FOUR, "epochs": 3, "stop": STOP}
ALGORITHMS = (
    FedRep(**FOUR, head_epochs=3),
    MOON(**FOUR, epochs=2),
    FedCP(**FOUR, epochs=2),
    FedBABU(**FOUR),
    *(
        Newcomers(of=of, **LATER)
        for of in (
            Personal(),
            FedPer(),
            LGFedAvg(),
            FedRoD(),
            FedCP(),
            GPFL(),
            DBE(),
            FedMix(experts=2),
            FedMix(experts=2, personal_bias=True, objective="likelihood"),
            PrunedFedMix(experts=2, eta=0.5),
        )
    ),
    *(PMMoE(of=of, **LATER) for of in (FedPer(), LGFedAvg(), FedCP(), DBE())),
    PMMoE(of=FedPer(), **LATER, denoise=0.4),
    Mixture(**LATER),
    Mixture(**LATER, frozen=True),
    Mixture(**LATER, train_global=True),
)


def begun(algorithm, fed):
    """A state in which no two clients are the same, after a first stage where one is needed."""
    if isinstance(algorithm, Newcomers | PMMoE):
        return scatter(algorithm.init(fed, 0, scatter(algorithm.of.init(fed, 0))), 1, 0.1)
    first = FedAvg().init(fed, 0) if isinstance(algorithm, Mixture) else None
    return scatter(algorithm.init(fed, 0, first), 1, 0.1)


def kept(algorithm, fed, state):
    """PMMoE's marks of experts that are left out are no numbers to be scattered."""
    if isinstance(algorithm, PMMoE):
        state.local["kept.experts"] = torch.ones(fed.clients, fed.clients)
    return state


def trained(algorithm, fed, chunk=None, times=2):
    state, losses = kept(algorithm, fed, begun(algorithm, fed)), []
    for t in range(times):
        cohort = 1.0 if not algorithm.federates else 4
        state, report = play_round(
            algorithm, fed, state, round=t, seed=0, cohort=cohort, chunk=chunk
        )
        losses.append(report.losses[np.argsort(report.rows)])
    return state.flat(), torch.stack(losses)


def close(one, other):
    torch.testing.assert_close(one[1], other[1], rtol=1e-3, atol=1e-5)
    assert one[0].keys() == other[0].keys()
    for name, leaf in one[0].items():
        torch.testing.assert_close(other[0][name], leaf, rtol=1e-3, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("model", [MLP((7,)), LENET], ids=["mlp", "lenet"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_training_with_what_is_known_is_training_without(monkeypatch, algorithm, model):
    fed = make_federation(RAGGED, model=model, shape=(12, 12, 1))
    monkeypatch.setattr(costs, "AT_ONCE", 5)
    ends = [trained(algorithm, fed, chunk) for chunk in (None, 1, 4)]
    monkeypatch.setattr(rounds, "look", lambda *_, **__: UNSEEN)
    plain = trained(algorithm, fed, 1)
    for end in ends:
        close(plain, end)


def asked(monkeypatch, algorithm, fed, times=1, cohort=None):
    """What every phase of a round knows, and how many clients share its programs."""
    looks, chunks, there = [], [], (rounds.look, rounds.train)

    def look(*args, **kwargs):
        looks.append(there[0](*args, **kwargs))
        return looks[-1]

    def train(cohort, *args):
        chunks.append(len(cohort.rows))
        return there[1](cohort, *args)

    monkeypatch.setattr(rounds, "look", look)
    monkeypatch.setattr(rounds, "train", train)
    trained(algorithm, fed, times=times)
    return looks, chunks


def test_each_phase_has_the_chunk_that_suits_what_it_trains(monkeypatch):
    fed = make_federation((9, 5, 7, 6), model=LENET, shape=(12, 12, 1))
    _, chunks = asked(monkeypatch, FedRep(**FOUR), fed)
    assert chunks == [4, 1, 1, 1, 1]  # heads together, bases one by one
    for algorithm in (MOON(**FOUR), FedCP(**FOUR), FedPer(**FOUR), PMMoE(of=LGFedAvg(), **FOUR)):
        monkeypatch.undo()
        assert asked(monkeypatch, algorithm, fed)[1] == [1] * 4
    for algorithm in (PMMoE(of=FedPer(), **FOUR), Newcomers(of=FedMix(), **FOUR)):
        monkeypatch.undo()
        assert asked(monkeypatch, algorithm, fed)[1] == [4]


def test_a_cohorts_weights_wait_in_memory_only_if_they_are_few(monkeypatch):
    fed = make_federation((9, 5, 7, 6), model=LENET, shape=(12, 12, 1))
    size = costs.numbers(FedRep().init(fed, 0))
    monkeypatch.setattr(costs, "WAITING_BYTES", 8 * size)
    assert asked(monkeypatch, FedRep(**FOUR), fed)[1] == [2, 1, 1, 2, 1, 1]


def test_every_example_is_asked_once_in_large_batches(monkeypatch):
    fed = make_federation((150, 0, 40), model=LENET, shape=(12, 12, 1))
    said, there = [], Net.features

    def features(net, params, x, noise=None):
        if not torch.is_grad_enabled():
            said.append(len(x))
        return there(net, params, x, noise)

    monkeypatch.setattr(Net, "features", features)
    state = FedRep(**FOUR).init(fed, 0)
    play_round(FedRep(**FOUR), fed, state, round=0, seed=0, cohort=3)
    assert sorted(said) == [40, 150]


def test_columns_stand_where_their_examples_stand():
    fed = make_federation(RAGGED, model=LENET, shape=(12, 12, 1))
    algorithm, rows = MOON(), torch.tensor([3, 0, 1])
    state = scatter(algorithm.init(fed, 0))
    leaves = algorithm.start(fed, state, rows)
    known = rounds.partial(rounds._one_client, algorithm.known, fed.net)
    common = algorithm.broadcast(fed, state)
    found = look(fed, known, rows, leaves, {}, common, validation=True)
    for columns, table in ((found.train, fed.train), (found.validation, fed.validation)):
        for i, row in enumerate(rows.tolist()):
            x = table.inputs(table.index[row, : table.sizes[row]])
            own = {n: t[row] for n, t in state.local.items()}
            theirs = normalize(fed.net.features(state.shared, x), dim=-1)
            mine = normalize(fed.net.features({n[9:]: t for n, t in own.items()}, x), dim=-1)
            expected = ((mine - theirs) / algorithm.tau).detach()
            torch.testing.assert_close(columns[APART][i, : len(x)], expected, rtol=1e-4, atol=1e-5)
            assert not columns[APART][i, len(x) :].any()


def test_nothing_is_known_of_augmented_examples_nor_features_where_units_drop(monkeypatch):
    fed = make_federation((9, 5, 7, 6), model=LENET, shape=(12, 12, 1))
    changed = replace(fed, train=replace(fed.train, augment=CropFlip(1)))
    for algorithm in (FedRep(**FOUR), MOON(**FOUR), FedCP(**FOUR), PMMoE(of=FedPer(), **FOUR)):
        looks, chunks = asked(monkeypatch, algorithm, changed)
        assert all(found is UNSEEN for found in looks) and set(chunks) == {1}
        monkeypatch.undo()
    drops = LeNet(channels=(3, 4), hidden=(9,), kernel=3, dropout=0.5)
    fed = make_federation((9, 5, 7, 6), model=drops, shape=(12, 12, 1))
    assert not any(found.train for found in asked(monkeypatch, FedRep(**FOUR), fed)[0])
    monkeypatch.undo()
    # Models that stand still drop nothing.
    for algorithm, names in ((MOON(**FOUR), {APART}), (FedCP(**FOUR), {CP_THEIRS})):
        looks, _ = asked(monkeypatch, algorithm, fed)
        assert all({*found.train} == names for found in looks)
        monkeypatch.undo()


def test_a_leaf_that_moves_is_never_asked():
    class Wrong(FedPer):
        def known(self, net, frozen, ctx, batch):
            return Known({"h": net.features(frozen, batch["x"])}, {})

    fed = make_federation()
    with pytest.raises(KeyError, match=r"base\."):
        play_round(Wrong(), fed, Wrong().init(fed, 0), round=0, seed=0, cohort=3)


def test_what_opted_out_is_never_looked_at(monkeypatch):
    fed = make_federation((9, 5, 7, 6))
    flag = (torch.arange(9) % 3 > 0).to(torch.int64).expand(4, -1).clone()
    flag[2] = 0
    out = fed.train.index[fed.train.real & (flag == 0)]
    fed = replace(fed, train=replace(fed.train, side={OPTED_IN: flag}))
    looked, there = [], type(fed.train).inputs

    def inputs(table, examples, noise=None):
        looked.append(examples.flatten())
        return there(table, examples, noise)

    monkeypatch.setattr(type(fed.train), "inputs", inputs)
    for algorithm in (FedRep(**FOUR), MOON(**FOUR), FedCP(**FOUR)):
        state = algorithm.init(fed, 0)
        play_round(algorithm, fed, state, round=0, seed=0, cohort=3)
    assert looked and not torch.isin(torch.cat(looked), out).any()


def test_early_stopping_on_the_loss_knows_validation_examples_too(monkeypatch):
    fed = make_federation((9, 5, 7, 6), model=LENET, shape=(12, 12, 1))
    later = PMMoE(of=FedPer(), **{**LATER, "client": adam(0.01)})
    (found,), _ = asked(monkeypatch, later, fed)
    assert {*found.validation} == {*found.train} == {REST, SAID, ENTRY} and found.instead
    assert found.validation[ENTRY].shape == (4, 6, 9)
    monkeypatch.undo()
    (found,), _ = asked(monkeypatch, Newcomers(of=FedPer(), **LATER), fed)
    assert found.train and not found.validation  # which watches predictions
    part = Seen({"h": torch.ones(3, 2, 1)}, instead=True).rows(1, 3)
    assert part.train["h"].shape == (2, 2, 1) and part.instead
    assert not any(look.train for look in asked(monkeypatch, Local(), fed)[0])
