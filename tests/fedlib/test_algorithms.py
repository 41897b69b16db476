"""FedAvg and Local by hand, what every algorithm must do, and what each is in its limits."""

import copy
import dataclasses
import doctest
import importlib
import pkgutil
from itertools import product

import numpy as np
import playing
import pytest
import torch
from cases import GOLDEN, refused
from conftest import LENET, make_federation, parts_of
from playing import (
    BATTERY,
    FAST,
    IMAGE,
    SIZES,
    begun,
    close,
    cohort_of,
    equal,
    every,
    plain,
    plans_of,
    play,
    texts,
)
from safetensors.torch import load, save

import fedlib.algorithms
import fedrun
from fedlib import Optimizer, adam, sgd, value
from fedlib import algorithms as alg
from fedlib.algorithms import FedAvg, interface
from fedlib.algorithms.fedavg import local_names
from fedlib.algorithms.ifca import FIT, EpsilonGreedy
from fedlib.engine import Prediction, State, evaluate, evaluate_global, play_round
from fedlib.engine.program import one_client, vmap_clients
from fedlib.engine.train import batches, with_precomputed
from fedlib.models import FastText, FunctionalModel, add_prefix, select_prefix
from fedlib.optim import Stepper
from fedrun.experiment import Log

evaluating = importlib.import_module("fedlib.engine.evaluate")  # which exports one of that name


def test_local_after_local_goes_on_and_leaves_the_first_stage_alone(fed):
    first, _ = play(alg.Local(batch_size=4), fed)
    kept = copy.deepcopy(first.client_params)
    assert equal(alg.Local().init(fed, 1, first).client_params, kept)
    play(alg.Local(), fed, first=first)
    assert equal(first.client_params, kept)


COPYING = dict.fromkeys(("Ditto", "APFL", "PFedMe", "FedSynMoE"), ("own.", ""))
COPYING |= {"MOON": ("previous.", ""), **dict.fromkeys(("FedRoD", "FedCP"), ("own.", "head."))}


@pytest.mark.parametrize("name", COPYING)
def test_copies_start_as_what_they_are_copies_of(fed, name):
    """Also after a stage, unless that has copies itself: then these go on."""
    (first, _), algorithm = play(alg.FedAvg(**FAST), fed, 1), BATTERY[name]
    prefix, of = COPYING[name]
    after, again = algorithm.init(fed, 0, first), play(algorithm, fed, 1, first=first)[0]
    mine = select_prefix(after.client_params, prefix)
    assert len(mine) >= 2
    for name, leaf in mine.items():
        assert torch.equal(leaf, first.server_params[of + name].expand_as(leaf))
    assert equal(algorithm.init(fed, 0, again).client_params, again.client_params)


@refused("algorithms")
def test_what_does_not_fit_together_is_an_error(code, message):
    """Each hyper-parameter alone is tried in test_values."""
    names = {**vars(playing), **vars(fedlib.engine), **vars(alg), **globals(), "fedrun": fedrun}
    with pytest.raises((ValueError, TypeError), match=message):
        eval(code, names)


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(fedlib.algorithms.__path__)])
def test_the_toys_in_docstrings_say_what_they_print(name):
    """Those of functions and methods; test_front_door runs the examples of what is public."""
    module = importlib.import_module(f"fedlib.algorithms.{name}")
    public = {f"{name}.{each}" for each in alg.__all__}
    toys = [t for t in doctest.DocTestFinder().find(module, name) if t.name not in public]
    assert not any(doctest.DocTestRunner().run(toy).failed for toy in toys)


@pytest.mark.parametrize("name", fedlib.algorithms.__all__)
def test_every_docstring_names_its_reference(name):
    said = getattr(fedlib.algorithms, name).__doc__
    assert said.splitlines()[0].endswith((".", ")")) and "Reference: " in said


def only(prefix):
    """The leaves of the one expert, or of the one cluster."""
    return lambda state: {n: t[0] for n, t in select_prefix(state.server_params, prefix).items()}


def shared(state):
    """The leaves that the server has."""
    return state.server_params


TWICE = {"epochs": 2, **FAST}
FEW = {"noise": 3, "hidden": 5, "steps": 20, "invented": 6}


def limit(method, other, leaves=plain, sizes=SIZES, cohort=2, atol=1e-6):
    """A method in its limit, what it is then, its leaves by that one's names; 0: to the bit."""
    return method, other, leaves, sizes, cohort, atol


