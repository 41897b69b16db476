"""The engine against a plain loop of separate torch trainings, and its promises on randomness."""

import math
import os
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from cases import refused
from conftest import LENET, make_federation, parts_of, scatter
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import SIZES, close, held_by, plain, plans_of, play, trained_alone
from small import TASK

from fedlib import Optimizer, sgd, value
from fedlib.algorithms import FedAvg, FedMix, FedRep, Local, Personal, PrunedFedMix
from fedlib.algorithms.fedmix import MEMORY
from fedlib.engine import Cohort, EarlyStop, Phase, evaluate, play_round
from fedlib.engine.batches import make_plan
from fedlib.engine.evaluate import nll
from fedlib.engine.train import train_phase
from fedlib.engine.width import Width
from fedlib.models import MLP, map_experts
from fedrun import Experiment, run

OPTIMIZERS = {
    "sgd": Optimizer("sgd", lr=0.1), "adam": Optimizer("adam", lr=0.01),
    "momentum": Optimizer("sgd", lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": Optimizer("adamw", lr=0.01, weight_decay=0.1),
}  # fmt: skip


def images(sizes=SIZES, model=LENET):
    return make_federation(sizes, model=model, shape=(12, 12, 1))


@pytest.mark.parametrize("model", [MLP(hidden=(7,)), LENET], ids=["mlp", "lenet"])
@pytest.mark.parametrize("sizes", [(12, 12, 12, 12), (3, 17, 1, 0)], ids=["equal", "ragged"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("chunk", [1, 3])
def test_cohort_equals_separate_trainings(model, sizes, name, chunk):
    """Also of a client that ends before the others, or that has no examples."""
    fed, algorithm = images(sizes, model), Local(client=OPTIMIZERS[name], epochs=3, batch_size=4)
    how = {"round": 2, "seed": 5, "cohort": 4, "chunk": chunk}
    state, _ = play_round(algorithm, fed, algorithm.init(fed, 5), **how)
    for row in range(4):
        model = fed.net.module_of(0)
        model.load_state_dict(algorithm.init_params(fed, 5))
        trained_alone(fed, algorithm, model, row, 5, 2)
        close(dict(model.named_parameters()), plain(state, row), 1e-4, 1e-5)


@pytest.mark.parametrize("chunk", [1, 3])
def test_experts_in_one_vmapped_program_equal_experts_one_by_one(monkeypatch, chunk):
    """The path that a GPU takes: clients and experts both vmapped."""
    fed, algorithm = images(), FedMix(experts=3, batch_size=5)
    one_by_one = play(algorithm, fed, 1, seed=1, chunk=chunk)[0]
    nll = evaluate(fed, algorithm, one_by_one, fed.test).nll
    monkeypatch.setattr("fedlib.algorithms.fedmix.map_experts", partial(map_experts, together=True))
    together = play(algorithm, fed, 1, seed=1, chunk=chunk)[0]
    close(one_by_one.flat(), together.flat(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(evaluate(fed, algorithm, together, fed.test).nll, nll, rtol=1e-4)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 23), min_size=1, max_size=5), st.none() | st.integers(1, 9),
    st.integers(1, 3), st.integers(0, 2**31),
)  # fmt: skip
def test_a_plan_shows_every_example_once_per_epoch(sizes, batch, epochs, seed):
    ids, n = np.arange(len(sizes)) + 7, np.array(sizes)
    how = {"epochs": epochs, "where": (seed, 1, 0)}
    plan = make_plan(ids, n, batch_size=batch, **how)
    for i, size in enumerate(sizes):
        real = plan.counts[i, : plan.ends[i]]
        assert (real > 0).all() and (plan.counts[i, plan.ends[i] :] == 0).all()
        for epoch in np.split(np.arange(plan.ends[i]), epochs):
            seen = [p for t in epoch for p in plan.positions[i, t, : plan.counts[i, t]]]
            assert sorted(seen) == list(range(size))
    alone = make_plan(ids[-1:], n[-1:], batch_size=batch or max(sizes) or None, **how)
    steps, width = alone.positions.shape[1:]
    assert (alone.positions[0] == plan.positions[-1, :steps, :width]).all()
    # As many steps at every client begin as its epochs do, and end where they end.
    same = make_plan(ids, n, batch_size=batch, **how, steps=(most := int(plan.ends.max())) or 1)
    for i, size in enumerate(sizes):
        assert same.ends[i] == (most if size else 0)
        for made, epoch in ((same.positions, plan.positions), (same.counts, plan.counts)):
            assert (made[i, : plan.ends[i]] == epoch[i, : plan.ends[i]]).all()


def test_every_client_takes_as_many_steps_whatever_its_size():
    """Five examples in batches of four are 4, 1, 4, 1 and 4: one pass begins as another ends."""
    plan = make_plan(np.arange(4), np.array([5, 13, 2, 0]), 4, 1, (0, 0, 0), steps=5)
    assert plan.ends.tolist() == [5, 5, 5, 0] and plan.per_epoch.tolist() == [2, 4, 1, 0]
    assert plan.counts.tolist() == [[4, 1, 4, 1, 4], [4, 4, 4, 1, 4], [2] * 5, [0] * 5]
    passes = plan.positions[0].reshape(-1)[[0, 1, 2, 3, 4, 8, 9, 10, 11, 12]].reshape(2, 5)
    assert np.sort(passes).tolist() == [[*range(5)]] * 2
    fed, found = make_federation((8, 8)), []
    for steps in (4, 3):  # the head's epochs are FedRep's own
        algorithm = FedRep(batch_size=4, head_epochs=2, steps=steps)
        found += [plan.ends.tolist() for plan in plans_of(algorithm, fed, np.arange(2))]
    assert found == [[4, 4], [4, 4], [4, 4], [3, 3]]


@pytest.mark.parametrize(("keep", "delta"), [("best", 0.0), ("last", 0.0), ("best", 0.02)])
def test_early_stopping_returns_each_clients_best_weights(keep, delta):
    fed, rows = make_federation((12, 5, 9)), torch.arange(3)
    algorithm = FedAvg()
    leaves = algorithm.client_params(fed, state := algorithm.init(fed, 0), rows)
    stop = EarlyStop(every=2, patience=3, min_delta=delta, keep=keep)
    phase = Phase(Optimizer("adam", lr=0.02), epochs=40, batch_size=4, stop=stop)
    plan = make_plan(fed.ids, fed.train.sizes, batch_size=4, epochs=40, where=(0, 0, 0))
    cohort = Cohort(fed, rows, leaves, {}, {}, torch.zeros(3))
    together = train_phase(algorithm, cohort, phase, plan, Width(fed, state, 3)).params
    for i in range(3):
        expected = _stop_by_hand(fed, algorithm, leaves, i, plan, phase)
        close(expected, {n: t[i] for n, t in together.items()}, atol=1e-5)


def test_without_validation_examples_nobody_stops():
    """Client 1 has none: it ends as without early stopping, the others as if all had some."""
    fed, how = make_federation((12, 5, 9)), {"batch_size": 4, "epochs": 9, "client": sgd(0.5)}
    held = fed.validation
    mine = replace(held, indices=held.indices[held.owners != 1], sizes=np.array([6, 0, 6]))
    stopped, free = (Local(stop=s, **how) for s in (EarlyStop(every=1, patience=2), None))
    asked = (stopped, mine), (stopped, held), (free, held)
    ends = [play(a, replace(fed, validation=v), 1)[0].client_params["head.bias"] for a, v in asked]
    assert torch.equal(ends[0][1], ends[2][1]) and torch.equal(ends[0][[0, 2]], ends[1][[0, 2]])
    assert not torch.equal(ends[1], ends[2])


def _stop_by_hand(fed, algorithm, leaves, i, plan, phase):
    w = {n: t[i].clone().requires_grad_(True) for n, t in leaves.items()}
    optimizer = phase.optimizer.build(w)
    best, kept, waited = np.inf, None, 0
    row = torch.tensor([i])
    for t in range(plan.ends[i]):
        c = plan.counts[i, t]
        places = plan.positions[i, t, :c].reshape(1, 1, -1)
        batch = next(fed.train.batches(row, places, np.array([[c]]), np.array([c])))
        optimizer.zero_grad()
        algorithm.loss(fed.net, w, {}, batch.map(lambda t: t[0])).backward()
        optimizer.step()
        if (t + 1) % (phase.stop.every * plan.per_epoch[i]) == 0:
            held = fed.validation.all_examples(row).map(lambda t: t[0])
            now = float(nll(algorithm, fed.net, w, {}, held).detach())
            waited += 1
            if now < best - phase.stop.min_delta:
                best, waited, kept = now, 0, {n: v.detach().clone() for n, v in w.items()}
            if waited == phase.stop.patience:
                break
    assert waited == phase.stop.patience
    return kept if phase.stop.keep == "best" else {n: v.detach() for n, v in w.items()}


EVALUATED = FedAvg(), FedMix(experts=2), Local(), Personal(local=("head.b", "base.0.w"))


@pytest.mark.parametrize("algorithm", EVALUATED, ids=repr)
def test_evaluation_equals_a_loop_over_clients(algorithm):
    fed = images((10, 10, 10))
    state = scatter(algorithm.init(fed, 0), scale=0.3)
    scores = evaluate(fed, algorithm, state, fed.test)
    for i in range(3):
        x, y = held_by(fed.test, i)
        code = algorithm.shared_forward(fed.net, state.server_params, x)
        logp = algorithm.predict(fed.net, *parts_of(fed, algorithm, state, i), code).logp
        assert scores.accuracy[i] == pytest.approx(float((logp.argmax(1) == y).double().mean()))
        said = -logp[torch.arange(6), y].double().mean()
        assert scores.nll[i] == pytest.approx(float(said), rel=1e-4)


FAST = {"batch_size": 4, "client": sgd(0.3)}
ALGORITHMS = FedAvg(**FAST), Personal(local=("head.",), **FAST), Local(**FAST)
ALGORITHMS += FedMix(experts=2, **FAST), PrunedFedMix(experts=3, eta=1.0, **FAST)


def accuracy(fed, algorithm, params, ctx, table, row):
    """One client's share of right answers, example by example; nan without examples."""
    hits = []
    for example in table.client(row):
        code = algorithm.shared_forward(fed.net, params, table.inputs(example[None]))
        said = algorithm.predict(fed.net, params, ctx, code).logp[0]
        hits.append(bool(said.argmax() == table.y[example]))
    return np.mean(hits) if hits else math.nan


@pytest.mark.parametrize("model", [LENET, None])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_adapted_accuracies_are_those_of_the_trained_leaves(algorithm, model):
    fed = make_federation(SIZES, model=model, shape=(12, 12, 1))
    fed.test = fed.test.subset(np.arange(3), [6, 3, 0])  # ragged: padding must not count
    state = algorithm.init(fed, 0)
    if isinstance(algorithm, PrunedFedMix):
        state.server_memory[MEMORY] = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1 / 3] * 3])
    contexts = algorithm.client_constants(fed, state, torch.arange(3))
    shared = {n: t.clone() for n, t in state.server_params.items()}
    after, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=3, score=True)
    assert set(report.adapted) == {"validation", "test"}
    for place, row in enumerate(report.clients):
        sent = {n: shared[n] - report.messages[n][place] for n in shared if n in report.messages}
        params = {**sent, **{n: t[row] for n, t in after.client_params.items()}}
        ctx = {n: t[row] for n, t in contexts.items()}
        for split, table in (("validation", fed.validation), ("test", fed.test)):
            expected = accuracy(fed, algorithm, params, ctx, table, row)
            assert float(report.adapted[split][place]) == pytest.approx(expected, nan_ok=True)


