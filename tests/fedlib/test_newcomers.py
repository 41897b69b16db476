"""New clients (000, sec. 2 and App. F): with labels, without, and votes weighed by densities."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_federation, parts_of, scatter, told_newcomers
from playing import close, equal, play

from fedlib import Task, adam, sgd
from fedlib import algorithms as alg
from fedlib.algorithms.local import LATENT, VAE
from fedlib.engine import evaluate_global, play_round
from fedlib.models import MLP, Batch, select_prefix
from fedlib.models.architectures import auto_encoder, evidence, evidence_bound
from fedlib.partition import IID, ClientSubset, Dirichlet, LocalHoldout, MatchedHoldout, Rotated

SIZES = (12, 3, 9)


MIXES = {"": {}, ", bias": {"personal_bias": True}, ", averaged": {"gates": "averaged"}}
FEDERATIONS = {
    **{of.__name__: of(batch_size=4) for of in (alg.FedAvg, alg.Personal, alg.LocalGlobal)},
    **{f"FedMix{n}": alg.FedMix(experts=2, batch_size=4, **how) for n, how in MIXES.items()},
    "Personal, head": alg.Personal(local=("head.",), batch_size=4),
}
each_federation = pytest.mark.parametrize("of", FEDERATIONS.values(), ids=FEDERATIONS)


@each_federation
def test_newcomers_train_what_is_local_and_send_nothing(of):
    first, _ = play(of, make_federation(SIZES))
    kept, joined = copy.deepcopy(first), make_federation((7, 8), seed=5)
    algorithm = alg.NewClients(of=of, batch_size=4, client=sgd(0.5))
    start = copy.deepcopy(algorithm.init(joined, 0, first).client_params)
    state, report = play(algorithm, joined, 2, first=first)
    assert not report.messages and not report.weights and int(report.upload.sum()) == 0
    assert equal(state.server_params, kept.server_params)
    assert equal(first.client_params, kept.client_params)
    assert state.client_params.keys() == kept.client_params.keys() == start.keys()
    for name, leaf in state.client_params.items():
        assert leaf.shape == (2, *kept.client_params[name].shape[1:])
        assert not torch.equal(leaf, start[name]) and not torch.equal(*leaf)


def test_new_clients_of_dbe_remember_their_mean_features():
    """Its running mean moves to the batch's at its clients' rate, which is theirs, too."""
    of, fed = alg.DBE(batch_size=None, client=sgd(0.3)), make_federation((5, 5))
    algorithm = alg.NewClients(of=of, batch_size=None, client=sgd(0.3))
    first, _ = play(of, make_federation(SIZES), 1)
    state, _ = play(algorithm, fed, 1, first=first)
    for row in (0, 1):
        h = fed.net.features(state.server_params, fed.train.inputs(fed.train.client(row))).mean(0)
        torch.testing.assert_close(state.client_params["running.mean"][row], h)


def gates_of(fed, algorithm, state, x):
    """Every client's gate and log p_w(y|x, z), expert by expert."""
    gates = []
    for row in range(fed.num_clients):
        params, ctx = parts_of(fed, algorithm, state, row)
        q = params["phi"].softmax(1)
        q = sum(ctx["p_y"][c] * q[c] for c in range(fed.classes))
        h = [fed.net.features({n: t[k] for n, t in select_prefix(params, "experts.").items()}, x)
             for k in range(algorithm.experts)]  # fmt: skip
        pooled = sum(q[k] * h[k] for k in range(algorithm.experts))
        gates.append((pooled @ params["gate.A"] + params["gate.b"]).softmax(1))
    return gates


@pytest.mark.parametrize("personal_bias", [False, True])
def test_fedmix_marginalises_the_gates_of_all_clients(personal_bias):
    """p(z|x) = sum_s p(z|x, s) p(s), App. F; a personal bias is averaged with the same weights."""
    fed = make_federation(SIZES)
    algorithm = alg.FedMix(experts=2, personal_bias=personal_bias, phi_scale=1.0)
    state, x = scatter(algorithm.init(fed, 0)), fed.test.inputs(torch.arange(len(fed.test.y)))
    share = [n / sum(SIZES) for n in SIZES]
    gate = sum(p * g for p, g in zip(share, gates_of(fed, algorithm, state, x), strict=True))
    total = 0
    for k in range(2):
        w = {n: t[k] for n, t in select_prefix(state.server_params, "experts.").items()}
        if personal_bias:
            w["head.bias"] = sum(
                p * b for p, b in zip(share, state.client_params["bias"], strict=True)
            )
        total = total + gate[:, k : k + 1] * fed.net(w, x).softmax(-1)
    told = told_newcomers(algorithm, fed, state)
    torch.testing.assert_close(told.exp(), total, rtol=1e-4, atol=1e-5)
    right = float((total.argmax(-1) == fed.test.y).double().mean())
    assert evaluate_global(fed, algorithm, state) == pytest.approx(right)


