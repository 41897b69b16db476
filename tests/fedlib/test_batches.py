"""What a mini-batch brings: crops drawn per client, and what frozen leaves say, computed once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import GOLDEN
from conftest import LENET, make_federation, scatter
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import MIXED, NINE, close, play

from fedlib import IID, FedAvg, MatchedHoldout, Task, sgd
from fedlib import algorithms as alg
from fedlib.engine import EarlyStop, evaluate, train, width
from fedlib.engine.batches import make_plan
from fedlib.federation import NOTHING, CropFlip, Precomputed
from fedlib.models import MLP, LeNet


def plain(image, noise, padding):
    """One image, pixel by pixel."""
    height, width, depth = image.shape
    wide = np.zeros((height + 2 * padding, width + 2 * padding, depth), np.uint8)
    wide[padding : padding + height, padding : padding + width] = image
    down, right = (int(n * (2 * padding + 1)) for n in noise[:2])
    out = np.zeros_like(image)
    for i in range(height):
        for j in range(width):
            from_column = width - 1 - j if noise[2] < 0.5 else j
            out[i, j] = wide[down + i, right + from_column]
    return out


@settings(max_examples=30)
@given(
    st.integers(0, 5), st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(1, 3)),
    st.integers(0, 10**6),
)  # fmt: skip
def test_crops_and_mirrors_by_a_plain_loop(padding, shape, seed):
    rng = np.random.default_rng(seed)
    images = rng.integers(1, 256, (5, *shape), dtype=np.uint8)
    noise = rng.random((5, 3), dtype=np.float32)
    got = CropFlip(padding)(torch.tensor(images), torch.tensor(noise))
    assert got.dtype == torch.uint8
    for i in range(5):
        np.testing.assert_array_equal(got[i].numpy(), plain(images[i], noise[i], padding))


def test_every_crop_can_happen():
    """Noise next to 0 and to 1 takes the first and the last of the 2 p + 1 places."""
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 3, 3, 1)
    below_one = float(np.nextafter(np.float32(1), np.float32(0)))
    first, last = (CropFlip(1)(image, torch.tensor([[n, n, 0.9]])) for n in (0.0, below_one))
    assert first[0, :, :, 0].tolist() == [[0, 0, 0], [0, 1, 2], [0, 4, 5]]
    assert last[0, :, :, 0].tolist() == [[5, 6, 0], [8, 9, 0], [0, 0, 0]]


def plan_of(ids, sizes=(5, 9, 2), seed=0, where=(3, 1)):
    sizes = np.array(sizes)[: len(ids)]
    return make_plan(np.array(ids), sizes, batch_size=4, epochs=2, where=(seed, *where))


def test_noise_is_uniform_and_of_its_own_client_round_phase_and_run():
    plan = plan_of([7, 1, 4])
    drawn = list(plan.noise(3))
    assert len(drawn) == plan.steps and drawn[0].shape == (3, 4, 3)
    every = np.concatenate([d.ravel() for d in drawn])
    assert every.dtype == np.float32 and 0 <= every.min() < 0.2 and 0.8 < every.max() < 1
    some = list(plan.rows(np.array([2, 0])).noise(3))
    for whole, few in zip(drawn, some, strict=False):
        np.testing.assert_array_equal(few, whole[[2, 0]])
    others = ({}, {"seed": 1}, {"where": (4, 1)}, {"where": (3, 0)})
    first = [drawn[0][1], *drawn[1], *(next(plan_of([7], **other).noise(3)) for other in others)]
    assert len({noise.tobytes() for noise in first}) == len(first)


def augmented(augment):
    fed = make_federation((11, 4, 9), model=LENET, shape=(12, 12, 1))
    fed.train.augment = augment
    return fed


@pytest.mark.parametrize("rows", [[0], [0, 2, 1]])
def test_inputs_computed_some_steps_ahead_are_those_of_every_step(rows, monkeypatch):
    fed = augmented(None)
    plan = plan_of(rows, sizes=fed.train.sizes[rows], where=(0, 0))
    asked = torch.tensor(rows), plan.positions, plan.counts, plan.counts.max(0)
    ahead = [*fed.train.batches(*asked)]
    monkeypatch.setattr("fedlib.federation.AHEAD", 0)
    assert len(ahead) == plan.steps
    for one, other in zip(ahead, fed.train.batches(*asked), strict=True):
        assert all(torch.equal(one[n], other[n]) for n in ("x", "y", "weight"))


def test_training_sees_exactly_the_images_of_its_noise():
    fed, plan = augmented(CropFlip(2)), plan_of([0], sizes=(11,), where=(0, 0))
    asked = torch.tensor([0]), plan.positions, plan.counts, plan.counts.max(0), plan.noise(3)
    batches = fed.train.batches(*asked)
    for t, (batch, noise) in enumerate(zip(batches, plan.noise(3), strict=True)):
        assert batch.noise is None  # all of it was the augmentation's
        for b in range(plan.counts[0, t]):
            example = fed.train.client(0)[plan.positions[0, t, b]]
            image = plain(fed.train.x[example].numpy(), noise[0, b], 2)
            expected = torch.tensor(image / 128 - 1).movedim(-1, 0).float()
            torch.testing.assert_close(batch.x[0, b], expected)


def test_evaluation_sees_images_as_they_are():
    fed, same = augmented(CropFlip(2)), augmented(None)
    state = FedAvg().init(fed, 0)
    for table in ("train", "validation", "test"):
        one, other = (evaluate(f, FedAvg(), state, getattr(f, table)) for f in (fed, same))
        np.testing.assert_array_equal(one.nll, other.nll)
    task = Task("digits", IID(3, 20), MLP((5,)), MatchedHoldout(100, 10, 10), augment=CropFlip(1))
    fed = task.build(0)
    assert fed.train.augment and fed.validation.augment is fed.test.augment is None


RAGGED = (11, 0, 4, 17)
FOUR = {"batch_size": 4, "client": sgd(0.1)}
STOP = EarlyStop(every=1, patience=2)
THREE = {**FOUR, "epochs": 3}
LATER = {**THREE, "stop": STOP}
ALGORITHMS = (
    alg.FedRep(**FOUR, head_epochs=3),
    alg.MOON(**FOUR, epochs=2),
    alg.FedCP(**FOUR, epochs=2),
    *(alg.NewClients(of=of, **LATER | {"client": of.client}) for of in (MIXED, *NINE.values())),
    alg.PMMoE(of=alg.FedPer(), **THREE, denoise=0.4),
    alg.Mixture(**LATER),
)


def trained(algorithm, fed, rounds=2, **how):
    """The end and last report of rounds that begin where no two clients are the same."""
    first = alg.FedAvg().init(fed, 0) if isinstance(algorithm, alg.Mixture) else None
    if isinstance(algorithm, alg.NewClients | alg.PMMoE):
        first = scatter(algorithm.of.init(fed, 0))
    state = scatter(algorithm.init(fed, 0, first), 1, 0.1)
    if isinstance(algorithm, alg.PMMoE):  # its marks of experts left out are no numbers
        state.client_params["kept.experts"] = torch.ones(fed.num_clients, fed.num_clients)
    return play(algorithm, fed, rounds, state=state, **how)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_training_with_what_is_known_is_training_without(monkeypatch, algorithm):
    fed = make_federation(RAGGED, model=LENET, shape=(12, 12, 1))
    monkeypatch.setattr(width, "AT_ONCE", 5)
    ends = [trained(algorithm, fed, chunk=chunk) for chunk in (None, 1)]
    monkeypatch.setattr(train, "precompute", lambda *_: NOTHING)
    state, report = trained(algorithm, fed, chunk=1)
    for end, said in ends:
        same = {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}  # a client has no examples
        torch.testing.assert_close(said.losses, report.losses, **same)
        close(state.flat(), end.flat(), rtol=1e-3, atol=1e-5)


@pytest.fixture
def convolutional():
    return make_federation((9, 5, 7, 6), model=LENET, shape=(12, 12, 1))


def asked(algorithm, fed):
    """What the phases of a round know of training examples, and how many share each program."""
    computed, chunks, there = [], [], (train.precompute, train.train_together)

    def precompute(fed, table, *args):
        computed.append((table, there[0](fed, table, *args)))
        return computed[-1][1]

    def together(algorithm, cohort, *args):
        chunks.append(len(cohort.clients))
        return there[1](algorithm, cohort, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "precompute", precompute)
        patch.setattr(train, "train_together", together)
        trained(algorithm, fed, rounds=1)
    held = [found for table, found in computed if table is fed.validation]
    return [found for table, found in computed if table is fed.train], held, chunks


@pytest.mark.parametrize("code", GOLDEN["chunks"])
def test_each_phase_has_the_chunk_that_suits_what_it_trains(convolutional, code):
    algorithm = eval(code, {**vars(alg), **globals()})
    assert asked(algorithm, convolutional)[2] == GOLDEN["chunks"][code]


def test_a_cohorts_weights_wait_in_memory_only_if_they_are_few(monkeypatch, convolutional):
    size = width.Width(convolutional, alg.FedRep().init(convolutional, 0)).numbers
    monkeypatch.setattr(width, "WAITING_BYTES", 8 * size)
    assert asked(alg.FedRep(**FOUR), convolutional)[2] == [2, 1, 1, 2, 1, 1]


def test_nothing_is_known_of_augmented_examples_nor_features_where_units_drop(convolutional):
    changed = replace(convolutional, train=replace(convolutional.train, augment=CropFlip(1)))
    knowing = alg.FedRep(**FOUR), alg.MOON(**FOUR), alg.FedCP(**FOUR)
    for algorithm in (*knowing, alg.PMMoE(of=alg.FedPer(), **FOUR)):
        computed, _, chunks = asked(algorithm, changed)
        assert computed and not any(map(any, computed)) and set(chunks) == {1}
    drops = LeNet(channels=(3, 4), hidden=(9,), kernel=3, dropout=0.5)
    fed = make_federation((9, 5, 7, 6), model=drops, shape=(12, 12, 1))
    # Models that stand still drop nothing.
    for algorithm, names in zip(knowing, (set(), {"apart"}, {"theirs"}), strict=True):
        computed = asked(algorithm, fed)[0]
        assert all({*found.extra} == names and not found.replace for found in computed)


def test_a_leaf_that_moves_is_never_asked(fed):
    class Wrong(alg.FedPer):
        def precompute(self, net, frozen, ctx, batch):
            return Precomputed({"h": net.features(frozen, batch.x)}, {})

    with pytest.raises(KeyError, match=r"base\."):
        play(Wrong(), fed, 1)


def test_early_stopping_on_the_loss_knows_validation_examples_too(convolutional):
    seen, held, _ = asked(alg.Mixture(**LATER), convolutional)
    assert len(seen) == len(held) == 4 and not any(s.replace for s in seen)
    assert all(h.extra["log_p"].shape == (1, 6, 1) for h in held) and "log_p" in seen[0].extra
    (seen,), none, _ = asked(alg.NewClients(of=alg.FedPer(), **LATER), convolutional)
    assert seen.replace and not none  # which watches predictions
    assert not any(map(any, asked(alg.Local(), convolutional)[0]))
