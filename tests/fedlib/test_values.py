"""Values: they print as code, survive JSON, have stable keys, and refuse what they cannot be."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import values
from fedlib.algorithms import (
    DBE,
    GPFL,
    IFCA,
    MOON,
    SCAFFOLD,
    ClusteredFedMix,
    CommonestLabel,
    Densities,
    FedAvg,
    FedBABU,
    FedCP,
    FedGen,
    FedGH,
    FedMix,
    FedPer,
    FedProx,
    FedRep,
    FedRoD,
    FedSynMoE,
    LastClient,
    LGFedAvg,
    Local,
    LocalGlobal,
    Mixture,
    Newcomers,
    Personal,
    PMMoE,
    PrunedFedMix,
)
from fedlib.algorithms.ifca import ClusterStop, Explore
from fedlib.engine import EarlyStop, Phase
from fedlib.models import MLP, BiLSTM, FastText, GateNet, LeNet, ResNet
from fedlib.optim import Optimizer
from fedlib.partition import (
    IID,
    ByColumn,
    ClassDirichlet,
    Clients,
    Dirichlet,
    LabelPermuted,
    Majority,
    Mirrored,
    OptOut,
    Own,
    Pachinko,
    QuantitySkew,
    Repeated,
    Rotated,
    Shards,
)
from fedlib.privacy import NoisyFedMix
from fedlib.runs import Experiment
from fedlib.runs.tuning import Choice, Space, Uniform
from fedlib.tasks import CropFlip, Task
from fedlib.values import as_code, from_dict, key_of, to_dict

NEEDED = ...  # a field without default

_AVERAGES = {
    "epochs": 1,
    "batch_size": 64,
    "client": Optimizer("sgd", lr=0.05),
    "server": Optimizer("sgd", lr=1.0),
    "weighting": "size",
}
_MIXES = {
    **_AVERAGES,
    "server": Optimizer("adam", lr=0.001),
    "experts": 4,
    "condition": "label",
    "objective": "map",
    "gates": "local",
    "marginal_entropy": 1.0,
    "phi_scale": 0.0,
    "personal_bias": False,
}


# Every value of the library: its fields, and what they are when nobody says anything.
DEFAULTS = {
    LeNet: {
        "channels": (6, 16),
        "hidden": (120, 84),
        "kernel": 5,
        "response_norm": 0,
        "dropout": 0.0,
        "channel_dropout": 0.0,
        "output": "log-softmax",
    },
    ResNet: {
        "blocks": 3,
        "widths": (16, 32, 64),
        "groups": 2,
        "shortcut": "projection",
    },
    BiLSTM: {"vocabulary": 10_002, "embedding": 100, "hidden": 64, "tokens": None},
    FastText: {"vocabulary": 98_635, "width": 32},
    MLP: {"hidden": (200, 200)},
    Optimizer: {
        "name": "sgd",
        "lr": 0.05,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "rates": (),
    },
    EarlyStop: {"every": 5, "patience": 10, "min_delta": 0.0, "keep": "best"},
    Phase: {
        "optimizer": NEEDED,
        "epochs": 1,
        "batch_size": 64,
        "train": ("",),
        "loss": "loss",
        "stop": None,
        "noise": (),
        "watch": "nll",
        "side": "both",
    },
    FedAvg: _AVERAGES,
    FedMix: _MIXES,
    PrunedFedMix: {**_MIXES, "eta": 0.5},
    ClusteredFedMix: {**_MIXES, "damping": 0.75, "entropy_weight": 1.0},
    NoisyFedMix: {**_MIXES, "noise": 1.0},
    LastClient: _AVERAGES,
    CommonestLabel: _AVERAGES,
    Local: {**_AVERAGES, "stop": None, "model": None},
    Mixture: {
        **_AVERAGES,
        "epochs": 500,
        "batch_size": 10,
        "client": Optimizer("adam", lr=1e-5),
        "stop": EarlyStop(every=5, patience=10, min_delta=0.01),
        "pool": "probabilities",
        "train_global": False,
        "expert": None,
        "gate": None,
        "frozen": False,
        "used_only": False,
    },
    Explore: {"eps": 0.33, "decay": 0.0},
    ClusterStop: {"every": 10, "patience": 10},
    IFCA: {
        **_AVERAGES,
        "clusters": 2,
        "explore": Explore(0.0),
        "inference": "validation",
        "clustered": "",
        "least_share": 0.0,
        "stop": None,
    },
    Personal: {**_AVERAGES, "local": ("head.bias",)},
    LocalGlobal: {**_AVERAGES, "cut": 3},
    Newcomers: {**_AVERAGES, "of": FedAvg(), "stop": None},
    Densities: {
        **_AVERAGES,
        "epochs": 100,
        "batch_size": 10,
        "client": Optimizer("adam", lr=0.001),
        "of": FedAvg(),
        "hidden": (512, 256),
        "latent": 32,
        "samples": 1,
        "stop": EarlyStop(every=1, patience=3),
    },
    Dirichlet: {
        "clients": 100,
        "alpha": 1.0,
        "size": None,
        "prior": "symmetric",
        "size_alpha": None,
    },
    IID: {"clients": 100, "size": None},
    QuantitySkew: {"clients": 100, "alpha": 1.0, "least": 10},
    ClassDirichlet: {"clients": 20, "alpha": 0.1, "shared": 0.0, "least": None, "seed": 1},
    Majority: {"clients": 100, "size": 100, "p": 0.8, "pairs": "distinct"},
    Shards: {"clients": 100, "shards": 2},
    Pachinko: {
        "clients": 500,
        "size": 100,
        "root_alpha": 0.1,
        "leaf_alpha": 10.0,
        "coarse": "coarse_label",
    },
    ByColumn: {"column": "writer_id", "clients": None, "least": 1},
    Repeated: {"of": NEEDED, "times": 2},
    Rotated: {
        "of": NEEDED,
        "angles": (0.0, 45.0, 90.0, 135.0, 180.0, 225.0, 270.0, 315.0),
        "alpha": 1.0,
    },
    LabelPermuted: {"of": NEEDED, "permutations": 4},
    Clients: {"of": NEEDED, "first": 0, "last": 100},
    CropFlip: {"padding": 4, "flip": True},
    Mirrored: {"pool": 5000, "validation": 50, "test": 100, "source": "train"},
    OptOut: {"clients": 0.9, "share": 1.0},
    Own: {"test": 0.25, "validation": 0.1, "merge": False, "train": 1.0},
    Task: {
        "dataset": NEEDED,
        "partition": NEEDED,
        "model": NEEDED,
        "held_out": Mirrored(pool=5000, validation=50, test=100, source="train"),
        "portion": 1.0,
        "augment": None,
        "opt_out": None,
        "balanced": 0,
        "balanced_on": "test",
        "validate_on": "validation",
    },
    Experiment: {
        "task": NEEDED,
        "algorithm": NEEDED,
        "rounds": NEEDED,
        "cohort": 10,
        "seed": 0,
        "evaluate_every": 10,
        "after": None,
        "audit": False,
        "keep": "last",
        "beside": None,
    },
    GateNet: {
        "hidden": (128, 256, 128),
        "activation": "leaky_relu",
        "init": "orthogonal",
        "dropout": 0.0,
    },
    FedProx: {**_AVERAGES, "mu": 0.01},
    SCAFFOLD: {**_AVERAGES, "weighting": "uniform"},
    MOON: {**_AVERAGES, "mu": 1.0, "tau": 0.5},
    FedGen: {
        **_AVERAGES,
        "noise": 512,
        "hidden": 512,
        "fit": Optimizer("adam", lr=0.005),
        "steps": 1000,
        "invented": 10,
        "alpha": 1.0,
    },
    FedPer: {**_AVERAGES, "local": ("head.",)},
    LGFedAvg: {**_AVERAGES, "local": ("base.",)},
    FedRep: {**_AVERAGES, "local": ("head.",), "head_epochs": 10},
    FedBABU: {**_AVERAGES, "local": ("head.",)},
    FedRoD: _AVERAGES,
    FedGH: {
        **_AVERAGES,
        "local": ("base.",),
        "head": Optimizer("sgd", lr=1.0),
        "pairs": 10,
    },
    FedCP: {**_AVERAGES, "apart": 5.0},
    GPFL: {**_AVERAGES, "near": 0.01, "decay": 0.1},
    DBE: {**_AVERAGES, "kappa": 50.0, "momentum": 1.0},
    FedSynMoE: {
        **_AVERAGES,
        "gate": GateNet(),
    },
    PMMoE: {
        "epochs": 50,
        "batch_size": 10,
        "client": Optimizer("sgd", lr=0.1),
        "server": Optimizer("sgd", lr=1.0),
        "weighting": "size",
        "of": FedPer(),
        "gate": GateNet(),
        "top": 0,
        "renormalised": False,
        "denoise": 0.0,
        "temperature": 1.0,
        "favour": 0.0,
        "stop": None,
    },
    Uniform: {"low": NEEDED, "high": NEEDED, "log": True},
    Choice: {"of": NEEDED},
    Space: {"axes": NEEDED},
}

TASK = Task("digits", Dirichlet(clients=20, size=60), LeNet(), Mirrored(pool=200))
FIRST = Experiment(TASK, FedAvg(), rounds=3)

# One value of every kind, and for every field another value that it could have.
SAMPLES = {
    LeNet: (
        LeNet(),
        {
            "channels": (6, 17),
            "hidden": (84, 120),
            "kernel": 3,
            "response_norm": 4,
            "dropout": 0.5,
            "channel_dropout": 0.2,
            "output": "softmax",
        },
    ),
    ResNet: (
        ResNet(),
        {"blocks": 2, "widths": (16, 32), "groups": 4, "shortcut": "pad"},
    ),
    BiLSTM: (BiLSTM(), {"vocabulary": 50, "embedding": 3, "hidden": 5, "tokens": 20}),
    FastText: (FastText(), {"vocabulary": 50, "width": 3}),
    MLP: (MLP(), {"hidden": (200,)}),
    Optimizer: (
        Optimizer(),
        {
            "name": "adam",
            "lr": 0.1,
            "momentum": 0.9,
            "weight_decay": 0.1,
            "betas": (0.9, 0.99),
            "eps": 1e-7,
            "rates": (("phi", 0.05),),
        },
    ),
    EarlyStop: (EarlyStop(), {"every": 1, "patience": 1, "min_delta": 0.1, "keep": "last"}),
    Phase: (
        Phase(Optimizer()),
        {
            "optimizer": Optimizer("adam"),
            "epochs": 2,
            "batch_size": None,
            "train": ("head.",),
            "loss": "nll",
            "stop": EarlyStop(),
            "noise": (("label", 3), ("policy", "features")),
            "watch": "loss",
            "side": "local",
        },
    ),
    Dirichlet: (
        Dirichlet(),
        {"clients": 7, "alpha": 0.5, "size": 3, "prior": "proportional", "size_alpha": 0.5},
    ),
    IID: (IID(), {"clients": 7, "size": 3}),
    QuantitySkew: (QuantitySkew(), {"clients": 7, "alpha": 0.5, "least": 1}),
    ClassDirichlet: (
        ClassDirichlet(),
        {"clients": 7, "alpha": 0.5, "shared": 0.2, "least": 3, "seed": None},
    ),
    Majority: (Majority(), {"clients": 7, "size": 3, "p": 0.5, "pairs": "cartesian"}),
    Shards: (Shards(), {"clients": 7, "shards": 3}),
    Pachinko: (
        Pachinko(),
        {"clients": 7, "size": 3, "root_alpha": 0.5, "leaf_alpha": 1.0, "coarse": "kind"},
    ),
    ByColumn: (ByColumn(), {"column": "speaker", "clients": 7, "least": 3}),
    Repeated: (Repeated(IID()), {"of": Shards(), "times": 3}),
    Rotated: (Rotated(IID()), {"of": Shards(), "angles": (0.0, 180.0), "alpha": None}),
    LabelPermuted: (LabelPermuted(IID()), {"of": Rotated(Shards()), "permutations": 3}),
    Clients: (Clients(IID()), {"of": Rotated(Shards()), "first": 3, "last": 50}),
    CropFlip: (CropFlip(), {"padding": 2, "flip": False}),
    Mirrored: (Mirrored(), {"pool": 100, "validation": 5, "test": 5, "source": "test"}),
    OptOut: (OptOut(), {"clients": 0.5, "share": 0.5}),
    Own: (Own(), {"test": 0.2, "validation": 0.0, "merge": True, "train": 0.2}),
    Task: (
        TASK,
        {
            "dataset": "mnist",
            "partition": IID(clients=20, size=60),
            "model": MLP(),
            "held_out": Own(),
            "portion": 0.5,
            "augment": CropFlip(),
            "opt_out": OptOut(),
            "balanced": 100,
            "balanced_on": "validation",
            "validate_on": "test",
        },
    ),
    Experiment: (
        FIRST,
        {
            "task": dataclasses.replace(TASK, portion=0.5),
            "algorithm": Local(),
            "rounds": 4,
            "cohort": 0.5,
            "seed": 1,
            "evaluate_every": 3,
            "after": FIRST,
            "audit": True,
            "keep": "best",
        },
    ),
}
SAMPLES[Uniform] = (Uniform(0.1, 0.2), {"low": 0.05, "high": 0.3, "log": False})
SAMPLES[Choice] = (Choice((1, 2)), {"of": (3,)})
SAMPLES[Space] = (Space((("a", Choice((1,))),)), {"axes": (("b", Uniform(0.1, 0.2)),)})
_AVERAGING = {
    "epochs": 2,
    "batch_size": None,
    "client": Optimizer("adam"),
    "server": Optimizer("yogi"),
    "weighting": "uniform",
}
SAMPLES[FedAvg] = (FedAvg(), _AVERAGING)
SAMPLES |= {
    GateNet: (
        GateNet(),
        {"hidden": (8,), "activation": "mish", "init": "spectral", "dropout": 0.1},
    ),
    FedProx: (FedProx(), {**_AVERAGING, "mu": 0.1}),
    SCAFFOLD: (SCAFFOLD(), {**_AVERAGING, "client": Optimizer(lr=0.5), "weighting": "size"}),
    MOON: (MOON(), {**_AVERAGING, "mu": 5.0, "tau": 1.0}),
    FedGen: (
        FedGen(),
        {
            **_AVERAGING,
            "noise": 4,
            "hidden": 8,
            "fit": Optimizer(),
            "steps": 3,
            "invented": 5,
            "alpha": 2.0,
        },
    ),
    FedPer: (FedPer(), {**_AVERAGING, "local": ("base.",)}),
    LGFedAvg: (LGFedAvg(), {**_AVERAGING, "local": ("head.",)}),
    FedRep: (FedRep(), {**_AVERAGING, "local": ("base.",), "head_epochs": 1}),
    FedBABU: (FedBABU(), {**_AVERAGING, "local": ("base.",)}),
    FedRoD: (FedRoD(), _AVERAGING),
    FedGH: (FedGH(), {**_AVERAGING, "local": ("head.",), "head": Optimizer(), "pairs": 5}),
    FedCP: (FedCP(), {**_AVERAGING, "apart": 1.0}),
    GPFL: (
        GPFL(),
        {**_AVERAGING, "near": 0.1, "decay": 0.0},
    ),
    DBE: (DBE(), {**_AVERAGING, "client": Optimizer(lr=0.5), "kappa": 0.0, "momentum": 0.1}),
    FedSynMoE: (
        FedSynMoE(),
        {**_AVERAGING, "gate": GateNet((4,))},
    ),
    PMMoE: (
        PMMoE(),
        {
            **_AVERAGING,
            "of": DBE(),
            "gate": GateNet((4,)),
            "top": 2,
            "renormalised": True,
            "denoise": 0.2,
            "temperature": 0.1,
            "favour": 1.0,
            "stop": EarlyStop(),
        },
    ),
}
SAMPLES[LastClient] = (LastClient(), _AVERAGING)
SAMPLES[CommonestLabel] = (CommonestLabel(), _AVERAGING)
SAMPLES[Local] = (Local(), {**_AVERAGING, "stop": EarlyStop(every=1), "model": MLP((5,))})
SAMPLES[Explore] = (Explore(), {"eps": 0.5, "decay": 1.0})
SAMPLES[ClusterStop] = (ClusterStop(), {"every": 5, "patience": 3})
SAMPLES[IFCA] = (
    IFCA(),
    {
        **_AVERAGING,
        "clusters": 3,
        "explore": Explore(),
        "inference": "train",
        "clustered": "head.",
        "least_share": 0.25,
        "stop": ClusterStop(),
    },
)
SAMPLES[Mixture] = (
    Mixture(),
    {
        **_AVERAGING,
        "stop": None,
        "pool": "log",
        "train_global": True,
        "expert": MLP(),
        "gate": MLP((5,)),
        "frozen": True,
        "used_only": True,
    },
)
SAMPLES[Personal] = (Personal(), {**_AVERAGING, "local": ("head.",)})
SAMPLES[LocalGlobal] = (LocalGlobal(), {**_AVERAGING, "cut": 6})
_ORDINARY = {
    **_AVERAGING,
    "experts": 2,
    "condition": "angle",
    "gates": "averaged",
    "marginal_entropy": 0.0,
    "phi_scale": 0.01,
    "personal_bias": True,
}
SAMPLES[FedMix] = (FedMix(), {**_ORDINARY, "objective": "entropy"})
# These know one objective; an experiment has another beside it only if one came before.
ONLY = {
    Experiment: {"beside"},
    PrunedFedMix: {"objective"},
    ClusteredFedMix: {"objective"},
}
SAMPLES[NoisyFedMix] = (NoisyFedMix(), {**SAMPLES[FedMix][1], "noise": 2.0})
SAMPLES[PrunedFedMix] = (
    PrunedFedMix(),
    {**_ORDINARY, "eta": 0.9},
)
SAMPLES[ClusteredFedMix] = (
    ClusteredFedMix(),
    {**_ORDINARY, "client": Optimizer(lr=0.5), "damping": 0.5, "entropy_weight": 2.0},
)
SAMPLES[Newcomers] = (
    Newcomers(),
    {**_AVERAGING, "of": FedMix(), "stop": EarlyStop(every=1)},
)
SAMPLES[Densities] = (
    Densities(),
    {
        **_AVERAGING,
        "client": Optimizer("adam", lr=0.1),
        "of": FedMix(),
        "hidden": (8,),
        "latent": 2,
        "samples": 4,
        "stop": EarlyStop(),
    },
)

EVERY = [
    dataclasses.replace(base, **{name: other}) if name else base
    for base, others in SAMPLES.values()
    for name, other in [("", None), *others.items()]
]
NAMES = {cls.__name__: cls for cls in DEFAULTS}


def key(item):
    return key_of(item, version=1)


def defaults_of(cls):
    return {
        f.name: NEEDED if f.default is dataclasses.MISSING else f.default
        for f in dataclasses.fields(cls)
    }


def test_the_lists_of_this_file_know_every_value_of_the_library():
    ours = {c for c in values._KINDS.values() if c.__module__.startswith("fedlib.")}
    assert ours == set(DEFAULTS) == set(SAMPLES)
    for cls, (_, others) in SAMPLES.items():
        assert set(others) == {f.name for f in dataclasses.fields(cls)} - ONLY.get(cls, set())


@pytest.mark.parametrize("cls", DEFAULTS, ids=lambda c: c.__name__)
def test_a_default_never_changes(cls):
    assert repr(defaults_of(cls)) == repr(DEFAULTS[cls]), (
        f"the defaults of {cls.__name__} are not those written down. A value is stored by what "
        "differs from its defaults, so a default must never change its meaning: every stored "
        "result would silently stand for another experiment. Adding a field whose default is the "
        "old behaviour is fine (write it down here); if a default must change, raise "
        "fedlib.runs.spec.VERSION."
    )


@pytest.mark.parametrize("item", EVERY, ids=range(len(EVERY)))
def test_a_value_prints_as_the_code_that_makes_it(item):
    again = eval(repr(item), {"__builtins__": {}}, dict(NAMES))
    assert again == item and type(again) is type(item) and key(again) == key(item)


@pytest.mark.parametrize("item", EVERY, ids=range(len(EVERY)))
def test_a_value_survives_json(item):
    again = from_dict(json.loads(json.dumps(to_dict(item), allow_nan=False)))
    assert again == item and type(again) is type(item)
    assert hash(again) == hash(item) and repr(again) == repr(item)


def test_every_field_changes_the_key_and_no_two_values_share_one():
    assert len({key(item) for item in EVERY}) == len(EVERY) == len(set(EVERY))


def test_golden_keys():
    """If one of these changes, every result stored so far is lost."""
    avg = Experiment(
        Task("cifar10", Dirichlet(clients=100, alpha=1.0, size=450), LeNet()), FedAvg(), rounds=300
    )
    assert avg.key == "cd0bc7ac67e10ba9"
    mix = Experiment(
        Task("digits", IID(clients=20), MLP(hidden=(30,)), Mirrored(pool=200)),
        FedMix(experts=2, server=Optimizer("adam", lr=5e-3, rates=(("phi", 0.05),))),
        rounds=150,
        cohort=0.25,
        seed=1,
        after=avg,
    )
    assert mix.key == "ed496cc61589802f"
    assert key_of(avg, version=2) != avg.key


def test_saying_a_default_changes_nothing():
    said = Experiment(TASK, FedAvg(client=Optimizer(lr=0.05), weighting="size"), 3, 10, seed=0)
    assert said == FIRST and said.key == FIRST.key and repr(said) == repr(FIRST)
    assert repr(FedMix(server=Optimizer("sgd", lr=1.0))) != repr(FedMix())


def test_an_integer_where_a_float_is_meant_is_the_same_value():
    pairs = [
        (Optimizer(lr=1), Optimizer(lr=1.0)),
        (Optimizer(betas=(0, 0.5)), Optimizer(betas=(0.0, 0.5))),
        (Optimizer(rates=(("phi", 1),)), Optimizer(rates=(("phi", 1.0),))),
        (Dirichlet(alpha=2), Dirichlet(alpha=2.0)),
        (FedMix(marginal_entropy=2), FedMix(marginal_entropy=2.0)),
    ]
    for one, other in pairs:
        assert one == other and key(one) == key(other) and repr(one) == repr(other)


def test_a_list_is_a_tuple():
    assert LeNet(channels=[6, 17]) == LeNet(channels=(6, 17))
    assert hash(LeNet(channels=[6, 17])) == hash(LeNet(channels=(6, 17)))


def test_a_cohort_of_one_client_is_not_the_whole_population():
    one, all_of_them = Experiment(TASK, FedAvg(), 3, 1), Experiment(TASK, FedAvg(), 3, 1.0)
    assert one.key != all_of_them.key and repr(one) != repr(all_of_them)
    assert type(from_dict(json.loads(json.dumps(to_dict(all_of_them)))).cohort) is float


rates = st.floats(0, 1e6)
names = st.text(max_size=8)
optimizers = st.builds(
    Optimizer,
    name=st.sampled_from(["sgd", "adam", "adamw", "adagrad", "yogi"]),
    lr=rates | st.integers(0, 10),
    momentum=st.floats(0, 1),
    weight_decay=rates,
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    eps=st.floats(1e-30, 1),
    rates=st.lists(st.tuples(names, rates | st.integers(0, 9)), max_size=3).map(tuple),
)
averaging = {
    "epochs": st.integers(1, 99),
    "batch_size": st.none() | st.integers(1, 999),
    "client": optimizers,
    "server": optimizers,
    "weighting": st.sampled_from(["size", "uniform"]),
}
stops = st.builds(EarlyStop, every=st.integers(1, 9), patience=st.integers(1, 9), min_delta=rates)
mixing = {
    **averaging,
    "experts": st.integers(1, 9),
    "condition": names,
    "marginal_entropy": rates,
    "phi_scale": rates,
    "personal_bias": st.booleans(),
}
objectives = st.sampled_from(["map", "entropy", "likelihood"])
stages = (
    st.builds(FedAvg, **averaging)
    | st.builds(Personal, **averaging, local=st.lists(names).map(tuple))
    | st.builds(FedMix, **mixing, objective=objectives)
    | st.builds(PrunedFedMix, **mixing, eta=st.floats(0, 1))
)
algorithms = (
    stages
    | st.builds(Local, **averaging, stop=st.none() | stops)
    | st.builds(LocalGlobal, **averaging, cut=st.integers(1, 9))
    | st.builds(Newcomers, **averaging, of=stages)
    | st.builds(Densities, **averaging, of=stages, stop=stops, samples=st.integers(1, 9))
)
augments = st.builds(CropFlip, padding=st.integers(0, 9), flip=st.booleans())
tasks = st.builds(
    Task,
    dataset=st.sampled_from(["digits", "mnist", "cifar10"]),
    partition=st.builds(Dirichlet, clients=st.integers(1, 99), alpha=st.floats(1e-3, 1e3))
    | st.builds(IID, size=st.none() | st.integers(1, 9))
    | st.builds(Clients, of=st.builds(IID), last=st.integers(1, 99)),
    model=st.builds(LeNet, channels=st.lists(st.integers(1, 99), min_size=1).map(tuple))
    | st.builds(MLP, hidden=st.lists(st.integers(1, 99), min_size=1).map(tuple)),
    held_out=st.builds(Mirrored, pool=st.integers(1, 10**6)) | st.builds(Own, merge=st.booleans()),
    augment=st.none() | augments,
)
experiments = st.builds(
    Experiment,
    task=tasks,
    algorithm=algorithms,
    rounds=st.integers(1, 10**5),
    cohort=st.integers(1, 99) | st.floats(0.01, 1),
    seed=st.integers(0, 2**40),
    audit=st.booleans(),
)
staged = experiments | st.builds(
    dataclasses.replace, experiments, after=experiments, beside=st.none() | experiments
)


@settings(max_examples=60)
@given(staged)
def test_any_experiment_round_trips(item):
    through_json = from_dict(json.loads(json.dumps(to_dict(item), allow_nan=False)))
    through_code = eval(as_code(item), {"__builtins__": {}}, dict(NAMES))
    for again in (through_json, through_code):
        assert again == item and again.key == item.key and as_code(again) == as_code(item)
        assert type(again.cohort) is type(item.cohort)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "FedAgv"}, r"unknown kind of value 'FedAgv'; allowed: .*did you mean 'FedAvg'\?"),
        ({"epochs": 1}, "unknown kind of value 'None'; allowed: "),
        (
            {"kind": "FedAvg", "epoch": 2},
            r"unknown field of FedAvg 'epoch'; allowed: .*did you mean 'epochs'\?",
        ),
        ({"kind": "Local", "__class__": 2}, "unknown field of Local '__class__'"),
        ({"kind": "FedAvg", "client": {"kind": "sgd"}}, "unknown kind of value 'sgd'"),
        ({"kind": "FedAvg", "epochs": 0}, "epochs must be >= 1, got 0"),
    ],
)
def test_a_written_value_that_is_not_one_is_an_error(data, message):
    with pytest.raises(ValueError, match=message):
        from_dict(data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAvg(epochs="2"), r"FedAvg.epochs must be int, got '2' \(str\)"),
        (lambda: FedAvg(epochs=True), r"FedAvg.epochs must be int, got True \(bool\)"),
        (lambda: FedAvg(epochs=2.0), r"FedAvg.epochs must be int, got 2.0 \(float\)"),
        (lambda: FedAvg(epochs=None), "FedAvg.epochs must be int, got None"),
        (lambda: FedAvg(client="sgd"), "FedAvg.client must be Optimizer, got 'sgd'"),
        (lambda: FedMix(personal_bias=1), "FedMix.personal_bias must be bool, got 1"),
        (lambda: Optimizer(lr=True), "Optimizer.lr must be float, got True"),
        (lambda: Optimizer(betas=(0.9,)), "Optimizer.betas must hold 2 items"),
        (lambda: Optimizer(rates=(("phi", "x"),)), r"Optimizer.rates\[0\]\[1\] must be float"),
        (lambda: LeNet(channels=6), "LeNet.channels must be tuple, got 6"),
        (lambda: MLP(hidden=(2.5,)), r"MLP.hidden\[0\] must be int, got 2.5"),
        (lambda: Task("digits", Dirichlet(), Dirichlet()), "Task.model must be Family"),
        (lambda: Experiment(TASK, "FedAvg", 3), "Experiment.algorithm must be FedAvg, got"),
        (lambda: Experiment(TASK, FedAvg(), 3, cohort="10"), "cohort must be float or int"),
        (lambda: Experiment(TASK, FedAvg(), 3, after=TASK), "after must be an Experiment"),
    ],
    ids=range(15),
)
def test_a_wrong_type_is_an_error_that_names_the_field(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_an_error(bad):
    for make in (
        lambda: Optimizer(lr=bad),
        lambda: Optimizer(betas=(bad, 0.9)),
        lambda: Optimizer(rates=(("phi", bad),)),
        lambda: FedMix(marginal_entropy=bad),
        lambda: Experiment(TASK, FedAvg(), 3, cohort=bad),
        lambda: Dirichlet(alpha=bad),
        lambda: Optimizer(lr=10**400),
    ):
        with pytest.raises(ValueError, match="finite"):
            make()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"rounds": 0}, "rounds must be >= 1, got 0"),
        ({"evaluate_every": -1}, "evaluate_every must be >= 0, got -1"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"cohort": 0}, "cohort must be .*, got 0"),
        ({"cohort": 10.0}, "cohort must be .*, got 10.0"),
        ({"cohort": -0.5}, "cohort must be .*, got -0.5"),
    ],
)
def test_an_impossible_experiment_is_an_error(bad, message):
    with pytest.raises(ValueError, match=message):
        Experiment(**{"task": TASK, "algorithm": FedAvg(), "rounds": 3, **bad})


def test_a_name_stands_for_one_class():
    """Two classes of one name would share their keys: one would be given the other's results."""
    with pytest.raises(
        TypeError, match=r"the name Local is taken by fedlib\.algorithms\.local\.Local"
    ):
        values.value(type("Local", (FedAvg,), {}))
    assert values._KINDS["Local"] is Local
    sloppy = dataclasses.replace(FIRST, algorithm=type("Local", (FedAvg,), {})())
    with pytest.raises(TypeError, match="Local is no kind of value: decorate it with @value"):
        _ = sloppy.key


@pytest.fixture
def notebook(monkeypatch):
    """Kinds of value that are forgotten after the test."""
    monkeypatch.setattr(values, "_KINDS", dict(values._KINDS))


def test_a_class_of_a_notebook_is_a_value_and_may_be_run_again(notebook):
    for _ in range(2):

        @values.value
        class Mine(FedAvg):
            share: int | float = 1

        item = dataclasses.replace(FIRST, algorithm=Mine())
        assert from_dict(json.loads(json.dumps(to_dict(item)))) == item
        assert item.key != FIRST.key
    values._KINDS.pop("Mine")  # as on a machine to which the class was sent
    assert from_dict(to_dict(item)) == item
    assert len({key(Mine(share=n)) for n in (1, 1.0, 2, 2.0)}) == 4


def test_a_field_may_not_be_called_kind(notebook):
    with pytest.raises(TypeError, match="Mine has a field 'kind'"):

        @values.value
        class Mine:
            kind: str = ""


def test_values_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FIRST.rounds = 4
