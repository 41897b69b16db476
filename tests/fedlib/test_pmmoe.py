"""PM-MoE: its limits, its energies against a plain loop, and that experts are asked once."""

import copy
import math
from functools import cache

import numpy as np
import pytest
import torch
from conftest import make_federation
from playing import SIZES, SPLIT, client, close, held_by, nine, numbers, one, play, texts

from fedlib import algorithms as alg
from fedlib.algorithms.features import CENTRAL, FeaturesAudit, linear_cka
from fedlib.algorithms.mixture import GATE
from fedlib.algorithms.pmmoe import KEPT, POOL
from fedlib.engine import State, evaluate, play_round
from fedlib.models import MLP, FunctionalModel, select_prefix
from fedlib.models.architectures import GateNet
from fedlib.optim import sgd
from fedlib.privacy import PartsAudit

FIRM = 1e4  # a gate's bias that leaves nothing to the others


@cache
def once(of):
    fed = make_federation(SIZES, shape=(12, 12, 1))
    return fed, play(of, fed)[0]


def begun(of, **options):
    """A federation and its state after three rounds, trained once; PM-MoE of it, and its state."""
    fed, first = once(of)
    first, algorithm = copy.deepcopy(first), alg.PMMoE(of=of, **options)
    return fed, first, algorithm, algorithm.init(fed, 0, first)


def trusting(state, gate):
    """The state in which client s trusts expert gate[s] only, whatever it sees."""
    local = {n: t * 0 if n.startswith(GATE) else t for n, t in state.client_params.items()}
    local[f"{GATE}head.bias"][range(len(gate)), gate] = FIRM
    return State(state.server_params, local, server_memory=state.server_memory)


def said(fed, of, state, row):
    """What an algorithm says to a client of some tests."""
    params, ctx = client(fed, of, state, row)
    code = of.shared_forward(fed.net, state.server_params, fed.test.inputs(torch.arange(9)))
    return of.predict(fed.net, params, ctx, code)


@nine
@pytest.mark.parametrize("top", [0, 1])
def test_a_gate_that_trusts_the_own_expert_changes_no_prediction(of, top):
    fed, first, algorithm, state = begun(of, top=top)
    state = trusting(state, range(3))
    before, after = evaluate(fed, of, first, fed.test), evaluate(fed, algorithm, state, fed.test)
    assert (before.accuracy == after.accuracy).all()
    np.testing.assert_allclose(after.nll, before.nll, rtol=1e-6)


@nine
def test_a_gate_that_trusts_another_gives_it_this_clients_entry(of):
    fed, first, algorithm, state = begun(of)
    state = trusting(state, [1, 2, 0])
    bare = of.shared_forward(fed.net, first.server_params, fed.test.inputs(torch.arange(9)))
    for row, other in enumerate([1, 2, 0]):
        params, ctx = client(fed, of, first, row)
        theirs, _ = client(fed, of, first, other)
        params |= {n: theirs[n] for n in params if n.startswith(of.experts)}
        expected = of.predict(fed.net, params, ctx, bare).logp
        got = said(fed, algorithm, state, row).logp
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@nine
def test_only_gates_move_and_nothing_but_the_pool_is_sent(of):
    fed, first, algorithm, start = begun(of, epochs=2, batch_size=4, client=sgd(0.3))
    kept = {n: t.clone() for n, t in start.flat().items()}
    state, report = play_round(algorithm, fed, start, round=0, seed=0, cohort=1.0)
    moved = {n for n, t in state.flat().items() if not torch.equal(t, kept[n])}
    assert moved and all(n.startswith(f"local:{GATE}") for n in moved)
    assert not report.messages
    mine = sum(t[0].nbytes for n, t in first.client_params.items() if n.startswith(of.experts))
    model = sum(t.nbytes for n, t in first.server_params.items() if not n.startswith(of.local))
    assert report.upload.tolist() == [mine] * 3
    assert report.download.tolist() == [3 * mine + model] * 3


