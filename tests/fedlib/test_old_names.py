"""Names of earlier versions: hooks are refused with the new name, offered names warn for a version.

And what an algorithm may override, which is listed and documented in one place.
"""

import dataclasses
import importlib
import inspect

import pytest

import fedlib
import fedrun
from fedlib import FedAvg, paths, value
from fedlib.algorithms.fedavg import ATTRIBUTES, METHODS
from fedlib.engine import Algorithm
from fedlib.partition import Partitioner, partitioner
from fedlib.values import from_code, from_dict, to_dict

HOOKS = [*((FedAvg, *pair) for pair in {**METHODS, **ATTRIBUTES}.items())]
HOOKS += [(Partitioner, *pair) for pair in partitioner.METHODS.items()]


@pytest.mark.parametrize("base, old, new", HOOKS, ids=lambda x: getattr(x, "__name__", x))
def test_a_hook_under_its_old_name_is_refused_with_the_new_one(base, old, new):
    """It would never be called."""
    with pytest.raises(TypeError, match=rf"^Mine\.{old} has no effect .* override ") as caught:
        type("Mine", (base,), {old: lambda self: None})
    assert str(caught.value).endswith(new)
    name, offered = new.partition(",")[0], (base, partitioner.SideInformation)
    assert name == "check" or any(hasattr(kind, name) for kind in offered)


def test_a_field_may_have_the_old_name_of_a_method_but_not_of_an_attribute():
    @value
    class Shares(FedAvg):
        share: float = 0.5

    assert Shares(share=0.1).share == 0.1
    with pytest.raises(TypeError, match=r"Keeps\.keeps has no effect .* override local"):

        class Keeps(FedAvg):
            keeps: tuple[str, ...] = ("head.",)


# What `dir(fedlib)` of 0.2.0 listed; tests/test_examples.py has the callbacks.
OF_0_2 = """algorithms data models partition APFL GPFL IFCA MOON SCAFFOLD Ditto FedAMP FedAvg
FedBABU FedBN FedCP FedEM FedGen FedGH FedMix FedPer FedProx FedRep FedRoD FedSynMoE
LastClient LGFedAvg Local LocalGlobal Mixture Personal PFedMe PMMoE Private PrunedFedMix
EarlyStop Phase Selection State Augmentation CropFlip Evaluation interval MLP
BiLSTM FastText LeNet ResNet Cosine Optimizer Schedule Step adam sgd IID ClassDirichlet
Dirichlet LabelPermuted OptOut Pachinko QuantitySkew Rotated Shards Task value PINNED"""
RENAMED = """
ByColumn fedlib.NaturalPartition, CommonestLabel fedlib.MajorityClass,
Densities fedlib.VAEDensity, Majority fedlib.MajorityClasses, Mirrored fedlib.MatchedHoldout,
Module fedlib.FromFunction, Newcomers fedlib.NewClients, Own fedlib.LocalHoldout,
looks_up fedlib.uses_precomputed, Experiment fedrun.Experiment, Moment fedrun.RoundInfo,
Result fedrun.Result, RunDiverged fedrun.RunDiverged, StoreError fedrun.StoreError,
compare fedrun.compare, evaluate fedrun.evaluate, find fedrun.find_result, frame fedrun.frame,
predict fedrun.predict, run fedrun.run, run_with_state fedrun.run_with_state,
simulate fedrun.simulate, sweep fedrun.sweep
"""


def test_names_that_did_not_change_are_offered():
    assert {*OF_0_2.split()} <= {*dir(fedlib)}


@pytest.mark.parametrize("pair", RENAMED.split(","))
def test_a_name_that_changed_warns_and_names_the_new_one(pair):
    old, new = pair.split()
    package, name = new.split(".")
    with pytest.warns(DeprecationWarning, match=rf"{old} is ({new}|{name}) now"):
        found = getattr(fedlib, old)
    assert found is getattr({"fedlib": fedlib, "fedrun": fedrun}[package], name)
    assert old not in dir(fedlib)


@pytest.mark.parametrize(("old", "new"), [("Majority", "MajorityClasses"), ("Own", "LocalHoldout")])
def test_a_renamed_value_keeps_its_key(old, new):
    kind = getattr(fedlib, new)
    assert from_code(f"{old}()") == from_dict({"kind": old}) == kind()
    assert to_dict(kind()) == {"kind": old} and repr(kind()) == f"{new}()"


def test_a_former_attribute_warns_and_is_the_present_one():
    (*_, moment), one = fedrun.simulate(fedrun.tiny), fedrun.run(fedrun.tiny, progress=False)
    names = "shared server_params, local client_params, memory server_memory"
    stages = "after first_stage, beside local_stage, keep select, audit audit_labels"
    for item, told in (
        (moment.state, f"{names}, optimizer server_optimizer"),
        (fedrun.tiny, stages),
        (one, "ended final"),
    ):
        for old, new in map(str.split, told.split(", ")):
            with pytest.warns(DeprecationWarning, match=rf"\.{old} is {new} now$"):
                found = getattr(item, old)
            assert found == getattr(item, new)


FORMER = [("callbacks", pytest.warns, DeprecationWarning), ("flower", pytest.raises, ImportError)]


@pytest.mark.parametrize(("module", "told", "kind"), FORMER)
def test_a_former_address_names_the_present_one(module, told, kind, monkeypatch):
    """Flower needs packages that fedlib does not."""
    monkeypatch.delitem(importlib.sys.modules, f"fedlib.{module}", raising=False)
    with told(kind, match=rf"examples/{module}") as heard:
        importlib.import_module(f"fedlib.{module}")
    assert kind is ImportError or len(heard) == 1, "a warning for all of its names"
    assert [*(paths.ROOT / "examples").glob(f"{module}*")]


FIELDS = {field.name for field in dataclasses.fields(FedAvg)}
NAMES = [name for name in vars(Algorithm) if name[0] != "_"]


def test_an_algorithm_may_override_what_the_protocol_lists_and_no_more():
    """``check`` is a method of every value, and those of base classes are called anyway."""
    assert len(NAMES) <= 26
    own = {n for n, x in vars(FedAvg).items() if n[0] != "_" and not hasattr(x, "__final__")}
    assert own - FIELDS - {"check"} <= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_each_of_them_says_its_default_and_who_calls_it(name):
    text = inspect.getdoc(vars(Algorithm)[name])
    assert "Default: " in text and ("Called " in text or "Read by " in text)
    assert "Default: " in (inspect.getdoc(getattr(FedAvg, name)) or text) or name == "communicates"


def test_the_check_of_a_base_class_is_called_too():
    @value
    class Checked(FedAvg):
        def check(self):
            if self.epochs > 3:
                raise ValueError("too many")

    with pytest.raises(ValueError, match="too many"):
        Checked(epochs=4)
    with pytest.raises(ValueError, match="not both"):
        Checked(epochs=2, steps=5)


def test_a_method_that_is_nearly_a_hook_is_refused():
    for wrong, meant in (("agregate", "aggregate"), ("client_updates", "client_update")):
        with pytest.raises(TypeError, match=f"Mine.{wrong} .* did you mean {meant}?"):
            type("Mine", (FedAvg,), {wrong: lambda self: None})
    for fine in ("loss2", "own_loss", "_agregate", "aggregate"):
        type("Mine", (FedAvg,), {fine: lambda self: None})
