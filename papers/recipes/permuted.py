"""Label permutations: clients whose labels mean different things (000, sec. 4.3 and App. B)."""

from __future__ import annotations

from dataclasses import replace

from companion.sections import Run, Section, Setting, federated, placed
from fedlib.algorithms import ClusteredFedMix
from fedlib.models import MLP
from papers.named import named
from papers.recipes.label_skew import fedmix

KS = (3, 4, 5)
SLOWER = "K = 4, half the rate"


def with_k(experts: int) -> str:
    """Return the name of the run with K experts."""
    return f"K = {experts}"


SETTINGS = {
    "quick": {
        "permuted_digits": Setting(
            # All clients in one program; and ten rounds at the paper's rate would move no weight by
            # more than 0.01.
            replace(named("000/permuted_cifar10", "quick"), model=MLP((64,))),
            rounds=20,
            seeds=3,
            cohort=1.0,
            batch_size=20,
            server_rate=1e-2,
            evaluate_every=2,
            local_epochs=3,
            costly=((SLOWER, 0),),
        )
    },
    "standard": {
        "permuted_cifar10": Setting(
            named("000/permuted_cifar10", "standard"),
            rounds=15,
            seeds=5,
            cohort=1.0,
            # 450 examples per client and not 2,500: more and larger steps in as many rounds.
            batch_size=20,
            server_rate=1e-2,
            evaluate_every=1,
            local_epochs=3,
        )
    },
    "paper": {
        "permuted_cifar10": Setting(
            named("000/permuted_cifar10", "paper"),
            rounds=50,
            seeds=3,
            cohort=1.0,
            evaluate_every=1,
            local_epochs=3,
        )
    },
}


def _plan(setting: Setting, dataset: str) -> list[Run]:
    """Return the numbers of experts of Fig. 8; four permutations are there to be found.

    With as many experts also at half the server's rate in twice the rounds, so that permutations
    have time to part before an expert falls behind.
    """
    known = {
        with_k(k): federated(setting, ClusteredFedMix(**fedmix(setting, experts=k))) for k in KS
    }
    slow = replace(setting, server_rate=setting.server_rate / 2, phi_rate=setting.phi_rate / 2)
    mix = ClusteredFedMix(**fedmix(slow, experts=4))
    return placed({**known, SLOWER: federated(setting, mix, rounds=2 * setting.rounds)})


PERMUTED = Section("permuted", SETTINGS, _plan)