@nine
def test_energies_against_a_plain_loop(of):
    t = 0.05
    fed, first, algorithm, state = begun(of, temperature=t)
    energies = algorithm.energies(fed, state)
    for j in range(len(SIZES)):
        x = fed.train.inputs(fed.train.client(j))
        params, ctx = client(fed, of, first, j)
        code = of.shared_forward(fed.net, first.server_params, x)
        entry = of.opened(fed.net, params, ctx, code).entry
        outs = []
        for other in range(3):
            theirs, _ = client(fed, of, first, other)
            own = {**params, **{n: w for n, w in theirs.items() if n.startswith(of.experts)}}
            outs.append(of.private(fed.net, own, entry))
        for other in range(3):
            scores = []
            for a, b in zip(outs[other], outs[j], strict=True):
                v = (a * b / (a.norm() * b.norm()).clamp(min=1e-12)).double().numpy()
                scores.append(t * np.log(np.exp(v / t).sum()))
            assert float(energies[j, other]) == pytest.approx(np.mean(scores), rel=1e-4)


LEFT_OUT = [(0, 5, 0), (0.2, 5, 1), (0.5, 5, 2), (0.7, 90, 63), (0.7, 89, 62), (1 - 1e-12, 9, 8)]


@pytest.mark.parametrize(("gamma", "experts", "out"), LEFT_OUT)
def test_the_least_energies_are_left_out_and_never_the_own(gamma, experts, out):
    """0.7 * 90 is 62.99999999999999 in floats; and one expert stays whatever the share."""
    energies = torch.rand(experts, experts, generator=torch.Generator().manual_seed(0))
    kept = alg.PMMoE(denoise=gamma).clean(energies)
    energies.fill_diagonal_(math.inf)
    assert (kept.sum(1) == experts - out).all() and (kept.diagonal() == 1).all()
    for mine, left in zip(energies, kept == 0, strict=True):
        assert not out or mine[left].max() < mine[~left].min()


def test_an_expert_left_out_has_no_weight():
    fed, _, algorithm, state = begun(alg.FedPer(batch_size=4), denoise=0.4)
    assert state.client_params[KEPT].sum(1).tolist() == [2, 2, 2]
    for row in range(3):
        gate = said(fed, algorithm, state, row).gate
        assert (gate[:, state.client_params[KEPT][row] == 0] == 0).all()
        torch.testing.assert_close(gate.sum(-1), torch.ones(9))


@pytest.mark.parametrize("renormalised", [False, True])
def test_only_the_largest_weights_count(renormalised):
    fed, _, full, state = begun(alg.FedPer(batch_size=4))
    some = alg.PMMoE(of=alg.FedPer(), top=2, renormalised=renormalised)
    before, after = (said(fed, algorithm, state, 0).gate for algorithm in (full, some))
    least = before.argmin(-1, keepdim=True)
    expected = before.scatter(-1, least, 0.0)
    expected = expected / expected.sum(-1, keepdim=True) if renormalised else expected
    torch.testing.assert_close(after, expected)


def test_the_bias_begins_at_the_own_expert():
    of = alg.FedPer(batch_size=4, client=sgd(0.5))
    ways = [begun(of, own_expert_bias=b) for b in (0.0, 3.0, FIRM)]
    shares = [algorithm.log_metrics(fed, state) for fed, _, algorithm, state in ways]
    own = [float(s["gate_share"].diagonal().mean()) for s in shares]
    assert own[0] < 0.6 < 0.8 < own[1] < own[2] == 1.0
    assert float(shares[2]["gate_entropy"].max()) == 0.0


@nine
def test_what_experts_are_worth_and_how_their_errors_go_together(of):
    fed, _, algorithm, same = begun(of)
    seen = algorithm.log_metrics(fed, same)
    right = []
    for other in range(3):
        state = trusting(same, [other] * 3)
        right.append(evaluate(fed, algorithm, state, fed.test).accuracy)
    np.testing.assert_allclose(seen["expert_accuracy"].numpy(), np.stack(right, 1), rtol=1e-6)
    pool = select_prefix(same.server_params, POOL)
    alike = {f"{POOL}{n}": t[:1].expand_as(t).clone() for n, t in pool.items()}
    agreed = algorithm.log_metrics(fed, State({**same.server_params, **alike}, same.client_params))
    spread, worth = agreed["error_spread"][:, 0], agreed["expert_accuracy"][:, 0]
    assert spread.tolist() == pytest.approx([3.0 if 0 < share < 1 else 1.0 for share in worth])


