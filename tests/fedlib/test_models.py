"""Models: golden sizes, and functions of parameters that agree with their modules."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from fedlib.models import (
    MLP,
    BiLSTM,
    FastText,
    LeNet,
    Net,
    ResNet,
    each,
    fedmix_lenet5,
    named,
    part,
    stack,
    widened,
)
from papers.adaptive.settings import CLUSTER
from papers.adaptive.settings import TURNED as IFCA

COLOUR, GREY, TEXT = (32, 32, 3), (28, 28, 1), (200,)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "parameters", "width"),
    [
        (LeNet(), COLOUR, 10, 62_006, 84),
        (fedmix_lenet5(), COLOUR, 10, 443_306, 512),
        (fedmix_lenet5(61), COLOUR, 10, 884_164, 512),
        (fedmix_lenet5(113), COLOUR, 10, 1_779_968, 512),
        (fedmix_lenet5(), GREY, 62, 320_926, 512),
        (fedmix_lenet5(61), GREY, 62, 626_702, 512),
        (fedmix_lenet5(113), GREY, 62, 1_280_290, 512),
        (MLP(), GREY, 10, 199_210, 200),
        (LeNet((6, 12), (84, 42), output="softmax"), GREY, 10, 22_180, 42),
        (LeNet((6, 12), (84, 42), output="softmax"), GREY, 1, 21_793, 42),
        (LeNet(channels=(32, 64), hidden=(512,)), GREY, 10, 582_026, 512),
        (LeNet(channels=(32, 64), hidden=(512,)), COLOUR, 10, 878_538, 512),
        (LeNet(channels=(32, 64), hidden=(512,)), COLOUR, 100, 924_708, 512),
        (LeNet(channels=(32, 64), hidden=(512,)), (64, 64, 3), 200, 5_694_600, 512),
        (CLUSTER, COLOUR, 10, 942_634, 1024),
        (LeNet(channels=(32, 256), hidden=(256,)), COLOUR, 10, 1_848_714, 256),
        (LeNet(channels=(12, 12), hidden=(8,), dropout=0.78), COLOUR, 7, 6_995, 8),
        (LeNet(channels=(32, 64), hidden=(2048,)), GREY, 62, 2_278_334, 2048),
        (IFCA, COLOUR, 10, 798_752, 194),
        (ResNet(), COLOUR, 100, 278_324, 64),
        (ResNet(), COLOUR, 10, 272_474, 64),
        (ResNet(shortcut="pad"), COLOUR, 100, 275_572, 64),
        (ResNet(shortcut="pad"), COLOUR, 10, 269_722, 64),
        (BiLSTM(), TEXT, 4, 1_085_708, 128),
        (FastText(), TEXT, 4, 3_157_508, 32),
    ],
)
def test_g2_parameter_counts(spec, shape, classes, parameters, width):
    net = Net(spec, shape, classes)
    assert net.parameters() == parameters and net.width == width
    assert sum(t.numel() for t in net.init(0).values()) == parameters


def test_the_head_of_the_pfllib_network_is_512_to_classes():
    net = Net(LeNet(channels=(32, 64), hidden=(512,)), COLOUR, 10)
    sizes = {name: t.numel() for name, t in net.init(0).items()}
    assert sizes["head.weight"] + sizes["head.bias"] == 5_130
    assert sum(n for name, n in sizes.items() if name.startswith("base.")) == 873_408


def textbook_lenet5():
    """The classic network, layer by layer."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def test_the_default_is_the_textbook_network():
    net = Net(LeNet(), COLOUR, 10)
    params, twin = net.init(4), textbook_lenet5()
    twin.load_state_dict(dict(zip(twin.state_dict(), params.values(), strict=True)))
    x = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(net(params, x), twin(x))


@pytest.mark.parametrize("spec", [LeNet(channels=(3, 4), hidden=(9, 5), kernel=3), MLP((7, 6))])
def test_functions_equal_the_module(spec):
    net = Net(spec, (12, 14, 2), 4)
    params, x = net.init(7), torch.randn(5, 2, 12, 14)
    module = net.module_of(1)
    module.load_state_dict(params)
    torch.testing.assert_close(net(params, x), module(x))
    features = net.features(params, x)
    assert features.shape == (5, net.width)
    torch.testing.assert_close(features, module.base(x))
    torch.testing.assert_close(net.logits(params, features), module(x))
    assert not torch.allclose(net(params, x), net(net.init(8), x))


def test_a_released_network_gives_out_p_for_log_p():
    as_it_should, released = (Net(LeNet(output=o), COLOUR, 4) for o in ("log-softmax", "softmax"))
    params, x = released.init(0), torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(released.logp(params, x), as_it_should.logp(params, x).exp())
    assert torch.equal(released(params, x), as_it_should(params, x))
    torch.testing.assert_close(released.logp(params, x).sum(1), torch.ones(3))
    with pytest.raises(ValueError, match=r"LeNet.output.*did you mean 'softmax'"):
        LeNet(output="softmx")


