"""Hostile hyper-parameters: every field of every value refuses them by name, or it is a value."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.robustness import hyper
from companion.sections import Setting
from fedlib.algorithms import ClusteredFedMix, Densities, FedRep
from fedlib.engine import EarlyStop
from fedlib.models import FastText
from fedlib.partition import Dirichlet
from fedlib.runs.tuning import Choice, Space
from fedlib.values import from_dict
from papers.pm_moe.experiments import PrivateParts

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
anything = st.sampled_from(hyper.HOSTILE) | st.recursive(
    plain, lambda items: st.lists(items, max_size=3).map(tuple) | st.lists(items, max_size=3)
)


@settings(max_examples=300)
@given(st.sampled_from(hyper.fields()), anything)
def test_whatever_a_field_is_given_it_refuses_by_name_or_reads_back(field, hostile):
    assert hyper.judged(*field, hostile)[0] != "!", hyper.judged(*field, hostile)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_field_of_any_value_takes_a_number_that_is_not_finite(bad):
    accepted = [
        (cls.__name__, name)
        for cls, name in hyper.fields()
        for hostile in (bad, (bad,))
        if hyper.judged(cls, name, hostile) != "refused by name"
    ]
    assert not accepted


def test_every_kind_of_value_is_looked_at():
    known = {cls.__name__ for cls in hyper.kinds()}
    assert {"FedMix", "Experiment", "Dirichlet", "Uniform", "Optimizer", "LeNet"} <= known
    assert all(type(hyper.plain(cls)) is cls for cls in hyper.kinds())


DEEP: list = []
for _ in range(5000):
    DEEP = [DEEP]


def setting(cls, **fields):
    return cls(**{**vars(hyper.plain(cls)), **fields})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FastText(width=-1), "FastText.width must be >= 1"),
        (lambda: FedRep(head_epochs=0), "FedRep.head_epochs must be >= 1, got 0"),
        (lambda: Densities(latent=-1), "Densities.* must be >= 1"),
        (lambda: ClusteredFedMix(damping=1.5), r"damping must lie in \[0, 1\), got 1.5"),
        (lambda: EarlyStop(min_delta=-0.1), "EarlyStop.min_delta must be >= 0, got -0.1"),
        (lambda: Choice((float("nan"),)), "Choice.of must hold numbers, text and values"),
        (lambda: Choice(([],)), "Choice.of must hold numbers, text and values"),
        (lambda: Space((("lr", 3),)), r"axes: 'lr' must be a Uniform or a Choice, got 3"),
        (lambda: Dirichlet(clients=2**63), "Dirichlet.clients must be a number of 63 bits"),
        (lambda: Dirichlet(clients=10**5000), "clients must be a number of 63 bits, got what can"),
        (lambda: Dirichlet(clients="x" * 10_000), r"clients must be int, got 'x+\.\.\. \(str\)"),
        (lambda: setting(Setting, rounds=0), "Setting.rounds must be >= 1: 0"),
        (lambda: setting(PrivateParts, ratios=(-0.5,)), "PrivateParts.ratios must be >= 0: -0.5"),
        (lambda: from_dict({"kind": "FedMix", "experts": DEEP}), "nested too deeply"),
    ],
)
def test_what_was_accepted_or_refused_without_its_name(make, message):
    with pytest.raises((ValueError, TypeError), match=message) as said:
        make()
    assert len(str(said.value)) < 300, "an error shows the beginning of what was given"
