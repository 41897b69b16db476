"""Small federations that every test can afford."""

import math
import os
import subprocess
import sys

import companion  # noqa: F401  # isort: skip  # comes before torch, which it holds to AVX2

# Bits and golden numbers are a CPU's; `make gpu` tries a GPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import pytest
import torch
from hypothesis import settings

from fedlib import processor
from fedlib.engine import evaluate_global
from fedlib.federation import ClientData, Federation
from fedlib.models import MLP, FunctionalModel, LeNet
from fedlib.values import ALLOWED

os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the network
os.environ["MPLBACKEND"] = "agg"  # or opens a window

torch.set_num_threads(1)
# No test asserts a time, so that a slow machine fails none.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _own_names():
    """What a test names in its own Python is allowed in texts of no other test."""
    before = {*ALLOWED}
    yield
    ALLOWED.clear()
    ALLOWED.update(before)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Keep every test away from the project's stored runs, results and figures.

    And from the state of its checkout: what uncommitted code has trained could not be exported.
    """
    for name in ("RUNS", "RESULTS", "FIGURES"):
        monkeypatch.setenv(f"FEDLIB_{name}", str(tmp_path / name.lower()))
    monkeypatch.setattr("fedrun.provenance.commit", lambda: "0123456789ab")


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A data folder and a cache of its own."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def alone(code, *arguments, **variables):
    """What a process of its own comes to that runs some code, pinned to no processor before."""
    clean = {n: v for n, v in os.environ.items() if n not in (*processor.PINS, "FEDLIB_PIN")}
    how = {"env": clean | variables, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, "-c", code, *arguments], **how)


def make_federation(
    sizes=(12, 12, 12), *, model=None, classes=3, shape=(8, 8, 1), seed=0, side=None
) -> Federation:
    """A federation of random images; a client of size n holds n examples, validation and test 6."""
    rng = np.random.default_rng(seed)
    model = model or MLP(hidden=(7,))
    total = int(sum(sizes)) + 40
    y = rng.integers(classes, size=total)
    x = rng.integers(0, 256, (total, *shape)) // 2 + (y * 40)[:, None, None, None]
    x = torch.tensor(x.clip(0, 255), dtype=torch.uint8)
    y = torch.tensor(y)
    look = torch.full((math.prod(shape),), 1 / 128), torch.full((math.prod(shape),), -1.0)
    start = int(sum(sizes))
    held = torch.cat([torch.tensor(rng.permutation(40)[:6]) + start for _ in sizes])
    six = np.full(len(sizes), 6)
    extra = {}
    if side is not None:
        wide = rng.integers(2, size=(len(sizes), max(sizes)))
        extra[side] = torch.tensor(wide[np.arange(max(sizes)) < np.array(sizes)[:, None]])
    return Federation(
        FunctionalModel(model, shape, classes),
        classes,
        torch.device("cpu"),
        ClientData(x, y, torch.arange(start), np.array(sizes), *look, extra),
        ClientData(x, y, held, six, *look),
        ClientData(x, y, held.clone(), six, *look),
        np.arange(len(sizes)),
    )


def told_newcomers(algorithm, fed, state) -> torch.Tensor:
    """What the engine tells a newcomer of every test example: log p(y|x), [examples, classes]."""
    said, there = [], algorithm.combine_clients

    def ensemble(_, *args):
        said.append(there(*args))
        return said[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(algorithm), "combine_clients", ensemble)
        evaluate_global(fed, algorithm, state)
    return torch.cat(said)


def parts_of(fed, algorithm, state, row):
    """One client's leaves and its context, as the engine hands them to ``predict``."""
    ctx = {n: t[0] for n, t in algorithm.client_constants(fed, state, torch.tensor([row])).items()}
    own = {n: t[row] for n, t in state.client_params.items()}
    return {**state.server_params, **own}, {**ctx, **algorithm.round_constants(fed, state)}


def scatter(state, seed=0, scale=1.0):
    """Change every local leaf at random, so that no two clients have the same."""
    draw = torch.Generator().manual_seed(seed)
    for leaf in state.client_params.values():
        leaf += scale * torch.randn(leaf.shape, generator=draw)
    return state


@pytest.fixture
def fed() -> Federation:
    return make_federation()


LENET = LeNet(channels=(3, 4), hidden=(9,), kernel=3)
