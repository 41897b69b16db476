"""A mixture over all clusters' models and one's own (003), and the other ways to use clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation, parts_of
from test_algorithms import play
from test_ifca import model

from fedlib.algorithms import IFCA, FedAvg, Local, Mixture
from fedlib.algorithms.cluster_early_stopping import ClusterStop
from fedlib.algorithms.cluster_models import CLUSTERS, FIT
from fedlib.algorithms.fedavg import at_label, mean
from fedlib.algorithms.mixture import GATE, GLOBAL, OWN, SAID, pooled
from fedlib.engine import EarlyStop, State, evaluate, play_round
from fedlib.federation import UNSEEN
from fedlib.models import MLP
from fedlib.optim import adam, sgd
from fedlib.partition import Clients, Majority, Mirrored
from fedlib.runs import Experiment, run
from fedlib.tasks import Task

SIZES = (11, 4, 9, 6)
FAST = {"batch_size": 4, "client": sgd(0.1)}
HOME = {"epochs": 3, "batch_size": 4, "client": adam(0.01), "stop": None}


@pytest.fixture(params=[None, LENET], ids=["mlp", "lenet"])
def fed(request):
    return make_federation(SIZES, model=request.param, shape=(12, 12, 1))


@pytest.fixture
def clusters(fed):
    """Three clusters after some rounds, settled."""
    algorithm = IFCA(clusters=3, **FAST)
    return algorithm.assign_models(fed, play(algorithm, fed, rounds=4)[0])


@pytest.fixture
def alone(fed, clusters):
    """Local models from scratch, beside the clusters."""
    own, _ = play(Local(**FAST), fed, rounds=1, cohort=4)
    return State(clusters.shared, own.local, memory=dict(clusters.memory))


def mixed(fed, first, rounds=1, **options):
    algorithm = Mixture(**{**HOME, "gate": MLP((5,)), **options})
    state = algorithm.init(fed, 0, first)
    for t in range(rounds):
        state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=4)
    return algorithm, state


def said_by_all(fed, state, row, x):
    """log p of the three clusters and of one client's own model, [B, 4, classes]."""
    shared = {n.removeprefix(GLOBAL): t for n, t in state.shared.items()}
    theirs = [
        fed.net({n.removeprefix(CLUSTERS): t[j] for n, t in shared.items()}, x) for j in range(3)
    ]
    own = {n.removeprefix(OWN): t[row] for n, t in state.local.items() if n.startswith(OWN)}
    return torch.stack([s.log_softmax(-1) for s in [*theirs, fed.net(own, x)]], 1)


def gate_of(fed, state, row, x, family):
    own = {n.removeprefix(GATE): t[row] for n, t in state.local.items() if n.startswith(GATE)}
    return fed.net.like(family, 4)(own, x).log_softmax(-1)


def test_predictions_are_those_of_the_formula(fed, alone):
    algorithm, state = mixed(fed, alone)
    scores = evaluate(fed, algorithm, state, fed.test)
    for row in range(4):
        held = fed.test.index[row, : fed.test.sizes[row]]
        x, y = fed.test.inputs(held), fed.test.y[held]
        h = gate_of(fed, state, row, x, MLP((5,))).exp().unsqueeze(-1)
        p = (h * said_by_all(fed, state, row, x).exp()).sum(1)
        assert scores.accuracy[row] == pytest.approx(float((p.argmax(-1) == y).double().mean()))
        nll = -p[torch.arange(len(y)), y].log().mean()
        assert scores.nll[row] == pytest.approx(float(nll), rel=1e-4)
    assert scores.gate is not None and scores.gate.shape == (3, 4)


class Again(Mixture):
    """A mixture that computes at every step what its experts say."""

    def known(self, net, frozen, ctx, batch):
        return UNSEEN

    def loss(self, net, params, ctx, batch):
        code = self.encode(net, params, batch["x"])
        said = at_label(self.say(net, params, ctx, code), batch["y"])
        return -mean(pooled(said, self._open(net, params, batch["x"])), batch["weight"])


@pytest.mark.parametrize("frozen", [True, False])
def test_looking_up_what_experts_say_trains_as_computing_it_again_would(fed, alone, frozen):
    ours, state = mixed(fed, alone, frozen=frozen, stop=EarlyStop(every=1, patience=1))
    plain = Again(
        **{**HOME, "gate": MLP((5,)), "stop": EarlyStop(every=1, patience=1)}, frozen=frozen
    )
    again, _ = play_round(plain, fed, plain.init(fed, 0, alone), round=0, seed=0, cohort=4)
    begun = ours.init(fed, 0, alone)
    for name, leaf in state.local.items():
        torch.testing.assert_close(leaf, again.local[name], rtol=1e-3, atol=1e-5)
        if "weight" in name:
            moved = not torch.equal(leaf, begun.local[name])
            assert moved == (not frozen or name.startswith(GATE))


