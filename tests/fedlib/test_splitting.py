"""Methods that split a model in a shared and a private part: by hand, and at their limits."""

import numpy as np
import pytest
import torch
from cases import GOLDEN, refused
from conftest import LENET, make_federation, scatter, told_newcomers
from playing import IMAGE, SIZES, Linear, client, close, held_by, loss_on, one, plain, play, stepped
from playing import SPLIT as FAST
from torch.nn.functional import cosine_similarity, cross_entropy

from fedlib import algorithms as alg
from fedlib.algorithms import splitting
from fedlib.algorithms.server_training import HELD, PROTOTYPES
from fedlib.engine import evaluate_global, play_round
from fedlib.engine.batches import make_plan
from fedlib.models import MLP, FunctionalModel, ResNet, add_prefix, fedmix_lenet5, select_prefix
from fedlib.optim import sgd


def lone(algorithm):
    """One client of eight examples, the first state, its leaves and context, images and labels."""
    fed = make_federation((8,), model=MLP((6,)))
    state = algorithm.init(fed, 0)
    return fed, state, *client(fed, algorithm, state, 0), *held_by(fed.train, 0)


def test_fedrep_trains_the_head_then_the_base():
    algorithm = alg.FedRep(head_epochs=3, epochs=2, batch_size=None, client=sgd(0.2))
    fed, state, w, _, *held = lone(algorithm)
    loss = loss_on(fed, *held)
    for names in [["head."]] * 3 + [["base."]] * 2:
        w = stepped(w, loss, 0.2, names)
    after, _ = play(algorithm, fed, 1, state=state)
    close(w, plain(after))


def test_where_no_base_moves_fedreps_loss_is_that_of_the_heads():
    fed = make_federation((4, 3), model=Linear(), shape=(4, 4, 2))
    _, report = play(alg.FedRep(batch_size=4, head_epochs=1), fed, 1)
    _, alone = play(alg.FedPer(batch_size=4), fed, 1)
    assert torch.equal(report.losses, alone.losses) and (report.losses > 0).all()


def test_fedbabus_heads_are_the_initial_one_until_fine_tuning():
    fed, algorithm = make_federation(SIZES), alg.FedBABU(**FAST)
    head = {n: t.clone() for n, t in algorithm.init(fed, 0).client_params.items()}
    state, _ = play(algorithm, fed)
    assert all(torch.equal(state.client_params[n], t) for n, t in head.items())
    tuned, _ = play(alg.Local(**FAST), fed, rounds=1, first=state)
    assert all(not torch.equal(tuned.client_params[n], t) for n, t in head.items())
    assert set(tuned.client_params) == {*state.server_params, *state.client_params}


def test_fedrods_two_losses_move_what_is_theirs():
    algorithm = alg.FedRoD(batch_size=None, client=sgd(0.2))
    fed, state, params, _, x, y = lone(algorithm)
    prior = (torch.bincount(y, minlength=3).double() / len(y)).log().float()

    def balanced(w):  # shifting all logits by a constant changes nothing: shares are as good
        return cross_entropy(fed.net(w, x) + prior, y)

    def both(w):
        own = fed.net.logits(add_prefix(select_prefix(w, "own."), "head."), fed.net.features(w, x))
        return cross_entropy(fed.net(w, x) + own, y)

    shared = stepped(params, balanced, 0.2, ["base.", "head."])
    own = stepped(params, both, 0.2, ["own."])
    after, _ = play(algorithm, fed, 1, state=state)
    close({**shared, **add_prefix(select_prefix(own, "own."), "own.")}, plain(after))


def test_fedghs_prototypes_and_head_by_hand():
    fed = make_federation((3, 12), model=MLP((6,)))
    algorithm = alg.FedGH(pairs=100, head=sgd(0.7), **FAST)
    state, _ = play(algorithm, fed, rounds=1, cohort=2)
    head = {n: t.clone() for n, t in state.server_params.items()}
    after, report = play_round(algorithm, fed, state, round=5, seed=0, cohort=2)
    pairs = []
    for place, row in enumerate(report.clients.tolist()):
        batch = one(fed, row)
        h = fed.net.features({n: t[row] for n, t in after.client_params.items()}, batch.x)
        real = batch.weight > 0
        for label in range(3):
            mine = h[(batch.y == label) & real]
            assert float(report.messages[HELD][place, label]) == (len(mine) > 0)
            if len(mine):
                sent = report.messages[PROTOTYPES][place, label]
                torch.testing.assert_close(sent, mine.mean(0))
                pairs.append((mine.mean(0), label))
    x, y = torch.stack([p for p, _ in pairs]), torch.tensor([label for _, label in pairs])
    close(stepped(head, lambda w: cross_entropy(fed.net.logits(w, x), y), 0.7), after.server_params)
    assert report.upload.tolist() == [int(n) * (6 * 4 + 8) for n in report.messages[HELD].sum(1)]


