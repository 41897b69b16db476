"""Any torch module: evaluated by itself, trained as a plain loop would, or refused by name."""

import contextlib
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import refused
from conftest import make_federation, parts_of
from playing import BATTERY, begun, close, equal, held_by, play, stepped, texts, trained_alone
from test_models import DROPS, SHAPE, SMALL, TEXTS
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedlib import MLP, FedAvg, FedBN, FromFunction, ResNet, Task, adam, data, sgd, value
from fedlib.engine import evaluate, play_round
from fedlib.models import Architecture, Batch, FunctionalModel, add_prefix, select_prefix
from fedlib.models.architectures import GateNet
from fedlib.models.batch import Statistics
from fedlib.models.interception import Interceptor, is_statistic
from fedlib.partition import IID, LocalHoldout, MatchedHoldout
from fedlib.values import from_code

IMAGE, SIZES = (8, 8, 1), (11, 4, 10)


def normed(norm):
    """A residual network of one block, with some normalisation."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
            self.norms = nn.ModuleList([norm(), norm()])

        def forward(self, x):
            h = self.norms[0](self.first(x)).relu()
            return (h + self.norms[1](self.second(h))).relu().mean((2, 3))

    return Residual()


def batch_normed():
    return normed(lambda: nn.BatchNorm2d(4))


def group_normed():
    return normed(lambda: nn.GroupNorm(2, 4))


def dropping(p=0.4):
    dense = nn.Linear(64, 9), nn.SELU(), nn.Dropout(p)
    return nn.Sequential(nn.Dropout2d(p), nn.Flatten(), *dense)


class Transformer(nn.Module):
    """Reads the rows of an image one after another."""

    def __init__(self, first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=first)
        self.first = first
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=first)

    def forward(self, x):
        rows = x.squeeze(1) if self.first else x.squeeze(1).movedim(0, 1)
        return self.encoder(rows).mean(int(self.first))


class Vectors(nn.Module):
    """Normalises vectors, and passes by a layer whose output drops."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(64, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        h = self.norm(self.first(x.flatten(1)))
        return h + F.dropout(self.second(h), 0.2, self.training)


class Rows(nn.Module):
    """Reads the rows of an image by a recurrent layer."""

    def __init__(self, layers=1, dropout=0.0):
        super().__init__()
        self.lstm = nn.LSTM(8, 5, layers, batch_first=True, dropout=dropout)

    def forward(self, x):
        return self.lstm(x.squeeze(1))[0][:, -1]


def foreign(name, *arguments, **more):
    return FromFunction(f"{__name__}:{name}", arguments, **more)


NAMES = "batch_normed", "group_normed", "dropping", "Transformer", "Vectors"
FOREIGN = [*map(foreign, NAMES), foreign("Transformer", ("first", False))]
FAST = {"batch_size": 4, "client": sgd(0.2), "epochs": 2}
NORMED = FOREIGN[0]


def images(family, sizes=SIZES):
    if family in TEXTS:
        return replace(texts(sizes), net=FunctionalModel(family, (10,), 3))
    return make_federation(sizes, model=family, shape=SHAPE if family == DROPS else IMAGE)


OURS = [*SMALL, DROPS, GateNet((6, 5))]