def test_what_frozen_experts_say_is_said_of_ones_own_examples(fed, alone):
    frozen, state = mixed(fed, alone, frozen=True)
    for row in (0, 2):
        held = fed.train.index[row, : fed.train.sizes[row]]
        said = said_by_all(fed, state, row, fed.train.inputs(held))
        params, ctx = parts_of(fed, frozen, state, row)
        batch = {"x": fed.train.inputs(held), "y": fed.train.y[held]}
        known = frozen.known(fed.net, params, ctx, batch).beside
        at = said[torch.arange(len(held)), :, fed.train.y[held]]
        torch.testing.assert_close(known[SAID], at, rtol=1e-4, atol=1e-5)


def test_joint_training_moves_specialists_and_copies_of_the_clusters(fed, alone):
    algorithm, state = mixed(fed, alone, train_global=True)
    begun = algorithm.init(fed, 0, alone)
    assert all(not torch.equal(t, begun.local[n]) for n, t in state.local.items() if "weight" in n)
    assert all(torch.equal(t, begun.shared[n]) for n, t in state.shared.items())
    name = f"copy.{CLUSTERS}head.weight"
    assert state.local[name].shape == (4, 3, *fed.net.init(0)["head.weight"].shape)


@pytest.mark.parametrize("expert", range(4))
def test_a_gate_that_is_open_to_one_expert_is_that_expert(fed, alone, expert):
    algorithm, state = mixed(fed, alone)
    for name in (f"{GATE}head.weight", f"{GATE}head.bias"):
        state.local[name].zero_()
    state.local[f"{GATE}head.bias"][:, expert] = 100.0
    scores = evaluate(fed, algorithm, state, fed.test)
    for row in range(4):
        held = fed.test.index[row, : fed.test.sizes[row]]
        said = said_by_all(fed, state, row, fed.test.inputs(held))[:, expert]
        right = float((said.argmax(-1) == fed.test.y[held]).double().mean())
        assert scores.accuracy[row] == pytest.approx(right)
    assert scores.gate[:, expert].min() == pytest.approx(1.0)


@pytest.mark.parametrize("pool", ["mean", "product"])
def test_an_ensemble_counts_all_experts_the_same_and_trains_nothing(fed, alone, pool):
    algorithm, state = mixed(fed, alone, pool=pool)
    assert not [n for n in state.local if n.startswith(GATE)] and algorithm.phases() == ()
    begun = algorithm.init(fed, 0, alone)
    assert all(torch.equal(t, begun.flat()[n]) for n, t in state.flat().items())
    scores = evaluate(fed, algorithm, state, fed.test)
    for row in range(4):
        held = fed.test.index[row, : fed.test.sizes[row]]
        said, y = said_by_all(fed, state, row, fed.test.inputs(held)), fed.test.y[held]
        p = said.exp().mean(1) if pool == "mean" else said.sum(1).div(4).softmax(-1)
        assert scores.nll[row] == pytest.approx(
            -float(p[torch.arange(len(y)), y].log().mean()), rel=1e-4
        )
    uniform = {n: torch.zeros_like(t) for n, t in mixed(fed, alone)[1].local.items() if GATE in n}
    gated = Mixture(**{**HOME, "gate": MLP((5,))})
    flat = replace(state, local={**state.local, **uniform})
    if pool == "mean":
        np.testing.assert_allclose(evaluate(fed, gated, flat, fed.test).nll, scores.nll, rtol=1e-5)


def test_clusters_that_are_nobodys_best_can_be_left_out(fed, clusters, alone):
    alone.memory[FIT] = torch.tensor([[1.0, 2.0, 0.5]] * 3 + [[0.1, 2.0, 0.5]])
    algorithm, state = mixed(fed, alone, used_only=True)
    name = f"{GLOBAL}{CLUSTERS}head.weight"
    assert torch.equal(state.shared[name], clusters.shared[f"{CLUSTERS}head.weight"][[0, 2]])
    assert state.local[f"{GATE}head.bias"].shape == (4, 3)
    assert evaluate(fed, algorithm, state, fed.test).accuracy.shape == (4,)


def test_fine_tuning_starts_from_each_clients_own_cluster(fed, clusters):
    state = Local(**FAST).init(fed, 1, clusters)
    best = clusters.memory[FIT].argmin(1).tolist()
    for row, j in enumerate(best):
        assert all(torch.equal(state.local[n][row], t) for n, t in model(clusters, j).items())
    tuned, theirs = Local(batch_size=4), IFCA(clusters=3)
    one, other = evaluate(fed, tuned, state, fed.test), evaluate(fed, theirs, clusters, fed.test)
    np.testing.assert_allclose(one.accuracy, other.accuracy)


