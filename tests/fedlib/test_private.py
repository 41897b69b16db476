"""Differential privacy and secure sums: by hand, in their limits, and what a server is sent."""

import numpy as np
import pytest
import torch
from cases import refused
from conftest import make_federation
from playing import FAST, SIZES, Linear, arrays, close, one_step, play
from test_modules import Own
from torch import nn

from examples.secure_sum import SecureSum
from fedlib import MLP, sgd
from fedlib import algorithms as alg
from fedlib.engine import play_round
from fedlib.models import is_statistic
from fedlib.privacy import epsilon

SUMMED = [alg.FedAvg(**FAST), alg.FedProx(**FAST), alg.FedPer(**FAST)]
SUMMED += [alg.FedMix(experts=3, phi_scale=0.5, **FAST), alg.ClusteredFedMix(experts=2, **FAST)]
SUMMED.append(alg.FedMix(experts=2, objective="likelihood", **FAST))


@pytest.mark.parametrize("of", SUMMED, ids=repr)
def test_a_secure_sum_is_the_sum(of):
    """Rounded: a server's optimiser that is Adam would make full steps of what is rounded away."""
    of = type(of)(**{**vars(of), "server": sgd(1.0)})
    fed = make_federation(SIZES)
    both = of, SecureSum(of=of, bits=26, most=12)
    (plain, _), (masked, _) = (play(a, fed, 2) for a in both)
    close(plain.server_params, masked.server_params, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("of", SUMMED, ids=repr)
def test_what_wraps_an_algorithm_asks_what_that_asks(of):
    """Of label shares, too, without which FedMix's server cannot step."""
    for wrapped in (alg.Private(of=of), SecureSum(of=of)):
        assert wrapped.shares_asked == of.shares_asked
        assert wrapped.communicates == of.communicates and wrapped.phases() == of.phases()


def test_masks_hide_every_part_and_leave_no_trace_in_the_sum():
    secure, parts = SecureSum(bits=16), torch.randn(5, 4000)
    sent = secure.masked(parts)
    assert torch.equal(sent, secure.masked(parts))
    read = (sent.sum(0) + 2**31) % 2**32 - 2**31
    torch.testing.assert_close((read.double() / 2**16).float(), secure.added(parts))
    for one, plain in zip(sent.double() / 2**32, parts, strict=True):
        assert abs(float(one.mean()) - 0.5) < 0.02 and abs(float(one.var()) - 1 / 12) < 0.005
        assert abs(np.corrcoef(one, plain)[0, 1]) < 0.06
    with pytest.raises(ValueError, match="does not fit into 32 bits"):
        secure.added(torch.full((2, 1), 2.0**15))


def test_clipped_differences_of_two_clients_by_hand():
    fed, lr, most = make_federation((3, 12), model=Linear(), shape=(4, 4, 2)), 0.5, 0.02
    of = alg.FedAvg(batch_size=None, client=sgd(lr))
    algorithm = alg.Private(of=of, clip=most, noise=0.0)
    state = algorithm.init(fed, 0)
    w = arrays(state.server_params)
    steps = []
    for row in (0, 1):
        step = {n: w[n] - t for n, t in one_step(fed, row, w, lr).items()}
        length = np.sqrt(sum((t**2).sum() for t in step.values()))
        assert length > most
        steps.append({n: t * most / length for n, t in step.items()})
    after, _ = play_round(algorithm, fed, state, round=0, seed=0, cohort=2)
    expected = {n: t - (steps[0][n] + steps[1][n]) / 2 for n, t in w.items()}  # both alike
    close(expected, arrays(after.server_params), atol=1e-7)


@pytest.mark.parametrize(("at", "times"), [("server", 1.0), ("client", 3**0.5)])
@pytest.mark.parametrize("experts", [0, 4])
def test_the_noise_has_the_size_that_is_accounted_for(at, times, experts):
    """Clients that stand still: what moves is noise."""
    fed, still = make_federation(SIZES, model=MLP((64,))), {"client": sgd(0.0), "server": sgd(1.0)}
    mixture = alg.FedMix(experts=experts or 1, marginal_entropy=0.0, **still)
    of = mixture if experts else alg.FedAvg(**still)
    algorithm = alg.Private(of=of, clip=0.5, noise=3.0, at=at)
    begun = algorithm.init(fed, 0)
    ends = [play_round(algorithm, fed, begun, round=t, seed=0, cohort=3)[0] for t in (0, 0, 1)]
    weights = {n: t for n, t in begun.server_params.items() if "weight" in n}
    moved = [
        torch.cat([(s.server_params[n] - t).flatten() for n, t in weights.items()]) for s in ends
    ]
    assert torch.equal(moved[0], moved[1])
    assert abs(float(torch.corrcoef(torch.stack(moved[1:]))[0, 1])) < 0.1
    expected = 3.0 * 0.5 * times / (3 / (experts or 1))
    assert float(moved[0].std()) == pytest.approx(expected, rel=0.05)


NORMS = {
    "batch": lambda: nn.BatchNorm1d(6),
    "frozen": lambda: nn.BatchNorm1d(6).requires_grad_(False),
    "group": lambda: nn.GroupNorm(2, 6),
}


@pytest.mark.parametrize("of", [alg.FedAvg(**FAST), alg.FedBN(**FAST)], ids=repr)
@pytest.mark.parametrize("norm", NORMS)
def test_no_statistic_gets_out_under_noise(norm, of):
    layers = lambda: (nn.Flatten(), nn.Linear(64, 6), NORMS[norm](), nn.ReLU())  # noqa: E731
    fed = make_federation(SIZES, model=Own(lambda: (nn.Sequential(*layers()), 6)))
    for private in (alg.Private(of=of), alg.Private(of=of, at="client")):
        if norm == "batch" and type(of) is alg.FedAvg:
            with pytest.raises(ValueError, match=r"spoil BatchNorm's .*running_mean.*FedBN"):
                play(private, fed, 1)
            continue
        state, report = play(private, fed, 1)
        assert all(t.isfinite().all() for t in state.server_params.values())
        assert not any(is_statistic(n) for n in (*state.server_params, *report.messages))


@refused("private")
def test_what_is_no_sum_is_refused(code, message):
    with pytest.raises(ValueError, match=message):
        eval(code, {**vars(alg), **globals()})


def test_epsilon_is_that_of_the_gaussian_mechanism():
    pytest.importorskip("dp_accounting", reason="epsilon needs fedlib[privacy]")
    here = {"clients": 100, "rounds": 10, "delta": 1e-3}
    private, local = (alg.Private(noise=8.0, at=at) for at in ("server", "client"))
    everybody, some = (epsilon(private, cohort=m, **here) for m in (100, 10))
    # By hand: Renyi divergence 10 a / (2 4^2) of order a, and the best order (Mironov, prop. 3).
    orders = np.arange(1.1, 200, 0.01)
    by_hand = (10 * orders / (2 * 4**2) + np.log(1 / 1e-3) / (orders - 1)).min()
    assert some < everybody <= by_hand < 1.3 * everybody
    assert epsilon(local, cohort=10, **here) == everybody
    shares = [epsilon(private, cohort=m, **here) for m in (1.0, 0.1)]
    assert shares == [everybody, some]
    with pytest.raises(ValueError, match="a cohort of 101 does not fit 100 clients"):
        epsilon(private, cohort=101, **here)
    assert epsilon(alg.Private(noise=0.0), cohort=10, **here) == float("inf")
