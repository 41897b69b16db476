"""Tasks and the federations they build: who holds what, counted once, and on which device."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import refused
from conftest import make_federation

from fedlib import IID, MLP, Dirichlet, LeNet, MatchedHoldout, models, partition
from fedlib import data as datasets
from fedlib.federation import OPTED_IN
from fedlib.tasks import Task, pick_device
from fedlib.values import value

SIZES = (5, 2, 4)


def opting(fed, flag):
    side = {OPTED_IN: torch.tensor(flag)}
    return replace(fed, train=replace(fed.train, side=side))


def test_rows_by_id_undo_a_permutation():
    fed = make_federation(SIZES)
    moved = fed.permuted(np.array([2, 0, 1]))
    assert fed.by_id.tolist() == moved.ids[moved.by_id].tolist() == [0, 1, 2]
    assert torch.equal(moved.train.subset(moved.by_id.numpy()).indices, fed.train.indices)


@pytest.mark.parametrize("sizes", [(5, 2, 3), (5, 2, 5), (2, 2, 2)])
def test_sizes_are_those_of_what_is_held(sizes):
    """A table of shortened sizes read other clients' examples as a client's own."""
    table, shared = make_federation(SIZES).train, np.array([11, 0, 11])
    said = rf"11 examples .* imply {sum(sizes)}; see `ClientData.subset`"
    with pytest.raises(ValueError, match=said):
        replace(table, sizes=np.array(sizes))
    replace(table, sizes=shared, shared=True)
    with pytest.raises(ValueError, match="sizes imply 12"):
        replace(table, sizes=shared + 1, shared=True)


def test_a_changed_copy_forgets_what_was_counted():
    fed = opting(make_federation(SIZES), [1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0])
    before, inside = fed.shares("label"), fed.participating_view()
    assert fed.shares("label") is before and fed.participating_view() is inside
    other = replace(fed, train=replace(fed.train, y=(fed.train.y + 1) % 3))
    assert not torch.equal(other.shares("label"), before)
    torch.testing.assert_close(other.shares("label"), before.roll(1, 1))
    assert other.participating_view() is not inside


def both(fed):
    """The indices, sizes and members of a federation and of what its clients have at home."""
    views = fed, fed.full_view()
    return [(v.train.indices.tolist(), v.train.sizes.tolist(), v.participants) for v in views]


def test_a_changed_federation_hides_the_same():
    flag = [0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0]
    fed = opting(make_federation(SIZES), flag)
    other = replace(fed, classes=4)
    assert str(both(other)) == str(both(fed)) and other.full_view().classes == 4
    order = np.array([2, 0, 1])
    moved = fed.permuted(order)
    assert moved.participants.tolist() == [0, 2] and moved.train.sizes.tolist() == [2, 0, 2]
    again = replace(fed.full_view().permuted(order), includes_opted_out=False)
    whole = fed.full_view().permuted(order)
    for one in (moved, whole):
        assert one.participating_view().participants.tolist() == again.participants.tolist()
    assert whole.full_view() is whole and whole.eval_view() is whole.eval_view()
    for one, other in ((moved, again), (moved.full_view(), again.full_view())):
        assert torch.equal(*(f.train.y[f.train.indices] for f in (one, other)))
    assert fed.full_view().pooled().train.indices.tolist() == fed.pooled().train.indices.tolist()


HELD_OUT = MatchedHoldout(pool=300, validation=20, test=25)
TASK = Task("digits", Dirichlet(15, 0.5, size=60), LeNet(channels=(3,), hidden=(8,)), HELD_OUT)


@pytest.fixture(scope="module")
def fed():
    return TASK.build(3)


def test_labels_and_normalised_pixels_are_those_of_the_data_set(fed):
    data = datasets.load("digits")
    for table, part in ((fed.train, data.train), (fed.test, data.test)):
        some = table.client(4)[:7]
        assert table.y[some].tolist() == part.labels[some].tolist()
        pixels = (part.features[some].astype(float) / 255 - data.mean[0]) / data.std[0]
        found = table.inputs(some).movedim(1, -1).numpy()
        np.testing.assert_allclose(found, pixels, rtol=1e-4, atol=1e-5)


def test_a_seed_is_a_partition(fed):
    again, other = TASK.build(3), TASK.build(4)
    for name in ("train", "validation", "test"):
        indices = getattr(fed, name).indices
        assert torch.equal(indices, getattr(again, name).indices)
        assert not torch.equal(indices, getattr(other, name).indices)
    other = replace(TASK, model=MLP((4,)), held_out=MatchedHoldout(300, 5, 10)).build(3)
    assert torch.equal(other.train.indices, fed.train.indices), "nor do other sizes change it"
    alone = replace(TASK, partition=IID(clients=1)).build(0)
    assert alone.train.sizes.tolist() == [1437 - 300]


def test_the_division_is_what_build_holds(fed):
    parts = TASK.divide(3).parts
    assert set(parts) == {"train", "validation", "test"}
    for name, part in parts.items():
        assert np.array_equal(part.flat, getattr(fed, name).indices.numpy())
    assert not np.isin(parts["train"].flat, parts["validation"].flat).any()
    shares = parts["train"].shares(datasets.load("digits").train.labels, 10)
    assert (shares.max(1) > 0.25).any(), "the partition should be skewed"


@pytest.mark.skipif("torch.cuda.is_available()", reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_an_error():
    for ask in (pick_device, lambda device: TASK.build(0, device)):
        with pytest.raises(ValueError, match="device 'cuda:0' is not available"):
            ask("cuda:0")


@pytest.mark.parametrize(("freed", "tf32"), [("1", False), ("0", True)])
def test_a_gpu_rounds_no_factor_to_ten_bits(monkeypatch, freed, tf32):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setenv("FEDLIB_PIN", freed)
    assert pick_device("cuda").type == "cuda" and str(pick_device("GPU:1")) == "cuda:1"
    assert torch.backends.cudnn.allow_tf32 is tf32


@value
class Nobody(partition.Partitioner):
    """Four clients without an example."""

    def partition(self, pool, seed):
        return partition.Partition.from_owners(pool.positions[:0], np.zeros(0, int), 4)


@refused("tasks")
def test_impossible_tasks_are_errors(code, message):
    with pytest.raises(ValueError, match=message):
        eval(code, {**vars(partition), **vars(models), **globals()})
