"""What tests of algorithms share: rounds, oracles' arithmetic, and every algorithm made small."""

import numpy as np
import pytest
import torch
from cases import BATTERY_CODE
from conftest import make_federation
from torch import nn
from torch.nn.functional import cross_entropy

import fedlib.engine
from fedlib import MajorityClasses, MatchedHoldout, Task, adam, sgd
from fedlib import algorithms as alg
from fedlib.algorithms.local import LaterStage
from fedlib.engine import Cohort, play_round
from fedlib.engine.batches import make_plan
from fedlib.models import MLP, FastText, FunctionalModel

SIZES = (11, 4, 9)
IMAGE = (12, 12, 1)
HELD_OUT = MatchedHoldout(pool=300, validation=20, test=30)
SKEWED = Task("digits", MajorityClasses(clients=8, size=30, p=0.6), MLP((8,)), HELD_OUT)


class Linear:
    """Softmax regression: the model whose gradient fits on one line."""

    def base(self, shape):
        return nn.Flatten(), int(np.prod(shape))


def one_step(fed, row, w, lr):
    """A full-batch gradient step of softmax regression in NumPy."""
    held = fed.train.client(row).numpy()
    x = fed.train.x.numpy()[held].astype(float) / 128 - 1
    x = x.transpose(0, 3, 1, 2).reshape(len(held), -1)
    scores = np.exp(x @ w["head.weight"].T + w["head.bias"])
    error = scores / scores.sum(1, keepdims=True)
    error[np.arange(len(held)), fed.train.y.numpy()[held]] -= 1
    gradient = {"head.weight": error.T @ x / len(held), "head.bias": error.mean(0)}
    return {n: w[n] - lr * g for n, g in gradient.items()}


def arrays(leaves):
    return {n: t.double().numpy() for n, t in leaves.items()}


def begun(algorithm, fed, seed=0, first=None):
    """The first state; a second stage follows three rounds of its first."""
    if first is None and isinstance(algorithm, LaterStage | alg.Mixture):
        first, _ = play(getattr(algorithm, "of", alg.FedAvg(**FAST)), fed, seed=seed)
    return algorithm.init(fed, seed, first)


def play(algorithm, fed, rounds=3, seed=0, cohort=None, first=None, state=None, **more):
    """The state after some rounds, by default of all clients, and the last report."""
    state = state or begun(algorithm, fed, seed, first)
    for t in range(rounds):
        how = {"round": t, "seed": seed, "cohort": cohort or fed.num_clients}
        state, report = play_round(algorithm, fed, state, **how, **more)
    return state, report


def plans_of(algorithm, fed, rows, round=0, seed=0):
    """The mini-batches of some clients in each phase of a round."""
    ids, sizes = fed.ids[rows], fed.train.sizes[rows]
    return [
        make_plan(ids, sizes, p.batch_size or sizes.max(), p.epochs, (seed, round, k), p.steps)
        for k, p in enumerate(algorithm.phases())
    ]


def cohort_of(algorithm, fed, state, rows):
    """Some clients as they are before a round's first phase."""
    now = {"round": torch.tensor(state.round), "seed": torch.tensor(state.seed)}
    leaves = algorithm.client_params(fed, state, rows), algorithm.client_constants(fed, state, rows)
    common = {**algorithm.round_constants(fed, state), **now}
    return Cohort(fed, rows, *leaves, common, torch.zeros(len(rows)))


def held_by(table, row):
    """A client's images and labels."""
    held = table.client(row)
    return table.inputs(held), table.y[held]


def one(fed, row=0):
    """A client's examples as one batch."""
    return fed.train.all_examples(torch.tensor([row])).map(lambda t: t[0])


def loss_on(fed, x, y):
    """The cross-entropy of a plain model's leaves on some examples."""
    return lambda w: cross_entropy(fed.net(w, x), y)