def test_fedcps_pieces_by_hand():
    fed, algorithm = make_federation(SIZES, model=MLP((6,))), alg.FedCP(**FAST)
    state, _ = play(algorithm, fed)
    params, ctx = client(fed, algorithm, state, 1)
    rows = params["own.weight"].sum(0)
    torch.testing.assert_close(ctx["who"], rows / rows.norm())
    x = fed.test.inputs(torch.arange(10))
    h = fed.net.features(params, x)
    said = (h * ctx["who"]) @ params["policy.layer.weight"].T + params["policy.layer.bias"]
    norm = torch.nn.LayerNorm(12)
    norm.load_state_dict(select_prefix(params, "policy.norm."))
    choice = torch.relu(norm(said)).view(10, 2, 6).softmax(1)
    mine = (choice[:, 0] * h) @ params["own.weight"].T + params["own.bias"]
    theirs = (choice[:, 1] * h) @ params["head.weight"].T + params["head.bias"]
    code = algorithm.shared_forward(fed.net, state.server_params, x)
    predicted = algorithm.predict(fed.net, params, ctx, code).logp
    torch.testing.assert_close(predicted, (mine + theirs).log_softmax(-1))


def test_fedcp_sends_the_mean_of_the_received_and_the_personal_head():
    fed, algorithm = make_federation(SIZES), alg.FedCP(**FAST)
    state, _ = play(algorithm, fed)
    before = {n: t.clone() for n, t in state.server_params.items()}
    after, report = play_round(algorithm, fed, state, round=9, seed=0, cohort=2)
    for place, row in enumerate(report.clients.tolist()):
        for n in ("weight", "bias"):
            mean = (before[f"head.{n}"] + after.client_params[f"own.{n}"][row]) / 2
            sent = before[f"head.{n}"] - report.messages[f"head.{n}"][place]
            torch.testing.assert_close(sent, mean)


def test_discrepancy_against_a_plain_loop():
    torch.manual_seed(0)
    a, b = torch.randn(4, 5) * 3, torch.randn(4, 5) * 3 + 1
    weight = torch.tensor([1.0, 1, 1, 0])

    def k(p, q):
        return sum(np.exp(-float(((p - q) ** 2).sum()) / (2 * w)) for w in (10, 15, 20, 50))

    pairs = [(i, j) for i in range(3) for j in range(3)]
    expected = sum(k(a[i], a[j]) + k(b[i], b[j]) - 2 * k(a[i], b[j]) for i, j in pairs) / 9
    assert float(splitting.discrepancy(a, b, weight)) == pytest.approx(expected, rel=1e-5)
    assert float(splitting.discrepancy(a, a, weight)) == pytest.approx(0, abs=1e-6)


def test_gpfls_contexts_and_steering_by_hand():
    fed, algorithm = make_federation(SIZES, model=MLP((6,))), alg.GPFL(**FAST)
    state, _ = play(algorithm, fed)
    params, ctx = client(fed, algorithm, state, 2)
    held = fed.train.y[fed.train.client(2)]
    labels = state.server_params[splitting.LABELS]
    torch.testing.assert_close(ctx["mine"], labels[held].mean(0))
    torch.testing.assert_close(ctx["everybody"], labels.mean(0))
    sides = {}
    for side in ("scale", "shift"):
        layer, norm = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6)
        layer.load_state_dict(select_prefix(params, f"{splitting.STEERED}{side}.layer."))
        norm.load_state_dict(select_prefix(params, f"{splitting.STEERED}{side}.norm."))
        sides[side] = norm(torch.relu(layer(ctx["mine"]))).detach()
    h = torch.randn(4, 6)
    expected = torch.relu(h * (sides["scale"] + 1) + sides["shift"])
    torch.testing.assert_close(splitting.steer(params, h, ctx["mine"]), expected)