@value
class Faulty(FedAvg):
    """Its loss looks for what no batch has."""

    def loss(self, net, params, ctx, batch):
        return batch.side["nothing"]


@pytest.mark.parametrize("chunk", [1, None])
def test_an_error_in_a_loss_names_algorithm_client_round_and_step(chunk):
    fed, algorithm = make_federation(), Faulty()
    state = algorithm.init(fed, 0)
    with pytest.raises(KeyError, match="nothing") as told:
        play_round(algorithm, fed, state, round=3, seed=0, cohort=3, chunk=chunk)
    where, how = told.value.__notes__
    clients = r"\d" if chunk else r"\d, \d, \d"
    assert re.fullmatch(rf"in Faulty\.loss of client {clients}, step 0", where)
    assert how.startswith("in round 3 of Faulty")
    assert ("debug=True" in how) == (chunk != 1), "no advice to do what is being done"


@value
class Constant(FedAvg):
    """Its loss depends on no parameter."""

    def loss(self, net, params, ctx, batch):
        return batch.weight.mean()


@pytest.mark.parametrize("chunk", [1, None])
def test_a_loss_without_parameters_is_refused(chunk):
    with pytest.raises(ValueError, match=r"depends on no trained parameter \(base\.") as told:
        play(Constant(), make_federation(), 1, chunk=chunk)
    assert any("Constant.loss of client" in note for note in told.value.__notes__)


