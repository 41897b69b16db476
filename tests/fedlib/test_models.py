"""Models: golden sizes, parameters taken from outside, units that drop, and cohorts that read."""

from dataclasses import replace

import pytest
import torch
from cases import GOLDEN
from conftest import make_federation
from playing import play, texts
from torch import nn

from fedlib import MLP, BiLSTM, FastText, FedAvg, FromFunction, LeNet, Mixture, ResNet, sgd
from fedlib.engine import State
from fedlib.engine.protocol import numbers_of
from fedlib.engine.width import READERS, Width
from fedlib.models import Batch, FunctionalModel, architectures, fedmix_lenet5
from papers.fedmix.experiments import widened

COLOUR, GREY, TEXT = (32, 32, 3), (28, 28, 1), (200,)
TURNED = LeNet(channels=(64, 64), hidden=(384, 194), response_norm=4)


@pytest.mark.parametrize("code", GOLDEN["parameters"])
def test_g2_parameter_counts(code):
    net = FunctionalModel(*eval(code, {**vars(architectures), **globals()}))
    assert [net.parameters(), net.width] == GOLDEN["parameters"][code]
    assert sum(t.numel() for t in net.init(0).values()) == net.parameters()


def textbook_lenet5():
    """The classic network, layer by layer."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def test_the_default_is_the_textbook_network_with_pytorchs_own_init():
    torch.manual_seed(3)
    net, twin, x = (
        FunctionalModel(LeNet(), COLOUR, 10),
        textbook_lenet5(),
        torch.randn(5, 3, 32, 32),
    )
    params = net.init(3)
    assert [*map(torch.equal, params.values(), twin.state_dict().values())] == [True] * 10
    torch.testing.assert_close(net(params, x), twin(x))


TEXTS = [BiLSTM(vocabulary=20, embedding=5, hidden=4), FastText(vocabulary=20, width=5)]
SMALL = [LeNet((3, 4), (9, 5), kernel=3), MLP((7, 6)), ResNet(blocks=1, widths=(4, 8)), *TEXTS]


@pytest.mark.parametrize("spec", SMALL, ids=repr)
def test_other_parameters_take_the_place_of_the_modules_own(spec):
    """Also where a layer keeps its weights in a list of its own, as a recurrent one does."""
    text = spec in TEXTS
    net = FunctionalModel(spec, (7,) if text else (12, 14, 2), 3)
    x = torch.randint(0, 20, (4, 7)) if text else torch.randn(4, 2, 12, 14)
    own = {n: p.clone() for n, p in net.module.named_parameters()}
    params = {n: t.requires_grad_(True) for n, t in net.init(5).items()}
    other, features = net.module_of(5), net.features(params, x)
    assert features.shape == (4, net.width)
    torch.testing.assert_close(features, other.base(x))
    torch.testing.assert_close(net.logits(params, features), other(x))
    grads = torch.autograd.grad(net(params, x).square().sum(), list(params.values()))
    other(x).square().sum().backward()
    for grad, p in zip(grads, other.parameters(), strict=True):
        torch.testing.assert_close(grad, p.grad)
    for name, p in net.module.named_parameters():
        assert torch.equal(p, own[name]), "the module has its own parameters back"
    torch.testing.assert_close(net.module(x), net(own, x))


def test_init_is_drawn_from_its_seed_and_from_nothing_else():
    net, state = FunctionalModel(MLP((7,)), (4, 4, 1), 3), torch.get_rng_state()
    first = net.init(5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again, other = net.init(5), net.init(6)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not any(torch.equal(first[n], other[n]) for n in first)
    assert not any(t.requires_grad for t in first.values())
    first["head.bias"] += 1
    assert torch.equal(again["head.bias"], net.init(5)["head.bias"]), "they share no memory"


@pytest.mark.parametrize("spec", TEXTS, ids=repr)
def test_a_word_beyond_the_vocabulary_is_unknown(spec):
    net = FunctionalModel(spec, (3,), 2)
    params = net.init(0)
    rare, unknown = torch.tensor([[5, 20, 99]]), torch.tensor([[5, 1, 1]])
    assert torch.equal(net(params, rare), net(params, unknown))


def test_fasttext_averages_padding_too():
    net = FunctionalModel(FastText(vocabulary=9, width=4), (3,), 2)
    words, average, linear = net.module.base
    text = torch.tensor([[4, 0, 0]])
    assert torch.equal(words.weight[0], torch.zeros(4))
    torch.testing.assert_close(average(words(text))[0], words.weight[4] / 3)
    torch.testing.assert_close(net.module.base(text)[0], linear(words.weight[4] / 3))


def test_the_residual_blocks_halve_and_pass_by():
    net = FunctionalModel(ResNet(), COLOUR, 10)
    x, sizes = torch.randn(2, 3, 32, 32), []
    for layer in net.module.base:
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes[2:-2] == [(16, 32, 32)] * 4 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3
    assert sizes[-1] == (64,)
    block = FunctionalModel(ResNet(blocks=1, widths=(2, 2)), (8, 8, 1), 3).module.base[3]
    for p in block.second.parameters():
        torch.nn.init.zeros_(p)
    z = torch.rand(1, 2, 8, 8)
    assert torch.equal(block(z), z), "what the convolutions leave alone passes by"


def test_response_normalisation_sits_after_the_first_and_before_the_later_poolings():
    kinds = [type(layer).__name__ for layer in FunctionalModel(TURNED, COLOUR, 10).module.base]
    first = ["Conv2d", "MaxPool2d", "ReLU", "LocalResponseNorm"]
    assert kinds[:8] == [*first, "Conv2d", "ReLU", "LocalResponseNorm", "MaxPool2d"]


@pytest.mark.parametrize(("times", "channels"), [(1, 32), (2, 61), (4, 113)])
def test_wide_models_have_the_papers_channels(times, channels):
    wide = widened(fedmix_lenet5(), times, (32, 32, 3), 10)
    assert wide == fedmix_lenet5(channels)
    assert widened(MLP((6,)), times, (16, 16, 1), 10) == MLP((6 * times,))


DROPS = LeNet(channels=(3, 4), hidden=(6, 5), kernel=3, dropout=0.5, channel_dropout=0.25)
PLAIN = replace(DROPS, dropout=0.0, channel_dropout=0.0)
SHAPE = (12, 12, 1)


def training(noise):
    return Batch(None, None, torch.ones(len(noise)), noise)


def test_a_net_drops_with_noise_only_and_forgets_it():
    net, plain = FunctionalModel(DROPS, SHAPE, 3), FunctionalModel(PLAIN, SHAPE, 3)
    assert net.noise == 4 + 6 + 5 and plain.noise == 0
    assert net.parameters() == plain.parameters()
    params, x = net.init(0), torch.rand(8, 1, 12, 12)
    values = dict(zip(plain.init(0), params.values(), strict=True))
    torch.testing.assert_close(net(params, x), plain(values, x))
    # Noise above every probability drops nothing, but scales; the first numbers are another's.
    noise = torch.rand(8, 20)
    with_noise = net(params, x, training(noise))
    assert not torch.allclose(with_noise, net(params, x))
    torch.testing.assert_close(net(params, x, training(noise[:, 5:])), with_noise)
    torch.testing.assert_close(net(params, x), plain(values, x))
    silent = net.features(params, x, training(torch.zeros(8, 15)))
    assert not silent.any(), "all units of the last hidden layer have dropped"


def test_specialist_and_gate_drop_units_of_their_own():
    fed = make_federation((9, 5, 7), model=PLAIN, shape=SHAPE)
    first = play(FedAvg(batch_size=4), fed, 2)[0]
    home = {"epochs": 2, "batch_size": 4, "client": sgd(0.1), "stop": None}
    both, plain = (Mixture(**home, expert=m, gate=m) for m in (DROPS, PLAIN))
    assert [numbers_of(fed.net, n) for _, n in both.phases()[0].random_inputs] == [15, 15]
    ends = [play(mixture, fed, 1, first=first)[0].client_params for mixture in (both, plain)]
    for name in ("own.head.weight", "gate.head.weight"):
        assert not torch.allclose(ends[0][name], ends[1][name])


def test_the_steps_written_out_are_those_of_nn_lstm():
    """Its output, and what training makes of its parameters."""
    _, ours = FunctionalModel(TEXTS[0], (6,), 2).module.base
    plain = nn.LSTM(5, 4, batch_first=True, bidirectional=True)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(3, 6, 5)
    _, (last, _) = plain(x)
    expected, got = torch.cat([*last], -1), ours(x)
    torch.testing.assert_close(got, expected)
    both = ((got, ours), (expected, plain))
    pairs = [torch.autograd.grad(out.square().sum(), [*m.parameters()]) for out, m in both]
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_readers_share_a_program_on_a_cpu():
    large = replace(texts(), net=FunctionalModel(BiLSTM(), (200,), 4))
    assert large.net.batchable(large.device)
    assert Width(large, State(large.net.init(0), {})).program == READERS


def test_only_the_first_tokens_of_a_text_are_read():
    net = FunctionalModel(BiLSTM(vocabulary=20, embedding=5, hidden=4, tokens=3), (6,), 2)
    params, text = net.init(0), torch.randint(2, 20, (4, 6))
    cut = FunctionalModel(BiLSTM(vocabulary=20, embedding=5, hidden=4), (3,), 2)
    torch.testing.assert_close(net(params, text), cut(params, text[:, :3]))


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (1, 16, 2, 2), (2, 1, 5, 4)])
def test_pooling_without_a_gradient_gives_the_same_numbers(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    pool = architectures.MaxPool2d(2)
    with torch.no_grad():
        quick = pool(x), pool(x.contiguous(memory_format=torch.channels_last))
    assert all(torch.equal(pool(x), each) for each in quick)


def network_with(**rate):
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Dropout(**rate))


class Dropping(nn.Linear):
    """A module of one's own, whose code can change while its text in a spec does not."""

    rate = 0.0

    def forward(self, x):
        return nn.functional.dropout(super().forward(x.flatten(1)), self.rate, self.training)


def test_a_network_that_was_edited_is_not_taken_for_the_old_one(monkeypatch):
    """Neither one of torch's modules, nor one of one's own that prints the same."""
    spec, here = FromFunction("test_models:network"), globals()
    for make, drops in (
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 8)), 0),
        (lambda: network_with(p=0.5), 8),
        (lambda: Dropping(256, 8), 0),
    ):
        monkeypatch.setitem(here, "network", make)
        assert FunctionalModel(spec, (16, 16, 1), 10).noise == drops
    monkeypatch.setattr(Dropping, "rate", 0.5)
    assert FunctionalModel(spec, (16, 16, 1), 10).noise == 8
