"""Values: they print as code, survive JSON, have stable keys, and refuse what they cannot be."""

import contextlib
import csv
import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
from cases import refused

from fedlib import IID, MLP, Dirichlet, LeNet, MatchedHoldout, Optimizer, Task, values
from fedlib import privacy as privacy
from fedlib.algorithms import FedAvg, FedMix, Local, Personal, PMMoE
from fedlib.algorithms import features as features
from fedlib.values import PositiveInt, Share, UnknownName, from_code, from_dict, key_of, to_dict
from fedrun import Experiment

# Every field of every value of the library, but for those that a kind inherits: what it is when
# nobody says anything ("..." where somebody must), another value that it could have, and values
# that it refuses. Without a field: a kind that has none of its own.
ROWS = list(csv.DictReader(Path(__file__).with_name("values.csv").open(newline="")))
# One value of those that need more than their defaults.
TASK = Task("digits", Dirichlet(clients=20, size=60), LeNet(), MatchedHoldout(pool=200))
FIRST = Experiment(TASK, FedAvg(), rounds=3)
BASES = """TASK; FIRST; Phase(Optimizer()); FromFunction('torch.nn:Identity');
    RepeatedPartition(IID());
    Rotated(IID()); LabelPermuted(IID()); ClientSubset(IID()); HoldoutByColumn(group='ward')"""
KINDS = {
    c.__name__: c for c in values._KINDS.values() if c.__module__.startswith(("fedlib.", "fedrun."))
}


def _code(text):
    return eval(text.strip(), {**globals(), **KINDS})


def fields_of(cls):
    """The rows of a kind by field, those of its parents first."""
    kinds = [base.__name__ for base in reversed(cls.__mro__)]
    return {r["field"]: r for kind in kinds for r in ROWS if r["kind"] == kind and r["field"]}


FIELDS = {name: fields_of(cls) for name, cls in KINDS.items()}
MADE = {type(base).__name__: base for base in map(_code, BASES.split(";"))}
OTHERS = {
    name: {field: _code(row["other"]) for field, row in rows.items() if row["other"]}
    for name, rows in FIELDS.items()
}
SAMPLES = {n: (MADE[n] if n in MADE else KINDS[n](), others) for n, others in OTHERS.items()}
EVERY = [base for base, _ in SAMPLES.values()]
for base, others in SAMPLES.values():
    EVERY += [dataclasses.replace(base, **{name: other}) for name, other in others.items()]


def all_changed(base, others):
    """A value with as many other fields at once as fit together."""
    for name, other in others.items():
        with contextlib.suppress(ValueError):
            base = dataclasses.replace(base, **{name: other})
    return base


CHANGED = [all_changed(*sample) for sample in SAMPLES.values()]
STAGES = {"first_stage": FIRST, "local_stage": FIRST}
STAGED = dataclasses.replace(all_changed(*SAMPLES["Experiment"]), **STAGES)


def key(item):
    return key_of(item, version=1)


def assert_same(one, other):
    assert one == other and type(one) is type(other) and hash(one) == hash(other)
    assert repr(one) == repr(other) and key(one) == key(other)


def through_json(said):
    return from_dict(json.loads(json.dumps(said, allow_nan=False)))