ONCE = alg.FedAvg(**FAST)
ALONE = {"sizes": (11,), "cohort": 1}
LIMITS = {
    code: eval(f"limit({code}, {other})", {**vars(alg), **globals(), "fedrun": fedrun})
    for code, other in GOLDEN["limits"].items()
}
for of in (ONCE, alg.FedProx(**FAST), alg.FedPer(**FAST)):
    method = alg.Private(of=of, clip=1e6, noise=0.0)
    LIMITS[f"{method}"] = limit(method, of, sizes=(8, 8, 8), cohort=3)
for server in (adam(1e-2), sgd(1.0), Optimizer("adamw", lr=0.01)):
    same = {"server": server, **FAST}
    for objective in ("map", "entropy", "likelihood"):
        method = alg.FedMix(experts=1, objective=objective, **same)
        LIMITS[f"{method}"] = limit(method, alg.FedAvg(**same), only("experts."), atol=0)
    for eps in (0.0, 1.0):
        method = alg.IFCA(clusters=1, explore=EpsilonGreedy(eps), **same)
        LIMITS[f"{method}"] = limit(method, alg.FedAvg(**same), only("clusters."), atol=0)
    for k in (1, 3):
        same |= {"experts": k, "phi_scale": 0.5}
        method = alg.PrunedFedMix(eta=0.0, **same)
        LIMITS[f"{method}"] = limit(method, alg.FedMix(**same), atol=1e-5)


@pytest.mark.parametrize("name", LIMITS)
def test_in_its_limit_a_method_is_another(name):
    method, other, leaves, sizes, cohort, atol = LIMITS[name]
    fed = make_federation(sizes, model=LENET, shape=IMAGE)
    (mine, said), (theirs, told) = (play(a, fed, cohort=cohort) for a in (method, other))
    close(plain(theirs), leaves(mine), rtol=1e-4 if atol else 0, atol=atol)
    if not atol:
        assert torch.equal(said.losses, told.losses) or len(sizes) > len(said.rows)
        scores = [evaluate(fed, a, s, fed.test) for a, s in ((method, mine), (other, theirs))]
        np.testing.assert_array_equal(scores[0].accuracy, scores[1].accuracy)
        assert evaluate_global(fed, method, mine) == evaluate_global(fed, other, theirs)


# What every algorithm must do.


def ragged():
    return make_federation(SIZES)


@pytest.fixture(scope="module", params=BATTERY.values(), ids=BATTERY)
def once(request):
    fed = ragged()
    return request.param, fed, *play(request.param, fed)


@pytest.fixture
def played(once):
    """An algorithm, its federation, the state after three rounds, the last report."""
    algorithm, fed, state, report = once
    return algorithm, fed, copy.deepcopy(state), report


def size_of(leaves):
    return sum(float(t.double().abs().sum()) for t in leaves)


@pytest.mark.parametrize("name", BATTERY)
def test_an_algorithm_starts_and_moves_as_it_always_has(name):
    """No draw, rate or weight of a method differs from what stored results were trained with."""
    fed, (size, way) = ragged(), GOLDEN["leaves"][name]
    first = begun(BATTERY[name], fed)
    old = copy.deepcopy({**first.server_params, **first.client_params})
    assert size_of(old.values()) == pytest.approx(size, rel=1e-5)
    last, _ = play(BATTERY[name], fed, rounds=2, state=first)
    new = {**last.server_params, **last.client_params}
    # Small movements are differences of large numbers, and Adam's are as large as any.
    assert size_of(new[n].double() - t for n, t in old.items()) == pytest.approx(way, rel=1e-2)


@pytest.mark.slow
@every
def test_training_lowers_a_finite_loss(algorithm):
    fed = ragged()
    if not algorithm.phases():
        pytest.skip("trains nothing")
    if isinstance(algorithm, alg.PMMoE):  # at a larger rate rounding decides where a gate goes
        algorithm = dataclasses.replace(algorithm, client=adam(1e-3))
    state, losses = begun(algorithm, fed), []
    for t in range(25):
        state, report = play_round(algorithm, fed, state, round=t, seed=0, cohort=3)
        assert report.losses.shape == (3,) and report.losses.isfinite().all()
        losses.append(float(report.losses.mean()))
    # Of an auto-encoder's loss most is the entropy of pixels that are not black or white.
    # A mixture's experts stay as they are, and its gate is soon at the bottom, where it wanders;
    # what pFedMe sends moves by eta lam (theta - w) only.
    slow = alg.VAEDensity | alg.PMMoE | alg.PFedMe
    enough = 0.99 if isinstance(algorithm, slow) else 0.97
    end = min(losses[3:]) if isinstance(algorithm, alg.PMMoE) else np.mean(losses[-3:])
    assert end < enough * np.mean(losses[:3])
    assert all(t.isfinite().all() for t in state.flat().values())


