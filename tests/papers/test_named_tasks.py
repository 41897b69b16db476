"""The papers' settings: every one is there at its scales, prints as code, and can be built."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rows import settings_of

from companion.sections import SCALES
from fedlib import IID, LabelPermuted, MatchedHoldout, Rotated, paths
from fedlib import data as datasets
from fedlib.tasks import Task, rotate
from fedlib.values import from_code
from papers import named as tasks
from papers.named import options_of

SETTINGS = [(name, scale) for name in tasks.names() for scale in SCALES]


def task_of(name: str, scale: str) -> Task:
    if scale == "quick" and name.endswith("ag_news"):
        pytest.skip("digits are no texts")
    return tasks.named(name, scale)


@pytest.mark.parametrize(("name", "scale"), SETTINGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_setting_prints_as_its_code_and_can_be_divided(name, scale, seed):
    task = task_of(name, scale)
    assert from_code(repr(task)) == task and (task.dataset == "digits") == (scale == "quick")
    if datasets.describe(task.dataset)[0] not in ("embedded", "parquet", "cache"):
        pytest.skip(f"{task.dataset} is not here")
    counts = task.counts(seed)
    assert (counts["train"].sum(1) > 0).all()
    assert len({len(part) for part in counts.values()}) == 1
    if isinstance(task.held_out, MatchedHoldout):
        shares = counts["train"] / counts["train"].sum(1, keepdims=True)
        for part in ("validation", "test"):
            size = getattr(task.held_out, part)
            assert (counts[part].sum(1) == size).all()
            assert (np.abs(counts[part] - shares * size) < 1).all(), "the nearest whole numbers"


OFFICIAL = {"cifar100": (100, 500, 100), "tiny_imagenet": (200, 500, 50), "femnist": (62, 13000, 0)}


def official(name):
    """Labels and columns in the amounts of an official data set, and pictures of one pixel."""
    classes, *each = OFFICIAL[name]
    rng = np.random.default_rng(0)

    def split(each):
        labels = rng.permutation(np.repeat(np.arange(classes), each))
        columns = {"coarse_label": labels // 5, "writer_id": rng.integers(3500, size=len(labels))}
        return datasets.Split(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, columns)

    train, test = (split(n) for n in each)
    names = tuple(str(c) for c in range(classes))
    return datasets.Dataset(name, train, test, names, (0.5,), (0.5,), "made up", "0" * 64)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in tasks.names() if n.split("/")[1] in OFFICIAL])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_paper_scale_fits_the_official_sets(name, seed, monkeypatch):
    monkeypatch.setattr(datasets, "load", official)
    task = tasks.named(name, "paper")
    counts = task.counts(seed)
    assert all(c.sum() > 0 for c in counts.values())
    assert len(counts["train"]) == getattr(task.partition, "clients", None) or "femnist" in name


def test_options_change_the_setting():
    assert options_of("001/cifar10") == {"p": 0.8} and options_of("000/cifar10") == {}
    assert "[p=0.8]" in tasks.about("001/cifar10")
    assert tasks.scales_of("000/cifar10") == SCALES
    half = tasks.named("001/cifar10", "paper", p=0.5)
    assert half.partition.p == 0.5 and tasks.named("001/cifar10", "paper").partition.p == 0.8
    four = tasks.named("003/rotated_cifar10", "paper", orientations=4)
    assert four.partition.angles == (0.0, 90.0, 180.0, 270.0)


PLAIN = Task("digits", IID(5, 40), tasks.named("000/cifar10").model, MatchedHoldout(200, 10, 20))


def test_a_rotated_task_holds_the_digits_turned():
    turned = replace(PLAIN, partition=Rotated(PLAIN.partition))
    before, after, angles = PLAIN.build(0), turned.build(0), turned.partition.angles
    for name in ("train", "validation", "test"):
        old, new = getattr(before, name), getattr(after, name)
        assert torch.equal(old.y[old.indices], new.y[new.indices])
        assert set(new.side) == {"angle"} and after.values("angle") == 8
        for client, slot in ((0, 0), (2, 3), (4, 9)):
            angle = angles[int(new.side["angle"][new.offsets[0][client] + slot])]
            expected = rotate(old.x[old.client(client)[slot]][None], angle)[0]
            assert torch.equal(new.x[new.client(client)[slot]], expected)
    assert len(after.train.y) == 200, "every example of the disjoint training parts once"
    ways = before.test.indices.tolist(), after.test.side["angle"].tolist()
    pairs = set(zip(*ways, strict=True))
    assert len(after.test.y) == len(pairs), "tests overlap: each way of seeing an example once"


def test_permuted_labels_are_the_tables_of_each_client():
    called = replace(PLAIN, partition=LabelPermuted(PLAIN.partition, 3))
    before, after = PLAIN.build(1), called.build(1)
    tables = torch.as_tensor(called.partition.tables(1, 10))
    for name in ("train", "validation", "test"):
        old, new = getattr(before, name), getattr(after, name)
        for client in range(5):
            k = int(new.side["permutation"][new.offsets[0][client]])
            was, now = old.client(client), new.client(client)
            assert torch.equal(tables[k][old.y[was]], new.y[now])
            assert torch.equal(old.x[was], new.x[now])
    assert len(after.train.side["permutation"].unique()) > 1
    fed = replace(PLAIN, partition=Rotated(called.partition, (0.0, 180.0))).build(0)
    assert fed.values("angle") == 2 and fed.values("permutation") == 3


def test_rotations_go_counter_clockwise_and_come_back():
    corner = torch.zeros(1, 9, 9, 1, dtype=torch.uint8)
    corner[0, 0, 8] = 255  # top right
    assert rotate(corner, 90)[0, 0, 0] == 255 and rotate(corner, 180)[0, 8, 0] == 255
    smooth = torch.zeros(1, 31, 31, 1)
    across = torch.arange(31.0)
    smooth[0, :, :, 0] = 100 + 3 * across[None] + 2 * across[:, None]
    smooth = smooth.to(torch.uint8)
    for angle in (45.0, 30.0):
        twice = smooth
        for _ in range(int(90 / angle)):
            twice = rotate(twice, angle)
        inner = slice(11, 20)
        gap = twice[0, inner, inner, 0].int() - rotate(smooth, 90)[0, inner, inner, 0].int()
        assert gap.abs().max() <= 2
    assert torch.equal(rotate(smooth, 360), smooth)
    wide = torch.zeros(1, 5, 9, 1, dtype=torch.uint8)
    wide[0, 2, 6] = 200  # two right of the centre goes two up
    assert rotate(wide, 90)[0, 0, 4] == 200


def test_the_global_test_holds_no_training_or_validation_example():
    for name in ("004/cifar10", "000/femnist", "003/rotated_cifar10"):
        task = tasks.named(name)
        if name == "003/rotated_cifar10":
            task = replace(PLAIN, held_out=MatchedHoldout(100, 10, 20, source="test"))
        fed = task.build(0)
        tables = fed.train, fed.validation
        images = [{bytes(t.x[i].numpy()) for i in torch.unique(t.indices)} for t in tables]
        everything = [bytes(image.numpy()) for image in fed.test.x]
        # A few digits of the set are the same picture twice.
        twice = len(everything) * 0.02
        assert sum(image in images[0] or image in images[1] for image in everything) <= twice


def test_a_portion_is_a_share_of_every_class():
    fed = replace(PLAIN, held_out=MatchedHoldout(100, 10, 10), portion=0.25).build(0)
    assert len(fed.train.y) == 360 and len(fed.test.y) == 90
    full = np.bincount(datasets.load("digits").train.labels)
    assert np.abs(np.bincount(fed.train.y.numpy()) - full / 4).max() <= 1


@pytest.mark.parametrize("scale", ["quick", "standard"])
def test_the_manuals_table_says_what_is_run(scale):
    asked = [run for section, d in settings_of(scale) for run in section.runs(scale, d)]
    runs = [stage for run in asked for stage in run.experiment.stages]
    lines = (paths.ROOT / "docs" / "MANUAL.md").read_text().splitlines()
    (row,) = (line.split("|") for line in lines if line.startswith(f"| `{scale}` |"))
    rounds = {stage.rounds for stage in runs if stage.rounds > 1}  # not those of later stages
    assert row[4].strip().startswith(f"{min(rounds)} to {max(rounds)}")
    clients = {getattr(stage.task.partition, "clients", None) for stage in runs} - {1, None}
    assert row[3].strip().startswith(f"{min(clients)} to {max(clients)}")
    if scale == "quick":
        units = {width for stage in runs for width in stage.task.model.hidden}
        assert f"{min(units)} to {max(units)} units" in row[5]