UNVMAPPED = {  # what vmap does not support in a method of one client, and what the error says
    "an if": (lambda t: t if t > 0 else -t, "an `if` on the values of a tensor; use torch.where"),
    "item": (lambda t: t * t.item(), r"\.item\(\), float\(\) or int\(\); compute with"),
    "numpy": (lambda t: t + float(np.mean(t.detach().numpy())), "numpy or tolist"),
    "rand": (lambda t: t * torch.rand(()), r"random numbers; read batch.random \(`Phase.random_"),
    "mask": (lambda t: t[t > 0].sum(), r"shapes that depend on values, as x\[mask\] has"),
}


@value
class Unvmapped(FedAvg):
    """Its loss, or its prediction, does what vmap does not support."""

    does: str = ""
    where: str = "loss"

    def loss(self, net, params, ctx, batch):
        loss = super().loss(net, params, ctx, batch)
        return UNVMAPPED[self.does][0](loss) if self.where == "loss" else loss

    def predict(self, net, params, ctx, code):
        said = super().predict(net, params, ctx, code)
        return said._replace(logp=said.logp * UNVMAPPED[self.does][0](said.logp.sum()))


@pytest.mark.parametrize("does", UNVMAPPED)
def test_what_vmap_does_not_support_is_named_with_its_method_and_what_to_write(does):
    fed, algorithm = make_federation(), Unvmapped(does=does)
    state, words = algorithm.init(fed, 0), UNVMAPPED[does][1]
    with pytest.raises(RuntimeError, match=rf"^Unvmapped\.loss .*{words}.*debug=True"):
        play_round(algorithm, fed, state, round=0, seed=0, cohort=3)
    play_round(algorithm, fed, state, round=0, seed=0, cohort=3, chunk=1)  # what debug=True does
    with pytest.raises(RuntimeError, match=rf"^Unvmapped\.predict .*{words}") as told:
        evaluate(fed, algorithm, state, fed.test)
    assert "debug=True" not in str(told.value), "it would not help"


