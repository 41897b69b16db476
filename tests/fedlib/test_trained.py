"""What is taken along of a run: modules of torch, predictions and scores on new data."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from cases import GOLDEN, refused
from conftest import LENET, make_federation, parts_of, told_newcomers
from playing import BATTERY, FAST, every, play, texts
from small import AVG, MIX, TASK
from small import play as trained
from test_modules import foreign

from fedlib import IID, MLP, LocalHoldout, Task, data
from fedlib import algorithms as alg
from fedlib.engine.as_module import Trained, module_of
from fedlib.federation import Federation
from fedlib.metrics import evaluation
from fedrun import StoreError, evaluate, predict, run, run_with_state
from fedrun.results import export


def p_of(fed, algorithm, state, client, x):
    """What the engine predicts for one client."""
    seen = algorithm.assign_clusters(fed, state)
    params, ctx = parts_of(fed, algorithm, seen, client)
    code = algorithm.shared_forward(fed.net, seen.server_params, x)
    return algorithm.predict(fed.net, params, ctx, code).logp.softmax(-1)


@every
def test_a_module_says_what_the_algorithm_predicts(algorithm):
    fed = make_federation((11, 4, 9))
    state, _ = play(algorithm, fed, rounds=1)
    x, kind = fed.test.inputs(torch.arange(len(fed.test.y))), type(algorithm).__name__
    one, together = (module_of(fed, algorithm, state, client) for client in (1, None))
    with torch.no_grad():
        said = one(x).softmax(-1)
        torch.testing.assert_close(said, p_of(fed, algorithm, state, 1, x), rtol=1e-4, atol=1e-5)
        newcomers = told_newcomers(algorithm, fed, state).softmax(-1)
        torch.testing.assert_close(together(x).softmax(-1), newcomers, rtol=1e-4, atol=1e-5)
        copied = copy.deepcopy(one)
        for leaf in copied.parameters():
            leaf.zero_()
        assert not any(leaf.any() for leaf in copied.parameters())
        copied.load_state_dict(one.state_dict())
        assert torch.equal(copied(x).softmax(-1), said)
    kinds = tuple(not isinstance(module, Trained) for module in (one, together))
    assert [*kinds] == GOLDEN["bare"].get(kind, [*kinds])
    assert all(leaf.requires_grad for leaf in one.parameters())
    if any(leaf.is_floating_point() for leaf in state.server_params.values()):
        assert [*one.parameters()], "what was trained can be trained on"


EXPORTED = ["FedMix, personal bias", "GPFL, fast", "IFCA", "PMMoE, vectors", "VAEDensity"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("client", [1, None])
def test_a_module_is_traced_and_exported_for_any_number_of_examples(name, client):
    fed, algorithm = make_federation((11, 4, 9)), BATTERY[name]
    state, _ = play(algorithm, fed, rounds=1)
    module = module_of(fed, algorithm, state, client)
    some, others = (fed.test.inputs(torch.arange(n)) for n in (6, 11))
    traced = torch.jit.trace(module, (some,), check_trace=False)
    torch.testing.assert_close(traced(others), module(others))
    any_number = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(module, (some,), dynamic_shapes=any_number).module()
    torch.testing.assert_close(exported(others), module(others))


@pytest.mark.parametrize("made", [
    lambda: make_federation(model=foreign("Vectors")),
    lambda: make_federation(model=LENET, shape=(16, 16, 1)),
    texts,
], ids=["BatchNorm", "convolutions", "texts"])  # fmt: skip
def test_networks_of_every_kind_come_out(made):
    fed, algorithm = made(), alg.FedBN(**FAST)
    state, _ = play(algorithm, fed, rounds=1)
    x, module = fed.test.inputs(torch.arange(6)), module_of(fed, algorithm, state, 2)
    assert not isinstance(module, Trained) and not module.training
    torch.testing.assert_close(module(x).softmax(-1), p_of(fed, algorithm, state, 2, x))


def test_a_result_predicts_new_arrays_with_the_stored_normalisation():
    result, digits = trained(MIX), data.load("digits").test
    fed: Federation = TASK.build(MIX.seed)
    _, state = run_with_state(MIX, progress=False)
    x = fed.test.inputs(torch.arange(20))  # the same examples, as the engine normalises them
    for client in (0, 3):
        p = predict(result, digits.features[:20], client)
        expected = p_of(fed, MIX.algorithm, state, client, x).detach()
        np.testing.assert_allclose(p, expected, rtol=1e-4, atol=1e-6)
    end = result.curve("global_accuracy")[MIX.rounds]
    assert evaluate(result, digits).accuracy == pytest.approx(end, abs=1e-9)
    assert evaluate(result, (digits.features, digits.labels)).confusion.sum() == len(digits.labels)
    assert predict(result, digits.features[:0]).shape == (0, 10)
    assert isinstance(result.model(3), Trained) and not isinstance(trained(AVG).model(), Trained)


def test_what_was_added_can_be_asked_about_in_the_same_form(places):
    """Whole numbers that are no tokens, truth values as labels, and columns in their order."""
    table = pd.DataFrame(np.arange(240).reshape(60, 4) * 7 % 50 - 9, columns=[*"abcd"])
    yes, found = (table["a"] > 12).to_numpy(), []
    for given, how in ((table.to_numpy(), {"tokens": False}), (table, {})):
        data.add_data("mine", (given, yes), **how)
        task = Task("mine", IID(3), MLP((4,)), LocalHoldout())
        result = run(replace(AVG, task=task), progress=False)
        for asked in ((given, yes), (table.astype(float), yes.astype(int)), (table, yes, {})):
            found.append(evaluate(result, asked).accuracy)
    assert len({*found}) == 1
    with pytest.raises(ValueError, match="column 0 is 'b', where the training data have 'a'"):
        predict(result, table[[*"bacd"]])
    assert predict(result, table.to_numpy()[:3]).shape == (3, 2), "an array has no names"
    assert predict(result, table.astype(float)[:0]).shape == (0, 2)


@refused("predict")
def test_what_cannot_be_predicted_is_refused_by_name(code, message):
    some = data.load("digits").test
    how = {"result": trained(AVG), "x": some.features[:4], "y": some.labels[:4]}
    with pytest.raises(ValueError, match=message):
        eval(code, globals() | how)


def test_what_is_exported_has_no_model(tmp_path, monkeypatch):
    export([result := trained(AVG)], "some")
    monkeypatch.setenv("FEDLIB_RUNS", str(tmp_path / "empty"))
    with pytest.raises(StoreError, match="only the metrics of"):
        replace(result).model()


def test_scores_by_hand():
    """Six examples of two of three classes; one is taken for the class that has none."""
    said, labels = [0, 0, 0, 1, 2, 1], np.array([0, 0, 0, 0, 1, 1])
    p = np.full((6, 3), 0.25)
    p[range(6), said] = 0.5
    found = evaluation(p, labels)
    assert found.confusion.tolist() == [[3, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.nll == pytest.approx(-(4 * np.log(0.5) + 2 * np.log(0.25)) / 6)
    assert found.balanced_accuracy == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert found.f1 == pytest.approx((2 * 3 / (3 + 4) + 2 * 1 / (2 + 2)) / 2)