def test_the_table_knows_every_value_of_the_library():
    assert {row["kind"] for row in ROWS} == set(KINDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_default_never_changes(name):
    """A value is stored by what differs from its defaults.

    With another default every stored result would silently stand for another experiment. Adding a
    field whose default is the old behaviour is fine (write it down in the table); if a default must
    change, raise ``fedrun.experiment.VERSION``.
    """
    fields = dataclasses.fields(KINDS[name])
    now = {f.name: "..." if f.default is dataclasses.MISSING else repr(f.default) for f in fields}
    assert now == {field: row["default"] for field, row in FIELDS[name].items()}


def spelt_out(item, made, plain):
    """The same value with every default said, the last field first, as ``made`` of its fields."""
    if not dataclasses.is_dataclass(item):
        return plain(item)
    names = [f.name for f in reversed(dataclasses.fields(item))]
    return made(type(item), {n: spelt_out(getattr(item, n), made, plain) for n in names})


@pytest.mark.parametrize("item", [*EVERY, *CHANGED, STAGED])
def test_a_value_prints_as_the_code_that_makes_it_and_survives_json(item):
    """Also with every default said, and in another order."""
    assert_same(eval(repr(item), {"__builtins__": {}}, dict(KINDS)), item)
    assert_same(from_code(f"  {item}\n"), item)
    assert_same(through_json(to_dict(item)), item)
    assert_same(spelt_out(item, lambda kind, fields: kind(**fields), lambda v: v), item)
    said = spelt_out(item, lambda kind, fields: {**fields, "kind": vars(kind)["__kind__"]}, to_dict)
    assert_same(through_json(said), item)


def test_every_field_changes_the_key_and_no_two_values_share_one():
    assert len({key(item) for item in EVERY}) == len(EVERY) == len(set(EVERY))


def test_golden_keys():
    """If one of these changes, every result stored so far is lost."""
    task = Task("cifar10", Dirichlet(clients=100, alpha=1.0, size=450), LeNet())
    avg = Experiment(task, FedAvg(), rounds=300)
    assert avg.key == "cd0bc7ac67e10ba9" != key_of(avg, version=2)
    task = Task("digits", IID(clients=20), MLP(hidden=(30,)), MatchedHoldout(pool=200))
    server = Optimizer("adam", lr=5e-3, rates=(("phi", 0.05),))
    mix = Experiment(
        task, FedMix(experts=2, server=server), 150, cohort=0.25, seed=1, first_stage=avg
    )
    assert mix.key == "ed496cc61589802f"


NUMPYS = {"seed": np.int8(1), "audit_labels": np.bool_(True), "cohort": np.float32(0.5)}
SAID = Experiment(TASK, FedAvg(), 3, 0.5, 1, audit_labels=True)
ALIKE = [
    (dataclasses.replace(FIRST, **NUMPYS), SAID),
    (Optimizer(lr=np.logspace(-3, -1, 3)[0]), Optimizer(lr=0.001)),
    (LeNet(channels=tuple(np.arange(6, 8))), LeNet(channels=(6, 7))),
    (Experiment(TASK, FedAvg(client=Optimizer(lr=0.05), epochs=1), 3, 10), FIRST),
    (Optimizer(lr=1), Optimizer(lr=1.0)),
    (Optimizer(lr=-0.0), Optimizer(lr=0.0)),
    (Optimizer("adam", betas=(0, 0.5)), Optimizer("adam", betas=(0.0, 0.5))),
    (Optimizer(rates=(("phi", 1),)), Optimizer(rates=(("phi", 1.0),))),
    (Dirichlet(alpha=2), Dirichlet(alpha=2.0)),
    (Personal(local="head"), Personal(local=("head",))),
    (LeNet(channels=[6, 17]), LeNet(channels=(6, 17))),
    (from_code("Optimizer('adam', 1, betas=[0, 0.5])"), Optimizer("adam", 1.0, betas=(0, 0.5))),
    (from_code(" FedAvg(2, None)\n"), FedAvg(epochs=2, batch_size=None)),
]


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=str)
def test_the_same_said_in_another_way_is_the_same_value(one, other):
    assert_same(one, other)


def test_what_is_not_the_same():
    one, all_of_them = Experiment(TASK, FedAvg(), 3, 1), Experiment(TASK, FedAvg(), 3, 1.0)
    assert one.key != all_of_them.key and repr(one) != repr(all_of_them)
    assert repr(FedMix(server=Optimizer("sgd", lr=1.0))) != repr(FedMix())
    assert from_code("(1, -2.5, 'x', True, None, ())") == (1, -2.5, "x", True, None, ())


@refused("values")
def test_what_is_no_value_is_an_error_that_names_the_part(code, message):
    """Every kind of complaint once; `make robust` tries wrong types of all fields."""
    with pytest.raises((TypeError, ValueError), match=message) as error:
        _code(code)
    unknown = "unknown" in message or "is not a val" in message
    assert isinstance(error.value, UnknownName) == unknown
    assert unknown or len(str(error.value)) < 300, "an error shows the beginning of what was given"


EACH = [(r["kind"], r["field"], r["refused"].split(" | ")) for r in ROWS if r["refused"]]
REFUSED = [(kind, field, code) for kind, field, codes in EACH for code in codes]


@pytest.mark.parametrize(("kind", "field", "refused"), REFUSED)
def test_a_field_keeps_to_its_range(kind, field, refused):
    with pytest.raises(ValueError, match=rf"\b{field}\b"):
        dataclasses.replace(SAMPLES[kind][0], **{field: _code(refused)})