def stepped(w, loss, lr, names=("",)):
    """Leaves after a gradient step on ``loss(leaves)`` of those whose names begin so."""
    w = {n: t.detach().clone().requires_grad_() for n, t in w.items()}
    moving = [n for n in w if n.startswith(tuple(names))]
    steps = zip(moving, torch.autograd.grad(loss(w), [w[n] for n in moving]), strict=True)
    return {n: t.detach() for n, t in w.items()} | {n: (w[n] - lr * g).detach() for n, g in steps}


def client(fed, algorithm, state, row):
    """A client's leaves and what it knows besides its batch."""
    rows = torch.tensor([row])
    params = {n: t[0] for n, t in algorithm.client_params(fed, state, rows).items()}
    context = {n: t[0] for n, t in algorithm.client_constants(fed, state, rows).items()}
    return params, {**context, **algorithm.round_constants(fed, state)}


def plain(state, row=0):
    """All leaves of a client under their plain names."""
    return {**state.server_params, **{n: t[row] for n, t in state.client_params.items()}}


def trained_alone(fed, algorithm, model, row, seed, round):
    """A module after one client's training, by a plain loop of torch."""
    x, y = held_by(fed.train, row)
    optimizer = algorithm.client.build(dict(model.named_parameters()))
    how = {"batch_size": algorithm.batch_size, "epochs": algorithm.epochs}
    plan = make_plan(fed.ids[[row]], fed.train.sizes[[row]], where=(seed, round, 0), **how)
    for t in range(plan.steps):
        some = plan.positions[0, t, : plan.counts[0, t]]
        optimizer.zero_grad()
        cross_entropy(model(x[some]), y[some]).backward()
        optimizer.step()
    return model


def close(one, other, rtol=1e-4, atol=1e-6):
    """Some leaves are nearly the same as those of the same names."""
    for name, leaf in one.items():
        how = {"rtol": rtol, "atol": atol, "msg": lambda m, n=name: f"{n}: {m}"}
        torch.testing.assert_close(other[name], leaf, **how)


def equal(one, other):
    """Leaves have the same names and bits."""
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


def texts(sizes=SIZES):
    """A federation of random texts, with a small fastText."""
    fed = make_federation(sizes)
    for table in (fed.train, fed.validation, fed.test):
        table.x = torch.randint(0, 20, (len(table.y), 10), dtype=torch.int32)
        table.scale = table.shift = torch.zeros(0)
    fed.net = FunctionalModel(FastText(vocabulary=20, width=6), (10,), 3)
    return fed


def numbers(sizes=SIZES):
    """A federation of random rows of six numbers."""
    fed, draw = make_federation(sizes), torch.Generator().manual_seed(0)
    for table in (fed.train, fed.validation, fed.test):
        table.x = torch.randn(len(table.y), 6, generator=draw)
        table.scale, table.shift = torch.ones(6), torch.zeros(6)
    fed.net = FunctionalModel(MLP((7,)), (6,), 3)
    return fed


# Every algorithm: its defaults, unless the table has it, and others with more options.
FAST = {"batch_size": 4}
SPLIT = {"batch_size": 4, "client": sgd(0.2)}
MIXED = alg.FedMix(experts=2, personal_bias=True, **FAST)
MIXTURE = {"epochs": 2, "client": adam(1e-3), **FAST}
GATED = {"epochs": 4, "client": adam(1e-2), **FAST}
WORDS = {**vars(fedlib.engine), **vars(alg.ifca), **globals(), **vars(alg)}
SECOND, MORE, NINE = (
    {name: eval(code, WORDS) for name, code in group.items()} for group in BATTERY_CODE.values()
)
BATTERY = {n: SECOND.get(n) or getattr(alg, n)() for n in alg.__all__} | SECOND | MORE
every = pytest.mark.parametrize("algorithm", BATTERY.values(), ids=BATTERY)
nine = pytest.mark.parametrize("of", NINE.values(), ids=NINE)