@pytest.mark.parametrize("family", [*FOREIGN, *OURS], ids=repr)
def test_what_is_said_of_an_example_depends_on_no_other_and_on_no_chance(family):
    shape = (7,) if family in TEXTS else (32, 32, 3) if family in OURS else IMAGE
    net, x = FunctionalModel(family, shape, 3), torch.rand(6, *shape)
    x = (20 * x).long() if family in TEXTS else x.movedim(-1, 1)
    params, state = net.init(1), torch.get_rng_state()
    together = net(params, x)
    alone = torch.cat([net(params, one[None]) for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert torch.equal(net(params, x), together) and torch.equal(torch.get_rng_state(), state)
    noise = torch.rand(6, net.noise)
    batch = Batch(x, torch.zeros(6), torch.ones(6), noise, statistics=Statistics({}))
    again = [net(params, x, batch) for _ in range(2)]
    assert torch.equal(*again), "in training the noise decides alone"
    assert torch.equal(net(params, x), together), "and is forgotten"


TOGETHER = [*FOREIGN, ResNet(blocks=1, widths=(4, 8)), MLP((520, 520)), DROPS, *TEXTS]


@pytest.mark.parametrize("family", TOGETHER, ids=repr)
def test_clients_in_one_program_are_trained_as_one_at_a_time(family):
    """Weights of wide layers are laid out anew at the first step; clients drop their own units."""
    fed = images(family)
    one, *others = (play(FedAvg(**FAST), fed, 2, chunk=chunk)[0] for chunk in (1, 2, 3))
    for other in others:
        close(one.flat(), other.flat(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "frozen", "chunk", "absent", "averages"),
    [("batch_normed", (), 1, 0, 4), ("batch_normed", (), 3, 0, 4),
     ("batch_normed", ("norms.0.",), 3, 4, 2), ("tied", (), 3, 1, 0), ("Rows", (), 1, 0, 0)],
)  # fmt: skip
def test_modules_learn_as_they_learn_alone_and_are_averaged(name, frozen, chunk, absent, averages):
    """Clients are ragged: in one program batches of fewer examples ride with larger ones."""
    family = foreign(name, frozen=frozen)
    fed, algorithm = images(family), FedAvg(**FAST, server=adam(0.1))
    state = algorithm.init(fed, 0)
    begun = {n: t.clone() for n, t in state.server_params.items()}
    end, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=3, chunk=chunk)
    averaged = {n: torch.zeros_like(t) for n, t in begun.items()}
    for place, row in enumerate(report.clients):
        model = fed.net.module_of(0)
        missing, unexpected = model.load_state_dict(begun, strict=False)
        assert not unexpected and len(missing) == absent
        if frozen:
            model.base.norms[0].eval().train = lambda _: None
        trained_alone(fed, algorithm, model, row, 0, 0)
        now = model.state_dict()
        sent = {n: begun[n] - t[place] for n, t in report.messages.items()}
        close({n: now[n] for n in begun}, sent, rtol=1e-3, atol=1e-5)
        averaged = {n: t + SIZES[row] / sum(SIZES) * now[n] for n, t in averaged.items()}
    statistics = [n for n in begun if is_statistic(n)]
    assert len(statistics) == averages
    close({n: averaged[n] for n in statistics}, end.server_params, rtol=1e-3, atol=1e-5)
    assert not any(n.partition("/")[0] in statistics for n in end.server_optimizer), (
        "Adam knows of none"
    )


def test_padding_is_not_normalised_and_one_example_has_no_variance():
    norm, x = nn.BatchNorm1d(2), torch.tensor([[1.0, 5.0], [3.0, 5.0], [9.0, 9.0]])
    hands = ([1, 1, 0], [2, 5], [2, 0]), ([1, 0, 0], [1, 5], None), ([0] * 3, None, None)
    for weight, mean, var in hands:
        moved = Statistics({"mean": norm.running_mean, "var": norm.running_var})
        with Interceptor(None, (), torch.tensor(weight).float(), moved):
            out = norm(x)
        for now, old, hand in zip(moved.after.values(), (0.0, 1.0), (mean, var), strict=True):
            old = torch.full((2,), old)
            expected = old if hand is None else 0.9 * old + 0.1 * torch.tensor(hand)
            torch.testing.assert_close(now, expected)
        assert out.isfinite().all()
        if weight == [1, 1, 0]:
            torch.testing.assert_close(out[:2], torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))


def test_what_drops_and_what_stays_by_hand():
    x, u = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.4, 0.5, 0.9]])
    with Interceptor(u, (0,)):
        assert F.dropout(x, 0.5).tolist() == [[0.0, 4.0, 6.0]]
    with Interceptor(u, (0,)):
        assert F.dropout2d(torch.ones(1, 3, 2, 2), 0.5).sum((2, 3)).tolist() == [[0.0, 8.0, 8.0]]
    with Interceptor(u, (1,)):
        assert F.dropout(x.T, 0.5).tolist() == [[0.0], [4.0], [6.0]]
    with Interceptor(u, (0,)):
        assert F.dropout(x, 0.5, training=False) is x and not F.dropout(x, 1.0).any()
    with Interceptor():
        assert torch.equal(F.dropout(x, 0.5), x), "a module at rest"


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention_whose_weights_drop_is_torchs_where_none_does(mask):
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 6, generator=draw)
    how = {"is_causal": True} if mask == "causal" else {}
    if mask in ("bool", "float"):
        seen = torch.ones(5, 5).tril().bool()
        how["attn_mask"] = seen if mask == "bool" else torch.where(seen, 0.0, -torch.inf)
    expected = F.scaled_dot_product_attention(q, k, v, **how)
    with Interceptor(torch.full((2, 100), 0.9), (0,)):
        got = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, **how)
    torch.testing.assert_close(got, 2 * expected)