def test_clients_without_shared_parts_average_their_predictions():
    fed = make_federation(SIZES)
    state = scatter(alg.Local().init(fed, 0), scale=0.3)
    x = fed.test.inputs(torch.arange(len(fed.test.y)))
    total = 0
    for row, n in enumerate(SIZES):
        own = {name: t[row] for name, t in state.client_params.items()}
        total = total + n / sum(SIZES) * fed.net(own, x).softmax(-1)
    torch.testing.assert_close(told_newcomers(alg.Local(), fed, state).exp(), total)


def task(partition, held_out=None):
    return Task("digits", partition, MLP(hidden=(8,)), held_out or MatchedHoldout(200, 10, 10))


DEALT = IID(10, 30), Dirichlet(10, 0.5, size=30), Rotated(IID(10, 30), (0.0, 90.0, 180.0))


@pytest.mark.parametrize("held_out", [MatchedHoldout(200, 10, 10), LocalHoldout(0.2, 0.1)])
@pytest.mark.parametrize("of", DEALT)
def test_some_clients_hold_what_they_hold_among_all(of, held_out):
    whole = task(of, held_out).divide(3).parts
    sets = ((0, 7), (7, 10))
    some = {rows: task(ClientSubset(of, *rows), held_out).divide(3).parts for rows in sets}
    for name, sides in ((n, p.side) for n, p in some[7, 10].items()):
        for side, values in sides.items():
            mine = whole[name].side[side][whole[name].starts[7] :]
            assert np.array_equal(values, mine) and len(np.unique(values)) > 1
    # Who of a client's own examples are for validation is drawn by its number among some.
    names = ["train"] if isinstance(held_out, MatchedHoldout) else ["train", "validation"]

    def held(parts, row):
        return sorted(i for name in names for i in parts[name].client(row).tolist())

    for (first, last), parts in some.items():
        assert parts["train"].clients == last - first
        for row in range(first, last):
            assert held(parts, row - first) == held(whole, row)
    seen, new = ({i for r in range(p["train"].clients) for i in held(p, r)} for p in some.values())
    assert seen and new and not seen & new


TINY = {"hidden": (6, 5), "latent": 2, "batch_size": 4, "client": adam(0.01)}
VOTERS = (12, 4, 9)
OF = alg.FedMix(experts=2, phi_scale=1.0)


def count(leaves, half):
    return sum(t.numel() for n, t in leaves.items() if n.startswith(half))


def fitted(algorithm, fed, first=None, **more):
    first = first or scatter(algorithm.of.init(fed, 0))
    state = algorithm.init(fed, 0, first)
    return play_round(algorithm, fed, state, round=0, seed=0, cohort=1.0, **more)


def test_the_auto_encoder_has_the_papers_parameters():
    leaves = auto_encoder(784, (512, 256), 32, seed=0)
    assert (count(leaves, "encoder"), count(leaves, "decoder")) == (549_696, 542_224)
    assert alg.VAEDensity().hidden == (512, 256) and alg.VAEDensity().latent == 32


def dense(leaves, half, x, layers):
    """A dense net in NumPy, rectified between its layers."""
    for i in range(layers):
        x = x @ leaves[f"{half}.{i}.weight"].numpy().T + leaves[f"{half}.{i}.bias"].numpy()
        x = np.maximum(x, 0) if i < layers - 1 else x
    return x


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_the_bound_by_hand(noise):
    leaves, x = auto_encoder(3, (4,), 2, seed=1), torch.tensor([[0.0, 0.3, 1.0], [0.9, 0.5, 0.2]])
    code = dense(leaves, "encoder", x.numpy(), 2)
    mean, log_variance = code[:, :2], code[:, 2:]
    z = mean + np.exp(log_variance / 2) * noise
    p = 1 / (1 + np.exp(-dense(leaves, "decoder", z, 2)))
    said = (x.numpy() * np.log(p) + (1 - x.numpy()) * np.log(1 - p)).sum(1)
    variance = np.exp(log_variance)
    apart = (variance + mean**2 - 1 - np.log(variance)).sum(1) / 2
    got = evidence_bound(leaves, x, torch.full((2, 2), noise))
    np.testing.assert_allclose(got.numpy(), said - apart, rtol=1e-5)