def test_a_step_of_gpfl_by_hand():
    """The distance draws features to the received embeddings, and those nowhere."""
    algorithm = alg.GPFL(near=3.0, decay=0.2, batch_size=None, client=sgd(0.1))
    fed, state, params, ctx, x, y = lone(algorithm)
    received = params[splitting.LABELS].clone()

    def loss(w):
        h = fed.net.features(w, x)
        said = fed.net.logits(w, splitting.steer(w, h, ctx["mine"]))
        all_alike = splitting.steer(w, h, ctx["everybody"])
        cosine = cosine_similarity(all_alike[:, None], w[splitting.LABELS], dim=-1)
        far = (all_alike - received[y]).norm(dim=-1).mean()
        decayed = (t for n, t in w.items() if n.startswith((splitting.LABELS, splitting.STEERED)))
        size = sum((t**2).sum() for t in decayed)
        return cross_entropy(said, y) + cross_entropy(cosine, y) + 3.0 * far + 0.1 * size

    after, _ = play(algorithm, fed, 1, state=state)
    close(stepped(params, loss, 0.1), plain(after))


def test_without_its_two_ideas_dbe_is_fedavg():
    fed = make_federation(SIZES)
    # The vector moves after the first batch, so one full batch a round, from zero each time.
    algorithm = alg.DBE(kappa=0.0, batch_size=None, client=sgd(0.2))
    expected, state = alg.FedAvg(batch_size=None, client=sgd(0.2)), algorithm.init(fed, 0)
    plain = expected.init(fed, 0)
    for t in range(3):
        state.client_params[splitting.VECTOR].zero_()
        state, _ = play_round(algorithm, fed, state, round=t, seed=0, cohort=2)
        plain, _ = play_round(expected, fed, plain, round=t, seed=0, cohort=2)
    close(plain.server_params, state.server_params)


def test_dbes_consensus_by_hand():
    fed = make_federation((4, 8), model=MLP((6,)))
    algorithm = alg.DBE(batch_size=4, client=sgd(0.1))
    state, fresh = algorithm.init(fed, 0), alg.FedAvg().init(fed, 0).server_params
    assert all(torch.equal(state.server_params[n], t) for n, t in fresh.items())
    expected = 0
    for row, size in ((0, 4), (1, 8)):
        plan = make_plan(np.array([row]), np.array([size]), batch_size=4, epochs=1, where=(0, 0, 0))
        w = fresh
        for t in range(plan.steps):
            held = fed.train.client(row)[plan.positions[0, t]]
            x, y = fed.train.inputs(held), fed.train.y[held]
            mean = fed.net.features(w, x).mean(0)
            w = stepped(w, loss_on(fed, x, y), 0.1)
        expected = expected + size / 12 * mean
    after, _ = play(algorithm, fed, cohort=2)
    close({splitting.CONSENSUS: expected}, state.server_params)
    close({splitting.CONSENSUS: expected}, after.server_params)


@pytest.mark.parametrize("cohort", [2, 1])
def test_dbes_first_round_is_charged_for_the_consensus(cohort):
    """8 x 8 pixels, 6 units, 3 classes: 64 * 6 + 6 + 6 * 3 + 3 = 411 numbers, of 4 bytes each."""
    fed = make_federation((4, 8), model=MLP((6,)))
    algorithm = alg.DBE(batch_size=4, client=sgd(0.1))
    state, sent = algorithm.init(fed, 0), []
    for t in range(3):
        state, report = play_round(algorithm, fed, state, round=t, seed=0, cohort=cohort)
        sent.append((int(report.download.sum()), int(report.upload.sum())))
    # Every round: model and consensus (6) down, the model up; before the first, the model down to
    # both clients, and 6 numbers up from each.
    usual = cohort * (411 + 6) * 4, cohort * 411 * 4
    assert sent == [(usual[0] + 2 * 411 * 4, usual[1] + 2 * 6 * 4), usual, usual]
    free = alg.DBE(kappa=0.0, batch_size=4, client=sgd(0.1))
    _, report = play_round(free, fed, free.init(fed, 0), round=0, seed=0, cohort=cohort)
    assert (int(report.download.sum()), int(report.upload.sum())) == usual


def test_dbes_regulariser_counts_the_mean_features():
    algorithm = alg.DBE(kappa=2.0, batch_size=None, client=sgd(0.1))
    fed, _, params, *_ = lone(algorithm)
    params[splitting.RUNNING] = torch.randn(6)
    batch = one(fed)
    h = fed.net.features(params, batch.x)
    expected = cross_entropy(fed.net.logits(params, h + params[splitting.VECTOR]), batch.y)
    expected = expected + 2.0 * (0.5 * (h.mean(0) - params[splitting.CONSENSUS]) ** 2).mean()
    torch.testing.assert_close(algorithm.loss(fed.net, params, {}, batch), expected)