def trained_alike(first, *ends):
    """Two trainings from one state end at the same parameters, relative to how far they moved."""
    begin, one, other = ({n: t.double() for n, t in s.items()} for s in (first, *ends))
    assert one.keys() == other.keys()
    for name, alone in one.items():
        if "first.bias" in name:  # what batch normalisation takes out has no gradient but rounding
            continue
        moved = (alone - begin.get(name, 0)).abs().max()
        rounding = 1e-6 * alone.abs().max()
        off = (other[name] - alone).abs().max()
        assert off <= 0.02 * moved + rounding, f"{name}: off by {off:.1e}, moved by {moved:.1e}"


@pytest.mark.slow
@every
def test_one_client_at_a_time_is_the_oracle_of_the_cohort(algorithm):
    """No entry of a leaf differs by more than a fiftieth of the furthest that training moved one.

    Adam divides a gradient by its size: where that is small (a gate that has made up its mind,
    experts that are nearly the same), rounding moves a weight by a share of a step. So the measure
    is the movement, and no fixed number, which no leaf that hardly moves could fail.
    """
    fed, ends = make_federation(SIZES, model=LENET, shape=IMAGE), []
    first = begun(algorithm, fed)
    for chunk in (1, 3):
        state = copy.deepcopy(first)
        ends.append(play(algorithm, fed, 2, state=state, chunk=chunk)[0].flat())
    trained_alike(first.flat(), *ends)


def played_apart(algorithm, fed, state):
    """Every phase's losses of every client: with what its loss looks up, and on raw examples."""
    for row, (k, phase) in product(range(fed.num_clients), enumerate(algorithm.phases())):
        plan = plans_of(algorithm, fed, np.array([row]))[k]
        cohort = cohort_of(algorithm, fed, state, torch.tensor([row]))
        moving = phase.trained_names(cohort.params, state.client_params)
        loss = one_client(getattr(algorithm, phase.loss), fed.net, cohort.common)
        both = with_precomputed(algorithm, cohort, phase, moving), cohort
        lifted = vmap_clients(loss, 1)
        each = [[lifted(c.params, c.context, b) for b in batches(c, phase, plan)] for c in both]
        yield [torch.cat(losses) for losses in each]


READS_IMAGES = {
    "VAEDensity", "Mixture, log", "NewClients, FedMix", "Private, at the clients",
    "FedMix, likelihood and bias", "FedMix, personal bias", "PrunedFedMix, all options",
    "ClusteredFedMix, all options",
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in BATTERY if n not in READS_IMAGES])
def test_sparse_gradients_of_embeddings_train_as_dense_ones(name):
    """Words that no text contains move equally, by weight decay or by a control variate."""
    algorithm = BATTERY[name]
    if hasattr(algorithm, "server"):  # Adam would divide differences of rounding by their size
        algorithm = dataclasses.replace(algorithm, server=sgd(1.0))
    fed = texts()
    fed.net = FunctionalModel(FastText(vocabulary=30, width=6), (10,), 3)
    first = begun(algorithm, fed)
    dense, _ = play(algorithm, fed, 2, state=copy.deepcopy(first), chunk=1)
    fed.net = FunctionalModel(FastText(vocabulary=30, width=6, sparse=True), (10,), 3)
    sparse, _ = play(algorithm, fed, 2, state=copy.deepcopy(first), chunk=1)
    trained_alike(first.flat(), dense.flat(), sparse.flat())


@pytest.mark.parametrize("client", [sgd(0.2), sgd(0.2, momentum=0.5), adam(1e-3)], ids=str)
def test_gradients_are_sparse_for_plain_sgd_of_one_client_at_a_time(client, monkeypatch):
    """They are dense under vmap, and for optimisers that move every row."""
    fed, layouts, step = texts(), [], Stepper.step

    def watched(self):
        layouts.append({g.layout for w in self._params.values() if (g := w.grad) is not None})
        step(self)

    monkeypatch.setattr(Stepper, "step", watched)
    for sparse, chunk in product((False, True), (1, 3)):
        layouts.clear()
        fed.net = FunctionalModel(FastText(vocabulary=20, width=6, sparse=sparse), (10,), 3)
        play(FedAvg(batch_size=4, client=client), fed, 1, chunk=chunk)
        expected = sparse and chunk == 1 and client.is_plain
        assert len(layouts) > 3
        assert all((torch.sparse_coo in some) == expected for some in layouts[:-1])


