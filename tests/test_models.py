"""Models: golden sizes, and functions of parameters that agree with their modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlib.models import MLP, LeNet, Net, each, fedmix_lenet5, named, part, stack

COLOUR, GREY = (32, 32, 3), (28, 28, 1)


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
        (LeNet(channels=(32, 64), hidden=(512,)), GREY, 10, 582_026, 512),
        (LeNet(channels=(32, 64), hidden=(512,)), COLOUR, 10, 878_538, 512),
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
    module = net._make(1)
    module.load_state_dict(params)
    torch.testing.assert_close(net(params, x), module(x))
    features = net.features(params, x)
    assert features.shape == (5, net.width)
    torch.testing.assert_close(features, module.base(x))
    torch.testing.assert_close(net.logits(params, features), module(x))
    assert not torch.allclose(net(params, x), net(net.init(8), x))


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
