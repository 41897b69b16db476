"""Tables as hospitals have them: columns of all sizes, rows in some order, names, gaps, texts."""

import re
import unicodedata

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlib import MLP, FastText, FedAvg, Task
from fedlib import data as datasets
from fedlib.data import parquet
from fedlib.partition import IID, LocalHoldout, NaturalPartition
from fedrun import Experiment, evaluate, predict, run

pytestmark = pytest.mark.usefixtures("places")

N = 240
U = np.arange(N) * 37 % 101 / 50 - 1  # in [-1, 1]
Y = (U > 0).astype(int)
NOISE = np.arange(N) * 53 % 97 / 97.0


def trained():
    task = Task("mine", IID(3, 60), MLP((8,)), LocalHoldout(test=0.25))
    method = FedAvg(batch_size=20, epochs=5)
    return task, run(Experiment(task, method, rounds=8, cohort=3), progress=False)


NARROW = {
    "seconds since 1970": 1.7e9 + 1800 * U,
    "nanoseconds": (1.7e18 + 1.8e12 * U).astype(np.int64),
    "an hour of days since 1900": 45_000 + U / 24,
    "nanoseconds of one millisecond": 1.7e18 + 1e6 * U,
    "pressure": 101_325 + 0.01 * U,
    "tiny": 1e-44 * (3 + U),
    "years": 2000 + np.round(10 * U),
    "float32 of one's own": (1.7e9 + 1800 * U).astype(np.float32),
}


@pytest.mark.parametrize("column", NARROW.values(), ids=NARROW)
def test_a_column_has_deviation_1_however_little_it_varies_for_its_size(column):
    """Seconds since 1970 were float32 before they were scaled, and then counted as a constant."""
    table = pd.DataFrame({"time": column, "noise": NOISE})
    datasets.add_data("mine", (table[:180], Y[:180]), (table[180:], Y[180:]))
    task, result = trained()
    fed = task.build(0)
    x = np.asarray(column)[fed.train.indices].astype(np.longdouble)
    seen = fed.train.inputs(fed.train.indices)
    assert seen.dtype == torch.float32
    np.testing.assert_allclose(seen[:, 0], (x - x.mean()) / x.std(), atol=2e-3)
    assert evaluate(result, (table[180:], Y[180:])).accuracy > 0.9


def test_what_is_constant_but_for_rounding_keeps_its_size_and_is_near_0():
    x = np.column_stack([np.full(N, 0.1), 0.1 + 1e-17 * U, 1.7e18 + 1000 * U, 1.7e9 + U])
    data = datasets.add_data("mine", (x, Y))
    assert data.train.features.dtype == np.float64, "for the last column"
    look = datasets.fitted(data, data.train.features, np.arange(N))
    assert look.std[:2] == (1, 1) and look.mean[0] == pytest.approx(0.1, abs=1e-15)
    assert np.abs((data.train.features[:, 2] - look.mean[2]) / look.std[2]).max() < 2


GOLDEN = """
82adf3a26565 2171fbe214cb 6da1f9b2c9e2 4fa29a40329d 899d36b86cf8 a0b83aaec7eb
"""


def test_what_was_kept_before_has_the_fingerprint_that_it_had():
    """It is part of the keys of runs."""
    x = (np.arange(240) * 37 % 101 / 7).reshape(60, 4) * [0.01, 1, 20, 300] + [0.1, 7, 2000, 0]
    y, words = np.arange(60) % 3, ["The cat's", "dog, (sat)", '"on"; it:', "Ünï naïve", "50% x.y!"]
    frame = pd.DataFrame({"age": np.arange(60), "pulse": x[:, 1], "ill": y > 1})
    texts = [f"{words[i % 5]} {words[i * 7 % 11 % 5]}" for i in range(60)]
    given = [(x, y), (x.astype(np.float32), y, {"ward": y}), (frame, y), (texts, y)]
    prints = [datasets.add_data("mine", train).fingerprint[:12] for train in given]
    prints.append(datasets.add_data("mine", (x, y), normalise=False).fingerprint[:12])
    prints.append(datasets.add_data("mine", (np.arange(120).reshape(60, 2), y)).fingerprint[:12])
    assert prints == GOLDEN.split()


FRAME = pd.DataFrame({"a": U, "b": NOISE})
MIXED = FRAME.sample(frac=1, random_state=0)
ILL = pd.Series(Y, name="ill")
OTHER = {
    "features": (MIXED, ILL),
    "labels": (FRAME, ILL.sort_values()),
    "a column": (FRAME, Y, {"ward": ILL[::-1]}),
    "a part": (FRAME[FRAME["b"] > 0.2], ILL[FRAME["b"] > 0.2].reset_index(drop=True)),
    "names": (FRAME.set_axis([f"p{i}" for i in range(N)]), ILL),
    "labels and a column": (FRAME.to_numpy(), ILL, {"ward": ILL[::-1]}),
}


@pytest.mark.parametrize("parts", OTHER.values(), ids=OTHER)
def test_objects_of_pandas_with_other_indices_are_not_joined_by_place(parts):
    with pytest.raises(ValueError, match=r"train: '\w+' and '\w+' have different indices"):
        datasets.add_data("mine", parts)
    plain = tuple(part.to_numpy() if hasattr(part, "iloc") else part for part in parts[:2])
    datasets.add_data("mine", plain)


