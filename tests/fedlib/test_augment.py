"""Crops and mirror images: pixel by pixel, drawn per client, and for training only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import LENET, make_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.algorithms import FedAvg, FedMix
from fedlib.engine import evaluate, play_round
from fedlib.engine.batches import make_plan
from fedlib.models import MLP
from fedlib.partition import IID, Mirrored
from fedlib.tasks import CropFlip, Task


def plain(image, noise, padding, flip):
    """One image, pixel by pixel."""
    height, width, depth = image.shape
    wide = np.zeros((height + 2 * padding, width + 2 * padding, depth), np.uint8)
    wide[padding : padding + height, padding : padding + width] = image
    down, right = (int(n * (2 * padding + 1)) for n in noise[:2])
    out = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            from_column = width - 1 - j if flip and noise[2] < 0.5 else j
            out[i, j] = wide[down + i, right + from_column]
    return out


@settings(max_examples=30)
@given(
    padding=st.integers(0, 5),
    flip=st.booleans(),
    shape=st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 3)),
    seed=st.integers(0, 10**6),
)
def test_crops_and_mirrors_by_a_plain_loop(padding, flip, shape, seed):
    rng = np.random.default_rng(seed)
    images = rng.integers(1, 256, (5, *shape), dtype=np.uint8)
    noise = rng.random((5, 3), dtype=np.float32)
    got = CropFlip(padding, flip)(torch.tensor(images), torch.tensor(noise))
    assert got.dtype == torch.uint8
    for i in range(5):
        np.testing.assert_array_equal(got[i].numpy(), plain(images[i], noise[i], padding, flip))


def test_every_crop_can_happen():
    """Noise next to 0 and to 1 takes the first and the last of the 2 p + 1 places."""
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 3, 3, 1)
    below_one = float(np.nextafter(np.float32(1), np.float32(0)))
    first, last = (CropFlip(1, False)(image, torch.tensor([[n, n, 0.9]])) for n in (0.0, below_one))
    assert first[0, :, :, 0].tolist() == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    assert last[0, :, :, 0].tolist() == [[5, 6, 0], [8, 9, 0], [0, 0, 0]]


def test_no_padding_and_no_mirror_is_the_image():
    image = torch.randint(256, (4, 5, 6, 3), dtype=torch.uint8)
    assert torch.equal(CropFlip(0, False)(image, torch.rand(4, 3)), image)
    with pytest.raises(ValueError, match="padding must be >= 0, got -1"):
        CropFlip(-1)


def plan_of(ids, sizes=(5, 9, 2), seed=0, where=(3, 1)):
    sizes = np.array(sizes)[: len(ids)]
    return make_plan(np.array(ids), sizes, batch_size=4, epochs=2, seed=seed, where=where)


def test_noise_is_uniform_and_of_its_own_client():
    plan = plan_of([7, 1, 4])
    drawn = list(plan.noise(3))
    assert len(drawn) == plan.steps and drawn[0].shape == (3, 4, 3)
    every = np.concatenate([d.ravel() for d in drawn])
    assert every.dtype == np.float32 and 0 <= every.min() < 0.2 and 0.8 < every.max() < 1
    some = list(plan.rows(np.array([2, 0])).noise(3))
    for whole, few in zip(drawn, some, strict=False):
        np.testing.assert_array_equal(few, whole[[2, 0]])
    assert not np.array_equal(drawn[0][0], drawn[0][1]) and not np.array_equal(*drawn[:2])


@pytest.mark.parametrize("other", [{"seed": 1}, {"where": (4, 1)}, {"where": (3, 0)}])
def test_noise_is_another_in_another_round_phase_or_run(other):
    one, two = (next(p.noise(3)) for p in (plan_of([7]), plan_of([7], **other)))
    assert not np.array_equal(one, two)


SHIFTED = CropFlip(2)


def augmented(model=LENET, shape=(12, 12, 1), augment=SHIFTED):
    fed = make_federation((11, 4, 9), model=model, shape=shape)
    fed.train.augment = augment
    return fed


@pytest.mark.parametrize("model", [LENET, MLP(hidden=(7,))])
@pytest.mark.parametrize("algorithm", [FedAvg(batch_size=4), FedMix(experts=2, batch_size=4)])
def test_the_result_does_not_depend_on_the_chunk(model, algorithm):
    ends = []
    for chunk in (1, 2, 3):
        fed = augmented(model)
        state = algorithm.init(fed, 0)
        for t in range(2):
            state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=3, chunk=chunk)
        ends.append(state.flat())
    for other in ends[1:]:
        for name, leaf in ends[0].items():
            torch.testing.assert_close(other[name], leaf, rtol=1e-3, atol=1e-5)


def test_training_sees_exactly_the_images_of_its_noise():
    fed = augmented()
    plan = plan_of([0], sizes=(11,), where=(0, 0))
    batches = fed.train.batches(
        torch.tensor([0]), plan.positions, plan.counts, plan.counts.max(0), plan.noise(3)
    )
    for t, (batch, noise) in enumerate(zip(batches, plan.noise(3), strict=True)):
        assert "noise" not in batch  # all of it was the augmentation's
        for b in range(plan.counts[0, t]):
            example = fed.train.index[0, plan.positions[0, t, b]]
            image = plain(fed.train.x[example].numpy(), noise[0, b], 2, True)
            expected = torch.tensor(image / 128 - 1).movedim(-1, 0).float()
            torch.testing.assert_close(batch["x"][0, b], expected)


def test_evaluation_sees_images_as_they_are():
    fed, same = augmented(), augmented(augment=None)
    state = FedAvg().init(fed, 0)
    for table in ("train", "validation", "test"):
        one, other = (evaluate(f, FedAvg(), state, getattr(f, table)) for f in (fed, same))
        np.testing.assert_array_equal(one.nll, other.nll)
    whole, plain_whole = (f.train.whole(torch.arange(3))["x"] for f in (fed, same))
    assert torch.equal(whole, plain_whole)


def test_a_task_augments_training_only():
    task = Task("digits", IID(3, 20), MLP(hidden=(5,)), Mirrored(100, 10, 10), augment=CropFlip(1))
    fed = task.build(0)
    assert fed.train.augment == CropFlip(1)
    assert fed.validation.augment is None and fed.test.augment is None