@pytest.mark.parametrize("name", BATTERY)
def test_every_algorithm_trains_with_batchnorm_or_says_that_it_does_not(name):
    fed, algorithm = make_federation(SIZES, model=NORMED, shape=IMAGE), BATTERY[name]
    try:
        state, _ = play(algorithm, fed, rounds=2)
    except ValueError as error:
        why = ("trains without dropout and BatchNorm", "cut", "spoil BatchNorm's statistics")
        assert any(word in str(error) for word in why)
        assert name.startswith(("Mixture", "PMMoE", "LocalGlobal", "VAEDensity", "Private"))
        return
    assert all(t.isfinite().all() for t in state.flat().values() if t.is_floating_point())
    first = begun(algorithm, fed, 0, None).flat()
    moved = [n for n, t in state.flat().items() if is_statistic(n) and not t.equal(first[n])]
    still = ("MajorityClass", "VAEDensity", "Mixture, log", "NewClients", "PMMoE")
    # These train no network that has statistics, or generalists in evaluation mode.
    assert moved or name.startswith(still)


class Forgetting(FedAvg):
    """Its loss hands no batch on."""

    model = ""

    def loss(self, net, params, ctx, batch):
        return F.cross_entropy(net(select_prefix(params, self.model), batch.x), batch.y)


class Second(Forgetting):
    """Nor does that of a second model, while the one that is called base stands still."""

    model, local = "own.", ("own.",)

    def phases(self):
        return (self.phase(train=self.local),)

    def init_params(self, fed, seed):
        model = FedAvg.init_params(self, fed, seed)
        return {**model, **add_prefix(model, "own.")}


@pytest.mark.parametrize("kind", [Forgetting, Second])
def test_a_loss_that_forgets_the_batch_is_an_error(kind):
    for family in (NORMED, foreign("dropping")):
        with pytest.raises(ValueError, match=f"{kind.__name__} trains without dropout and Batch"):
            play(kind(), images(family), 1)
    play(kind(), images(FOREIGN[1]), 1)


def test_fedbn_keeps_batchnorm_at_home():
    state, report = play(FedBN(**FAST), images(NORMED))
    names = "weight", "bias", "running_mean", "running_var"
    kept = {f"base.norms.{i}.{n}" for i in (0, 1) for n in names}
    assert {*state.client_params} == kept and not kept & {*state.server_params, *report.messages}
    assert all(not torch.allclose(t[0], t[1]) for t in state.client_params.values())


def test_a_frozen_backbone_is_computed_once_and_never_sent(monkeypatch):
    fed, said = images(foreign("dropping", frozen=("",))), []
    assert {*fed.net.init(0)} == {"head.weight", "head.bias"} and fed.net.noise == 0
    there, heard = FunctionalModel.features, said.append
    monkeypatch.setattr(
        FunctionalModel, "features", lambda n, w, x, *b: heard(len(x)) or there(n, w, x, *b)
    )
    algorithm = FedAvg(batch_size=None, epochs=3, client=sgd(0.5))
    _, report = play(algorithm, fed, rounds=1)
    assert said == [1, max(SIZES)], "all clients' together, in three epochs once, after one example"
    for place, row in enumerate(report.clients):
        x, y = held_by(fed.train, row)
        w = first = algorithm.init(fed, 0).server_params
        h = fed.net.features({}, x)
        for _ in range(3):
            loss = lambda w, h=h, y=y: F.cross_entropy(F.linear(h, *w.values()), y)  # noqa: E731
            w = stepped(w, loss, 0.5)
        close(w, {n: first[n] - t[place] for n, t in report.messages.items()})


