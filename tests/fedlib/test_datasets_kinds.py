"""The kinds of datasets: writers, texts, samples, one's own; and what is believed of files."""

import io
import json
import os
import pickle
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cases import refused
from datafiles import TEST, TRAIN, encoded, entry_of, noise, resize, write, write_texts
from PIL import Image
from scipy import sparse  # noqa: F401  # of a refused row

import fedlib
import fedrun
from fedlib import MLP, FastText, LeNet, Rotated, Task
from fedlib import data as datasets
from fedlib.algorithms import FedMix
from fedlib.data import DatasetError, cache, parquet
from fedlib.partition import IID, HoldoutByColumn, LocalHoldout, NaturalPartition
from fedrun import Experiment, run

pytestmark = pytest.mark.usefixtures("places")


def pair(places, name="mnist", counts=(2, 2), shape=(28, 28, 1), last=TEST, **columns):
    """Write both splits of a set into the data folder; returns the folder."""
    folder = places / "data" / name
    for file, count in zip((TRAIN, last), counts, strict=True):
        write(folder / file, noise(count, shape), **columns)
    return folder


def test_cifar100_has_fine_and_coarse_labels(places):
    folder, pixels = places / "data" / "cifar100", noise(6, (32, 32, 3))
    for name, part, fine in ((TRAIN, pixels[:4], [0, 1, 2, 3]), (TEST, pixels[4:], [90, 91])):
        columns = {"fine_label": fine, "coarse_label": [f // 5 for f in fine]}
        write(folder / name, part, image="img", label="fine_label", **columns)
    data = datasets.load("cifar100_sample")
    assert data.classes == 100 and data.class_names[:2] == ("apple", "aquarium_fish")
    assert data.train.labels.tolist() == [0, 1, 2, 3] and data.test.labels.tolist() == [90, 91]
    assert data.test.columns["coarse_label"].tolist() == [18, 18]
    assert np.array_equal(data.train.features, pixels[:4])


@pytest.mark.parametrize("as_text", [True, False])
def test_femnist_has_writers_and_no_test_split(places, as_text):
    pixels, writers, labels = noise(60, (28, 28, 1)), [i // 7 for i in range(60)], list(range(60))
    names = [f"f{w:04d}_14" for w in writers] if as_text else writers
    columns = {"character": labels, "writer_id": names, "hsf_id": [0] * 60}
    write(places / "data" / "femnist" / TRAIN, pixels, label="character", **columns)
    data = datasets.load("femnist_sample")
    assert data.classes == 62 and data.class_names[9:12] == ("9", "A", "B")
    held = {name: values.tolist() for name, values in data.train.columns.items()}
    assert held == {"writer_id": names, "hsf_id": [0] * 60} and data.test.columns.keys() == {*held}
    assert data.train.labels.tolist() == labels and np.array_equal(data.train.features, pixels)
    assert len(data.test) == 0 and data.test.features.shape == (0, 28, 28, 1)


def test_colour_and_grey_pictures_of_any_format(places):
    """Tiny ImageNet, whose test split is called otherwise, has grey pictures, too."""
    folder, kinds = places / "data" / "tiny_imagenet", ("PNG", "WEBP", "JPEG")
    pixels = noise(3, (1, 1, 3)).repeat(64, 1).repeat(64, 2)
    pictures = [encoded(p, kind) for p, kind in zip(pixels, kinds, strict=True)]
    pictures.append(encoded(pixels[0][..., 0], "JPEG"))
    for name in (TRAIN, "valid-00000-of-00001-70d52db3c749a935.parquet"):
        write(folder / name, None, pictures=pictures)
    data = datasets.load("tiny_imagenet_sample")
    assert data.class_names[199] == "class 199" and data.classes == 200
    assert np.array_equal(data.test.features[0], pixels[0])
    grey = np.broadcast_to(pixels[:1, ..., :1], (1, 64, 64, 3))
    expected = np.concatenate([pixels, grey]).astype(int)
    assert np.abs(data.test.features - expected).max() <= 8


def test_texts_become_token_ids(places):
    folder = places / "data" / "ag_news"
    write_texts(folder / TRAIN, ["The cat, the dog.", 'A "cat"; sat:', "", "w " * 200 + "dog " * 9])
    write_texts(folder / TEST, ["the CAT barked", "dog"])
    data = datasets.load("ag_news_sample")
    assert data.train.features.dtype == np.int32 and data.shape == (200,)
    # w occurs 200 times within the length that is kept, the rest by frequency, then alphabet.
    words = ("<pad>", "<unk>", "w", "cat", "the", ",", ".", "a", "dog", "sat")
    assert data.vocabulary == words
    said = [[words[i] for i in row[row > 0]] for row in data.train.features]
    assert said[:3] == [["the", "cat", ",", "the", "dog", "."], ["a", "cat", "sat"], []]
    assert data.train.features[3].tolist() == [2] * 200
    assert data.test.features[:, :4].tolist() == [[4, 3, 1, 0], [8, 0, 0, 0]]
    write_texts(folder / TEST, ["zebra"])
    assert datasets.load("ag_news_sample").vocabulary == words, "of training texts only"
    write_texts(folder / TEST, [1, 2])
    with pytest.raises(DatasetError, match="must be text, not int64"):
        datasets.load("ag_news_sample")


def test_a_name_stands_for_the_official_set_only(places, monkeypatch):
    pair(places, counts=(4, 2))
    for _ in range(2):  # what the sample left in the cache is not taken either
        with pytest.raises(DatasetError, match=r"4 training and 2 test .*60,000.*'mnist_sample'"):
            datasets.load("mnist")
        assert len(datasets.load("mnist_sample").train) == 4
    monkeypatch.delenv("FEDLIB_DATA")
    assert len(datasets.load("mnist_sample").train) == 4
    resize(monkeypatch, "mnist", 4, 2)
    monkeypatch.setenv("FEDLIB_DATA", str(places / "data"))
    assert len(datasets.load("mnist").train) == 4
    pair(places, "mnist_sample")  # a folder of the sample's own
    assert len(datasets.load("mnist_sample").train) == 2


def test_names():
    assert {"digits", "femnist", "ag_news", "cifar100_sample"} <= set(datasets.names())
    assert datasets.class_names("cifar100_sample") == datasets.class_names("cifar100")
    with pytest.raises(ValueError, match=r"'cifar-10'.*digits.*did you mean 'cifar10'"):
        datasets.load("cifar-10")
    for function in (datasets.load, datasets.describe):
        with pytest.raises(ValueError, match="unknown dataset 'digits_sample'"):
            function("digits_sample")


def test_describe_decodes_nothing(places, monkeypatch):
    folder = pair(places, counts=(3, 3))
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "decoded", None)
        assert datasets.describe("mnist_sample") == ("parquet", str(folder))
    datasets.load("mnist_sample")
    assert datasets.describe("mnist")[0] == "missing"
    monkeypatch.delenv("FEDLIB_DATA")
    assert datasets.describe("mnist_sample") == ("cache", str(cache.folder()))
    assert datasets.describe("mnist") == ("download", "ylecun/mnist/mnist")
    monkeypatch.setenv("FEDLIB_DATA", str(places / "nowhere"))
    assert "no such folder" in datasets.describe("mnist")[1]


# It reads what copies of the process have written into memory that only these share, and tries in
# memory whether an error survives being sent between processes.
UNPICKLING = {"parallel.py"}


def test_no_module_unpickles_what_it_reads():
    pickles = "pickle|cPickle|_pickle|dill|cloudpickle|joblib|shelve"
    loads = r"(torch|marshal)\.load|read_pickle|allow_pickle=True"
    loads += r"|np\.load\((?!.*allow_pickle=False)"
    ours = (Path(package.__file__).parent.rglob("*.py") for package in (fedlib, fedrun))
    for path in (file for files in ours for file in files):
        found = re.search(rf"\b(import|from) ({pickles})\b|{loads}", path.read_text())
        assert not found or path.name in UNPICKLING, (path, found)


class Bomb:
    def __reduce__(self):
        return (sys.exit, ("unpickled",))


def rewrite_meta(name, meta):
    """Write what the cache says of a set, with a sum that fits."""
    meta["sum"] = zlib.crc32(json.dumps({k: v for k, v in meta.items() if k != "sum"}).encode())
    (cache.folder() / name / "meta.json").write_text(json.dumps(meta))


def test_a_cache_poisoned_with_objects_is_refused(places):
    pair(places, counts=(5, 5))
    sample, labels = datasets.load("mnist_sample"), entry_of(places) / "train.labels.npy"
    with labels.open("wb") as file:
        np.lib.format.write_array(file, np.array([Bomb()] * 5), allow_pickle=True)
    meta = cache.meta_of("mnist_sample")
    meta["files"][labels.name] = [labels.stat().st_size, labels.stat().st_mtime_ns]
    rewrite_meta("mnist_sample", meta)
    with pytest.raises(DatasetError, match="Python objects"):
        cache.read("mnist_sample")
    assert datasets.load("mnist_sample").fingerprint == sample.fingerprint
    labels.write_bytes(pickle.dumps(Bomb()))
    assert datasets.load("mnist_sample").fingerprint == sample.fingerprint


def some(n=60, shape=(8, 8, 1), classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, classes, n)


def floats(bad=None, shape=(5,)):
    """Numbers of all sizes for 60 examples, of which one is none."""
    x = np.random.default_rng(0).normal(size=(60, *shape)) * 10.0 ** np.arange(shape[-1]) + 7
    if bad is not None:
        x[bad, ..., 1] = np.nan
    return x


def test_arrays_come_back_under_their_name():
    """And as numbers they have their own look: a dead channel has no infinite scale."""
    (x, y), (a, b) = some(shape=(4, 5, 3)), some(20, (4, 5, 3), seed=1)
    x[..., 1] = 51
    data = datasets.add_data("mine", (x, y), (a, b), ["no", "perhaps", "yes"])
    assert (data.train.features == x).all() and (data.test.labels == b).all()
    assert (data.shape, data.class_names) == ((4, 5, 3), ("no", "perhaps", "yes"))
    assert data.mean == data.std == () and data.fit
    assert datasets.form("mine") == ((4, 5, 3), 3) and "mine" in datasets.names()
    assert datasets.describe("mine") == ("cache", str(cache.folder()))
    rows = np.arange(0, 60, 3)
    look = datasets.fitted(data, data.train.features, rows)
    assert look.mean[1] == pytest.approx(0.2) and look.std[1] == 1 and look.ids is None
    assert look.std[0] == pytest.approx(x[rows, ..., 0].std() / 255)


NAMED = """
import numpy as np, sys
from fedlib import CSV, MLP, NaturalPartition, FedAvg, LocalHoldout, Task, data, value
from fedrun import Experiment, run
from fedrun.cli import main

@value
class Gr\u00f6\u00dfe(FedAvg):
    def log_metrics(self, *args, **more):
        return {"\u0394": 1.0}

x, where = np.random.default_rng(0).normal(size=(40, 2)), ["Zo\u00eb", "\u674e"] * 20
y = np.arange(40) // 2 % 2
data.add_data("mine", (x, y, {"S\u00fcd": where}), class_names=["\u2713", "no"])
task = Task("mine", NaturalPartition("S\u00fcd"), MLP((4,)), LocalHoldout())
e = Experiment(task, Gr\u00f6\u00dfe(), rounds=1, cohort=2)
run(e, progress=False, callbacks=[CSV(sys.argv[1])])
sys.exit(main(["runs"]))
"""


@pytest.mark.slow
def test_names_that_are_no_ascii_pass_where_the_machine_knows_ascii_only(tmp_path):
    """Of columns, classes, clients, algorithms and metrics; no file is in its own encoding."""
    (tmp_path / "named.py").write_text(NAMED, "utf-8")
    words = "-X", "utf8=0", "-X", "warn_default_encoding"
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    call = [sys.executable, *words, str(tmp_path / "named.py"), str(tmp_path / "log.csv")]
    env = os.environ | ascii_only | {"PYTHONPATH": str(Path(fedlib.__file__).parents[1])}
    done = subprocess.run(call, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "Gr\\xf6\\xdfe" in done.stdout, done.stderr
    assert not re.search(r"fedlib/\S+ EncodingWarning", done.stderr)
    assert "1,\u0394,1.0" in (tmp_path / "log.csv").read_text("utf-8")
    data = datasets.load("mine")
    assert data.train.columns["S\u00fcd"][1] == "\u674e" and data.class_names[0] == "\u2713"
    # What was stored under the name itself is still found.
    home, meta = cache.folder() / "mine", cache.meta_of("mine")
    assert all(path.name.isascii() for path in home.iterdir())
    for split in ("train", "test"):
        file = next(name for name in meta["files"] if name.startswith(f"{split}.column"))
        (home / file).rename(home / f"{split}.column.S\u00fcd.npy")
        meta["files"][f"{split}.column.S\u00fcd.npy"] = meta["files"].pop(file)
    rewrite_meta("mine", meta)
    assert datasets.load("mine").train.columns["S\u00fcd"][1] == "\u674e"


KINDS = [((9, 9, 2), LeNet((3,), (4,))), *((s, MLP((5,))) for s in [(5,), (4, 3), (2, 3, 4, 2)])]


@pytest.mark.parametrize(("shape", "model"), KINDS)
def test_numbers_are_scaled_by_those_that_are_trained_on(shape, model):
    """Not by what clients hold out; every channel has mean 0 and deviation 1 in training.

    Channels come last, and are moved first where an example has three axes, as an image has.
    """
    x, (_, y) = floats(shape=shape), some()
    x[..., 0] = 0.1  # constant
    tests = 9 + x[:30], y[:30], {"ward": y[:30] % 2}
    data = datasets.add_data("mine", (x, y, {"ward": y % 2}), tests)
    assert data.train.features.dtype == np.float32 and data.shape == shape
    fed = Task("mine", NaturalPartition("ward"), model, LocalHoldout(merge=True)).build(0)
    assert fed.num_clients == 2
    seen = fed.train.inputs(torch.arange(90)).double().numpy()
    if len(shape) == 3:
        seen = np.moveaxis(seen, 1, -1)
    axes = tuple(range(x.ndim - 1))
    both = np.concatenate([x, tests[0]]).astype(np.float32).astype(float)
    held = both[fed.train.indices.numpy()]
    assert len(held) < 70
    mean, std = held.mean(axes), held.std(axes)
    expected = (both - mean) / np.where(std > 1e-6 * abs(mean), std, 1)
    np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-3)


def test_numbers_that_are_not_to_be_scaled_stay_what_they_were():
    x, (_, y) = floats(), some()
    data = datasets.add_data("mine", (x, y), normalise=False)
    assert (data.mean, data.std) == ((0.0,) * 5, (1.0,) * 5)
    fed = Task("mine", IID(2, 30), MLP((5,)), LocalHoldout(test=0.2, validation=0.2)).build(0)
    assert np.array_equal(fed.train.inputs(torch.arange(60)).numpy(), x.astype(np.float32))


@pytest.mark.parametrize(
    ("x", "model"),
    [(floats(), MLP((5,))), (floats(shape=(8, 8, 2)), LeNet((3,), (4,))),
     (np.arange(180).reshape(60, 3), FastText(200, 4))],
)  # fmt: skip
def test_numbers_and_tokens_are_trained_on_by_who_has_them(x, model):
    labels = np.arange(60) % 3
    datasets.add_data("mine", (x, labels, {"ward": np.repeat(["b", "a", "c"], 20)}))
    task = Task("mine", NaturalPartition("ward"), model, LocalHoldout(test=0.2, validation=0.2))
    found = run(Experiment(task, FedMix(experts=2), rounds=2, cohort=3), progress=False)
    assert np.isfinite(found.metrics["value"].to_numpy()).all()
    other = FastText(9, 4) if isinstance(model, MLP) else MLP((5,))
    if x.ndim < 4:
        with pytest.raises(ValueError, match=r"mine holds (numbers|tokens), which .* not read"):
            replace(task, model=other).build(0)
    if not isinstance(model, FastText):
        with pytest.raises(ValueError, match="only images stored as uint8"):
            replace(task, partition=Rotated(task.partition)).build(0)


def test_a_table_with_labels_and_clients_is_the_same_data(places):
    """By the names of its columns, in place of a tuple of three."""
    x, y, ward = floats(), some()[1], np.repeat(["b", "a", "c"], 20)
    frame = pd.DataFrame(x).assign(ward=ward, ill=y)
    named = frame.rename(columns=lambda name: f"x{name}" if isinstance(name, int) else name)
    records = named.astype({"ward": "U1"}).to_records(index=False, column_dtypes={"ward": "U1"})
    expected = datasets.add_data("mine", (x, y, {"ward": ward})).train
    for number, table in enumerate((frame, named, pa.table(named), np.array(records))):
        made = datasets.add_data(f"mine{number}", table, table, label="ill", columns="ward")
        for got in (made.train, made.test):
            assert np.array_equal(got.features, expected.features)
            assert np.array_equal(got.labels, y) and np.array_equal(got.columns["ward"], ward)
        assert len(made.feature_names) == x.shape[1]


X, Y = some()


@refused("data")
def test_what_is_no_dataset_is_refused(code, message):
    asked = {"name": "mine", "train": (X, Y)} | eval(f"dict({code})")
    names = {"class_names": asked.pop("names")} if "names" in asked else {}
    with pytest.raises((ValueError, DatasetError), match=message):
        datasets.add_data(**asked, **names)
    assert "mine" not in datasets.names()


def test_whose_an_example_is_must_be_told_of_everyone(tmp_path):
    """Nobody becomes one more client, and the largest, for want of a name."""
    x, y = some()
    for ward in (np.where(np.arange(60) == 7, np.nan, 3.0), ["b"] * 7 + [" "] + ["a"] * 52):
        datasets.add_data("mine", (x, y, {"ward": ward}))
        with pytest.raises(ValueError, match="row 7 of 'ward' holds no value"):
            Task("mine", NaturalPartition("ward"), MLP((5,)), LocalHoldout()).build(0)
    names = pd.Series(["north", "south", "west"] * 20)
    for ward in (names, names.astype("category"), names.astype(object), names.astype("string")):
        assert datasets.add_data("mine", (x, y, {"ward": ward})).train.columns["ward"][1] == "south"


def test_a_column_of_dates_holds_out_the_latest_however_they_are_written():
    """Dates of Python, and times of a zone, could not be kept."""
    days = pd.Series(pd.date_range("2023-11-20", periods=60)).sample(frac=1, random_state=0)
    x, y = some()
    moments = [days.dt.tz_localize("Europe/Paris"), days.dt.date, days.astype(str)]
    for when in (days, *moments, days.dt.day_of_year + 366 * days.dt.year):
        datasets.add_data("mine", (x, y, {"ward": y % 2, "when": when}))
        task = Task("mine", NaturalPartition("ward"), MLP((5,)), HoldoutByColumn(time="when"))
        parts = [part.flat for part in task.divide(0).parts.values()]
        for ward in (0, 1):
            train, validation, test = (days.iloc[p[y[p] % 2 == ward]] for p in parts)
            assert train.max() < validation.min() and validation.max() < test.min()


def test_columns_of_a_table_are_numbers_and_an_option_says_tokens():
    ages = np.arange(60) + 20
    table = pd.DataFrame({"age": ages, "pulse": (ages * 7 % 90).astype(np.uint8)})
    plain = datasets.add_data("mine", (table, ages % 2))
    for numbers in (plain, datasets.add_data("mine", (table.to_numpy(), ages % 2), tokens=False)):
        assert numbers.train.features.dtype == np.float32 and numbers.fit
        assert (numbers.train.features == table.to_numpy()).all()
    tokens = datasets.add_data("mine", (table, ages % 2), tokens=True)
    assert tokens.train.features.dtype == np.int32 and not tokens.fit
    words = pd.Series(["a b", "c"] * 30)  # a column, which has kinds, too
    assert datasets.add_data("mine", (words, ages % 2)).vocabulary[2:]
    mixed = table.assign(smoker=ages % 3 == 0, weight=ages / 3)  # an array of objects
    for some in (mixed, mixed.convert_dtypes()):
        kept = datasets.add_data("mine", (some, ages % 2))
        assert np.array_equal(kept.train.features, mixed.astype(np.float32).to_numpy())
        assert kept.feature_names == ("age", "pulse", "smoker", "weight")


def patients(path):
    ages = np.arange(40)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"age": ages, "pulse": ages % 7, "ill": ages % 2}), path)


