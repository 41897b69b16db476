"""What training can be told: rates by round, clipping, projections, who takes part, changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import GOLDEN, refused
from conftest import LENET, make_federation
from playing import (
    FAST,
    SIZES,
    Linear,
    arrays,
    begun,
    close,
    cohort_of,
    equal,
    every,
    one_step,
    plans_of,
    play,
    texts,
)
from small import AVG

from fedlib import Augmentation, Cosine, Optimizer, Schedule, Step, adam, sgd, value
from fedlib.algorithms import (
    APFL,
    FedAvg,
    FedBABU,
    FedGen,
    FedGH,
    Private,  # noqa: F401  # of a refused row
)
from fedlib.algorithms.private import clipped
from fedlib.engine import Prediction, Selection, play_round, select
from fedlib.engine.as_module import module_of
from fedlib.engine.selection import cohort_size
from fedlib.engine.train import batches
from fedrun import simulate
from fedrun.train import require_params


@value
class Unweighted(FedAvg):
    """A loss that averages over the padding of a mini-batch, too."""

    def loss(self, net, params, ctx, batch):
        return torch.nn.functional.cross_entropy(net(params, batch.x, batch), batch.y)


def test_a_loss_that_depends_on_padding_is_refused_in_the_first_round():
    """It was trained with numbers that depended on which clients shared a program."""
    fed = make_federation(SIZES)
    with pytest.raises(ValueError, match=r"Unweighted\.loss depends on the padding"):
        play(Unweighted(**FAST), fed, rounds=1, chunk=3)
    play(Unweighted(**FAST), fed, rounds=1, chunk=1)  # no mini-batch of one client is filled up


@every
def test_a_loss_may_be_infinite_for_labels_that_a_client_lacks(algorithm):
    """FedRoD was refused on clients of a single label: padding had one that they do not hold."""
    fed = make_federation(SIZES)
    single = replace(fed, train=replace(fed.train, y=torch.zeros_like(fed.train.y)))
    play(algorithm, single, rounds=1, chunk=3)


@value
class Named(Schedule):
    """Any function of the round."""

    power: float = 1.0

    def at(self, round):
        return (round + 1.0) ** -self.power


@pytest.mark.parametrize("schedule", [Step(2, 0.5), Cosine(3, 0.1, warmup=1), Named(0.5)], ids=str)
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_schedule_is_the_rate_of_its_round(schedule, side):
    """At the client and at the server: as if every round had a rate of its own."""
    fed, states = make_federation(SIZES), {}
    rate, algorithm = {"client": 0.2, "server": 1.0}[side], FedAvg(batch_size=4)
    for by_hand in (False, True):
        state = algorithm.init(fed, 0)
        for t in range(5):
            fixed = sgd(rate * schedule.at(t))
            told = fixed if by_hand else replace(sgd(rate), schedule=schedule)
            now = replace(algorithm, **{side: told})
            state, _ = play_round(now, fed, state, round=t, seed=0, cohort=3)
        states[by_hand] = state.server_params
    assert equal(states[False], states[True])


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_clients_gradient_is_clipped_over_all_its_leaves(chunk):
    fed = make_federation((3, 12), model=Linear(), shape=(4, 4, 2))
    most, lr = 0.05, 0.1
    algorithm = FedAvg(batch_size=None, client=Optimizer(lr=lr, clip=most))
    state = algorithm.init(fed, 0)
    start = arrays(state.server_params)
    _, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=2, chunk=chunk)
    for place, row in enumerate(report.clients.tolist()):
        free = one_step(fed, row, start, lr)
        step = {n: start[n] - free[n] for n in start}
        length = np.sqrt(sum((s**2).sum() for s in step.values())) / lr
        assert length > most
        for n, s in step.items():
            got = report.messages[n][place].numpy()
            np.testing.assert_allclose(got, s * most / length, rtol=1e-3, atol=1e-7)


def test_the_servers_step_is_clipped_too():
    fed = make_federation(SIZES)
    free, held = (FedAvg(batch_size=4, server=replace(sgd(1.0), clip=c)) for c in (None, 1e-3))
    begun = free.init(fed, 0)
    ends = [play(algorithm, fed, 1, state=begun)[0].server_params for algorithm in (free, held)]
    one, other = (
        torch.cat([(e[n] - t).flatten() for n, t in begun.server_params.items()]) for e in ends
    )
    torch.testing.assert_close(other * one.norm() / 1e-3, one, rtol=1e-3, atol=1e-5)


STILL = {"schedule": Step(every=1, factor=1e-9)}, {"clip": 1e-9}
TAUGHT = {"head": FedGH(**FAST), "fit": FedGen(noise=4, hidden=8, steps=5, fit=sgd(0.1))}


@pytest.mark.parametrize("more", STILL, ids=lambda more: next(iter(more)))
@pytest.mark.parametrize(("field", "prefix"), [("head", "head."), ("fit", "generator.")])
def test_what_a_server_trains_itself_is_scheduled_and_clipped(field, prefix, more):
    """With a rate or a gradient of almost nothing the last round moves nothing."""
    algorithm, fed = TAUGHT[field], make_federation(SIZES)
    slow = replace(algorithm, **{field: replace(getattr(algorithm, field), **more)})
    for one, moves in ((algorithm, True), (slow, False)):
        begun, _ = play(algorithm, fed, 1)
        after, _ = play_round(one, fed, begun, round=1, seed=0, cohort=3)
        for name, leaf in after.server_params.items():
            # A bias before a normalisation has no gradient.
            if name.startswith(prefix) and name != "generator.first.bias":
                assert torch.allclose(leaf, begun.server_params[name], rtol=0, atol=1e-7) != moves


@refused("training")
def test_what_cannot_be_told_is_refused(code, message):
    with pytest.raises(ValueError, match=message):
        eval(code)


@value
class Typed(FedAvg):
    """FedAvg whose phase says by itself which leaves it trains."""

    train: tuple[str, ...] = ("",)
    scope: str = "both"

    def phases(self):
        return (self.phase(train=self.train, scope=self.scope),)


@value
class Counted(FedAvg):
    """FedAvg with a whole number, which its phase trains."""

    def init_params(self, fed, seed):
        return {**FedAvg.init_params(self, fed, seed), "turns": torch.tensor(3)}


@refused("leaves")
def test_a_phase_or_a_rate_of_no_leaf_is_refused(code, message):
    """A run trained nothing, or at another rate, without a word."""
    with pytest.raises(ValueError, match=message):
        next(simulate(replace(AVG, algorithm=eval(code))))


def test_a_method_that_would_train_nothing_is_refused():
    """FedBABU on a network without a base ran to the end with its initial leaves."""
    fed, algorithm = make_federation(SIZES, model=Linear()), FedBABU()
    with pytest.raises(ValueError, match=r"FedBABU: Phase\(.*'base\.',.* trains no parameter"):
        require_params(algorithm, begun(algorithm, fed))


@value
class Counting(FedAvg):
    """The server keeps a whole number and a truth value, and broadcasts what is no tensor."""

    def phases(self):
        return (self.phase(train=("base.", "head.")),)

    def init_params(self, fed, seed):
        more = {"turns": torch.tensor(3), "on": torch.tensor(True)}
        return {**FedAvg.init_params(self, fed, seed), **more}

    def round_constants(self, fed, state):
        return {"sharp": 2.0}

    def predict(self, net, params, ctx, code):
        return Prediction.single((code["logp"] * ctx["sharp"]).log_softmax(-1))


@pytest.mark.parametrize("server", [sgd(1.0, 0.9), adam(), Optimizer("Adagrad", lr=0.1)], ids=repr)
def test_numbers_that_no_gradient_moves_may_be_leaves_and_others_constants(server):
    fed, algorithm = make_federation(SIZES), Counting(server=server, batch_size=4)
    state, _ = play(algorithm, fed)
    same, _ = play(FedAvg(server=server, batch_size=4), fed)
    expected = {**same.server_params, "turns": torch.tensor(3), "on": torch.tensor(True)}
    assert equal(expected, state.server_params)
    x = fed.test.inputs(torch.arange(5))
    sharp = (2 * fed.net.logp(state.server_params, x)).log_softmax(-1)
    assert torch.allclose(module_of(fed, algorithm, state, 1)(x), sharp)


BARE = ("APFL", "FedAvg", "FedMix", "FedProx", "FedRep", "MOON")


@every
def test_what_the_library_trains_is_there(algorithm):
    """Also below the head of a network that has nothing there, for those that need nothing."""
    bare = make_federation(SIZES, model=Linear())
    models = make_federation(SIZES), *([bare] if type(algorithm).__name__ in BARE else [])
    for fed in models:
        require_params(algorithm, begun(algorithm, fed))


class Projected(FedAvg):
    """FedAvg whose weights are kept in a box, after so many steps on a batch."""

    box, repeat = 0.05, 1

    def phases(self):
        return (self.phase(project="boxed", steps_per_batch=self.repeat),)

    def boxed(self, net, params, ctx, batch):
        return {n: t.clamp(-self.box, self.box) for n, t in params.items()}


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_projection_follows_every_step(chunk):
    fed = make_federation(SIZES, model=LENET, shape=(12, 12, 1))
    for kind, largest in ((Projected, (0.0, 0.05 + 1e-6)), (FedAvg, (0.1, 9.0))):
        state, _ = play(kind(batch_size=4), fed, 2, chunk=chunk)
        found = max(t.abs().max() for t in state.server_params.values())
        assert largest[0] < found <= largest[1]


def test_steps_can_be_repeated_on_a_batch():
    fed = make_federation((5,), model=Linear(), shape=(4, 4, 2))
    algorithm = Projected(batch_size=None, client=sgd(0.1))
    vars(algorithm).update(repeat=3, box=100.0)
    state = algorithm.init(fed, 0)
    w = arrays(state.server_params)
    for _ in range(3):
        w = one_step(fed, 0, w, 0.1)
    after, _ = play_round(algorithm, fed, state, round=0, seed=0, cohort=1)
    close(w, arrays(after.server_params), rtol=1e-3)


class Dated(FedAvg):
    """A server and clients that look at the calendar."""

    def client_update(self, net, before, after, ctx):
        own, sent = FedAvg.client_update(self, net, before, after, ctx)
        return own, {n: t + 0 * t + 100 * ctx["round"] + ctx["seed"] for n, t in sent.items()}

    def aggregate(self, fed, state, rows, messages):
        self.seen.append((state.round, state.seed, float(messages["head.bias"].mean().round())))
        return state


def test_round_and_seed_reach_clients_and_server():
    fed, algorithm = make_federation(SIZES), Dated(batch_size=4)
    object.__setattr__(algorithm, "seen", [])
    play(algorithm, fed, 3, seed=7)
    assert algorithm.seen == [(0, 7, 7.0), (1, 7, 107.0), (2, 7, 207.0)]


def drawn(how, rounds=400, sizes=(10, 10, 10, 70)):
    """Who was drawn in so many rounds, row by row, and how many each time."""
    fed = make_federation(sizes)
    picked = [select(fed, how, 3, t) for t in range(rounds)]
    assert all(len(set(p.tolist())) == len(p) > 0 for p in picked)
    return np.bincount(np.concatenate(picked), minlength=len(sizes)), np.array([*map(len, picked)])


@value
class Picking(Selection):
    """Picks what a test says."""


NOBODY = np.zeros(0, int)


@pytest.mark.parametrize(
    "picked", [[0, 0], [-1], [9], NOBODY, [True, False], [0.0], [[0, 1]], None]
)
def test_who_is_picked_is_there_and_once(monkeypatch, picked):
    """A client picked twice counted twice, and -1 was the last one, without a word."""
    fed, said = make_federation((4,) * 4), r"Picking\.pick must return a non-empty subset of"
    monkeypatch.setattr(Picking, "pick", lambda *_: picked)
    with pytest.raises(ValueError, match=rf"{said} `clients`, each"):
        select(fed, Picking(2), 0, 0)
    monkeypatch.setattr(Picking, "pick", lambda *_: [3, 1])
    assert select(fed, Picking(2), 0, 0).tolist() == [3, 1]


def test_a_fraction_of_the_clients_is_rounded_up():
    """003, algorithm 1, line 3; what a product of floats is off by rounds nothing up."""
    # 0.07 * 100 is 7.000000000000001 in floats, and 0.29 * 100 is 28.999999999999996.
    asked = [(0.03, 182), (0.1, 50), (0.07, 100), (0.29, 100), (1 / 3, 3), (1e-12, 50), (7, 50)]
    assert [cohort_size(cohort, n) for cohort, n in asked] == [6, 5, 7, 29, 1, 1, 7]


def test_large_clients_are_drawn_more_often_and_who_is_away_is_not_there():
    often, _ = drawn(Selection(1, weighted=True))
    np.testing.assert_allclose(often / 400, [0.1, 0.1, 0.1, 0.7], atol=0.06)
    often, _ = drawn(Selection(4, available=0.5))
    np.testing.assert_allclose(often / 400, 0.5, atol=0.08)
    _, sizes = drawn(Selection(4, dropout=0.25))
    np.testing.assert_allclose(sizes.mean(), 3, atol=0.1)
    fed, day = make_federation((4,) * 9), Selection(9, available=0.5, period=10)
    there = np.array([np.isin(range(9), select(fed, day, 0, t)) for t in range(40)])
    np.testing.assert_array_equal(there[:10], there[10:20])  # every day alike
    assert (np.abs(np.diff(there[:20].astype(int), axis=0)).sum(0) <= 4).all()  # in one stretch
    assert there[:10].sum(0).tolist() == [5] * 9


def test_a_selection_is_a_clients_own():
    """Who is there does not hang on a client's row; a number is a uniform selection."""
    fed, order = make_federation((4,) * 9), np.random.default_rng(0).permutation(9)
    turned, how = fed.permuted(order), Selection(9, available=0.4, dropout=0.3)
    for t in range(10):
        assert {*fed.ids[select(fed, how, 0, t)]} == {*turned.ids[select(turned, how, 0, t)]}
        for cohort in (3, 0.4, 1.0):
            assert (select(fed, cohort, 1, t) == select(fed, Selection(cohort), 1, t)).all()


