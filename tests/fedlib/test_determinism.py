"""The promises of same bits, for every algorithm; benchmarks/DETERMINISM.md measures more."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import LENET, make_federation
from playing import BATTERY, SIZES, begun, play, texts
from small import TASK, bits, interrupted, undisturbed
from small import play as play_run
from test_cohort_early_stop import BEFORE, STOPPING, WORSE
from test_models import DROPS, SHAPE, TEXTS
from test_modules import NORMED

import fedlib.algorithms
from benchmarks.determinism.deviation import Deviation, compare, distance
from benchmarks.determinism.subjects import subjects
from fedlib import FedAvg, FedBN, FedMix, Local, Mixture
from fedlib.algorithms.local import LaterStage
from fedlib.engine import EarlyStop, State, play_round
from fedlib.engine.width import CACHE_BYTES, Width
from fedlib.models import MLP, FunctionalModel
from fedrun import Experiment, provenance, run

FAST = {"batch_size": 4, "epochs": 2}
EARLY = Local(stop=EarlyStop(every=1, patience=1), **FAST)


def on(kind):
    return {
        "dense": lambda: make_federation(SIZES),
        "convolutional": lambda: make_federation(SIZES, model=LENET, shape=(12, 12, 1)),
        "dropout": lambda: make_federation(SIZES, model=DROPS, shape=SHAPE),
        "normed": lambda: make_federation(SIZES, model=NORMED),
        "text": lambda: replace(texts(), net=FunctionalModel(TEXTS[0], (10,), 3)),
    }[kind]()


# Experts of PM-MoE are numbered by row.
CLIENTS = [name for name in fedlib.algorithms.__all__ if name != "PMMoE"]
CASES = {name: ("dense", BATTERY[name]) for name in CLIENTS} | {
    "convolutional, FedMix": ("convolutional", FedMix(experts=2, **FAST)),
    "convolutional, early stop": ("convolutional", EARLY),
    "dropout, FedAvg": ("dropout", FedAvg(**FAST)),
    "normed, FedBN": ("normed", FedBN(**FAST)),
    "text, FedAvg": ("text", FedAvg(**FAST)),
}


def same(one, other):
    return one.numpy().tobytes() == other.numpy().tobytes()


def without_server(algorithm, common):
    """An algorithm that is handed what a server broadcasts, and whose own server does nothing."""
    hooks = {
        "round_constants": lambda self, fed, state: common,
        "weights": lambda self, *args: {},
        "communication_bytes": lambda self, *args: (None, None),
        "aggregate": lambda self, fed, state, *args: state,
    }
    client, kind = copy.copy(algorithm), type(algorithm)
    object.__setattr__(client, "__class__", type(kind.__name__, (kind,), hooks))
    return client


@pytest.mark.parametrize(("kind", "algorithm"), CASES.values(), ids=CASES)
def test_a_client_needs_only_what_is_handed_out_and_what_it_has(kind, algorithm):
    """Its message, loss and own leaves have the same bits whoever else takes part.

    Apart from the server: with its own examples and local leaves, and no others.
    """
    fed, how = on(kind), {"round": 1, "seed": 0}
    state, _ = play(algorithm, fed, rounds=1)
    expected, report = play_round(algorithm, fed, copy.deepcopy(state), cohort=2, chunk=1, **how)
    handed = algorithm.round_constants(fed, replace(state, **how))
    for place, row in enumerate(report.clients):
        mine = fed.permuted(report.clients[[place]])
        own = {n: t[[row]] for n, t in state.client_params.items()}
        first = algorithm.init(mine, 0) if state.server_memory else state
        got = algorithm.download(state, int(row))
        known = State(
            got.server_params, own, {}, {**first.server_memory, **got.server_memory}, **how
        )
        chosen = algorithm.choose(mine, known, torch.tensor([0])).server_memory
        chosen = {n: t for n, t in chosen.items() if t is not known.server_memory.get(n)}
        assert all(same(t[0], expected.server_memory[n][row]) for n, t in chosen.items())
        _, sent = play_round(
            without_server(algorithm, handed), mine, known, cohort=1, chunk=1, **how
        )
        assert same(sent.losses[0], report.losses[place])
        assert sent.messages.keys() == report.messages.keys()
        assert all(same(t[0], report.messages[n][place]) for n, t in sent.messages.items())
        assert all(same(t[0], expected.client_params[n][row]) for n, t in own.items())


@pytest.mark.parametrize(("kind", "algorithm"), CASES.values(), ids=CASES)
def test_the_order_of_rows_changes_no_bit(kind, algorithm):
    fed, order = on(kind), np.array([2, 0, 1])
    first = begun(algorithm, fed)
    moved = copy.deepcopy(first)
    moved.client_params = {n: t[torch.as_tensor(order)] for n, t in moved.client_params.items()}
    if any(len(t.shape) and len(t) == fed.num_clients for t in first.server_memory.values()):
        pytest.skip("its server knows rows")
    how = {"round": 0, "seed": 0, "cohort": 2, "chunk": 1}
    straight, _ = play_round(algorithm, fed, first, **how)
    permuted, _ = play_round(algorithm, fed.permuted(order), moved, **how)
    assert all(same(t, permuted.server_params[n]) for n, t in straight.server_params.items())
    assert all(same(t[order], permuted.client_params[n]) for n, t in straight.client_params.items())


def resumed(algorithm):
    """A short run of an algorithm, after a first stage if it needs one."""
    first, how = None, {"rounds": 3, "cohort": 3, "evaluate_every": 2}
    if isinstance(algorithm, LaterStage | Mixture):
        first = Experiment(TASK, getattr(algorithm, "of", FedAvg(**FAST)), 1, cohort=6)
    return Experiment(TASK, algorithm, **how, first_stage=first)


RESUMED = {name: resumed(BATTERY[name]) for name in fedlib.algorithms.__all__} | {
    "stops": STOPPING,
    "stops, before the update": BEFORE,
    "best of what was trained": replace(WORSE, select="best_trained", evaluate_every=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(name, tmp_path):
    straight = undisturbed(RESUMED[name], tmp_path)
    interrupted(RESUMED[name], 1)
    play_run(RESUMED[name])
    assert bits(RESUMED[name]) == straight


def test_a_runs_provenance_has_what_the_last_bits_depend_on():
    """The chunk that was used by default, which a mixture's weights decide, and the threads."""
    experiment = Experiment(replace(TASK, model=MLP((100,))), FedMix(experts=4), 1, cohort=2)
    said = run(experiment, device="cpu", progress=False).provenance["segments"]
    fed = experiment.task.build(0)
    state = experiment.algorithm.init(fed, 0)
    used = Width(fed, state).program
    assert used == CACHE_BYTES // (4 * sum(t.numel() for t in state.flat().values()))
    assert [(s["chunk"], s["threads"]) for s in said] == [(used, torch.get_num_threads())]