def test_features_read_the_base_and_logits_the_head_only():
    net = Net(MLP((7,)), (2, 2, 1), 3)
    params, x = net.init(0), torch.randn(4, 1, 2, 2)
    broken = {n: t * float("nan") if n.startswith("head.") else t for n, t in params.items()}
    assert torch.equal(net.features(broken, x), net.features(params, x))
    only = {n: t for n, t in params.items() if n.startswith("head.")}
    assert net.logits(only, torch.randn(4, 7)).shape == (4, 3)


def test_init_is_drawn_from_its_seed_and_from_nothing_else():
    net = Net(MLP((7,)), (4, 4, 1), 3)
    torch.manual_seed(1)
    first, state = net.init(5), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again, other = net.init(5), net.init(6)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not any(torch.equal(first[n], other[n]) for n in first)
    assert not any(t.requires_grad for t in first.values())


def test_init_is_pytorchs_own():
    net = Net(LeNet(), COLOUR, 10)
    torch.manual_seed(3)
    expected = textbook_lenet5().state_dict()
    got = net.init(3)
    assert all(torch.equal(a, b) for a, b in zip(got.values(), expected.values(), strict=True))


def test_parameters_of_one_init_do_not_share_memory_with_another():
    net = Net(MLP((7,)), (4, 4, 1), 3)
    first, again = net.init(5), net.init(5)
    first["head.bias"] += 1
    assert not torch.equal(first["head.bias"], again["head.bias"])
    assert torch.equal(again["head.bias"], net.init(5)["head.bias"])


@pytest.mark.parametrize("size", [1, 5, 12, 15])
def test_images_too_small_for_the_network_are_an_error(size):
    with pytest.raises(ValueError, match=rf"LeNet\(\) does not fit images of {size}x{size} pixels"):
        Net(LeNet(), (size, size, 1), 10)


def test_the_smallest_image_that_fits():
    assert Net(LeNet(), (16, 16, 1), 10)(
        Net(LeNet(), (16, 16, 1), 10).init(0), torch.zeros(2, 1, 16, 16)
    ).shape == (2, 10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeNet(channels=()), r"LeNet.channels must be whole numbers >= 1, got \(\)"),
        (lambda: LeNet(channels=(6, 0)), r"LeNet.channels must be whole numbers >= 1"),
        (lambda: LeNet(hidden=(-1,)), r"LeNet.hidden must be whole numbers >= 1"),
        (lambda: LeNet(kernel=0), r"LeNet.kernel must be whole numbers >= 1"),
        (lambda: MLP(hidden=()), r"MLP.hidden must be whole numbers >= 1"),
    ],
)
def test_impossible_widths_are_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_each_equals_a_loop_over_rows_and_their_gradients():
    net = Net(LeNet(channels=(3, 4), hidden=(9,), kernel=3), (12, 12, 1), 4)
    rows = [net.init(s) for s in range(3)]
    leaves = {n: t.requires_grad_(True) for n, t in stack(rows).items()}
    x = torch.randn(5, 1, 12, 12)
    got = each(net, leaves, x)
    assert len(got) == 3
    torch.stack(got).square().sum().backward()
    for k, row in enumerate(rows):
        own = {n: t.requires_grad_(True) for n, t in row.items()}
        expected = net(own, x)
        torch.testing.assert_close(got[k], expected)
        expected.square().sum().backward()
        for name, leaf in own.items():
            torch.testing.assert_close(leaves[name].grad[k], leaf.grad, rtol=1e-4, atol=1e-5)


def test_part_is_the_inverse_of_named():
    leaves = {"a": torch.zeros(1), "b.c": torch.ones(2), "experts.a": torch.ones(1)}
    both = {**named(leaves, "experts."), "a": torch.full((1,), 5.0)}
    assert set(both) == {"experts.a", "experts.b.c", "experts.experts.a", "a"}
    back = part(both, "experts.")
    assert list(back) == list(leaves) and all(back[n] is leaves[n] for n in leaves)
    assert part(both, "nobody.") == {}


SMALL_TEXT = [BiLSTM(vocabulary=20, embedding=6, hidden=5), FastText(vocabulary=20, width=6)]


@pytest.mark.parametrize("spec", [*SMALL_TEXT, ResNet(blocks=1, widths=(4, 8))], ids=repr)
def test_other_parameters_take_the_place_of_the_modules_own(spec):
    """Also where a layer keeps its weights in a list of its own, as a recurrent one does."""
    text = not isinstance(spec, ResNet)
    net = Net(spec, (7,) if text else (8, 8, 3), 3)
    x = torch.randint(0, 20, (4, 7)) if text else torch.randn(4, 3, 8, 8)
    own = {n: p.clone() for n, p in net.module.named_parameters()}
    params = {n: t.requires_grad_(True) for n, t in net.init(5).items()}
    other = net.module_of(5)
    torch.testing.assert_close(net(params, x), other(x))
    grads = torch.autograd.grad(net(params, x).square().sum(), list(params.values()))
    other(x).square().sum().backward()
    for grad, p in zip(grads, other.parameters(), strict=True):
        torch.testing.assert_close(grad, p.grad)
    for name, p in net.module.named_parameters():
        assert torch.equal(p, own[name]), "the module has its own parameters back"
    torch.testing.assert_close(net.module(x), net(own, x))


