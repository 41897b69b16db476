"""Clients and classes are called by the names that the data have for them."""

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest
from small import play

from fedlib import MLP, FastText, FedAvg, FedMix, Task, data, partition, sgd, value
from fedlib.partition import (
    IID,
    HoldoutByColumn,
    LabelPermuted,
    LocalHoldout,
    NaturalPartition,
    Rotated,
)
from fedrun import Experiment, RunDiverged, evaluate, find_result, frame, predict

HOSPITALS = ["10", "9", "east", "north", "south", "west"]  # in their order as texts
RNG = np.random.default_rng(0)
WHERE = np.array(HOSPITALS)[RNG.permutation(np.arange(240) % 6)]
X, Y = RNG.normal(size=(240, 4)), RNG.integers(2, size=240)


@pytest.fixture
def task(places):
    data.add_data("wards", (X, Y, {"hospital": WHERE}), class_names=("well", "ill"))
    return Task("wards", NaturalPartition("hospital", clients=3), MLP((4,)), LocalHoldout())


def test_clients_that_were_drawn_have_the_names_of_their_column(task):
    fed, part = task.build(5), task.divide(5).parts["train"]
    assert [{*WHERE[part.client(i)].tolist()} for i in range(3)] == [{n} for n in fed.client_names]
    for other, names in ((NaturalPartition("hospital"), (*HOSPITALS,)), (IID(3), ())):
        assert replace(task, partition=other).build(0).client_names == names
    turned = fed.permuted(np.array([2, 0]))
    assert turned.client_names == (fed.client_names[2], fed.client_names[0])
    assert [turned.row(2), turned.row(fed.client_names[0])] == [0, 1]
    assert turned.called([0, 2]) == f"0 ({fed.client_names[0]!r}), 2 ({fed.client_names[2]!r})"
    assert fed.pooled().client_names == () and replace(fed, client_names=()).called([1]) == "1"


WRAPPED = {
    "LabelPermuted(NaturalPartition('hospital'), 2)": HOSPITALS,
    "RepeatedPartition(NaturalPartition('hospital'), 2)": HOSPITALS
    + [f"{n} (2)" for n in HOSPITALS],
    "ClientSubset(LabelPermuted(NaturalPartition('hospital', 6), 2), 3, 5)": ["north", "south"],
    "LabelPermuted(ClientSubset(NaturalPartition('hospital', 6), 0, 2), 2)": ["10", "9"],
}


@pytest.mark.parametrize("code", WRAPPED)
def test_what_stands_around_a_partition_keeps_its_names(code):
    whole = eval(code, vars(partition)).split(Y, None, 0, 2, {"hospital": WHERE})
    assert whole.names == (*WRAPPED[code],)
    for i, name in enumerate(whole.names):
        assert {*WHERE[whole.client(i)].tolist()} == {name.split(" ")[0]}


def test_names_come_with_a_result_wherever_it_is_read(task):
    e = Experiment(task, FedMix(experts=2), rounds=1, cohort=2, seed=5, audit_labels=True)
    result, names = play(e), task.build(5).client_names
    assert result.client_names == find_result(e).client_names == names
    assert result.class_names == ("well", "ill")
    table = frame({"mine": [result]})
    scored = table[table["metric"] == "test_accuracy"]
    assert dict(zip(scored["client"], scored["client_name"], strict=True)) == dict(enumerate(names))
    of_classes = table["metric"].isin(["label_share", "q"])
    found = {*table.loc[of_classes, ["metric", "item", "class_name"]].itertuples(index=False)}
    called = [("0", "well"), ("1", "ill")]
    assert found == {(metric, *pair) for metric in ("label_share", "q") for pair in called}
    rest = table[(table["client"] < 0) & ~of_classes]
    assert {*rest["client_name"], *rest["class_name"]} == {""}
    # The items of other metrics are no classes, whatever their name begins with.
    renamed = pc.replace_substring(result.metrics["metric"], "label_share", "label_overlap")
    at = result.metrics.column_names.index("metric")
    overlap = replace(result, metrics=result.metrics.set_column(at, "metric", renamed))
    table = frame({"mine": [overlap]})
    assert {*table.loc[table["metric"] == "label_overlap", "class_name"]} == {""}