LAYOUTS = [
    "data/{}-00000-of-00001", "{}-00000-of-00001", "{}", "data/{}", "default/{}/0000",
    "{}/part-0", "plain_text/{}-00000-of-00001", "plain_text/data/{}",
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_a_local_folder_is_found(tmp_path, layout):
    ages = np.arange(18)
    columns = {"age": ages, "pulse": ages % 7, "ward": pa.array(["x", "y"] * 9).dictionary_encode()}
    for i, split in enumerate(("train", "test")):
        path = tmp_path / f"{layout.format(split)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({**columns, "age": ages + i, "ill": [True, False] * 9}), path)
        (path.parent / "._junk.parquet").write_text("of another program")
    for place, how in ((tmp_path, {}), (str(tmp_path), {"tokens": True})):
        data = datasets.add_from_hub("mine", place, ("age", "pulse"), "ill", ("ward",), **how)
        assert data.test.features[:2].tolist() == [[1, 0], [2, 1]]
        assert data.train.labels[:2].tolist() == [1, 0] and data.train.columns["ward"][1] == "y"
        assert data.test.features.dtype == (np.int32 if how else np.float32), "tokens if said"


def test_what_was_looked_for_in_a_folder_and_is_there_is_said(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two" / TRAIN
    for path in (one / "validation.parquet", one / "data" / TRAIN, two):
        patients(path)
    lack = r"looked for train-.*, test-\*.parquet, test.parquet, .* it has data, data/train-"
    train = ("train",)
    cases = [
        (one, ("train", "test"), lack + ".*, validation.parquet; .* splits="),
        (
            tmp_path,
            train,
            r"has no files of all .* itself, but folders have: .* one/data, t",
        ),
        (two, train, r"train-.*parquet is not a folder: name the one that holds"),
    ]
    for place, splits, message in cases:
        with pytest.raises(DatasetError, match=message):
            datasets.add_from_hub("mine", place, ("age", "pulse"), "ill", splits=splits)
    data = datasets.add_from_hub("mine", tmp_path, "age", "ill", splits=train, folder="two")
    assert data.feature_names == ("age",)


def of_column(column, *names):
    """What the datasets library writes into a file."""
    return {"info": {"features": {column: {"names": names}}}}


CALLED = [(of_column("ill", "no", "yes"), ("no", "yes")), (of_column("ill", "no"), ("0", "1"))]
CALLED += [(other, ("0", "1")) for other in (of_column("age", "no", "yes"), [1])]


@pytest.mark.parametrize(("told", "names"), CALLED)
def test_classes_are_called_as_the_file_says(tmp_path, told, names):
    table = pa.table({"age": [1.0, 2.0] * 9, "ill": [0, 1] * 9})
    table = table.replace_schema_metadata({"huggingface": json.dumps(told)})
    pq.write_table(table, tmp_path / "train.parquet")
    data = datasets.add_from_hub("mine", tmp_path, "age", "ill", splits=("train",))
    assert data.class_names == names


def picture(mode, kind="PNG", **how):
    stream, size = io.BytesIO(), (6, 5)
    Image.new(mode, size, how.pop("color", 0)).save(stream, kind, **how)
    return stream.getvalue()


WHITE = Image.new("L", (6, 5), 255)


def held(folder, *files):
    """Write files of pictures; return what is stored of them."""
    folder.mkdir(exist_ok=True)
    for i, pictures in enumerate(files):
        write(folder / f"train-{i:05}-of-{len(files):05}.parquet", None, pictures=pictures)
    return datasets.add_from_hub("mine", folder, columns=(), splits=("train",))


def test_a_set_is_in_colour_as_soon_as_one_picture_is(tmp_path):
    grey, red = picture("L", color=9), picture("RGB", color=(255, 0, 9))
    wide = picture("P", color=1)
    data = held(tmp_path / "a", [grey] * 10, [grey, red] * 5)
    assert data.shape == (5, 6, 3) and data.train.features[11, 0, 0].tolist() == [255, 0, 9]
    assert data.train.features[0, 0, 0].tolist() == [9, 9, 9]
    assert held(tmp_path / "b", [grey] * 10, [picture("1", color=1)] * 10).shape == (5, 6, 1)
    assert held(tmp_path / "b", [grey] * 10, [wide] * 10).shape == (5, 6, 3)
    assert held(tmp_path / "b", [picture("RGBA", color=(1, 2, 3, 255))] * 20).shape == (5, 6, 3)


@refused("pictures")
def test_pictures_that_would_change_are_refused_with_file_and_row(tmp_path, code, message):
    with pytest.raises(DatasetError, match=f"train-00001.*row 3.*{message}"):
        sound = [picture("L")] * 10
        held(tmp_path / "set", sound, [*sound[:3], eval(code), *sound[4:]])
    assert "mine" not in datasets.names()


def test_what_was_added_before_scales_were_fitted_is_still_there():
    data = datasets.add_data("mine", (floats(), some()[1]))
    meta = cache.meta_of("mine") | {"version": cache.ADDED, "mean": [1.0] * 5, "std": [2.0] * 5}
    meta.pop("fit")
    rewrite_meta("mine", meta)
    old = datasets.load("mine")
    assert old.fit and old.mean == () and old.fingerprint == data.fingerprint


def test_a_damaged_set_of_ones_own_says_what_to_do():
    datasets.add_data("mine", some())
    path = cache.folder() / "mine" / "train.features.npy"
    path.write_bytes(b"\0" * 40)
    with pytest.raises(DatasetError, match="add its arrays again"):
        datasets.load("mine")


def own_data(**more):
    x = np.arange(24.0).reshape(12, 2)
    return datasets.add_data("mine", (x, np.arange(12) % 2, {"ward": np.arange(12) % 3}), **more)


def test_adding_the_same_arrays_again_writes_nothing(places):
    """Another process may be reading them."""
    own_data()
    entry = cache.folder() / "mine"
    before = entry.stat().st_ino
    assert own_data().fingerprint == datasets.load("mine").fingerprint
    assert entry.stat().st_ino == before
    assert own_data(class_names=("well", "ill")).class_names == ("well", "ill")
    assert entry.stat().st_ino != before and not [*cache.folder().glob(".*")]
    (entry / "train.labels.npy").write_bytes(b"")
    own_data(class_names=("well", "ill"))
    assert len(datasets.load("mine").train.labels) == 12


def test_arrays_are_not_lost_where_their_successors_cannot_be_put(places, monkeypatch):
    """Neither when the system refuses, nor when the process is killed between two renamings."""
    own_data()
    replace_, entry = os.replace, cache.folder() / "mine"

    def refuse(old, new):
        if Path(new) == entry and Path(old).suffix == ".tmp":
            raise OSError(28, "No space left on device")
        replace_(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(DatasetError, match="cannot write decoded data"):
            own_data(class_names=("well", "ill"))
    assert datasets.load("mine").class_names == ("0", "1")
    entry.rename(entry.with_name(".mine.old"))
    assert datasets.load("mine").class_names == ("0", "1") and entry.exists()


def test_examples_rotated_by_one_angle_are_rotated(places):
    one = Rotated(IID(clients=2, size=5), angles=(90.0,))
    two = Rotated(IID(clients=2, size=5), angles=(90.0, 90.0))
    plain, *turned = (
        Task("digits", part, MLP((8,)), LocalHoldout()).build(0).train.x
        for part in (one.of, one, two)
    )
    assert not torch.equal(plain, turned[0]) and torch.equal(*turned)