def test_objects_of_pandas_in_one_order_are_taken_and_evaluated_likewise():
    ill = ILL.loc[MIXED.index]
    datasets.add_data("mine", (MIXED, ill, {"ward": ill}))
    _, result = trained()
    one, other = (evaluate(result, (MIXED, y)).accuracy for y in (ill, ill.to_numpy()))
    assert one == other > 0.9
    with pytest.raises(ValueError, match="'features' and 'labels' have different indices"):
        evaluate(result, (MIXED, ILL))


class Frame:
    """What one of another library looks like from outside: names and kinds are lists."""

    columns, dtypes = ["a", "b"], ["Float64", "Float64"]

    def __array__(self, dtype=None, copy=None):
        return np.column_stack([U, NOISE])

    def __len__(self):
        return N


ARROW = pa.table({"a": U, "b": NOISE})
STRUCTURED = np.rec.fromarrays([U, NOISE], names="a,b")
TABLES = {
    "arrow": ARROW,
    "arrow, in pieces": pa.concat_tables([ARROW[:100], ARROW[100:]]),
    "a batch": ARROW.to_batches()[0],
    "structured": np.asarray(STRUCTURED),
    "records": STRUCTURED,
    "another library": Frame(),
    "pandas of arrow": FRAME.convert_dtypes(dtype_backend="pyarrow"),
    "nullable": FRAME.convert_dtypes(),
    "objects": FRAME.astype(object),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables_of_every_library_have_their_names_and_numbers(table):
    data = datasets.add_data("mine", (table, pa.array(Y), {"ward": pa.array(["x", "y"] * 120)}))
    assert data.feature_names == ("a", "b") and data.train.columns["ward"][1] == "y"
    assert np.array_equal(data.train.features, FRAME.to_numpy(np.float32))
    with pytest.raises(ValueError, match=r"test: columns .* column 0 is 'b', where .* have 'a'"):
        datasets.add_data("mine", (table, Y), (FRAME[["b", "a"]], Y))


def test_a_model_is_asked_with_a_table_of_another_library():
    datasets.add_data("mine", (ARROW, Y))
    _, result = trained()
    for table in TABLES.values():
        assert np.array_equal(predict(result, table), predict(result, FRAME))
    assert evaluate(result, (ARROW, pa.array(Y))).accuracy > 0.9
    with pytest.raises(ValueError, match=r"column 'b' .* must be of numbers, not str"):
        predict(result, FRAME.assign(b=FRAME["b"].astype(object).mask(FRAME.index == 3, "high")))


def test_names_of_columns_become_text():
    table = pd.DataFrame(np.column_stack([U, NOISE, Y]))
    data = datasets.add_data("mine", (table[[0, 1]], Y, {2: table[2].astype(int)}))
    assert data.feature_names == ("0", "1") and data.train.columns.keys() == {"2"}
    assert Task("mine", NaturalPartition("2"), MLP((3,)), LocalHoldout()).build(0).num_clients == 2


# What a tokeniser did before it knew of scripts without blanks.
BASIC = r"""['.,()!?]|[^\s'.,()!?;:]+"""
WITHOUT = re.compile(f"[{parquet._ALONE}\u200b]")


@given(st.text(st.characters(max_codepoint=0x2E7F, exclude_categories=["Cs"])))
def test_texts_with_blanks_have_the_tokens_that_they_had(text):
    """All of AG News is so, which is ASCII; compositions and blanks of no width are new."""
    found, plain = parquet.tokens(text), text.lower()
    if unicodedata.is_normalized("NFC", plain) and not WITHOUT.search(plain):
        assert found == re.findall(BASIC, plain.replace('"', ""))
    assert parquet.tokens(" ".join(found)) == found


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("今天下雨，很冷。", "今 天 下 雨 ， 很 冷 。"),
        ("COVID19疫苗 mRNA-1273", "covid19 疫 苗 mrna-1273"),
        ("カ\u3099ラスのコップ", "ガ ラ ス の コ ッ プ"),
        ("ฝนตก", "ฝ น ต ก"),
        ("ຝົນ ភ្លៀង", " ".join("ຝົນភ្លៀង")),
        ("비가 온다", "비가 온다"),
        (unicodedata.normalize("NFD", "Été naïf"), "été naïf"),
        ("\ufeffthe\u200bcat", "the cat"),
        ("𠮷野家", "𠮷 野 家"),
    ],
)
def test_each_character_of_a_script_without_blanks_is_a_token(text, tokens):
    assert parquet.tokens(text) == tokens.split()


TOPICS = [["天气", "下雨", "阳光", "温度", "刮风"], ["足球", "比赛", "进球", "球员", "教练"]]


def sentences(n, first=0):
    y = np.arange(first, first + n) % 2
    words = [[TOPICS[k][i * 7 % 5], TOPICS[k][i * 3 % 5]] for i, k in enumerate(y)]
    return ["".join(w) for w in words], y


def test_it_is_said_where_most_tokens_of_tests_are_unknown():
    strange = [f"w{i}" for i in range(60)], np.arange(60) % 2
    with pytest.warns(UserWarning, match="100% of the tokens of test texts are unknown"):
        datasets.add_data("mine", strange, ([f"v{i}" for i in range(60)], strange[1]))
    datasets.add_data("mine", strange)
    task = Task("mine", IID(2, 30), FastText(200, 8), LocalHoldout())
    with pytest.warns(UserWarning, match="of the clients' test texts are unknown"):
        task.build(0)
    datasets.add_data("mine", sentences(100))
    result = run(Experiment(task, FedAvg(), rounds=1, cohort=2), progress=False)
    with pytest.warns(UserWarning, match="100% of the tokens of these texts are unknown"):
        predict(result, ["rain", "ball"])