def tied():
    one, two = nn.Linear(64, 64), nn.Linear(64, 64)
    two.weight = one.weight
    return nn.Sequential(nn.Flatten(), one, nn.ReLU(), two)


class Branching(nn.Module):
    """Looks at its numbers before it decides what to do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 5)

    def forward(self, x):
        h = self.layer(x.flatten(1))
        return h if h.isfinite().all() else h.nan_to_num()


@pytest.mark.parametrize("name", ["Rows", "Branching"])
def test_what_cannot_be_vmapped_is_trained_one_client_at_a_time(name):
    fed, algorithm = images(foreign(name)), FedAvg(**FAST)
    assert equal(*(play(algorithm, fed, 1, chunk=c)[0].flat() for c in (None, 1)))
    with pytest.raises(ValueError, match=f"omit chunk, or set it to 1. {name}: "):
        play(algorithm, fed, 1, chunk=2)
    state, _ = play(FedBN(**FAST), fed, rounds=1)
    assert evaluate(fed, FedBN(**FAST), state, fed.test).accuracy.shape == (3,)


class Odd(nn.Module):
    """A linear layer, and something that cannot be trained here."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(64, 6)
        self.held = [self.layer.weight]
        self.register_buffer("calls", torch.zeros(()))
        self.chance = torch.Generator().manual_seed(0)

    def forward(self, x):
        return ODD[self.kind](self, self.layer(x.flatten(1)))


def later(m, h):
    """Computed again when gradients are, where other parameters are in place."""
    return checkpoint(lambda h: h @ m.layer.weight[:, :6], h, use_reentrant=False)


ODD = {
    "noisy": lambda m, h: h + torch.rand_like(h),
    "python": lambda m, h: h * random.random() if m.training else h,
    "numpy": lambda m, h: h * np.random.rand() if m.training else h,  # noqa: NPY002
    "apart": lambda m, h: h * torch.rand((), generator=m.chance) if m.training else h,
    "later": later,
    "double": lambda m, h: h.double(),
    "functional": lambda m, h: F.dropout(h),
    "shared": lambda m, h: h * F.dropout(torch.ones(1, 6), training=m.training),
    "counting": lambda m, h: h + 0 * m.calls.add_(m.training),
    "centred": lambda m, h: h - h.mean(0),
    "flat": lambda m, h: h.sum(),
    "elsewhere": lambda m, h: h + m.held[0].sum(),
}


def untracked(momentum=None, track=True):
    norm = nn.BatchNorm1d(64, momentum=momentum, track_running_stats=track)
    return nn.Sequential(nn.Flatten(), norm)


class Own:
    """A family whose base is what a function returns."""

    def __init__(self, made):
        self.made = made

    def __repr__(self):
        return "Own"

    def base(self, shape):
        return self.made()


class Calling(nn.Module):
    """What calls a function of some layers by itself."""

    def __init__(self, call, *layers):
        super().__init__()
        self.call, self.layers = call, nn.ModuleList(layers)

    def forward(self, x):
        return self.call(self, x, *self.layers)


def placed(m, x, rows, places):
    """Rows of an image as words, with an embedding of their places."""
    return (rows(x[:, 0]) + places(torch.arange(16))).relu().mean(1)


def indexed(m, ids, words):
    """Words looked up in a parameter."""
    return words.weight[ids].mean(1)


@value
class Reading(Architecture):
    """Does not say whether it reads tokens."""

    def base(self, shape):
        if len(shape) == 1:
            return Calling(indexed, nn.Linear(6, 20, bias=False)), 6
        return Calling(placed, nn.Linear(16, 6), nn.Embedding(16, 6)), 6


@value
class OfImages(Reading):
    reads_tokens = False


@value
class OfTokens(Reading):
    reads_tokens = True


def test_a_family_says_itself_whether_it_reads_tokens(places):
    """An embedding of places made a transformer of images one of texts, which was refused."""
    data.add_data("words", (np.arange(600).reshape(60, 10) % 20, np.arange(60) % 2))
    images = Task("digits", IID(4, 20), OfImages(), MatchedHoldout(200, 5, 10))
    for task in (images, Task("words", IID(4), OfTokens(), LocalHoldout())):
        fed = task.build(0)
        assert play(FedAvg(**FAST), fed, rounds=1)[1].losses.isfinite().all()
        with pytest.raises(ValueError, match=f"set reads_tokens = {fed.net.reads_tokens}"):
            replace(task, model=Reading()).build(0)
    with pytest.raises(ValueError, match=r"not token ids, use add_data\(\.\.\., tokens=False\)"):
        replace(task, model=MLP()).build(0)


