"""Early stopping of a federation on its cohorts' validation loss, and selection without round 0."""

import math
from dataclasses import replace

import numpy as np
import pytest
from playing import equal
from small import TASK, Rounds, play

from fedlib import LocalHoldout, adam
from fedlib.algorithms import FedAvg, LastClient, Local
from fedlib.engine import State, evaluate, play_round
from fedrun import CohortEarlyStop, Experiment, find_result, run_with_state, store

SHORT = CohortEarlyStop(patience=2)
STOPPING = Experiment(
    TASK, FedAvg(batch_size=5, client=adam(0.05)), 30, 2, evaluate_every=1, stop=SHORT
)
LAST = replace(STOPPING, algorithm=LastClient(batch_size=5, client=adam(0.05)))
BEFORE = replace(LAST, stop=CohortEarlyStop(patience=2, before_update=True))


@pytest.fixture
def rounds(monkeypatch):
    return Rounds(monkeypatch)


def plain(experiment):
    """The same by a plain loop: (checks by round, the state that is kept, where it stopped)."""
    e, fed = experiment, experiment.task.build(experiment.seed, "cpu")
    algorithm, stop = e.algorithm, e.stop
    state, checks, best, kept, waited = algorithm.init(fed, e.seed), {}, math.inf, None, 0
    for t in range(1, e.rounds + 1):
        began = state
        how = {"round": t - 1, "seed": e.seed, "cohort": e.cohort}
        state, report = play_round(algorithm, fed, state, **how)
        if t % e.evaluate_every and t < e.rounds:
            continue
        judged = began if stop.before_update else state
        judged = algorithm.assign_clusters(fed, judged, for_selection=True)
        nll = evaluate(fed, algorithm, judged, fed.validation).nll
        checks[t] = sum(nll[row] for row in report.clients) / len(report.clients)
        waited += 1
        if checks[t] < best:
            best, waited = checks[t], 0
            kept = State.from_flat({n: v.clone() for n, v in state.flat().items()})
        if waited == stop.patience:
            break
    return checks, kept, t


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("experiment", [STOPPING, LAST, BEFORE], ids=["after", "last", "before"])
def test_a_run_stops_where_a_plain_loop_does_and_keeps_its_state(experiment, every):
    experiment = replace(experiment, evaluate_every=every)
    result, state = run_with_state(experiment, device="cpu", progress=False)
    checks, kept, stopped = plain(experiment)
    assert stopped < experiment.rounds, "a run to the end would prove nothing"
    curve = result.curve("cohort_validation_nll")
    assert curve == pytest.approx(checks) and max(result.curve("train_loss")) == stopped
    assert result.select("kept_round")["value"].to_pylist() == [min(checks, key=checks.get)]
    assert equal(state.flat(), kept.flat())
    assert max(result.curve("everywhere_accuracy")) == stopped


def test_a_stopped_run_is_complete_served_and_followed(rounds):
    first = play(STOPPING)
    made, played = find_result(STOPPING), rounds.played
    assert made is not None and made.metrics.equals(first.metrics)
    assert played == made.provenance["segments"][-1]["rounds"][1] < STOPPING.rounds
    assert play(STOPPING).metrics.equals(first.metrics) and rounds.played == played
    tuned = play(replace(STOPPING, algorithm=Local(batch_size=5), stop=None, first_stage=STOPPING))
    kept = first.final("test_accuracy")
    assert tuned.curve("test_accuracy")[0] == pytest.approx(kept, abs=1e-6)
    # A longer run does not go on from one that has stopped.
    longer = replace(STOPPING, rounds=40)
    assert play(longer).curve("train_loss") == first.curve("train_loss")
    assert rounds.played == played + longer.rounds - STOPPING.rounds + played + 20


def test_metrics_that_end_before_any_run_could_have_stopped_are_damaged():
    play(STOPPING)
    home = store.folder(STOPPING)
    metrics = store.read_metrics(home)
    short = metrics.filter(np.array(metrics["round"]) <= 1)
    store.RunFolder(STOPPING).write_metrics(short)
    with pytest.warns(store.DamagedWarning, match="ends before round 3"):
        assert find_result(STOPPING) is None


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ({}, (0, False)),
        ({5: 2.0, 10: 1.0, 15: 1.0}, (10, False)),
        ({5: 2.0, 10: 1.0, 15: 1.0, 20: 3.0}, (10, True)),
        ({5: 2.0, 10: math.nan, 15: 3.0}, (5, False)),
        ({5: math.nan, 10: math.nan}, (10, False)),
    ],
)
def test_the_rule_by_hand(losses, found):
    assert SHORT.best(losses) == found


@pytest.mark.parametrize("change", [{"select": "best"}, {"evaluate_every": 0}])
def test_a_stop_that_cannot_check_or_is_one_of_two_rules_is_refused(change):
    with pytest.raises(ValueError, match="stop selects the best of its own checks"):
        replace(STOPPING, **change)


NOBODY = replace(TASK, held_out=LocalHoldout(test=0.2, validation=0.0))


@pytest.mark.parametrize(
    "how", [{}, *({"stop": None, "select": s} for s in ("best", "best_trained"))]
)
def test_without_validation_examples_nothing_is_trained(rounds, how):
    with pytest.raises(ValueError, match="no validation examples"):
        play(replace(STOPPING, task=NOBODY, **how))
    assert not rounds.played


def test_before_update_is_refused_where_clients_keep_what_they_trained():
    at_home = replace(BEFORE, algorithm=Local(batch_size=5))
    with pytest.raises(ValueError, match="before_update needs the model at the start of a round"):
        play(at_home)


WORSE = Experiment(TASK, FedAvg(batch_size=5, client=adam(3.0)), 4, 2, evaluate_every=2)


def test_best_trained_is_never_the_initial_state():
    """With so large a rate round 0 has the least loss; it is the best, but trained by nobody."""
    first, trained = (run_with_state(replace(WORSE, select=k)) for k in ("best", "best_trained"))
    rows = trained[0].select("validation_nll").to_pandas()
    means = rows.groupby("round")["value"].mean()
    assert means.idxmin() == 0
    assert first[0].curve("kept_round")[4] == 0
    assert trained[0].curve("kept_round")[4] == means.drop(0).idxmin()
    initial = WORSE.algorithm.init(TASK.build(0, "cpu"), 0)
    assert equal(first[1].server_params, initial.server_params)
    assert not equal(trained[1].server_params, initial.server_params)