@every
def test_a_cohort_without_examples_changes_nothing_to_what_is_no_number(algorithm):
    """As an own partition may leave clients: their shares were 0 / 0."""
    fed = make_federation((0, 9))
    alone, log = dataclasses.replace(fed, participants=np.array([0])), Log()
    how = {"round": 0, "seed": 0, "cohort": 1}
    state, report = play_round(algorithm, alone, begun(algorithm, fed), **how)
    assert all(t.isfinite().all() for t in state.flat().values()) and report.losses.isnan().all()
    _, both = play_round(algorithm, fed, state, round=1, seed=0, cohort=2)
    assert log.report(2, both, fed.ids) == float(both.losses[both.clients == 1])


def test_a_phases_loss_is_that_on_raw_examples(played):
    algorithm, fed, state, _ = played
    for looked, raw in played_apart(algorithm, fed, state):
        torch.testing.assert_close(looked, raw)


@value
class Beside(alg.FedAvg):
    """A model of each client's own, trained by FedAvg's loss, as somebody writes it first."""

    local = ("own.",)

    def init_params(self, fed, seed):
        model = alg.FedAvg.init_params(self, fed, seed)
        return {**model, **add_prefix(model, "own.")}

    def phases(self):
        return self.phase(scope="shared"), self.phase(train=("own.",), loss="personal")

    def personal(self, net, params, ctx, batch):
        return alg.FedAvg.loss(self, net, select_prefix(params, "own."), ctx, batch)


def test_a_second_model_is_trained_on_examples_unless_it_asks_for_something_else():
    algorithm, fed = Beside(**FAST), ragged()
    for looked, raw in played_apart(algorithm, fed, play(algorithm, fed)[0]):
        assert torch.equal(looked, raw)


def test_predictions_are_distributions_and_the_same_for_everybodys_tests(played):
    algorithm, fed, state, _ = played
    state, n = algorithm.assign_clusters(fed, state), len(fed.test.y)
    code = algorithm.shared_forward(fed.net, state.server_params, fed.test.inputs(torch.arange(n)))
    everywhere = fedlib.engine.evaluate_everywhere(fed, algorithm, state)
    for row in range(3):
        said = algorithm.predict(fed.net, *parts_of(fed, algorithm, state, row), code)
        assert said.logp.shape == (n, 3)
        torch.testing.assert_close(said.logp.exp().sum(-1), torch.ones(n))
        if said.gate.shape[-1]:
            torch.testing.assert_close(said.gate.sum(-1), torch.ones(n))
        right = (said.logp.argmax(-1) == fed.test.y).double().mean()
        assert everywhere[row] == pytest.approx(float(right))
    assert 0 <= evaluate_global(fed, algorithm, state) <= 1
    assert np.isfinite(evaluate(fed, algorithm, state, fed.test).nll).all()


ASKED = {"FedAvg": 1, "FedProx": 1, "SCAFFOLD": 1, "MOON": 1, "IFCA": 2, "FedPer": 5, "Local": 5}


@pytest.mark.parametrize("name", ASKED)
def test_who_predicts_alike_is_asked_once_about_everybodys_tests(monkeypatch, name):
    algorithm, fed = BATTERY[name], make_federation((11, 4, 9, 5, 6))
    state, _ = play(algorithm, fed)
    if name == "IFCA":  # whose clients settle for two clusters
        fit = torch.tensor([[0.0, 1.0], [1.0, 0.0]])[[0, 1, 1, 0, 1]]
        state = dataclasses.replace(state, server_memory={**state.server_memory, FIT: fit})
    asked, there = [], evaluating.evaluate
    seen = lambda f, a, s, t, e: asked.append((t.sizes > 0).sum()) or there(f, a, s, t, e)  # noqa: E731
    monkeypatch.setattr(evaluating, "evaluate", seen)
    scored = fedlib.engine.evaluate_everywhere(fed, algorithm, state)
    assert asked == [ASKED[name]]
    everyone = lambda fed, *_: (np.arange(fed.num_clients),) * 2  # noqa: E731
    monkeypatch.setattr(evaluating, "_alike", everyone)
    assert scored.tolist() == fedlib.engine.evaluate_everywhere(fed, algorithm, state).tolist()