@pytest.mark.parametrize("code", GOLDEN["cohorts"])
def test_the_cohorts_that_stored_results_were_drawn_with(code):
    """Of six clients the third is no member, the second has nothing and the fourth one example."""
    fed = replace(make_federation((4, 0, 7, 1, 9, 6)), participants=np.array([0, 1, 3, 4, 5]))
    assert [select(fed, eval(code), 3, t).tolist() for t in range(3)] == GOLDEN["cohorts"][code]


@value
class Shuffled(Augmentation):
    """A text from its end to its beginning."""

    def __call__(self, x, noise):
        return x.flip(1).where(noise[:, :1] < 2, x)


def test_any_batched_function_augments_any_examples():
    """Images are augmented in test_batches."""
    fed = texts()
    fed.train.augment = Shuffled()
    algorithm = FedAvg(batch_size=None)
    (plan,) = plans_of(algorithm, fed, np.array([1]))
    cohort = cohort_of(algorithm, fed, algorithm.init(fed, 0), torch.tensor([1]))
    (batch,) = batches(cohort, algorithm.phases()[0], plan)
    fed.train.augment = None
    plain = fed.train.inputs(fed.train.client(1)[plan.positions[0, 0]])
    assert torch.equal(batch.x[0], plain.flip(1))


@value
class Changing(Augmentation):
    """Changes examples as a test says."""