@pytest.mark.parametrize("own", [False, True])
def test_after_fedbabu_the_servers_base_or_the_own_one_is_used(own):
    fed = make_federation(SIZES)
    federated, _ = play(alg.FedBABU(batch_size=4, client=sgd(0.2)), fed)
    tuned, _ = play(alg.Local(batch_size=4, client=sgd(0.2)), fed, rounds=1, first=federated)
    of = alg.Personal(local=("base.", "head.")) if own else alg.FedBABU()
    algorithm = alg.PMMoE(of=of)
    state = trusting(algorithm.init(fed, 0, tuned), range(3))
    expected = alg.Local() if own else alg.FedPer()
    heads = {n: t for n, t in tuned.client_params.items() if n.startswith("head.")}
    theirs = tuned if own else State(federated.server_params, heads)
    before = evaluate(fed, expected, theirs, fed.test)
    after = evaluate(fed, algorithm, state, fed.test)
    np.testing.assert_allclose(after.nll, before.nll, rtol=1e-5)


def test_a_gate_sees_raw_images_below_bases_and_features_elsewhere():
    fed, _, algorithm, state = begun(alg.LGFedAvg(batch_size=4))
    assert state.client_params[f"{GATE}base.1.weight"].shape == (3, 128, 144)
    assert not algorithm.precompute(fed.net, *client(fed, algorithm, state, 0), one(fed, 0)).replace
    *_, state = begun(alg.FedPer(batch_size=4))
    assert state.client_params[f"{GATE}base.1.weight"].shape == (3, 128, 7)


@pytest.mark.parametrize(("made", "seen"), [(numbers, 6), (texts, 6), (make_federation, 64)])
def test_a_gate_over_bases_sees_examples_unless_these_are_tokens(made, seen):
    """Numbers too; of texts it sees the features, of which there are six."""
    fed, of = made(SIZES), alg.LGFedAvg(batch_size=4)
    joint, _ = play(alg.FedSynMoE(batch_size=4), fed, 1)
    mixed, report = play(alg.PMMoE(of=of, epochs=1), fed, 1, first=play(of, fed, 1)[0])
    for state in (joint, mixed):
        assert state.client_params[f"{GATE}base.1.weight"].shape == (3, 128, seen)
    assert report.losses.isfinite().all() and (report.losses > 0).all()


# What parts tell of labels (`fedlib.privacy.parts`).


def two_clients():
    """One holds labels 0 and 1, the other label 2 only; of three."""
    fed = make_federation((6, 4), model=MLP((5,)))
    fed.train.y[:10] = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    return fed


def audited(of, fed, rounds=3):
    """The state after some rounds of a method, and what an audit finds of it."""
    first, _ = play(of, fed, rounds)
    audit = PartsAudit(of=of)
    return first, audit.log_metrics(fed, audit.init(fed, 0, first))


def test_heads_tell_labels_by_hand():
    """One step from the same head: eta mean ([y = c] - p(c|x)) (1 + sum of h), client by client."""
    of, fed = alg.FedPer(batch_size=None, client=sgd(0.5)), two_clients()
    fresh, _ = client(fed, of, of.init(fed, 0), 0)
    first, found = audited(of, fed, 1)
    assert found["held_labels"].tolist() == [[1, 1, 0], [0, 0, 1]]
    (x, y), (u, v) = both = [held_by(fed.train, row) for row in (0, 1)]
    for row, (images, labels) in enumerate(both):
        p, h = fed.net(fresh, images).softmax(-1), fed.net.features(fresh, images)
        error = torch.nn.functional.one_hot(labels, 3) - p
        moved = 0.5 * (error * (1 + h.sum(1, keepdim=True))).mean(0)
        torch.testing.assert_close(found["labels_from_parts"][row], moved, rtol=1e-4, atol=1e-6)
    for asker, mine, theirs in ((0, x, v), (1, u, y)):
        head = {n: t[1 - asker] for n, t in first.client_params.items()}
        said = fed.net(first.server_params | head, mine).argmax(-1)
        right = sum(((said == c).any() == (theirs == c).any()) for c in range(3))
        assert float(found["asked_labels"][asker, 0]) == pytest.approx(int(right) / 3)