def coins(m, x, layer):
    h = layer(x.flatten(1))
    return h + h * F.dropout(x.new_ones(len(x), *[1] * (h.ndim - 1)), 0.2, m.training)


def half(m, x, layer):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x.flatten(1)).float()


def double(m, x, layer):
    return layer(x.flatten(1).double()).float()


def lazy():
    return nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(6)


def stacked(m, x, one, drop, other):
    return other(drop(one(x.squeeze(1))[0]))[0][:, -1]


def renormed(m, x, layer):
    with torch.no_grad():
        layer.weight.renorm_(2, 0, 1e-3)
    return layer(x.flatten(1))


def constrained(m, x, layer):
    layer.weight.data = layer.weight.data.renorm(2, 0, 1e-3)
    return layer(x.flatten(1))


class Complex(nn.Linear):
    """Of 32 complex inputs: half of the pixels are imaginary."""

    def forward(self, x):
        x = torch.view_as_complex(x.view(-1, 32, 2))
        return (x @ torch.view_as_complex(self.weight.view(6, 32, 2)).T).abs() + self.bias


ADVISED = {
    "coins": lambda: Calling(coins, nn.Linear(64, 6)),
    "autocast": lambda: Calling(half, nn.Linear(64, 6)),
    "layers of one": lambda: Calling(stacked, nn.LSTM(8, 7), nn.Dropout(0.3), nn.LSTM(7, 6)),
    "complex": lambda: nn.Sequential(nn.Flatten(), Complex(64, 6)),
    "lazy": lambda: nn.Sequential(*lazy()),
    "double inside": lambda: Calling(double, nn.Linear(64, 6, dtype=torch.double)),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 6))),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVISED)
def test_what_is_advised_is_trained(name):
    fed, algorithm = images(Own(lambda: (ADVISED[name](), 6))), FedAvg(**FAST)
    together = 1 if fed.net.dry_run.unbatchable else 3
    one, three = (play(algorithm, fed, 2, chunk=chunk) for chunk in (1, together))
    near = {"atol": 1e-2} if name == "autocast" else {"rtol": 1e-3, "atol": 1e-5}
    close(one[0].server_params, three[0].server_params, **near)
    first = algorithm.init(fed, 0).server_params
    assert all(not torch.equal(t, first[n]) for n, t in one[0].server_params.items())


def averaged(words, x):
    return words(x).mean(1)


def looked(words, x):
    return F.embedding(x, words.weight, padding_idx=0).mean(1)


READ = {  # how words are looked up, what they are called with, and if clients can do so together
    "padding": (lambda: nn.Embedding(20, 6, padding_idx=0), averaged, False),
    "another padding": (lambda: nn.Embedding(20, 6, padding_idx=1), averaged, False),
    "its last row": (lambda: nn.Embedding(20, 6, padding_idx=-1), averaged, False),
    "none": (lambda: nn.Embedding(20, 6), averaged, True),
    "by frequency": (lambda: nn.Embedding(20, 6, scale_grad_by_freq=True), averaged, False),
    "called": (lambda: nn.Embedding(20, 6), looked, False),
    "bag": (lambda: nn.EmbeddingBag(20, 6, padding_idx=0), nn.EmbeddingBag.forward, True),
}


@pytest.mark.parametrize("name", READ)
def test_words_are_learnt_together_as_alone(name):
    """vmap takes the padding of all clients but the first for a word, which moved its row."""
    layer, call, batchable = READ[name]
    read = lambda m, x, words: call(words, x)  # noqa: E731
    fed = texts()
    fed.net = FunctionalModel(Own(lambda: (Calling(read, layer()), 6)), (10,), 3)
    assert (not fed.net.dry_run.unbatchable) == batchable
    usual, alone = (
        play(FedAvg(**FAST), fed, 2, chunk=chunk)[0].server_params for chunk in (None, 1)
    )
    close(usual, alone)
    first, at = FedAvg().init(fed, 0).server_params, layer().padding_idx
    moved = (usual["base.layers.0.weight"] - first["base.layers.0.weight"]).norm(dim=1)
    still = {0} if name == "called" else set() if at is None else {at}
    assert {*np.flatnonzero(moved == 0).tolist()} == still


