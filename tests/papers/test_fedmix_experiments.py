"""FedMix's settings and experiments (000): what the paper states, and what runs share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from companion.sections import SCALES
from fedlib.algorithms import FedAvg, FedMix, Newcomers, PrunedFedMix
from papers import fedmix as names
from papers.fedmix import FEDAVG, FEDMIX, analysis, experiments, with_experts, with_pruning
from papers.fedmix.experiments import ABLATION, COMMUNICATION, LABEL_SKEW, NEW_CLIENTS, PERMUTED

SKEWED = [(scale, dataset) for scale in SCALES for dataset in LABEL_SKEW.settings(scale)]


def of_each(section, scale, dataset):
    """The experiments of seed 0 by method and the words of where they stand."""
    runs = section.runs(scale, dataset, costly=True)
    return {(run.method, *run.where.values()): run.experiment for run in runs}


@pytest.mark.parametrize(("scale", "dataset"), SKEWED)
def test_variants_differ_from_fedmix_by_one_option(scale, dataset):
    variants = experiments.methods(LABEL_SKEW.settings(scale)[dataset])
    plain, average = variants[FEDMIX], variants[FEDAVG]
    changes = {
        names.ENSEMBLE: {"objective": "entropy"},
        names.UNREGULARISED: {"marginal_entropy": 0.0},
        names.ORIGINAL: {"objective": "likelihood"},
    }
    for name, change in changes.items():
        assert variants[name] == replace(plain, **change)
    assert type(average) is FedAvg and type(plain) is FedMix
    for field in ("client", "epochs", "batch_size", "weighting"):
        assert getattr(average, field) == getattr(plain, field)
    assert (average.server.name, average.server.lr) == (plain.server.name, plain.server.lr)


def test_the_paper_scale_is_the_papers_setting():
    """000, section 4.1: 100 clients x 450, 10 per round, B = 64, E = 1, SGD 0.05, Adam 1e-3."""
    setting = LABEL_SKEW.settings("paper")["cifar10"]
    task, mix = setting.task, experiments.methods(setting)[FEDMIX]
    assert (task.partition.clients, task.partition.size, task.partition.alpha) == (100, 450, 1.0)
    assert (setting.rounds, setting.cohort, mix.experts) == (2000, 10, 4)
    assert (mix.batch_size, mix.epochs, mix.client.name, mix.client.lr) == (64, 1, "sgd", 0.05)
    assert repr(mix.server) == "Optimizer(name='adam', lr=0.001)"
    assert task.model.channels == (32, 32) and task.model.hidden == (512,)
    made = of_each(COMMUNICATION, "paper", "cifar10")
    assert {t: made[(name,)].task.model.channels for t, name in names.WIDE.items()} == {
        2: (61, 61),
        4: (113, 113),
    }


def test_names_of_one_family_meet_at_its_limits():
    """K = 1 is FedAvg, eta = 0 plain FedMix: the ablation's curves and the others' are one."""
    assert with_experts(1) == FEDAVG and with_experts(4) == FEDMIX == with_pruning(0)
    made = of_each(ABLATION, "paper", "cifar10")
    for eta in (0.1, 0.5, 0.9):
        mix = made[(with_pruning(eta),)].algorithm
        assert type(mix) is PrunedFedMix and mix.eta == eta
    for k in (2, 4, 8, 10, 16):
        assert made[(with_experts(k),)].algorithm.experts == k
    known = {m for s in ("cifar10", "cifar100") for (m,) in of_each(COMMUNICATION, "standard", s)}
    assert {names.TWO, names.BIAS, names.TEN_PRUNED, *names.WIDE.values()} <= known


def test_sections_share_the_runs_that_are_the_same():
    """FedAvg and FedMix of Fig. 1 and 4 are one run each, and trained once."""
    for method in (FEDAVG, FEDMIX):
        one = LABEL_SKEW.experiments("standard", "cifar10", method)
        assert COMMUNICATION.experiments("standard", "cifar10", method) == one
        assert ABLATION.experiments("standard", "cifar10", method) == one
    trained = of_each(experiments.PRIVACY, "standard", "cifar10")[FEDMIX, names.TRAINED]
    assert trained.after == LABEL_SKEW.experiments("standard", "cifar10", FEDMIX)[0]


def test_costly_methods_have_fewer_seeds_unless_asked():
    sixteen = with_experts(16)
    assert sixteen not in ABLATION.methods("standard", "cifar10")
    assert ABLATION.experiments("standard", "cifar10", sixteen) == []
    assert len(ABLATION.experiments("standard", "cifar10", sixteen, seeds=3)) == 3
    assert len(ABLATION.experiments("paper", "cifar10", sixteen)) == 3
    assert len(NEW_CLIENTS.experiments("standard", "two_class_mnist", names.DENSITIES)) == 1


@pytest.mark.parametrize("scale", SCALES)
def test_what_newcomers_and_audits_are_told_apart_by(scale):
    (joined, audits) = (
        list(of_each(section, scale, next(iter(section.settings(scale)))))
        for section in (NEW_CLIENTS, experiments.PRIVACY)
    )
    everyone = [(FEDAVG,), (FEDMIX,), (names.DENSITIES,)]
    assert joined == everyone + [(m, names.NEW) for m in names.JOINING]
    assert audits == [(m, told) for m in analysis.METHODS for told in analysis.MESSAGES]


@pytest.mark.parametrize("method", names.JOINING)
def test_newcomers_hold_what_no_client_of_the_federation_holds(method):
    last = of_each(NEW_CLIENTS, "quick", "two_class_digits")[method, names.NEW]
    seen, new = (one.task.divide(0).parts["train"] for one in (last.after, last))
    held = [set(part.index[part.index >= 0].tolist()) for part in (seen, new)]
    assert held[0] and held[1] and not held[0] & held[1]
    assert type(last.algorithm) is Newcomers and last.algorithm.of == last.after.algorithm


@pytest.mark.parametrize("scale", ["standard", "paper"])
def test_the_slower_permutations_travel_as_far(scale):
    """Half the rate, twice the rounds, nothing else; the quick scale has no time for it."""
    made = of_each(PERMUTED, scale, "permuted_cifar10")
    usual, slow = made[(names.with_k(4),)], made[(names.SLOWER,)]
    assert slow.rounds == 2 * usual.rounds
    assert slow.algorithm.server.lr == usual.algorithm.server.lr / 2
    for leaf in ("experts.head.bias", "gate.A"):
        assert slow.algorithm.server.rate(leaf) == slow.algorithm.server.lr
    same = replace(slow.algorithm, server=usual.algorithm.server)
    assert replace(slow, algorithm=same, rounds=usual.rounds) == usual
    assert names.SLOWER not in PERMUTED.methods("quick", "permuted_digits")