@value
class Hooked(FedAvg):
    """FedAvg whose clients keep three numbers, and whose hooks a test replaces."""

    local = ("seen",)

    def phases(self):
        return (self.phase(train=("base.", "head.")),)

    def init_params(self, fed, seed):
        return {**FedAvg.init_params(self, fed, seed), "seen": torch.zeros(3)}


@pytest.mark.parametrize("chunk", [1, None])
@refused("hooks")
def test_a_hook_that_returns_something_else_is_named(code, message, chunk, monkeypatch):
    """What was lost, or another client's, without a word, or an error of torch's."""
    for hook, found in eval(f"dict({code})").items():
        monkeypatch.setattr(Hooked, hook, found)
    fed, how = make_federation((4,) * 4), {"round": 0, "seed": 0, "cohort": 2, "chunk": chunk}
    with pytest.raises((TypeError, ValueError), match=message):
        state = Hooked(batch_size=4).init(fed, 0)
        evaluate(fed, Hooked(), state, fed.test)
        play_round(Hooked(batch_size=4), fed, state, **how)


@pytest.mark.parametrize("debug", [False, True])
def test_with_debug_a_loss_runs_in_this_process_without_vmap(monkeypatch, debug):
    """What all cores and vmap would hide: whose loss it is, and plain tensors."""
    seen, torch_threads = [], torch.get_num_threads()

    def loss(self, net, params, ctx, batch):
        seen.append((os.getpid(), torch._C._functorch.is_batchedtensor(batch.y)))
        return FedAvg.loss(self, net, params, ctx, batch)

    monkeypatch.setattr(Faulty, "loss", loss)
    torch.set_num_threads(2)
    try:
        run(Experiment(TASK, Faulty(), 2, cohort=4), device="cpu", progress=False, debug=debug)
    finally:
        torch.set_num_threads(torch_threads)
    assert not debug or {*seen} == {(os.getpid(), False)}
    assert debug or any(batched for _, batched in seen)