def test_a_newcomer_gets_the_mean_logits_which_are_those_of_the_mean_bias():
    fed, algorithm = make_federation((12, 3, 9)), alg.Personal()
    state = scatter(algorithm.init(fed, 0))
    h = fed.net.features(state.server_params, fed.test.inputs(torch.arange(len(fed.test.y))))
    bias = sum(n / 24 * state.client_params["head.bias"][row] for row, n in enumerate((12, 3, 9)))
    expected = (h @ state.server_params["head.weight"].T + bias).log_softmax(-1)
    told = told_newcomers(algorithm, fed, state)
    torch.testing.assert_close(told, expected, rtol=1e-4, atol=1e-5)
    right = (expected.argmax(-1) == fed.test.y).double().mean()
    assert evaluate_global(fed, algorithm, state) == pytest.approx(float(right))


@refused("splitting")
def test_what_cannot_be_split_is_refused(code, message):
    with pytest.raises(ValueError, match=message):
        eval(code, {**vars(alg), **globals()})


@pytest.mark.parametrize("code", GOLDEN["cuts"])
def test_below_and_above_a_cut_are_the_whole_net(code):
    model, shape = eval(code)
    net = FunctionalModel(model, shape, 3)
    assert {f"{cut}": layers for cut, layers in net.cuts.items()} == GOLDEN["cuts"][code]
    params = net.init(1)
    x = torch.randn(5, 1, *shape[:2], generator=torch.Generator().manual_seed(0))
    for cut in net.cuts:
        lower = {n: t for n, t in params.items() if n.startswith(alg.LocalGlobal(cut=cut).local)}
        upper = {n: t for n, t in params.items() if n not in lower}
        assert lower and upper
        # Each half gets only its own leaves: a KeyError would say that it reads others.
        again = net.above(upper, net.below(lower, x, cut), cut)
        assert torch.equal(again, net(params, x))


def test_the_cuts_of_the_paper():
    """Its input layer of LeNet-5, and ResNet-20 up to its first block (000, sec. 4.1)."""
    lenet = FunctionalModel(fedmix_lenet5(), (32, 32, 3), 10)
    first = {n for n in lenet.init(0) if n.startswith(alg.LocalGlobal(cut=3).local)}
    assert first == {"base.0.weight", "base.0.bias"}
    resnet = FunctionalModel(ResNet(), (32, 32, 3), 100)
    local = {n.split(".")[1] for n in resnet.init(0) if n.startswith(alg.LocalGlobal(cut=4).local)}
    assert local == {"0", "1", "3"} and resnet.cuts[4] == "_Block"
    # "base.10" must not pass for "base.1".
    assert not "base.10.first.0.weight".startswith(alg.LocalGlobal(cut=4).local)
    assert "base.10.first.0.weight".startswith(alg.LocalGlobal(cut=11).local)


@pytest.mark.parametrize(("model", "cut"), [(LENET, 3), (LENET, 7), (MLP(hidden=(7, 5)), 3)])
def test_a_newcomer_gets_the_global_part_on_the_mean_representation(model, cut):
    fed, algorithm = make_federation((12, 3, 9), model=model, shape=IMAGE), alg.LocalGlobal(cut=cut)
    state = scatter(algorithm.init(fed, 0), scale=0.2)
    x = fed.test.inputs(torch.arange(len(fed.test.y)))
    mean = 0
    for row, n in enumerate((12, 3, 9)):
        own = {name: t[row] for name, t in state.client_params.items()}
        mean = mean + n / 24 * fed.net.below(own, x, cut)
    expected = fed.net.above(state.server_params, mean, cut).log_softmax(-1)
    told = told_newcomers(algorithm, fed, state)
    torch.testing.assert_close(told, expected, rtol=1e-4, atol=1e-5)


def test_one_expert_with_a_personal_bias_is_biased_fedavg():
    fed, biased = make_federation((11, 4, 9)), alg.Personal(batch_size=4)
    mixed, _ = play(alg.FedMix(experts=1, personal_bias=True, server=sgd(1.0), batch_size=4), fed)
    state = biased.init(fed, 0)
    state.client_params["head.bias"].zero_()  # FedMix's personal bias starts at zero
    state, _ = play(biased, fed, 3, state=state, cohort=3)
    experts = select_prefix(mixed.server_params, "experts.")
    close(state.server_params, {n: t[0] for n, t in experts.items()})
    close(state.client_params, {"head.bias": mixed.client_params["bias"]})


def test_steered_features_have_the_same_bits_wherever_the_context_lies():
    fed = make_federation(SIZES, model=MLP((50,)))
    params, ctx = client(fed, alg.GPFL(), alg.GPFL().init(fed, 0), 0)
    context, h = ctx["mine"], torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    expected = splitting.steer(params, h, context)
    for offset in range(16):
        place = torch.cat([torch.zeros(offset), context])[offset:]
        assert torch.equal(splitting.steer(params, h, place), expected)