@pytest.fixture
def notebook(monkeypatch):
    """Kinds of value that are forgotten after the test."""
    monkeypatch.setattr(values, "_KINDS", dict(values._KINDS))


def named(name):
    return type(name, (FedAvg,), {"__module__": __name__})


def test_a_kind_stands_for_one_class(notebook):
    """Two classes of one kind would share their keys: one would be given the other's results."""
    own = values.value(named("Local"))
    theirs, ours = (dataclasses.replace(FIRST, algorithm=made()) for made in (own, Local))
    assert from_dict(to_dict(theirs)) == theirs and from_dict(to_dict(ours)) == ours
    assert to_dict(own()) == {"kind": f"{__name__}.Local"} and repr(own()) == f"{__name__}.Local()"
    assert from_code(repr(theirs)) == theirs and from_code(repr(ours)) == ours
    assert len({theirs.key, ours.key, FIRST.key}) == 3
    with pytest.raises(TypeError, match=r"kind Local is fedlib\.algorithms.*Local: give Mine"):
        values.value(kind="Local")(named("Mine"))
    sloppy = dataclasses.replace(FIRST, algorithm=type("Local", (FedAvg,), {})())
    with pytest.raises(TypeError, match="Local is not a kind of value: decorate it with @value"):
        _ = sloppy.key


def test_a_class_can_be_renamed_without_touching_a_key(notebook):
    old = values.value(named("Old"))
    said = to_dict(old(epochs=2))
    values._KINDS.pop("Old")
    new = values.value(kind="Old")(named("New"))
    assert to_dict(new(epochs=2)) == said and from_dict(said) == new(epochs=2)
    assert repr(new(epochs=2)) == "New(epochs=2)" and from_code("New(2)") == new(epochs=2)
    assert values.as_code(said) == "New(epochs=2)"


def test_a_field_can_be_renamed_without_touching_a_key():
    stored, now = {"kind": "PMMoE", "favour": 3.0}, PMMoE(own_expert_bias=3.0)
    assert to_dict(now) == stored and from_dict(stored) == now == from_code("PMMoE(favour=3.0)")
    assert values.as_code(stored) == repr(now) == "PMMoE(own_expert_bias=3.0)"


def test_data_print_as_the_code_of_their_value_also_where_the_kind_is_unknown():
    for item in EVERY:
        assert values.as_code(to_dict(item)) == repr(item)
    said = {"kind": "Gone", "rates": [0.5], "of": {"kind": "FedAvg"}, "none": []}
    assert values.as_code(said) == "Gone(rates=(0.5,), of=FedAvg(), none=())"


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


def test_what_a_field_may_be_stands_beside_its_type():
    @values.value(kind="tests.Bounded")
    class Bounded:
        many: tuple[PositiveInt, ...] = (1,)
        share: Share | None = None
        pool: Annotated[str, ("mean", "log")] = "mean"

    @values.value(kind="tests.Narrow")
    class Narrow(Bounded):
        pool: Annotated[str, ("log",)] = "log"

    assert Bounded((2, 3), 1.0).share == 1.0 and Narrow(pool="log") == Narrow()
    for kind, wrong in ((Bounded, {"many": ()}), (Bounded, {"many": (1, 0)}),
                        (Narrow, {"share": 1.5}), (Narrow, {"pool": "mean"})):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong))):
            kind(**wrong)


UNFIT = [
    (list[int], r"list: a field may be .* a value; write tuple\[int, \.\.\.\]"),
    (dict[str, float], r"dict: .* write tuple\[tuple\[str, float\], \.\.\.\]"),
    (Literal["a", "b"], r"Literal: .*; write Annotated\[str, \('a', 'b'\)\]"),
    (tuple[Path, ...] | None, "Path: .*; write str"),
    (tuple, r"tuple: .*; write tuple\[int, \.\.\.\]"),
    (np.ndarray, "ndarray: .* a value$"),
]


@pytest.mark.parametrize(("kind", "message"), UNFIT)
def test_a_field_that_no_value_can_have_is_refused_when_its_class_is_made(notebook, kind, message):
    """`layers: list[int]` said later that [1, 2] must be list."""
    body = {"__annotations__": {"layers": kind}, "layers": None, "__module__": __name__}
    with pytest.raises(TypeError, match=rf"Unfit\.layers is {message}"):
        values.value(type("Unfit", (FedAvg,), body))