def test_local_networks_have_a_size_of_their_own(fed, clusters):
    state, _ = play(Local(model=MLP((3,)), **FAST), fed, rounds=2, cohort=4)
    assert {n: t.shape[1:] for n, t in state.local.items()} == {
        n: t.shape for n, t in fed.net.like(MLP((3,))).init(0).items()
    }
    first = State(clusters.shared, state.local)
    algorithm, both = mixed(fed, first, expert=MLP((3,)))
    begun = algorithm.init(fed, 0, first)
    assert all(torch.equal(begun.local[OWN + n], t) for n, t in state.local.items())
    assert 0 <= evaluate(fed, algorithm, both, fed.test).accuracy.mean() <= 1


def test_one_cluster_is_the_mixture_of_001():
    fed = make_federation(SIZES)
    plain, _ = play(FedAvg(**FAST), fed, rounds=3)
    one = IFCA(clusters=1, **FAST)
    ours = one.assign_models(fed, play(one, fed, rounds=3)[0])
    own, _ = play(Local(**FAST), fed, 1, cohort=4)
    states = [State(f.shared, own.local, memory=f.memory) for f in (plain, ours)]
    scores = [evaluate(fed, *mixed(fed, first), fed.test) for first in states]
    np.testing.assert_allclose(scores[0].nll, scores[1].nll, rtol=1e-5)
    assert scores[0].gate.shape == scores[1].gate.shape == (3, 2)


def test_pools_of_many_experts():
    said = torch.tensor([[0.2, 0.5, 0.1]]).log()
    gate = torch.tensor([[0.5, 0.25, 0.25]]).log()
    assert float(pooled(said, gate).exp()) == pytest.approx(0.1 + 0.125 + 0.025)
    logs = 0.5 * np.log(0.2) + 0.25 * np.log(0.5) + 0.25 * np.log(0.1)
    assert float(pooled(said, gate, "log")) == pytest.approx(logs)


def test_frozen_experts_cannot_be_trained():
    with pytest.raises(ValueError, match="give either frozen or train_global"):
        Mixture(frozen=True, train_global=True)


TASK = Task(
    "digits",
    Majority(clients=8, size=30, p=0.6),
    MLP((8,)),
    Mirrored(pool=300, validation=20, test=30),
)


def test_a_run_whose_clusters_leave_is_stored_and_sends_less():
    common = {"rounds": 6, "cohort": 0.5, "evaluate_every": 3}
    algorithm = IFCA(clusters=2, batch_size=10, client=sgd(0.5))
    stop = ClusterStop(every=1, patience=1)
    sent = []
    for each in (algorithm, replace(algorithm, stop=stop)):
        found = run(Experiment(TASK, each, **common), device="cpu", progress=False)
        metrics = found.metrics.to_pandas()
        sent.append(metrics.query("metric == 'bytes_down'")["value"].sum())
    left = metrics.query("metric == 'open_clusters'")["value"]
    assert left.iloc[-1] < 2 and left.is_monotonic_decreasing and sent[1] < sent[0]


def test_the_stages_of_a_run_and_its_diagnostics():
    """Clusters, then local models and fine-tuned ones, then the mixture, for some clients."""
    first = Experiment(
        TASK, IFCA(clusters=3, batch_size=10, epochs=2), 4, cohort=0.5, evaluate_every=2
    )
    some = replace(TASK, partition=Clients(TASK.partition, last=5))
    home = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1}
    stop = EarlyStop(every=1, patience=2)
    local = Local(batch_size=10, epochs=4, stop=stop, client=adam(0.01))
    alone, tuned = Experiment(some, local, **home), Experiment(some, local, after=first, **home)
    mixture = Mixture(epochs=4, frozen=True, client=adam(0.01))
    both = Experiment(some, mixture, after=first, beside=alone, **home)
    with pytest.raises(ValueError, match="beside needs a first stage to be beside of"):
        replace(both, after=None)
    found = {e: run(e, device="cpu", progress=False) for e in (first, tuned, both)}
    frames = {e: result.metrics.to_pandas() for e, result in found.items()}
    metrics = frames[first]
    own = metrics[(metrics["metric"] == "clusters") & (metrics["round"] == 4)]
    assert len(own) == 8 * 3 and own["value"].sum() == 8
    assert len(metrics[(metrics["metric"] == "cluster_nll") & (metrics["round"] == 4)]) == 8 * 3
    begun = frames[tuned].query("metric == 'test_accuracy' and round == 0").set_index("client")
    theirs = metrics.query("metric == 'test_accuracy' and round == 4").set_index("client")
    np.testing.assert_allclose(begun["value"], theirs["value"].loc[begun.index])
    last = frames[both].query("metric == 'test_accuracy' and round == 1")
    assert len(last) == 5 and frames[both].query("metric == 'bytes_up'")["value"].sum() == 0


def test_a_run_may_be_scored_at_its_end_only():
    federation = Experiment(TASK, IFCA(clusters=2), 3, cohort=0.5, evaluate_every=0)
    scored = run(federation, device="cpu", progress=False).select("test_nll")
    assert scored["round"].to_pylist() == [3] * 8