STRIDED = [
    (F.conv2d, (2, 4, 7, 8), (6, 4, 1, 1), {"stride": 2}),
    (F.conv2d, (2, 4, 7, 8), (6, 4, 1, 1), {"stride": (1, 3), "padding": "valid"}),
    (F.conv2d, (2, 4, 7, 8), (6, 4, 1, 1), {"stride": (3,), "padding": (2, 1)}),
    (F.conv2d, (2, 4, 7, 8), (6, 2, 1, 1), {"stride": 2, "groups": 2, "dilation": 3}),
    (F.conv2d, (4, 7, 8), (6, 4, 1, 1), {"stride": 2, "padding": 1}),
    (F.conv1d, (2, 4, 7), (6, 4, 1), {"stride": 2, "padding": 1}),
    (F.conv3d, (2, 3, 4, 5, 6), (6, 3, 1, 1, 1), {"stride": (1, 2, 3)}),
]


@pytest.mark.parametrize(("convolve", "shape", "kernel", "how"), STRIDED)
def test_a_strided_convolution_of_few_channels_is_a_dense_one(convolve, shape, kernel, how):
    draw = torch.Generator().manual_seed(0)
    parts = [torch.randn(s, generator=draw).double() for s in (shape, kernel, (6,))]
    leaves = [t.requires_grad_() for t in parts]
    with Interceptor():
        got = convolve(*leaves, **how)
    expected = convolve(*leaves, **how)
    torch.testing.assert_close(got, expected)
    weights = torch.randn(expected.shape, generator=draw).double()
    one, other = (torch.autograd.grad((out * weights).sum(), leaves) for out in (got, expected))
    torch.testing.assert_close(one, other)


@refused("modules")
def test_what_cannot_be_trained_is_refused_by_name(code, message):
    with pytest.raises(ValueError, match=message):
        _ = FunctionalModel(eval(code), IMAGE, 3).dry_run


def torchvision():
    """Import torchvision; what a CPU's torch lacks of its operators is declared first."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("", "nms", "qnms"):
        if name:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        with contextlib.suppress(RuntimeError):
            return pytest.importorskip("torchvision"), library
    raise RuntimeError("torchvision asks for yet another operator")


@pytest.mark.slow
def test_torchvisions_resnet18_is_federated():
    _library = torchvision()
    whole = FromFunction("torchvision.models:resnet18", (("num_classes", 7),), head="fc")
    fed = make_federation((4, 3), model=whole, shape=(32, 32, 3))
    assert fed.net.width == 512 and fed.net.parameters() == 11_176_512 + 512 * 3 + 3
    algorithm = FedBN(batch_size=2, client=sgd(0.01))
    state, report = play(algorithm, fed, rounds=1)
    assert len(state.client_params) == 20 * 4 and report.losses.isfinite().all()
    x = fed.test.inputs(torch.arange(4))
    params, _ = parts_of(fed, algorithm, state, 0)
    torch.testing.assert_close(fed.net(params, x)[:1], fed.net(params, x[:1]), rtol=1e-4, atol=1e-4)
    frozen = make_federation((4, 3), model=replace(whole, frozen=("",)), shape=(32, 32, 3))
    state, _ = play(FedAvg(client=sgd(0.1)), frozen, rounds=1)
    assert {*state.server_params} == {"head.weight", "head.bias"}


def test_a_spec_that_comes_as_text_may_name_only_what_was_allowed(monkeypatch, tmp_path):
    """What is not is tried in test_robustness; one's own Python is free."""
    monkeypatch.setattr("fedlib.models.architectures.ALLOWED", {"odd_one"})  # as by --import
    (tmp_path / "odd_one.py").write_text("from os import system\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert from_code("FromFunction('odd_one:net')").function == "odd_one:net"
    with pytest.raises(ValueError, match=r"'odd_one:system'.*--import posix"):
        from_code("FromFunction('odd_one:system')")
    assert from_code(repr(FromFunction("math:floor"))) == FromFunction("math:floor"), "made here"
