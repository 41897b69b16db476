"""Every method of all five papers on the same tasks: the table that no paper has."""

from __future__ import annotations

from companion.sections import Run, Section, federated, placed
from fedlib import algorithms
from fedlib.algorithms import FedAvg
from fedlib.algorithms.ifca import Explore
from fedlib.optim import Optimizer, sgd
from fedlib.runs import Experiment
from papers.adaptive.experiments import ALL_EQUAL, BEST, MOE
from papers.fedmix import BIAS, BIASED, ETA, FEDAVG, FEDMIX, LOCAL_GLOBAL, PRUNING
from papers.floor import LOCAL, MAJORITY, TUNED
from papers.pm_moe import MIXED, NINE, SYNCHRONOUS, TRADITIONAL, UNTUNED
from papers.pm_moe import experiments as pm_moe
from papers.pm_moe.experiments import PrivateParts, at_home, local_round, stage
from papers.specialists.experiments import MIXTURE

KNOWN = pm_moe.known(("fashion_mnist", "cifar10"))  # 004's settings
CLUSTERS, EPSILON = 3, 0.33  # of IFCA, at every scale
CLUSTERED = "FedMix, clustered"
BOTH_TRAINED = "Mixture, global expert trained"
EXPLORING = "IFCA, exploring"
CLUSTER_TUNED = "IFCA, fine-tuned"
# What each paper proposes for clients that differ in their labels.
PROPOSED: dict[str, tuple[str, ...]] = {
    "000": (FEDMIX, BIAS, PRUNING),
    "001": (MIXTURE,),
    "002": (BOTH_TRAINED,),
    "003": (MOE,),
    "004": MIXED,
}
# What a method has instead of one model for all.
FAMILIES: dict[str, tuple[str, ...]] = {
    "one model for all": TRADITIONAL,
    "a part stays private": (BIASED, LOCAL_GLOBAL, *NINE, UNTUNED),
    "global experts, a gate each": (FEDMIX, BIAS, PRUNING, CLUSTERED),
    "clusters": (BEST, EXPLORING, CLUSTER_TUNED, ALL_EQUAL, MOE),
    "a model at home": (LOCAL, TUNED, MIXTURE, BOTH_TRAINED, SYNCHRONOUS),
    "everybody's private parts": MIXED,
    "no model": (MAJORITY,),
}


def _every_method(setting: PrivateParts, dataset: str) -> list[Run]:
    """Return every method where nothing is shared between the clients' classes.

    All train with the same batches and rounds, and servers average; only phi moves faster,
    as it has to where there are few rounds.
    """
    here = setting.sharing(0.0)
    first = pm_moe.first_stages(here)
    return placed(
        {
            **first,
            **_fedmixes(here),
            **_at_home(here, first[FEDAVG]),
            **_clustered(here),
            **{name: pm_moe.mixed(here, m) for name, m in zip(MIXED, NINE, strict=True)},
            SYNCHRONOUS: pm_moe.synchronous(here),
        }
    )


def _fedmixes(setting: PrivateParts) -> dict[str, Experiment]:
    """Return what 000 has: mixtures with global experts, and its baselines."""
    rounds, several = local_round(setting), local_round(setting, experts=setting.experts)
    mix = {**several, "server": Optimizer("sgd", lr=1.0, rates=(("phi", setting.phi_rate),))}
    made: dict[str, FedAvg] = {
        BIASED: algorithms.Personal(**rounds),
        LOCAL_GLOBAL: algorithms.LocalGlobal(**rounds),
        FEDMIX: algorithms.FedMix(**mix),
        BIAS: algorithms.FedMix(**mix, personal_bias=True),
        PRUNING: algorithms.PrunedFedMix(**mix, eta=ETA),
        CLUSTERED: algorithms.ClusteredFedMix(**several, server=sgd(1.0)),
    }
    return {name: federated(setting, a, cohort=1.0) for name, a in made.items()}


def _at_home(setting: PrivateParts, generalist: Experiment) -> dict[str, Experiment]:
    """Return what 001 and 002 have: alone, fine-tuned, and both mixed.

    Alone is trained for as many epochs as others take part in rounds.
    """
    alone = at_home(setting, setting.rounds)
    tuned = at_home(setting, setting.tuned, generalist)
    mix = local_round(setting, epochs=setting.tuned)
    both = algorithms.Mixture(**mix, train_global=True)
    return {
        LOCAL: alone,
        TUNED: tuned,
        MIXTURE: stage(setting, algorithms.Mixture(**mix), after=tuned),
        BOTH_TRAINED: stage(setting, both, after=generalist, beside=alone),
    }


def _clustered(setting: PrivateParts) -> dict[str, Experiment]:
    """Return what 003 has: clusters, greedy and explored, and the ways to use the latter."""
    found = local_round(setting, clusters=CLUSTERS)
    greedy, explored = (
        federated(setting, algorithms.IFCA(**found, explore=Explore(eps)), cohort=1.0)
        for eps in (0.0, EPSILON)
    )
    gate = local_round(setting, epochs=setting.tuned, frozen=True)
    before = {"after": explored, "beside": at_home(setting, setting.rounds)}
    return {
        BEST: greedy,
        EXPLORING: explored,
        CLUSTER_TUNED: at_home(setting, setting.tuned, explored),
        ALL_EQUAL: stage(setting, algorithms.Mixture(**gate, pool="mean"), **before),
        MOE: stage(setting, algorithms.Mixture(**gate), **before),
    }


EVERY_METHOD = Section("every_method", KNOWN, _every_method)
