"""Keys and code: a key changes when, and only when, what it stands for changes."""

from __future__ import annotations

import dataclasses
import inspect
import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small import AVG
from test_values import EVERY, staged

from companion.plan import planned
from companion.sections import SCALES
from fedlib.algorithms import FedAvg
from fedlib.optim import Optimizer
from fedlib.runs import run
from fedlib.values import UnknownName, as_code, from_code, from_dict, key_of, to_dict
from papers.book import BOOK


def paths_of(item, before=()):
    """Every field of a value, and of the values inside it, as a path of names."""
    for field in dataclasses.fields(item):
        inner = getattr(item, field.name)
        yield (*before, field.name)
        if dataclasses.is_dataclass(inner):
            yield from paths_of(inner, (*before, field.name))


def at(item, path):
    for name in path:
        item = getattr(item, name)
    return item


def replaced(item, path, value):
    if len(path) > 1:
        value = replaced(getattr(item, path[0]), path[1:], value)
    return dataclasses.replace(item, **{path[0]: value})


def exactly(value):
    """A value with the types that == ignores: 1 client is not a fraction of 1.0."""
    return type(value), value


def spelt_out(item, order, made, plain):
    """The same value with every default said, in another order, as ``made`` of its fields."""
    if not dataclasses.is_dataclass(item):
        return plain(item)
    names = [f.name for f in dataclasses.fields(item)]
    order.shuffle(names)
    return made(type(item), {n: spelt_out(getattr(item, n), order, made, plain) for n in names})


@settings(max_examples=150)
@given(staged, staged, st.data())
def test_one_field_changed_is_another_key(one, other, data):
    """Any field, at any depth, takes the value that it has in another experiment."""
    common = sorted(set(paths_of(one)) & set(paths_of(other)))
    path = data.draw(st.sampled_from(common))
    try:
        changed = replaced(one, path, at(other, path))
    except (TypeError, ValueError):
        assume(False)  # not legal beside the other fields
    same = exactly(at(one, path)) == exactly(at(other, path))
    assert (changed.key == one.key) == same


@settings(max_examples=80)
@given(staged, st.randoms())
def test_defaults_said_and_the_order_of_fields_change_nothing(item, order):
    again = spelt_out(item, order, lambda kind, fields: kind(**fields), lambda plain: plain)
    said = spelt_out(item, order, lambda kind, fields: {**fields, "kind": kind.__name__}, to_dict)
    through_json = from_dict(json.loads(json.dumps(said)))
    assert again.key == item.key == through_json.key
    assert repr(again) == repr(item) == repr(through_json)
    read = from_code(f"  {as_code(item)}\n")
    assert read == item and read.key == item.key and type(read.cohort) is type(item.cohort)


def test_minus_zero_is_zero():
    one, other = Optimizer(lr=0.0), Optimizer(lr=-0.0)
    assert repr(one) == repr(other) and key_of(one, version=1) == key_of(other, version=1)


def test_how_a_run_is_made_is_no_part_of_it():
    """Device, chunk, progress and retry are arguments of run, and no field of a value."""
    how = set(inspect.signature(run).parameters) - {"experiment"}
    assert how == {"device", "chunk", "progress", "retry"}
    assert not how & {name for path in paths_of(AVG) for name in path}
    first = run(AVG, device="cpu", chunk=2, progress=False)
    asked = []
    again = run(AVG, chunk=1, progress=lambda *said: asked.append(said))
    assert again.provenance == first.provenance and not asked


@pytest.mark.slow
def test_the_printed_code_of_every_value_and_run_is_read_back():
    for item in [*EVERY, *(p.experiment for scale in SCALES for p in planned(BOOK, scale))]:
        said = repr(item)
        again = from_code(said)
        assert again == item and type(again) is type(item) and repr(again) == said, said


def test_code_may_be_positional_and_hold_literals():
    said = from_code("Optimizer('adam', 1, betas=[0, 0.5])")
    assert said == Optimizer("adam", lr=1.0, betas=(0.0, 0.5))
    assert from_code("FedAvg(2, None)") == FedAvg(epochs=2, batch_size=None)
    assert from_code("(1, -2.5, 'x', True, None, ())") == (1, -2.5, "x", True, None, ())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("FedAgv()", r"unknown kind of value 'FedAgv'; allowed: .*did you mean 'FedAvg'\?"),
        ("FedAvg(epoch=2)", r"unknown field of FedAvg 'epoch'; .*did you mean 'epochs'\?"),
        ("FedAvg", r"'FedAvg' is no value: write Kind\(\.\.\.\)"),
        ("Fedavg", r"'Fedavg' is no value: .*did you mean 'FedAvg'\?"),
        ("__import__('os').system('ls')", r"\"__import__\('os'\).system\('ls'\)\" is no part"),
        ("__import__('os')", "unknown kind of value '__import__'"),
        ("FedAvg(epochs=1+1)", r"'1\+1' is no part of a value's code"),
        ("FedAvg(epochs=[x for x in (1,)])", r"is no part of a value's code"),
        ("-True", "'-True' is no part"),
        ("FedAvg(**{})", "'{}' is no part"),
        ("FedAvg(1, epochs=2)", "FedAvg has too many arguments, or one twice"),
        ("IID(1, 2, 3, 4, 5, 6, 7, 8, 9)", "IID has too many arguments, or one twice"),
        ("Task('digits')", "Task needs partition, model"),
        ("Optimizer(lr=1e999)", "must be finite"),
        ("FedAvg(", "not the code of a value: .* in 'FedAvg"),
        ("", "not the code of a value"),
        ("\0", "not the code of a value"),
        ("(" * 400 + ")" * 400, "not the code of a value"),
        ("-" * 100_000 + "1", "not the code of a value"),
    ],
)
def test_what_is_no_value_is_an_error_that_names_the_part(code, message):
    with pytest.raises(ValueError, match=message):
        from_code(code)


def test_a_wrong_name_can_be_told_from_a_wrong_value():
    with pytest.raises(UnknownName):
        from_code("FedAvg(weighting='sise')")
    with pytest.raises(ValueError, match="Experiment needs task, algorithm, rounds"):
        from_dict({"kind": "Experiment"})
    assert issubclass(UnknownName, ValueError)