@pytest.mark.parametrize(("device", "counted"), [("cpu", True), ("meta", False)])
def test_cpu_seconds_are_those_of_runs_on_a_cpu(device, counted):
    """A plan tells from them what a CPU would take; a process that waits for a GPU says nothing."""
    known = {"source": "", "num_clients": 4, "client_names": (), "net": None}
    fed = SimpleNamespace(device=torch.device(device), **known)
    state = State({"w": torch.zeros(2)}, {})
    made = provenance.segment(fed, [0, 1], 1, state, provenance.clock())
    assert ("cpu_seconds" in made) == counted and "seconds" in made
    assert ("cpu_seconds" in provenance.of_run(fed, [made], state, state)) == counted


def test_every_exported_algorithm_is_measured():
    made = subjects()
    assert {s.name for s in made if s.net == "dense"} >= set(fedlib.algorithms.__all__)
    assert len({s.experiment.key for s in made}) == len(made) == len({s.title for s in made})


def test_a_deviation_is_seen_and_named():
    rows = {"round": [2, 2], "metric": "test_accuracy", "client": [0, 1], "value": [0.5, 1.0]}
    frame = pd.DataFrame(rows)
    state = {"shared:w": torch.tensor([3.0, 4.0]), "server:choice": torch.tensor([0, 1])}
    assert compare((state, frame), (copy.deepcopy(state), frame.copy())) == Deviation(True)
    other = {"shared:w": torch.tensor([3.0, 4.5]), "server:choice": torch.tensor([0, 2])}
    worse = frame.assign(value=[0.5, 0.8])
    found = compare((state, frame), (other, worse))
    assert found == Deviation(False, 0.5, 0.1, 1, pytest.approx(0.1), pytest.approx(0.2))
    minus = {**state, "shared:w": torch.tensor([3.0, 4.0]), "local:z": torch.tensor(-0.0)}
    plus = {**minus, "local:z": torch.tensor(0.0)}
    assert not compare((minus, frame), (plus, frame)).same, "two zeros have other bits"
    with pytest.raises(ValueError, match="other leaves"):
        distance(minus, state)
