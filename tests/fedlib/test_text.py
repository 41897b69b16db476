"""Cohorts that read texts: one program for all, and the same as one client after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import after, assert_alike
from torch import nn

from fedlib.algorithms import FedAvg, FedMix, Local, Mixture
from fedlib.engine import EarlyStop, evaluate, play_round
from fedlib.engine.costs import READERS, chunk_of
from fedlib.federation import Federation, Table
from fedlib.models import BiLSTM, FastText, Net
from fedlib.optim import adam, sgd

CPU = torch.device("cpu")
SPECS = [BiLSTM(vocabulary=20, embedding=5, hidden=4), FastText(vocabulary=20, width=5)]


def readers(sizes=(9, 4, 7), spec=SPECS[0], tokens=6):
    """Clients that hold texts of two classes, which use different words."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=sum(sizes) + 20)
    x = rng.integers(2, 12, (len(y), tokens)) + 7 * y[:, None]
    x = torch.tensor(np.where(rng.random(x.shape) < 0.2, 0, x), dtype=torch.int32)
    index = torch.full((len(sizes), max(sizes)), -1)
    start = np.cumsum([0, *sizes])
    for i, n in enumerate(sizes):
        index[i, :n] = torch.arange(start[i], start[i] + n)
    held = torch.arange(int(start[-1]), len(y)).expand(len(sizes), -1)
    none = torch.zeros(0), torch.zeros(0)
    tables = [
        Table(x, torch.tensor(y), rows, counts, *none)
        for rows, counts in ((index, np.array(sizes)), (held, np.full(len(sizes), 20)))
    ]
    net = Net(spec, (tokens,), 2)
    return Federation(net, 2, CPU, tables[0], tables[1], tables[1], np.arange(len(sizes)))


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(batch_size=4, epochs=2, client=adam(0.01)),
        FedMix(batch_size=4, experts=2),
        Local(batch_size=4, epochs=4, client=sgd(0.5), stop=EarlyStop(every=1, patience=2)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_a_cohort_reads_together_what_each_would_read_alone(algorithm, spec):
    fed = readers(spec=spec)
    together, one, two = (after(algorithm, fed, 2, chunk=c) for c in (None, 1, 2))
    assert_alike(together, one)
    assert_alike(together, two)


def test_the_steps_written_out_are_those_of_nn_lstm():
    """A plain loop over clients of ``nn.LSTM`` and plain SGD, against the cohort's program."""
    fed = readers()
    algorithm = FedAvg(batch_size=None, epochs=3, client=sgd(0.3))
    state = algorithm.init(fed, 0)
    begun = {n: t.clone() for n, t in state.shared.items()}
    _, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=1.0)
    for place, row in enumerate(report.rows):
        words, lstm, head = (
            nn.Embedding(20, 5),
            nn.LSTM(5, 4, batch_first=True, bidirectional=True),
            nn.Linear(8, 2),
        )
        model = nn.ModuleDict({"base": nn.Sequential(words, lstm), "head": head})
        model.load_state_dict(begun)
        held = fed.train.index[row, : fed.train.sizes[row]]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(3):
            _, (last, _) = lstm(words(fed.train.x[held].long()))
            loss = nn.functional.cross_entropy(head(torch.cat([*last], -1)), fed.train.y[held])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for name, p in model.named_parameters():
            moved = begun[name] - report.messages[name][place]
            torch.testing.assert_close(moved, p.detach(), rtol=1e-4, atol=1e-6)


def test_texts_are_learned_and_mixed():
    fed = readers((30, 30, 30))
    generalist = FedAvg(batch_size=5, client=adam(0.02))
    mixture = Mixture(batch_size=5, epochs=3, client=adam(0.01), stop=None)
    state = after(generalist, fed, 5)
    assert evaluate(fed, generalist, state, fed.test).accuracy.mean() > 0.8
    mixed = after(mixture, fed, first=state)
    assert evaluate(fed, mixture, mixed, fed.test).accuracy.mean() > 0.8


def test_readers_share_a_program_on_a_cpu():
    fed = readers()
    assert not fed.net.alone(CPU) and chunk_of(fed, None) == READERS
    large = replace(fed, net=Net(BiLSTM(), (200,), 4))
    assert not large.net.alone(CPU) and chunk_of(large, None) == READERS


def test_only_the_first_tokens_of_a_text_are_read():
    net = Net(BiLSTM(vocabulary=20, embedding=5, hidden=4, tokens=3), (6,), 2)
    params, text = net.init(0), torch.randint(2, 20, (4, 6))
    cut = Net(BiLSTM(vocabulary=20, embedding=5, hidden=4), (3,), 2)
    torch.testing.assert_close(net(params, text), cut(params, text[:, :3]))