def test_the_evidence_of_a_code_of_one_number_is_the_integral():
    """Importance weighting is unbiased for p(x): a sum over a fine grid is the oracle."""
    leaves, x = auto_encoder(2, (3,), 1, seed=2), torch.tensor([[0.2, 0.9]])
    grid = torch.linspace(-8, 8, 4001)[:, None]
    logits = torch.tensor(dense(leaves, "decoder", grid.numpy(), 2))
    entropy = torch.nn.functional.binary_cross_entropy_with_logits
    said = -entropy(logits, x.expand(4001, 2), reduction="none").sum(1)
    prior = -0.5 * grid[:, 0] ** 2 - 0.5 * math.log(2 * math.pi)
    exact = (said + prior).logsumexp(0) + math.log(16 / 4000)
    noise = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
    assert float(evidence(leaves, x, noise[:3000])[0]) == pytest.approx(float(exact), abs=0.02)


def test_only_the_auto_encoders_move_and_only_they_are_counted():
    fed, algorithm = make_federation(VOTERS), alg.VAEDensity(of=OF, epochs=2, **TINY)
    first = scatter(OF.init(fed, 0))
    before = copy.deepcopy({**first.server_params, **first.client_params})
    fresh = select_prefix(copy.deepcopy(algorithm.init(fed, 0, first).client_params), VAE)
    state, report = fitted(algorithm, fed, first)
    close(before, {**state.server_params, **state.client_params}, rtol=0, atol=0)
    for name, leaf in fresh.items():
        assert torch.equal(leaf[0], leaf[1])
        assert not torch.equal(state.client_params[VAE + name], leaf)
    numbers = count({n: t[0] for n, t in fresh.items()}, "")
    assert numbers == 64 * 6 + 6 + 6 * 5 + 5 + 5 * 4 + 4 + 2 * 5 + 5 + 5 * 6 + 6 + 6 * 64 + 64
    assert not report.messages and report.download.tolist() == [0] * 3
    assert report.upload.tolist() == [4 * numbers] * 3


def test_the_auto_encoder_sees_stored_pixels_and_noise():
    """Bytes / 255, in the order of their memory; without noise the posterior mean."""
    fed, algorithm = make_federation((5,), shape=(8, 4, 2)), alg.VAEDensity(of=alg.FedAvg(), **TINY)
    (phase,) = algorithm.phases()
    assert (phase.random_inputs, phase.monitor, phase.train) == ((("latent", 2),), "loss", (VAE,))
    params = select_prefix(algorithm.init(fed, 0, alg.FedAvg().init(fed, 0)).client_params, "")
    params = {n: t[0] for n, t in params.items()}
    ctx = algorithm.round_constants(fed, alg.FedAvg().init(fed, 0))
    batch = Batch(fed.train.inputs(fed.train.client(0)), torch.zeros(5), torch.ones(5))
    u = torch.tensor([0.1586553, 0.8413447]).expand(5, 2)  # a standard deviation to either side
    pixels = fed.train.x[fed.train.client(0)].flatten(1) / 255
    expected = -evidence_bound(select_prefix(params, VAE), pixels, torch.tensor([-1.0, 1.0])).mean()
    loss = algorithm.loss(fed.net, params, ctx, replace(batch, random={LATENT: u}))
    torch.testing.assert_close(loss, expected)
    plain = -evidence_bound(select_prefix(params, VAE), pixels, torch.zeros(2)).mean()
    torch.testing.assert_close(algorithm.loss(fed.net, params, ctx, batch), plain)


@pytest.mark.parametrize("of", [OF, *(FEDERATIONS[n] for n in ("Personal", "FedMix, bias"))])
def test_votes_are_weighed_by_who_knows_the_example(of):
    """p(s|x) ~ p(x|s) p(s), eq. 18: client by client, in a plain loop."""
    fed, algorithm = make_federation(VOTERS), alg.VAEDensity(of=of, samples=3, epochs=3, **TINY)
    state, _ = fitted(algorithm, fed)
    state = scatter(state, seed=4, scale=0.05)
    everyone = torch.arange(len(fed.test.y))
    x, pixels = fed.test.inputs(everyone), fed.test.x.flatten(1) / 255
    noise = algorithm.round_constants(fed, state)["vae:noise"]
    assert noise.shape == (3, 2)
    scores, votes = [], []
    code = of.shared_forward(fed.net, state.server_params, x)
    for row, n in enumerate(VOTERS):
        params, ctx = parts_of(fed, algorithm, state, row)
        log_p = evidence(select_prefix(params, VAE), pixels, noise)
        scores.append(math.log(n / sum(VOTERS)) + log_p)
        votes.append(of.new_client_output(fed.net, params, ctx, code))
    weight = torch.stack(scores).softmax(0)
    assert (weight.max(1).values - weight.min(1).values > 0.05).any()  # x does matter
    pairs = [*zip(weight, votes, strict=True)]
    mean = {name: sum(w[:, None] * v[name] for w, v in pairs) for name in votes[0]}
    expected = of.combine_clients(fed.net, state.server_params, code, mean)
    told = told_newcomers(algorithm, fed, state)
    torch.testing.assert_close(told, expected, rtol=1e-3, atol=1e-4)