@pytest.mark.parametrize("of", [alg.FedPer, alg.FedRep, alg.FedRoD, alg.FedCP])
def test_the_row_of_a_label_that_is_not_held_only_falls(of):
    """In many small steps too; and what some rows rise by, others fall by."""
    _, found = audited(of(batch_size=2, epochs=3, client=sgd(0.2)), two_clients())
    scores, held = found["labels_from_parts"], found["held_labels"] > 0
    assert (scores[~held] < 0).all() and (scores.max(1).values > 0).all()
    torch.testing.assert_close(scores.sum(1), torch.zeros(2), rtol=0, atol=1e-4)


def test_a_vector_tells_what_the_shared_head_makes_of_it_and_bases_only_answer():
    fed, of = two_clients(), alg.DBE(batch_size=2, client=sgd(0.2))
    first, found = audited(of, fed)
    by_hand = first.client_params["own.mean"] @ first.server_params["head.weight"].T
    torch.testing.assert_close(found["labels_from_parts"], by_hand)
    _, found = audited(alg.LGFedAvg(batch_size=2, client=sgd(0.2)), fed)
    assert [*found] == ["held_labels", "asked_labels"]


@nine
def test_an_audit_of_parts_trains_nothing_and_predicts_as_the_method_does(of):
    fed, first = once(of)
    algorithm = PartsAudit(of=of)
    start = algorithm.init(fed, 0, copy.deepcopy(first))
    state, report = play_round(algorithm, fed, start, round=0, seed=0, cohort=1.0)
    assert all(torch.equal(t, start.flat()[n]) for n, t in state.flat().items())
    before, after = evaluate(fed, of, first, fed.test), evaluate(fed, algorithm, state, fed.test)
    assert (before.accuracy == after.accuracy).all() and not report.messages


# Features of bases beside those of a central model (`fedlib.algorithms.features`).


def three_clients():
    """Label shares (1/2, 1/2, 0), (3/4, 1/4, 0) and (0, 0, 1): the first two overlap in 3/4."""
    fed = make_federation((4, 4, 3), model=MLP((5,)))
    fed.train.y[:11] = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1, 2, 2, 2])
    return fed


def test_the_central_model_takes_a_step_on_the_data_of_all():
    fed, of = three_clients(), alg.LGFedAvg(batch_size=2)
    audit = FeaturesAudit(of=of, central=alg.FedAvg(batch_size=None, client=sgd(0.5)))
    state = audit.init(fed, 0, play(of, fed, 1)[0])
    begun = audit.central.init(fed, 0).server_params
    params = {n: t.clone().requires_grad_() for n, t in begun.items()}
    x, y = fed.train.inputs(torch.arange(11)), fed.train.y[:11]
    torch.nn.functional.cross_entropy(fed.net(params, x), y).backward()
    base = select_prefix(state.server_memory, CENTRAL)
    assert [*base] == ["base.1.weight", "base.1.bias"]
    for name, after in base.items():
        torch.testing.assert_close(after, (params[name] - 0.5 * params[name].grad).detach())


