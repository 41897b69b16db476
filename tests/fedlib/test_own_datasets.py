"""Datasets of one's own: arrays in, a name out that everything else takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedlib import data as datasets
from fedlib.algorithms import FedAvg
from fedlib.cli import main
from fedlib.data import cache
from fedlib.models import MLP
from fedlib.partition import IID, Mirrored, Own
from fedlib.runs import Experiment, run
from fedlib.tasks import Task


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "cache"))


def some(n=60, shape=(8, 8, 1), classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, classes, n)


def test_arrays_come_back_under_their_name_in_every_process():
    (x, y), (a, b) = some(), some(20, seed=1)
    data = datasets.add("mine", (x, y), (a, b), ["no", "perhaps", "yes"])
    assert (data.train.features == x).all() and (data.test.labels == b).all()
    assert (data.shape, data.class_names) == ((8, 8, 1), ("no", "perhaps", "yes"))
    assert np.allclose(data.mean, x.mean() / 255) and np.allclose(data.std, x.std() / 255)
    assert datasets.form("mine") == ((8, 8, 1), 3) and "mine" in datasets.names()
    assert datasets.verify("mine") == [] and len(datasets.fetch("mine").test) == 20
    said = datasets.describe("mine")
    assert (said.place, said.train, said.test) == ("cache", 60, 20)
    elsewhere = "from fedlib import data as d; print(d.load('mine').fingerprint)"
    out = subprocess.run([sys.executable, "-c", elsewhere], capture_output=True, text=True)
    assert out.stdout.strip() == data.fingerprint != ""


def test_channels_have_their_own_look_and_a_dead_one_no_infinite_scale():
    x, y = some(shape=(4, 5, 3))
    x[..., 1] = 51
    data = datasets.add("coloured", (x, y))
    assert data.mean[1] == pytest.approx(0.2) and data.std[1] == pytest.approx(1e-3)
    assert np.allclose(data.std[0], x[..., 0].std() / 255) and len(data.test) == 0


def test_a_name_is_given_anew_to_other_arrays_and_kept_for_the_same():
    first = datasets.add("mine", some(), some(20))
    assert datasets.add("mine", some(), some(20)).fingerprint == first.fingerprint
    assert len(list(cache.folder().glob("mine-*/meta.json"))) == 1
    second = datasets.add("mine", some(seed=3), some(20))
    assert datasets.load("mine").fingerprint == second.fingerprint != first.fingerprint
    assert len(list(cache.folder().glob("mine-*/meta.json"))) == 1


def test_a_run_and_the_command_line_take_it(capsys):
    datasets.add("mine", some(90), some(30))
    task = Task("mine", IID(clients=3, size=15), MLP(hidden=(5,)), Mirrored(30, 6, 6))
    found = run(Experiment(task, FedAvg(batch_size=5), rounds=2, cohort=2), progress=False)
    assert np.isfinite(found.metrics["value"].to_numpy()).all()
    assert main(["data", "list", "mine"]) == 0
    assert "mine" in capsys.readouterr().out


def test_without_a_test_split_clients_hold_out_their_own():
    datasets.add("mine", some(90))
    task = Task("mine", IID(clients=3, size=30), MLP(hidden=(5,)), Own(test=0.2, validation=0.2))
    assert (task.build(0).test.sizes == 6).all()


@pytest.mark.parametrize(
    ("name", "train", "test", "names", "said"),
    [
        ("mnist", some(), None, (), "'mnist' is the name of a dataset that is known already"),
        ("Mine", some(), None, (), "small letters"),
        ("../up", some(), None, (), "small letters"),
        ("my_sample", some(), None, (), "without _sample"),
        ("mine", (some()[0] / 255, some()[1]), None, (), "pictures must be uint8"),
        ("mine", some(shape=(8, 8)), None, (), "pictures must be uint8"),
        ("mine", some(shape=(8, 8, 2)), None, (), "one channel or three"),
        ("mine", (some()[0], some()[1] - 1), None, (), "labels must be integers"),
        ("mine", (some()[0], some()[1] / 2), None, (), "labels must be integers"),
        ("mine", (some()[0], some()[1][:-1]), None, (), "labels must be integers"),
        ("mine", some(0), None, (), "nothing to train"),
        ("mine", some(), some(shape=(9, 8, 1)), (), "shapes differ"),
        ("mine", some(), None, ("a", "b"), "3 different names"),
        ("mine", some(), None, ("a", "b", "b"), "3 different names"),
    ],
)
def test_what_is_no_dataset_is_refused(name, train, test, names, said):
    with pytest.raises(ValueError, match=said):
        datasets.add(name, train, test, names)
    assert "mine" not in datasets.names()


def test_an_unknown_name_is_told_the_known_ones_and_a_damaged_set_what_to_do():
    datasets.add("mine", some())
    with pytest.raises(ValueError, match=r"unknown dataset 'yours'.*mine"):
        Task("yours", IID(clients=3, size=5), MLP())
    path = next(cache.folder().glob("mine-*/train.features.npy"))
    path.write_bytes(b"\0" * 40)
    with pytest.raises(datasets.DatasetError, match="add its arrays again"):
        datasets.load("mine")
