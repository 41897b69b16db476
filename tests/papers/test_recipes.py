"""The papers' experiments, section by section, at every scale."""

from dataclasses import replace

import pandas as pd
import pytest
from rows import settings_of

from companion.sections import SCALES
from fedlib import FedAvg, FedMix, NewClients, PrunedFedMix, paths
from fedlib.engine.selection import cohort_size
from fedlib.values import from_dict, to_dict
from fedrun.provenance import began_with
from fedrun.results import exported, places
from papers import fedmix as names
from papers.adaptive.experiments import ADAPTIVE, ADAPTIVE_PARTICIPATION, ALL_EQUAL, BEST, MOE
from papers.fedmix import FEDAVG, FEDMIX, experiments, with_experts, with_pruning
from papers.fedmix.experiments import ABLATION, COMMUNICATION, LABEL_SKEW, NEW_CLIENTS

EVERY = [(section, scale, dataset) for scale in SCALES for section, dataset in settings_of(scale)]
NAMES = [f"{section.name}-{scale}-{dataset}" for section, scale, dataset in EVERY]
each_setting = pytest.mark.parametrize(("section", "scale", "dataset"), EVERY, ids=NAMES)


def setting_of(scale, dataset, section=LABEL_SKEW):
    return section.settings(scale, dataset)[dataset]


def one_of_each(section, scale, dataset):
    """Every run's experiment, of seed 0."""
    return {run.name: run.experiment for run in section.runs(scale, dataset)}


@each_setting
def test_every_setting_gives_valid_experiments(section, scale, dataset):
    setting, every = setting_of(scale, dataset, section), one_of_each(section, scale, dataset)
    assert setting.seeds >= 3
    assert len({e.key for e in every.values()}) == len(every), "two methods are the same run"
    for run in section.runs(scale, dataset):
        made = section.experiments(scale, dataset, run)
        count = dict(setting.costly).get(run.method, setting.seeds)
        assert [e.seed for e in made] == list(range(count))
        assert all({stage.seed for stage in e.stages} == {e.seed} for e in made)
        for one in made[:1] and made[0].stages:  # seeds are all that the others differ by
            assert from_dict(to_dict(one)) == one and one.task.dataset == setting.task.dataset
            clients = one.task.partition.num_clients()
            assert clients == 0 or cohort_size(one.cohort, clients) >= 1


@each_setting
def test_rounds_and_seeds_can_be_chosen(section, scale, dataset):
    """Only what has the setting's length is cut: a first stage is, a last round is not."""
    setting = setting_of(scale, dataset, section)
    for run in section.runs(scale, dataset)[:: 1 if scale == "quick" else 9]:
        made = section.experiments(scale, dataset, run, seeds=5, rounds=7)
        whole = section.experiments(scale, dataset, run)
        assert [e.seed for e in made] == [0, 1, 2, 3, 4]
        for cut, full in zip(made, whole, strict=False):
            while full is not None:
                assert cut.rounds == (7 if full.rounds == setting.rounds else full.rounds)
                cut, full = cut.first_stage, full.first_stage


def taken_apart(section, scale, dataset):
    return pd.DataFrame({"method": r.method, **r.where} for r in section.runs(scale, dataset))


def test_table_2_is_whole_with_the_most_clusters_explored_and_not():
    table = taken_apart(ADAPTIVE, "standard", "cifar10")
    ends = table[table["J"] == 6]
    for method in (BEST, MOE, ALL_EQUAL):
        found = {*ends.loc[ends["method"] == method, ["p", "eps"]].itertuples(False, None)}
        assert found == {(p, eps) for p in (0.2, 0.4, 0.6, 0.8, 1.0) for eps in (0.0, 0.33)}
    assert set(table["J"].dropna()) == {6} and set(table["eps"].dropna()) == {0.0, 0.33}
    everywhere = taken_apart(ADAPTIVE, "paper", "cifar10")
    assert set(everywhere.loc[everywhere["J"] == 2, "p"]) == {0.2, 0.4, 0.6, 0.8, 1.0}