def test_features_of_every_base_on_the_tests_of_every_client():
    fed, of = three_clients(), alg.LGFedAvg(batch_size=2, client=sgd(0.2))
    first, _ = play(of, fed, 2)
    audit = FeaturesAudit(of=of, examples=3)
    start = audit.init(fed, 0, copy.deepcopy(first))
    state, report = play_round(audit, fed, start, round=0, seed=0, cohort=1.0)
    found, central = audit.log_metrics(fed, state), select_prefix(state.server_memory, CENTRAL)
    assert all(torch.equal(t, start.flat()[n]) for n, t in state.flat().items())
    assert not report.messages
    before, after = evaluate(fed, of, first, fed.test), evaluate(fed, audit, state, fed.test)
    assert (before.accuracy == after.accuracy).all()
    features = {}
    for row in range(3):
        x, y = held_by(fed.test, row)
        features[row, CENTRAL] = fed.net.features(central, x)
        for other in range(3):
            base = {n: t[other] for n, t in first.client_params.items()}
            features[row, other] = fed.net.features(base, x)
            alike = linear_cka(features[row, other], features[row, CENTRAL])
            torch.testing.assert_close(found["feature_similarity"][row, other], alike)
        if row == 0:
            assert found["example_label"].flatten().tolist() == y[:3].tolist()
    overlap = [[1, 0.75, 0], [0.75, 1, 0], [0, 0, 1]]
    torch.testing.assert_close(found["label_overlap"], torch.tensor(overlap))
    for name, whose in (("own", 0), ("borrowed", 1), ("central", CENTRAL)):
        h = features[0, whose][:3]
        apart = (h.unsqueeze(1) - h).square().sum(-1).sqrt()
        torch.testing.assert_close(found[f"distance_{name}"], apart, atol=1e-4, rtol=1e-4)


def test_only_bases_have_features_to_compare():
    with pytest.raises(ValueError, match=r"compares bases, but FedPer\(\) has none"):
        FeaturesAudit(of=alg.FedPer())


def test_similarity_of_features_by_hand():
    """Centred: x = (-1, 0, 1), y = (1, -2, 1). z = x + y; x and y are orthogonal, x'x 2, y'y 6."""
    x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[2.0], [-1.0], [2.0]])
    assert float(linear_cka(x, y)) == pytest.approx(0, abs=1e-12)
    assert float(linear_cka(x, x + y)) == pytest.approx(2**2 / (2 * 8))
    both = torch.cat([x, y], 1)
    assert float(linear_cka(both, x)) == pytest.approx(2**2 / ((2**2 + 6**2) ** 0.5 * 2))
    turned = both @ torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    stacked = linear_cka(torch.stack([both, 5 * turned + 1]), both)
    torch.testing.assert_close(stacked, torch.ones(2, dtype=torch.float64))
    assert linear_cka(torch.ones(3, 2), both).isnan()


WAYS = "uniform", "normal", "xavier", "kaiming", "orthogonal", "spectral"


@pytest.mark.parametrize("init", WAYS)
def test_initialisations(init):
    gate = GateNet(hidden=(40, 30), init=init)
    leaves = FunctionalModel(gate, (50,), 9).init(0)
    begun, again = gate.init_weights(leaves, 3), gate.init_weights(leaves, 3)
    weights = {n: w for n, w in begun.items() if w.ndim == 2}
    assert all(torch.equal(again[n], w) for n, w in weights.items()) and len(weights) == 3
    for n, w in weights.items():
        assert torch.equal(w, leaves[n]) == (init == "uniform")
        values = torch.linalg.svdvals(w)
        if init in ("orthogonal", "spectral"):
            assert float(values[0]) == pytest.approx(1, rel=1e-4)
        if init == "orthogonal":
            assert float(values[-1]) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("side", [0, 1])
def test_a_one_hot_gate_is_its_base(side):
    """The global base (0) or the local one (1)."""
    fed, algorithm = make_federation(SIZES), alg.FedSynMoE(**SPLIT)
    state, x = trusting(play(algorithm, fed)[0], [side] * 3), fed.test.inputs(torch.arange(9))
    for row in range(3):
        params, _ = client(fed, algorithm, state, row)
        base = params if side == 0 else {**params, **select_prefix(params, "own.")}
        got = said(fed, algorithm, state, row)
        torch.testing.assert_close(got.logp, fed.net(base, x).log_softmax(-1))
        assert (got.gate[:, side] == 1).all()


def test_a_gate_that_trusts_the_global_base_only_is_fedavg():
    fed = make_federation(SIZES)
    algorithm, plain = alg.FedSynMoE(**SPLIT), alg.FedAvg(**SPLIT)
    begun = trusting(algorithm.init(fed, 0), [0] * 3)
    ours, theirs = play(algorithm, fed, cohort=2, state=begun), play(plain, fed, cohort=2)
    close(theirs[0].server_params, ours[0].server_params)
