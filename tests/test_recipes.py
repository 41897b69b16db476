"""The papers' experiments, at every scale."""

from __future__ import annotations

import dataclasses

import pytest

from fedlib import recipes
from fedlib.algorithms import FedAvg, FedMix
from fedlib.engine import cohort_size, play_round
from fedlib.recipes import LABEL_SKEW, SCALES, experiments, fedmix_variants, settings
from fedlib.values import from_dict, to_dict

METHODS = (*fedmix_variants(LABEL_SKEW["quick"]["digits"]), recipes.CENTRALISED)
EVERY = [(scale, name) for scale in SCALES for name in LABEL_SKEW[scale]]
each_setting = pytest.mark.parametrize(("scale", "dataset"), EVERY)


def setting_of(scale, dataset):
    return settings(scale, dataset)[dataset]


@each_setting
@pytest.mark.parametrize("method", METHODS)
def test_every_setting_gives_valid_experiments(scale, dataset, method):
    setting = setting_of(scale, dataset)
    made = experiments(setting, method)
    assert [e.seed for e in made] == list(range(setting.seeds)) and setting.seeds >= 3
    assert len({e.key for e in made}) == len(made)
    for experiment in made:
        assert from_dict(to_dict(experiment)) == experiment
        assert experiment.task.dataset == dataset
        assert cohort_size(experiment.cohort, experiment.task.partition.clients) >= 1
        if method != recipes.CENTRALISED:
            assert experiment.rounds == setting.rounds and experiment.task == setting.task
            assert experiment.cohort == setting.cohort


@each_setting
def test_no_two_methods_are_the_same_run(scale, dataset):
    made = [experiments(setting_of(scale, dataset), m, seeds=1)[0] for m in METHODS]
    assert len({e.key for e in made}) == len(METHODS)


@each_setting
def test_variants_differ_from_fedmix_by_one_option(scale, dataset):
    variants = fedmix_variants(setting_of(scale, dataset))
    plain = variants[recipes.FEDMIX]
    changes = {
        recipes.ENSEMBLE: {"objective": "entropy"},
        recipes.UNREGULARISED: {"marginal_entropy": 0.0},
        recipes.ORIGINAL: {"objective": "likelihood"},
    }
    for name, change in changes.items():
        assert variants[name] == dataclasses.replace(plain, **change)
    average = variants[recipes.FEDAVG]
    assert type(average) is FedAvg and type(plain) is FedMix
    for field in ("client", "epochs", "batch_size", "weighting"):
        assert getattr(average, field) == getattr(plain, field)
    assert (average.server.name, average.server.lr) == (plain.server.name, plain.server.lr)


def test_the_paper_scale_is_the_papers_setting():
    """000, section 4.1: 100 clients x 450, 10 per round, B = 64, E = 1, SGD 0.05, Adam 1e-3."""
    setting = setting_of("paper", "cifar10")
    task, mix = setting.task, fedmix_variants(setting)[recipes.FEDMIX]
    assert (task.partition.clients, task.partition.size, task.partition.alpha) == (100, 450, 1.0)
    assert (setting.rounds, setting.cohort, mix.experts) == (2000, 10, 4)
    assert (mix.batch_size, mix.epochs, mix.client.name, mix.client.lr) == (64, 1, "sgd", 0.05)
    assert repr(mix.server) == "Optimizer(name='adam', lr=0.001)"
    assert task.model.channels == (32, 32) and task.model.hidden == (512,)


@each_setting
def test_phi_can_move_far_enough_to_specialise(scale, dataset):
    """Adam moves a logit by about its rate per round: some 2 nats are what a one-hot row needs."""
    setting = setting_of(scale, dataset)
    mix = fedmix_variants(setting)[recipes.FEDMIX]
    assert mix.server.rate("phi") == setting.phi_rate
    assert mix.server.rate("phi") * setting.rounds >= 2
    assert mix.server.rate("experts.head.bias") == setting.server_rate


def test_seeds_and_rounds_can_be_chosen():
    setting = setting_of("quick", "digits")
    made = experiments(setting, recipes.FEDMIX, seeds=2, rounds=7)
    assert [(e.seed, e.rounds) for e in made] == [(0, 7), (1, 7)]
    assert experiments(setting, recipes.FEDMIX, seeds=5)[:3] == experiments(setting, recipes.FEDMIX)


@pytest.mark.parametrize("scale", SCALES)
def test_settings_of_a_scale(scale):
    assert settings(scale) == LABEL_SKEW[scale] and settings(scale)
    for name in settings(scale):
        assert settings(scale, name) == {name: LABEL_SKEW[scale][name]}


def test_the_quick_scale_downloads_nothing_and_plays(monkeypatch):
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.setenv("FEDLIB_DOWNLOAD", "0")
    assert set(settings("quick")) == {"digits"}
    setting = setting_of("quick", "digits")
    for method in (recipes.FEDMIX, recipes.CENTRALISED):
        one = experiments(setting, method)[0]
        fed = one.task.build(one.seed)
        state = one.algorithm.init(fed, one.seed)
        _, report = play_round(one.algorithm, fed, state, round=0, seed=0, cohort=one.cohort)
        assert report.losses.isfinite().all()


def test_unknown_names_are_errors():
    setting = setting_of("quick", "digits")
    with pytest.raises(ValueError, match=r"unknown scale 'quik'; .*did you mean 'quick'"):
        settings("quik")
    with pytest.raises(ValueError, match=r"unknown data set at scale 'quick' 'cifar10'; .*digits"):
        settings("quick", "cifar10")
    with pytest.raises(ValueError, match=r"unknown method 'FedMx'; .*did you mean 'FedMix'"):
        experiments(setting, "FedMx")
    with pytest.raises(ValueError, match="rounds and evaluate_every must be >= 1, got -1"):
        experiments(setting, recipes.FEDAVG, rounds=-1)