def test_a_client_is_asked_by_name_and_labels_are_told_by_name(task):
    result = play(Experiment(task, FedAvg(), rounds=1, cohort=2, seed=5))
    first, second, _ = result.client_names
    assert np.array_equal(predict(result, X[:9], second), predict(result, X[:9], 1))
    found = evaluate(result, (X, np.array(result.class_names)[Y]), first)
    assert found.accuracy == evaluate(result, (X, Y), 0).accuracy
    assert found.class_names == ("well", "ill")
    with pytest.raises(ValueError, match=f"no client '{first}x': .* 0 to 2; .* are '{first}'"):
        predict(result, X[:9], f"{first}x")
    with pytest.raises(ValueError, match="no client 7: clients are 0 to 2, named '"):
        predict(result, X[:9], 7)
    with pytest.raises(ValueError, match=r"unknown class 'il'; allowed: ill, well; .* 'ill'"):
        evaluate(result, (X[:2], ["well", "il"]))


TURNED = LabelPermuted(Rotated(IID(clients=4, size=30), alpha=None), 2)
OF_TEXTS = [f"{'good' if y else 'bad'} {w}" for y, w in zip(Y, WHERE, strict=True)]
ASKED = {  # data of every kind, as its clients have them
    "numbers": ("wards", NaturalPartition("hospital"), MLP((4,))),
    "pictures that are turned": ("digits", TURNED, MLP((4,))),
    "texts": ("letters", NaturalPartition("hospital"), FastText(width=4)),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_clients_own_examples_are_those_of_its_metrics(task, name):
    data.add_data("letters", (OF_TEXTS, Y, {"hospital": WHERE}))
    ours = Task(*ASKED[name], LocalHoldout(test=0.3, validation=0.2))
    result, fed = play(Experiment(ours, FedAvg(), rounds=2, cohort=2)), ours.build(0)
    for split in ("validation", "test"):
        for client, accuracy in result.per_client(f"{split}_accuracy").items():
            examples = fed.examples(client, split)
            found = evaluate(result, examples, client=client, device="cpu")
            assert found.accuracy == pytest.approx(accuracy)
    mine = fed.examples(1)
    assert len(mine) == fed.train.sizes[1] and mine.columns.keys() == fed.train.side.keys()
    with pytest.raises(ValueError, match=r"unknown split 'tests'.*did you mean 'test'"):
        fed.examples(1, "tests")


@value
class Failing(FedAvg):
    """Cannot be trained."""

    def loss(self, net, params, ctx, batch):
        raise KeyError("mine")


def test_errors_name_the_client(task):
    e = Experiment(task, FedAvg(client=sgd(1e30), epochs=3), rounds=3, cohort=1, seed=5)
    with pytest.raises(RunDiverged, match=r"client \d \('\w+'\) (is|are) not finite") as caught:
        play(e)
    (who,) = caught.value.clients
    assert f"client {who} ({task.build(5).client_names[who]!r})" in str(caught.value)
    with pytest.raises(KeyError) as caught:
        play(replace(e, algorithm=Failing(), cohort=3))
    assert all(f"({n!r})" in caught.value.__notes__[0] for n in task.build(5).client_names)


def test_clients_are_trained_and_scored_on_their_own_part_of_a_given_test_split(places):
    """As users of LEAF; the second user's rule is the first one's, turned round."""
    who = np.array(["ann", "bob"]).repeat(200)
    x = np.random.default_rng(1).normal(size=(400, 3))
    y = ((x[:, 0] > 0) ^ (who == "bob")).astype(int)
    data.add_data(
        "users", (x[::2], y[::2], {"user": who[::2]}), (x[1::2], y[1::2], {"user": who[1::2]})
    )
    task = Task("users", NaturalPartition("user"), MLP((4,)), HoldoutByColumn(owner="user"))
    fed = task.build(0)
    tests = [fed.test.y[fed.test.client(i)].tolist() for i in range(2)]
    assert tests == [y[1::2][:100].tolist(), y[1::2][100:].tolist()]
    assert fed.train.sizes.tolist() == [90, 90] and fed.validation.sizes.tolist() == [10, 10]
