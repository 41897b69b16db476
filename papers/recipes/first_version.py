"""Specialists and generalists as first published: all clients in every one of few rounds (002)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from companion.sections import Run, Section, Setting, placed
from fedlib.algorithms import Local, Mixture
from fedlib.engine import EarlyStop
from fedlib.models import MLP
from papers.named import named
from papers.recipes.floor import MAJORITY
from papers.recipes.label_skew import FEDAVG
from papers.recipes.specialists import (
    LOCAL,
    MIXTURE,
    TENTHS,
    TUNED,
    Stages,
    alone,
    at_home,
    commonest,
    generalist,
)


def _first_version(setting: Stages, dataset: str) -> list[Run]:
    """Return 002's methods: specialists from scratch, and the global expert trained as well.

    Nobody can opt out of training alone: that has no q.
    """
    own = {p: alone(setting.at(p)) for p in setting.opted_ps}
    runs = [Run(LOCAL, own[p], {"p": p}) for p in own]
    runs += [Run(MAJORITY, commonest(setting.at(p)), {"p": p}) for p in own]
    for q in setting.qs:
        for p in setting.opted_ps:
            here = setting.at(p, q)
            first = generalist(here)
            tuned = at_home(here, Local(**here.home(here.personal)), first)
            mix = Mixture(**here.home(here.personal), train_global=True)
            both = replace(at_home(here, mix, first), beside=own[p])
            runs += placed({FEDAVG: first, TUNED: tuned, MIXTURE: both}, p=p, q=q)
    return runs


TABLE = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)  # those of Table 1, and the rest of the curve


def _earlier(scale: str, dataset: str) -> Stages:
    """Return a setting of 002: every client takes part in every one of few rounds."""
    ps = {"quick": (0.2, 1.0), "standard": TABLE, "paper": TENTHS}[scale]
    qs = {"quick": (0.0,), "standard": (0.0, 0.5, 0.9), "paper": (0.0, 0.5, 0.9)}[scale]
    paper: dict[str, Any] = {"federated": 1e-4, "personal": 1e-4, "most": 100, "stop": EarlyStop()}
    quick = {"federated": 3e-3, "personal": 3e-3, "most": 40, "stop": EarlyStop(patience=2)}
    standard = {"federated": 5e-4, "personal": 5e-4, "most": 60, "stop": EarlyStop(patience=4)}
    lengths = {"quick": quick, "standard": {**standard, "tested": 10}, "paper": paper}[scale]
    task = named("002/cifar10" if dataset == "digits" else f"002/{dataset}", scale)
    many = dataset == "cifar100"
    return Stages(
        replace(task, model=MLP((32,))) if scale == "quick" else task,
        rounds=20 if many and scale == "standard" else 45,
        seeds=5 if many and scale == "standard" else 3,
        cohort=1.0,
        batch_size=20 if scale == "standard" else 10,
        evaluate_every=5,
        local_epochs=3,
        balanced=100 if scale == "quick" else 1000,
        opted_ps=(0.2, 0.4, 0.6, 0.8, 1.0) if many and scale == "standard" else ps,
        qs=(0.0,) if many else qs,
        **lengths,
    )


SETTINGS: dict[str, dict[str, Setting]] = {
    "quick": {"digits": _earlier("quick", "digits")},
    **{
        scale: {d: _earlier(scale, d) for d in ("cifar10", "cifar100")}
        for scale in ("standard", "paper")
    },
}
FIRST_VERSION = Section("first_version", SETTINGS, _first_version)