def test_a_prediction_that_takes_nothing_but_a_dict_is_asked_of_everyone():
    class Merging(alg.FedAvg):
        def predict(self, net, params, ctx, code):
            return Prediction.single(net.logp(params | {}, code["x"]))

        def shared_forward(self, net, shared, x):
            return {"x": x}

    fed = make_federation()
    state, plain = (play(a, fed)[0] for a in (Merging(), alg.FedAvg()))
    asked = ((fed, Merging(), state), (fed, alg.FedAvg(), plain))
    one, other = (fedlib.engine.evaluate_everywhere(*a) for a in asked)
    assert one.tolist() == other.tolist()


# These count by hand, and so do their tests.
COUNTED = alg.PrunedFedMix | alg.VAEDensity | alg.IFCA | alg.FedGH | alg.PMMoE | alg.FedAMP


def test_no_local_leaf_is_ever_sent_and_bytes_are_those_of_the_tensors(played):
    algorithm, fed, state, report = played
    local, shared = set(state.client_params), set(state.server_params)
    assert not local & {*report.messages, *shared} and set(report.weights) <= shared
    for name in report.weights:
        assert report.messages[name].shape == (3, *state.server_params[name].shape)
    for name, leaf in state.client_params.items():
        assert leaf.shape[0] == fed.num_clients and local_names(algorithm, [name])
    for values in algorithm.log_metrics(fed, state).values():  # which fit the log
        assert values.ndim <= 2 and values.isfinite().all()
    assert all(t.dtype == torch.float32 for t in report.messages.values())
    if isinstance(algorithm, COUNTED):
        return
    asks = algorithm.communicates or isinstance(algorithm, alg.NewClients)
    down = 3 * sum(t.nbytes for t in state.server_params.values()) if asks else 0
    up = sum(t.nbytes for t in report.messages.values()) if asks else 0
    assert (int(report.download.sum()), int(report.upload.sum())) == (down, up)


# 8 x 8 pixels, 7 units, 3 classes.
BASE, HEAD = 64 * 7 + 7, 7 * 3 + 3
MODEL = BASE + HEAD


@pytest.mark.parametrize("code", GOLDEN["ledger"])
def test_the_ledger_by_hand(code):
    down, up = map(eval, GOLDEN["ledger"][code])
    _, report = play(eval(code, {**globals(), **vars(alg)}), ragged(), rounds=1)
    assert (report.download.tolist(), report.upload.tolist()) == ([4 * down] * 3, [4 * up] * 3)


def test_a_round_leaves_what_it_was_given_and_clients_outside_alone(played):
    algorithm, fed, state, _ = played
    kept = copy.deepcopy(state)
    after, report = play_round(algorithm, fed, state, round=9, seed=0, cohort=1)
    for group in ("server_params", "server_optimizer", "server_memory"):
        assert equal(getattr(kept, group), getattr(state, group))
    moved = any(not torch.equal(kept.flat()[n], t) for n, t in after.flat().items())
    assert moved == bool(algorithm.phases())
    silent = not report.messages and equal(after.server_params, kept.server_params)
    assert algorithm.communicates or silent
    away = [row for row in range(3) if row not in report.clients]
    of_clients = {n: t for n, t in kept.server_memory.items() if n.startswith("clients/")}
    now = after.client_params | after.server_memory
    for name, leaf in (kept.client_params | of_clients).items():
        assert torch.equal(now[name][away], leaf[away]) and len(away) == 2


def test_a_state_survives_being_stored(played):
    algorithm, fed, state, _ = played
    again = State.from_flat(load(save(state.flat())))  # save refuses tensors that share memory
    groups = ("server_params", "client_params", "server_optimizer", "server_memory")
    assert all(equal(getattr(state, g), getattr(again, g)) for g in groups)
    first = begun(algorithm, fed)
    save(first.flat())
    for group in groups[:2]:  # what a checkpoint is checked by
        leaves, ended = getattr(first, group), getattr(state, group)
        assert {n: t.shape for n, t in leaves.items()} == {n: t.shape for n, t in ended.items()}
    ends = [play(algorithm, fed, 1, state=s)[0].flat() for s in (copy.deepcopy(state), again)]
    assert equal(*ends)


def test_the_import_line_of_authors_replaces_nothing_of_torch():
    """Sorted imports have torch's functions first, and would lose one of the same name."""
    names = [name for name in vars(interface) if not name.startswith("_")]
    assert names and not [name for name in names if hasattr(torch.nn.functional, name)]