def stages_of(section, scale, dataset):
    runs = section.runs(scale, dataset)
    made = [e for run in runs for e in section.experiments(scale, dataset, run)]
    return {stage for experiment in made for stage in experiment.stages}


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_however_many_take_part_the_local_work_is_the_same(scale):
    section = ADAPTIVE_PARTICIPATION
    ((dataset, setting),) = section.settings(scale).items()
    played = {s for s in stages_of(section, scale, dataset) if s.rounds > 1}
    assert {s.cohort for s in played} == set(setting.cohorts)
    work = setting.rounds * setting.cohort
    assert all(s.rounds * s.cohort == pytest.approx(work) for s in played)
    # What has the usual number of clients is a run of Table 2.
    usual = {s for s in played if s.cohort == setting.cohort}
    assert usual and usual <= stages_of(ADAPTIVE, scale, dataset)


@pytest.mark.slow
def test_stored_results_are_found_and_their_chains_are_whole(monkeypatch):
    """Whatever changes: a default, a setting, another export."""
    monkeypatch.setenv("FEDLIB_RESULTS", str(paths.ROOT / "results"))
    found = {r.experiment: r.provenance for r in exported()}
    assert {e.key for e in found} == places().keys(), "VERSION has changed"
    for e, made in found.items():
        began = began_with(made)
        assert not began or {*e.stages} <= {*found}
        assert all(began.get(s.key) == found[s].get("state") for s in e.stages[:-1] if s in found)


# 000: what the paper states, and what runs share.

SKEWED = [(scale, dataset) for scale in SCALES for dataset in LABEL_SKEW.settings(scale)]


def of_each(section, scale, dataset):
    """The experiments of seed 0 by method and the words of where they stand."""
    runs = section.runs(scale, dataset, costly=True)
    return {(run.method, *run.where.values()): run.experiment for run in runs}


@pytest.mark.parametrize(("scale", "dataset"), SKEWED)
def test_variants_differ_from_fedmix_by_one_option(scale, dataset):
    variants = experiments.methods(LABEL_SKEW.settings(scale)[dataset])
    plain, average = variants[FEDMIX], variants[FEDAVG]
    assert variants[names.ENSEMBLE] == replace(plain, objective="entropy")
    assert variants[names.UNREGULARISED] == replace(plain, marginal_entropy=0.0)
    assert variants[names.ORIGINAL] == replace(plain, objective="likelihood")
    assert type(average) is FedAvg and type(plain) is FedMix
    for field in ("client", "epochs", "batch_size"):
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
    wide = {t: made[(name,)].task.model.channels for t, name in names.WIDE.items()}
    assert wide == {2: (61, 61), 4: (113, 113)}


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
        more = COMMUNICATION.experiments("standard", "cifar10", method)
        assert more[: len(one)] == one and len(more) > len(one)
        assert ABLATION.experiments("standard", "cifar10", method) == one
    trained = of_each(experiments.PRIVACY, "standard", "cifar10")[FEDMIX, names.TRAINED]
    assert trained.first_stage == LABEL_SKEW.experiments("standard", "cifar10", FEDMIX)[0]


def test_costly_methods_have_fewer_seeds_unless_asked():
    sixteen = with_experts(16)
    assert sixteen not in ABLATION.methods("standard", "cifar10")
    assert ABLATION.experiments("standard", "cifar10", sixteen) == []
    assert len(ABLATION.experiments("standard", "cifar10", sixteen, seeds=3)) == 3
    assert len(ABLATION.experiments("paper", "cifar10", sixteen)) == 3
    assert len(NEW_CLIENTS.experiments("standard", "two_class_mnist", names.DENSITIES)) == 1


@pytest.mark.parametrize("method", names.JOINING)
def test_newcomers_hold_what_no_client_of_the_federation_holds(method):
    last = of_each(NEW_CLIENTS, "quick", "two_class_digits")[method, names.NEW]
    seen, new = (one.task.divide(0).parts["train"] for one in (last.first_stage, last))
    held = [set(part.flat.tolist()) for part in (seen, new)]
    assert held[0] and held[1] and not held[0] & held[1]
    assert type(last.algorithm) is NewClients and last.algorithm.of == last.first_stage.algorithm