def test_an_error_in_between_gives_the_module_its_parameters_back():
    net = Net(MLP((4,)), (2, 2, 1), 3)
    own = dict(net.module.named_parameters())
    with pytest.raises(RuntimeError):
        net(net.init(1), torch.randn(5, 1, 3, 3))
    assert all(p is own[n] for n, p in net.module.named_parameters())


def test_the_bilstm_reads_both_ways_and_ends_with_both_last_states():
    spec = SMALL_TEXT[0]
    net = Net(spec, (7,), 3)
    words, lstm = net.module.base
    ids = torch.randint(0, 20, (4, 7))
    states, _ = nn.LSTM.forward(lstm, words(ids))
    expected = torch.cat([states[:, -1, :5], states[:, 0, 5:]], -1)
    torch.testing.assert_close(net.module.base(ids), expected)


@pytest.mark.parametrize("spec", SMALL_TEXT, ids=repr)
def test_a_word_beyond_the_vocabulary_is_unknown(spec):
    net = Net(spec, (3,), 2)
    params = net.init(0)
    rare, unknown = torch.tensor([[5, 20, 99]]), torch.tensor([[5, 1, 1]])
    assert torch.equal(net(params, rare), net(params, unknown))


def test_fasttext_averages_padding_too():
    net = Net(FastText(vocabulary=9, width=4), (3,), 2)
    words, average, linear = net.module.base
    text = torch.tensor([[4, 0, 0]])
    assert torch.equal(words.weight[0], torch.zeros(4))
    torch.testing.assert_close(average(words(text))[0], words.weight[4] / 3)
    torch.testing.assert_close(net.module.base(text)[0], linear(words.weight[4] / 3))


def test_the_residual_blocks_halve_and_pass_by():
    net = Net(ResNet(), COLOUR, 10)
    x, sizes = torch.randn(2, 3, 32, 32), []
    for layer in net.module.base:
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes[2:-2] == [(16, 32, 32)] * 4 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3
    assert sizes[-1] == (64,)
    padded = Net(ResNet(shortcut="pad", blocks=1, widths=(2, 4)), (8, 8, 1), 3)
    block = padded.module.base[4]
    for p in block.second.parameters():
        torch.nn.init.zeros_(p)
    z = torch.rand(1, 2, 8, 8)
    assert torch.equal(block(z)[:, :2], z[..., ::2, ::2]) and (block(z)[:, 2:] == 0).all()


def test_response_normalisation_sits_after_the_first_and_before_the_later_poolings():
    kinds = [type(layer).__name__ for layer in Net(IFCA, COLOUR, 10).module.base]
    first = ["Conv2d", "ReLU", "MaxPool2d", "LocalResponseNorm"]
    assert kinds[:8] == [*first, "Conv2d", "ReLU", "LocalResponseNorm", "MaxPool2d"]


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (LeNet(), TEXT, "is for images, and an example here is of shape"),
        (ResNet(), TEXT, "is for images"),
        (BiLSTM(), COLOUR, "is for texts, and an example here is of shape"),
        (FastText(), GREY, "is for texts"),
    ],
)
def test_a_family_says_what_it_is_for(spec, shape, message):
    with pytest.raises(ValueError, match=message):
        Net(spec, shape, 4)


@pytest.mark.parametrize(
    "bad", [{"groups": 3}, {"shortcut": "none"}, {"widths": ()}, {"blocks": 0}]
)
def test_impossible_residual_networks_are_errors(bad):
    with pytest.raises(ValueError):
        ResNet(**bad)


@pytest.mark.parametrize(("times", "channels"), [(1, 32), (2, 61), (4, 113)])
def test_wide_models_have_the_papers_channels(times, channels):
    wide = widened(fedmix_lenet5(), times, (32, 32, 3), 10)
    assert wide == fedmix_lenet5(channels)


def test_a_wide_model_is_the_nearest_that_there_is():
    model, shape = LeNet(channels=(2, 4), hidden=(6,), kernel=3), (12, 12, 1)
    wanted = 3 * Net(model, shape, 5).parameters()
    wide = widened(model, 3, shape, 5)
    first = wide.channels[0]
    assert wide.channels == (first, 2 * first) and wide.hidden == model.hidden
    off = [
        abs(Net(dataclasses.replace(model, channels=(c, 2 * c)), shape, 5).parameters() - wanted)
        for c in range(1, 20)
    ]
    assert off[first - 1] == min(off)
    with pytest.raises(ValueError, match=r"times must be >= 1, got 0.5"):
        widened(model, 0.5, shape, 5)
