"""Opting out is a guarantee: what opted out reaches no algorithm that sends anything."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_federation, told_newcomers
from playing import BATTERY, FAST, cohort_of
from small import play

from fedlib import IID, MLP, FastText, LabelPermuted, NaturalPartition, Rotated, Task, adam
from fedlib import data as datasets
from fedlib.algorithms import IFCA, FedAMP, FedAvg, FedMix, Local, Mixture, PMMoE, PrunedFedMix
from fedlib.algorithms.fedmix import MEMORY
from fedlib.algorithms.local import LaterStage
from fedlib.engine import evaluate, evaluate_global, play_round, select
from fedlib.engine.as_module import module_of
from fedlib.engine.protocol import train_view
from fedlib.federation import OPTED_IN
from fedlib.partition import ClientSubset, LocalHoldout, MatchedHoldout, OptOut
from fedrun import Experiment, run
from fedrun.experiment import built

SIZES = (11, 6, 9, 7)


def opted(side=None):
    """Client 1 opts out, client 2 with every third example; the others take part."""
    fed = make_federation(SIZES, side=side)
    inside = torch.cat([torch.ones(11), torch.zeros(6), torch.arange(9) % 3, torch.ones(7)]) > 0
    # A validation set of its own for client 1, which must stay at home as well.
    held = replace(fed.validation, x=fed.validation.x.clone(), y=fed.validation.y.clone())
    others = held.indices[held.owners != 1].unique()
    pool = torch.arange(sum(SIZES), len(held.y))
    held.indices[6:12] = pool[~torch.isin(pool, others)][:6]
    train = replace(fed.train, side={**fed.train.side, OPTED_IN: inside.long()})
    return replace(fed, train=train, validation=held)


def changed(fed, pixels, labels):
    """The same, with other images and labels wherever something opted out."""
    home = fed.full_view()
    out = home.train.side[OPTED_IN] == 0
    train = replace(home.train, x=home.train.x.clone(), y=home.train.y.clone())
    held = replace(home.validation, x=home.validation.x.clone(), y=home.validation.y.clone())
    for table, rows in ((train, train.indices[out]), (held, held.client(1))):
        table.x[rows], table.y[rows] = pixels(table.x[rows]), labels(table.y[rows])
    return replace(home, train=train, validation=held, includes_opted_out=False)


def first_of(algorithm, fed, rounds):
    """The state that a second stage begins with."""
    if not isinstance(algorithm, LaterStage | Mixture):
        return None
    return states(getattr(algorithm, "of", FedAvg(**FAST)), fed, rounds)[-1][0]


def states(algorithm, fed, rounds, first=None):
    """The state and the report after every round, in which trained leaves are scored, too."""
    out = [(algorithm.init(fed, 0, first), None)]
    how = {"seed": 0, "cohort": 3 if algorithm.communicates else 4, "score": True}
    for t in range(rounds):
        out.append(play_round(algorithm, fed, out[-1][0], round=t, **how))
    return out[1:]


CHANGES = {"what no class has": (lambda x: x * 0 + 255, lambda y: y * 0 + 10**9),
           "what might be": (lambda x: 255 - x, lambda y: (y + 1) % 3)}  # fmt: skip
ASKING = BATTERY | {"FedMix, with p(y)": FedMix(experts=2, marginal_entropy=1.0, **FAST)}
ASKING["IFCA, least share"] = IFCA(clusters=2, least_share=0.3, inference="train", **FAST)
ROWS = torch.tensor([0, 2, 3])


def asked(algorithm, fed):
    """Yield what every method says that is handed the federation, by someone who takes no care."""
    state = algorithm.init(fed, 0, first_of(algorithm, fed, 2))
    yield {"init:" + n: t.clone() for n, t in state.flat().items()}
    state = algorithm.choose(fed, state, ROWS)
    yield state.flat()
    start = algorithm.client_params(fed, state, ROWS[:1])
    context = algorithm.client_constants(fed, state, ROWS[:1])
    yield {**start, **{"ctx:" + n: t for n, t in context.items()}}
    yield algorithm.round_constants(fed, state)
    yield algorithm.postprocess(cohort_of(algorithm, fed, state, ROWS[:1]), start, ({}, {}))[1]
    for table in (fed.train, fed.validation):
        held = table.indices
        yield {"x": table.x[held], "y": table.y[held], "sizes": torch.as_tensor(table.sizes)}
        yield table.side
    settled = algorithm.assign_clusters(fed, state)
    yield settled.flat()
    yield algorithm.log_metrics(fed, settled)
    yield {"shares": fed.shares("label"), "sizes": fed.sizes}


def played(algorithm, fed, scored):
    """Yield what two rounds make, message by message, and what the others predict with it."""
    for state, report in states(algorithm, fed, 2, first_of(algorithm, fed, 2)):
        yield report.messages
        yield {**report.weights, "down": report.download, "up": report.upload}
        yield algorithm.weights(fed, state, torch.as_tensor(report.clients), report.messages)
        after = algorithm.aggregate(fed, state, torch.as_tensor(report.clients), report.messages)
        yield {n: t.clone() for n, t in after.flat().items()}
        yield algorithm.assign_clusters(fed, state).flat()
        if scored:
            yield {"together": torch.tensor(evaluate_global(fed, algorithm, state))}
            yield {"nll": torch.tensor(evaluate(fed, algorithm, state, fed.test).nll)[ROWS]}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", [n for n, a in ASKING.items() if not isinstance(a, PMMoE)])
def test_whoever_is_handed_a_federation_sees_nothing_of_what_opted_out(name, change):
    """No method of an algorithm, asked directly with the federation that a task builds."""
    fed, algorithm = opted(), ASKING[name]
    feds = fed, changed(fed, *change)
    pairs = [*zip(*(asked(algorithm, f) for f in feds), strict=True)]
    if algorithm.communicates:
        # Client 1 predicts with its own labels, so that they must be some.
        scored = change is CHANGES["what might be"]
        pairs += zip(*(played(algorithm, f, scored) for f in feds), strict=True)
    for one, other in pairs:
        assert one.keys() == other.keys()
        assert all(same_bits(one[n], other[n]) for n in one)


def same_bits(one, other):
    one, other = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(one, other)


def test_where_private_parts_are_handed_round_nobody_can_opt_out():
    algorithm = BATTERY["PMMoE"]
    with pytest.raises(ValueError, match="nobody can opt out"):
        algorithm.init(opted(), 0, first_of(algorithm, opted(), 1))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3)])
def test_the_global_model_is_scored_whoever_opts_out(order):
    """Also where it is the first client, whose share of the examples is 0: all say the same."""
    fed = opted().permuted(np.array(order))
    (state, _), y = states(FedAvg(epochs=9, **FAST), fed, 2)[-1], fed.test.y
    right = fed.net.logp(state.server_params, fed.test.inputs(torch.arange(len(y)))).argmax(-1) == y
    assert (y != 0).any() and right[y != 0].any()
    assert evaluate_global(fed, FedAvg(), state) == pytest.approx(float(right.double().mean()))


def test_an_algorithm_cannot_claim_not_to_federate():
    class Liar(FedAvg):
        communicates = False

    fed = opted()
    with pytest.raises(RuntimeError, match="Liar has communicates=False, but sends"):
        play_round(Liar(), fed, Liar().init(fed, 0), round=0, seed=0, cohort=2)


# What counts clients must not count those who stay out: alpha is sigma / M.
COUNTING = {"FedAMP, sigma / M": FedAMP(lam=1.0, sigma=1.0, **FAST)}
FEDERATING = {name: a for name, a in {**BATTERY, **COUNTING}.items() if a.communicates}


@pytest.mark.parametrize("algorithm", FEDERATING.values(), ids=FEDERATING)
def test_federating_is_as_if_they_had_never_been_there(algorithm):
    """All members, next to a federation without the rows and examples of the others."""
    fed = opted()
    only = replace(fed.participating_view().permuted(ROWS.numpy()), participants=None)
    (_, (one, _)), (_, (other, _)) = (
        states(algorithm, f, 2, first_of(algorithm, f, 2)) for f in (fed, only)
    )
    members = {n: t[ROWS] if n.startswith("clients/") else t for n, t in one.server_memory.items()}
    assert all(same_bits(t, other.server_params[n]) for n, t in one.server_params.items())
    assert all(same_bits(t, other.server_memory[n]) for n, t in members.items())


@pytest.mark.parametrize("algorithm", FEDERATING.values(), ids=FEDERATING)
def test_no_sum_has_a_term_of_a_client_that_opted_out(algorithm):
    """Not one of weight 0 either, with which a product can round differently: here it is NaN."""
    fed = opted()
    fed.participating_view().shares("label")[1] = torch.nan
    state = algorithm.init(fed, 0, first_of(algorithm, fed, 1))
    told = {n: t for n, t in state.server_memory.items() if n.startswith("clients/")}
    for leaf in (*state.client_params.values(), *told.values()):
        if leaf.is_floating_point():
            leaf[1] = torch.nan
    state, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=3)
    kept = [t[ROWS] for n, t in state.server_memory.items() if n in told]
    found = [*state.server_params.values(), *report.messages.values(), *kept]
    for t in algorithm.log_metrics(fed.participating_view(), state).values():
        found.append(t[ROWS] if t.ndim and len(t) == fed.num_clients else t)
    found.append(told_newcomers(algorithm, fed, state))
    found.append(module_of(fed, algorithm, state)(fed.test.inputs(torch.arange(5))))
    assert not any(t.isnan().any() for t in found)


def test_experts_are_sent_to_members_only():
    """Two of three members are sent both; by the memory of the server client 1 would be, too."""
    fed, algorithm = opted().participating_view(), PrunedFedMix(experts=2, eta=0.5)
    state = algorithm.init(fed, 0)
    state.server_memory[MEMORY][3] = torch.tensor([0.0, 1.0])
    assert algorithm.log_metrics(fed, state)["experts_sent"] == pytest.approx(5 / 3)


def test_rows_stay_in_place_and_hold_what_takes_part():
    angles, fed = make_federation(SIZES, side="angle").train.side["angle"], opted(side="angle")
    inside, home, deciding = fed.participating_view(), fed.full_view(), fed.eval_view()
    stay = [17 + i for i in (1, 2, 4, 5, 7, 8)]
    assert inside.train.side["angle"][11:17].tolist() == angles[stay].tolist()
    assert inside.train.sizes.tolist() == [11, 0, 6, 7] and OPTED_IN not in inside.train.side
    assert inside.participants.tolist() == [0, 2, 3]
    assert inside.validation.sizes.tolist() == [6, 0, 6, 6]
    held = home.train.indices[stay]
    assert torch.equal(inside.train.x[inside.train.client(2)], home.train.x[held])
    assert home.train.sizes.tolist() == list(SIZES), "all that they have"
    assert home.participants is deciding.all_data is None
    assert deciding.validation.sizes.tolist() == [6] * 4
    assert deciding.train.sizes.tolist() == [11, 6, 6, 7], "who is no member knows all of its own"
    # Views of views are the same ones.
    assert inside is fed.participating_view() is inside.participating_view() is inside.full_view()
    assert inside is home.participating_view() is deciding.participating_view()
    assert home is home.full_view() and deciding is home.eval_view() is deciding.eval_view()
    whole = make_federation(SIZES)
    assert whole.participating_view() is whole and whole.full_view() is whole is whole.eval_view()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_no_table_that_an_algorithm_is_handed_holds_what_opted_out(share):
    """Someone who takes no care counts all labels there are: those of who takes part."""
    task = replace(TASK, held_out=LocalHoldout(), balanced=0, opt_out=OptOut(0.5, share=share))
    fed = task.build(0)
    for view in (fed.participating_view(), train_view(FedAvg(), fed.full_view())):
        assert view.all_data is None and view.full_view() is view is view.eval_view()
        for table in (view.train, view.validation, view.test):
            assert len(table.x) == len(table.y) == sum(table.sizes)
        assert torch.equal(view.train.y.bincount(minlength=10), view.train.counts(10).sum(0))
        assert (view.test.sizes > 0).tolist() == (view.train.sizes > 0).tolist()
    assert len(fed.train.y) == sum(fed.train.sizes) < sum(fed.full_view().train.sizes)
    assert (fed.test.sizes > 0).all(), "and yet everybody is tested"
    assert len(fed.eval_view().train.y) == sum(fed.eval_view().train.sizes)


def test_a_cohort_keeps_its_size_and_has_members_only():
    fed = opted().participating_view()
    chosen = [select(fed, 2, 0, t).tolist() for t in range(30)]
    assert all(len(set(c)) == 2 for c in chosen)
    assert {row for c in chosen for row in c} == {0, 2, 3}
    assert sorted(select(fed, 1.0, 0, 0)) == [0, 2, 3]
    with pytest.raises(ValueError, match="a cohort of 4 does not fit 3 clients"):
        select(fed, 4, 0, 0)


def test_some_of_the_clients_opt_out_as_they_do_among_all():
    """A stage for the last three of eight clients; each has the examples that it has there."""
    whole = replace(TASK, opt_out=OptOut(clients=0.5, share=0.5))
    some = replace(whole, partition=ClientSubset(whole.partition, first=5, last=8))
    theirs, mine = (task.build(3).full_view().train for task in (whole, some))
    last = theirs.owners >= 5
    assert torch.equal(theirs.indices[last], mine.indices)
    assert torch.equal(theirs.side[OPTED_IN][last], mine.side[OPTED_IN])
    assert 0 < mine.side[OPTED_IN].sum() < theirs.side[OPTED_IN].sum()
    twice = ClientSubset(ClientSubset(whole.partition, first=4, last=8), first=1, last=4)
    again = replace(some, partition=twice).build(3).full_view().train
    assert torch.equal(mine.side[OPTED_IN], again.side[OPTED_IN])
    assert ClientSubset(LabelPermuted(whole.partition), 5, 8).choose_clients() == (5, 8)


HELD_OUT = MatchedHoldout(pool=200, validation=20, test=30)
TASK = Task("digits", IID(8, 20), MLP((8,)), HELD_OUT, opt_out=OptOut(clients=0.5), balanced=100)
FEDERATED = Experiment(TASK, FedAvg(batch_size=10), rounds=6, cohort=3, evaluate_every=3)


def test_the_ledger_has_no_byte_of_those_who_opted_out():
    metrics = run(FEDERATED, device="cpu", progress=False).metrics.to_pandas()
    inside = metrics[metrics["metric"] == "opted_in"].set_index("client")["value"]
    assert (inside > 0).sum() == 4 and set(inside) == {0, 20}
    for name in ("client_bytes_up", "client_bytes_down"):
        ledger = metrics[metrics["metric"] == name]
        assert set(ledger["client"]) <= set(inside[inside > 0].index)
        assert (ledger.groupby("round").size() == 3).all(), "the cohort keeps its size"
        total = metrics[metrics["metric"] == name.removeprefix("client_")]
        assert ledger["value"].sum() == total["value"].sum() > 0
    scored = metrics[(metrics["metric"] == "test_accuracy") & (metrics["round"] == 6)]
    assert len(scored) == 8, "everybody is tested"


def test_those_who_opted_out_train_at_home():
    """A specialist and a gate for everybody, from examples that the federation never saw."""
    home = {"rounds": 1, "cohort": 1.0, "evaluate_every": 1}
    alone = Local(batch_size=10, epochs=3, client=adam(1e-2))
    tuned = Experiment(TASK, alone, first_stage=FEDERATED, **home)
    mixed = Experiment(TASK, Mixture(epochs=5, client=adam(1e-2)), first_stage=tuned, **home)
    metrics = run(mixed, device="cpu", progress=False).metrics.to_pandas()
    last = metrics[metrics["round"] == 1].groupby("metric")["value"]
    assert last.mean()["balanced_accuracy"] > 0.3 and last.count()["balanced_accuracy"] == 8
    assert last.sum()["bytes_up"] == 0 and "client_bytes_up" in last.groups


def test_everybody_is_scored_on_one_balanced_test_set():
    fed = TASK.build(0)
    held, real = fed.balanced.padded(np.arange(8))
    assert held.shape == (8, 100) and real.all() and fed.balanced.sizes.tolist() == [100] * 8
    assert torch.bincount(fed.balanced.y[held[0]]).tolist() == [10] * 10
    assert (held == held[0]).all() and len(fed.balanced.indices) == 100, "stored once"
    scores = evaluate(fed, FedAvg(), FedAvg().init(fed, 0), fed.balanced)
    assert len(set(scores.accuracy)) == 1, "one global model has one score"


def test_a_balanced_set_can_be_of_examples_that_nobody_trains_on_or_is_tested_on():
    some = replace(TASK, balanced_on="validation")
    fed = replace(some, opt_out=None).build(0)
    chosen = fed.balanced.client(0)
    for y in (some.build(0).balanced.y, fed.balanced.y[chosen]):
        assert torch.bincount(y).tolist() == [10] * 10
    assert fed.balanced.x is fed.validation.x and fed.validation.x is fed.train.x
    assert not torch.isin(chosen, fed.train.indices).any()
    logged = set(play(replace(FEDERATED, task=some)).metrics.to_pandas()["metric"])
    assert "balanced_validation_accuracy" in logged and "balanced_accuracy" not in logged


def test_words_are_ranked_by_those_who_take_part(places, monkeypatch):
    texts = ["b a", "a", "c c c c", "b a"] * 20
    hospital = np.array(["x", "x", "y", "x"] * 20)
    datasets.add_data("said", (texts, [0, 1] * 40, {"hospital": hospital}), (["c b"], [0]))
    assert datasets.load("said").vocabulary == ("<pad>", "<unk>", "c", "a", "b")
    held_out = LocalHoldout(test=0.01, validation=0)
    task = Task("said", NaturalPartition("hospital"), FastText(9, 2), held_out)
    some = replace(task, opt_out=OptOut(0.5))
    assert task.fit(0).ids.tolist() == [0, 1, 2, 3, 4]
    out = next(s for s in range(9) if len(some.fit(s).ids) and not some.build(s).train.sizes[1])
    # Who said c has opted out: it is unknown, a is the commonest word.
    assert some.fit(out).ids.tolist() == [0, 1, 1, 2, 3]
    known = replace(datasets.load("said"), fit=False, source="Parquet files")
    monkeypatch.setattr(datasets, "load", lambda name: known)
    assert task.fit(0).ids is None, "known sets keep their constants, while nobody opts out"
    assert some.fit(out).ids.tolist() == [0, 1, 1, 2, 3]


def test_a_second_stage_sees_numbers_as_the_first_one_did(places):
    who = np.arange(160) % 4
    x = np.random.default_rng(0).normal(size=(160, 6)) + 30 * who[:, None]
    datasets.add_data("patients", (x, np.arange(160) // 4 % 2, {"hospital": who}))
    column, half = NaturalPartition("hospital"), OptOut(0.5)
    task = Task("patients", column, MLP((5,)), LocalHoldout(), opt_out=half)
    first = Experiment(task, FedAvg(**FAST), rounds=1, cohort=2)
    second = Experiment(replace(task, opt_out=None), Local(**FAST), 1, 1.0, first_stage=first)
    scale = [built(e).train.scale for e in (first, second)]
    assert torch.equal(*scale) and not torch.equal(scale[0], second.task.build(0).train.scale)


def test_the_kinds_of_side_information_do_not_depend_on_who_holds_them():
    """phi has a row for every angle, also if only those who opted out know it, or nobody does."""
    rotated = Rotated(IID(clients=2, size=5), angles=(0.0, 90.0, 180.0), alpha=None)
    held = MatchedHoldout(pool=200, validation=5, test=5)
    fed = Task("digits", rotated, MLP((8,)), held, opt_out=OptOut(0.5)).build(0)
    assert fed.values("angle") == 3 > int(fed.full_view().train.side["angle"].max()) + 1
    assert "angle" in fed.train.side and fed.full_view().values("angle") == 3
    around = ClientSubset(LabelPermuted(rotated), last=1)
    assert around.kinds() == {"angle": 3, "permutation": 4} and IID().kinds() == {}