@pytest.mark.parametrize("changed", [lambda x: None, lambda x: x[:, :4]], ids=["none", "smaller"])
def test_what_is_no_changed_example_is_refused(monkeypatch, changed):
    monkeypatch.setattr(Changing, "__call__", lambda self, x, noise: changed(x))
    fed = make_federation(SIZES)
    fed.train.augment = Changing()
    with pytest.raises(ValueError, match=r"Changing\(\) must return \[\d+, 8, 8, 1\], got "):
        play(FedAvg(**FAST), fed, rounds=1)
    monkeypatch.setattr(Changing, "numbers", 0)
    with pytest.raises(ValueError, match=r"Changing\.numbers must be at least 1"):
        Changing()


def test_a_weighted_draw_among_clients_without_examples_is_uniform():
    fed, rng = make_federation((0, 4, 0)), np.random.default_rng(0)
    found = [Selection(1, weighted=True).pick(fed, np.array([0, 2]), 1, 0, rng) for _ in range(40)]
    assert {int(one) for (one,) in found} == {0, 2}


@pytest.mark.parametrize("chunk", [1, 3])
def test_gradients_of_numbers_per_client_are_clipped(chunk):
    """As alpha_s of APFL, with the other parameters."""
    fed, free = make_federation((6, 6, 6)), sgd(0.1)
    ends = []
    for client in (free, replace(free, clip=1e6), replace(free, clip=1e-9)):
        algorithm = APFL(adaptive=True, client=client)
        begun = algorithm.init(fed, 0)
        state, _ = play_round(algorithm, fed, begun, round=0, seed=0, cohort=3, chunk=chunk)
        ends.append(state.client_params)
    torch.testing.assert_close(ends[0], ends[1])
    still = algorithm.init(fed, 0).client_params
    torch.testing.assert_close(ends[2], still, rtol=0, atol=1e-6)


def test_gradients_at_scalars_are_clipped_by_private_too():
    parts = {"a": torch.tensor([3.0, 0.3]), "w": torch.tensor([[4.0], [0.4]])}
    parts["empty"] = torch.zeros(2, 0)
    held = clipped(parts, 1.0)
    torch.testing.assert_close(held["a"], torch.tensor([0.6, 0.3]))
    torch.testing.assert_close(held["w"], torch.tensor([[0.8], [0.4]]))
