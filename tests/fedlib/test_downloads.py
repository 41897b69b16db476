"""Downloads: what huggingface_hub is asked for, and what is made of what it brings or does not."""

import io
import json
import os
from fnmatch import fnmatch
from inspect import signature
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import refused
from datafiles import TRAIN, cells, encoded, folders, noise, resize, write

from fedlib import data as datasets
from fedlib.data import RECORDS, DatasetError

ASKED = signature(huggingface_hub.snapshot_download)


class Hub:
    """What a hub has, {repository: {path: body}}, and what was asked of it; or why it fails."""

    def __init__(self):
        self.sets, self.asked, self.fails = {}, [], None

    def offer(self, name, files):
        """Put the files of a set where its record says that they are."""
        repository, _, folder = RECORDS[name].hub.rpartition("/")
        self.sets[repository] = {f"{folder}/{file}": body for file, body in files.items()}

    def __call__(self, *args, **how):
        told = ASKED.bind(*args, **how).arguments
        self.asked.append((told["repo_id"], told["revision"], told["endpoint"]))
        if self.fails:
            raise self.fails
        home = Path(told["cache_dir"]) / told["revision"]
        for path, body in self.sets[told["repo_id"]].items():
            if any(fnmatch(path, pattern) for pattern in told["allow_patterns"]):
                (home / path).parent.mkdir(parents=True, exist_ok=True)
                (home / path).write_bytes(body)
        return str(home)


@pytest.fixture
def served(places, monkeypatch):
    """A hub that stands in for huggingface_hub."""
    hub = Hub()
    monkeypatch.delenv("FEDLIB_DATA")
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def pictures(places, count, seed=0):
    """Pixels, and a Parquet file of them as the hub has it."""
    pixels, writers = noise(count, (28, 28, 1), seed), [f"f{seed}_{i % 2}" for i in range(count)]
    write(places / "made", pixels, label="character", writer_id=writers)
    return pixels, (places / "made").read_bytes()


SAID = [  # the files on the hub, or why it cannot be reached
    (ConnectionError("no"), r"be downloaded: .*no; check the network and HF_ENDPOINT.* Set FED"),
    (b"PAR1 corrupt", f"{TRAIN} cannot be read.*Set FEDLIB_DATA.*HF_ENDPOINT"),
    (4, r"holds 4 training .* official femnist has 3"),
]


@pytest.mark.parametrize(("there", "message"), SAID)
def test_what_cannot_be_had_or_read_says_what_to_do(served, places, monkeypatch, there, message):
    resize(monkeypatch, "femnist", 3, 0)
    if isinstance(there, Exception):
        served.fails = there
    else:
        body = there if isinstance(there, bytes) else pictures(places, there)[1]
        served.offer("femnist", {TRAIN: body})
    with pytest.raises(DatasetError, match=message):
        datasets.load("femnist")
    assert not folders(places)


def test_a_set_of_several_files_is_fetched_once(served, places, monkeypatch):
    resize(monkeypatch, "femnist", 6, 0)
    parts = [pictures(places, 4, 1), pictures(places, 2, 0)]
    files = {f"train-0000{i}-of-00002.parquet": body for i, (_, body) in enumerate(parts)}
    served.offer("femnist", files | {"README.md": b"not asked for"})
    data = datasets.load("femnist")
    assert np.array_equal(data.train.features, np.concatenate([pixels for pixels, _ in parts]))
    writers = ["f1_0", "f1_1", "f1_0", "f1_1", "f0_0", "f0_1"]
    assert data.train.columns["writer_id"].tolist() == writers
    assert len(data.test) == 0
    assert data.source == "downloaded from the Hugging Face hub, flwrlabs/femnist"
    assert served.asked == [("flwrlabs/femnist", RECORDS["femnist"].revision, "https://mirror")]
    assert datasets.load("femnist").fingerprint == data.fingerprint
    assert datasets.describe("femnist")[0] == "cache" and len(served.asked) == 1


def table(rows, seed=0, **columns):
    """A Parquet file of examples of every kind, and labels that count up to three."""
    rng, sink = np.random.default_rng(seed), io.BytesIO()
    pictures = [encoded(p) for p in noise(rows, (6, 7, 3), seed)]
    given = {"photo": cells(pictures), "age": rng.normal(size=rows), "beds": np.arange(rows),
             "pulse": rng.normal(size=(rows, 4)).tolist(), "said": ["a b", "b c"] * (rows // 2),
             "class": np.arange(rows) % 3, "ward": [f"w{i % 2}" for i in range(rows)],
             "odd": [{"x": 1}] * rows}  # fmt: skip
    pq.write_table(pa.table(given | columns), sink)
    return given, sink.getvalue()


@pytest.mark.parametrize(
    ("features", "shape", "dtype"),
    [("photo", (6, 7, 3), "uint8"), (("age", "beds"), (2,), "float32"), ("age", (1,), "float32"),
     ("pulse", (4,), "float32"), ("said", (200,), "int32")],
)  # fmt: skip
def test_a_set_of_the_hub_by_the_columns_to_use(served, places, features, shape, dtype):
    (given, train), (_, test) = table(12), table(6, 1)
    files = {"x/train-00000-of-00001.parquet": train, "x/eval-00000-of-00001.parquet": test}
    served.sets["who/wards"] = files
    asked = {"features": features, "label": "class", "columns": ["ward"], "folder": "x"}
    data = datasets.add_from_hub("wards", "who/wards", **asked, splits=("train", "eval"))
    assert (data.shape, data.train.features.dtype) == (shape, dtype) and len(data.test) == 6
    assert data.train.labels.tolist() == [i % 3 for i in range(12)]
    assert {n: v.tolist() for n, v in data.train.columns.items()} == {"ward": given["ward"]}
    if features == "photo":
        assert np.array_equal(data.train.features, noise(12, (6, 7, 3)))
    elif features == "said":
        assert data.vocabulary == ("<pad>", "<unk>", "b", "a", "c")
        assert data.train.features[:2, :3].tolist() == [[3, 2, 0], [2, 4, 0]]
    else:
        wanted = [given[n] for n in features] if isinstance(features, tuple) else [given[features]]
        wanted = np.array(wanted[0]) if features == "pulse" else np.column_stack(wanted)
        np.testing.assert_allclose(data.train.features, wanted, rtol=1e-6)
    assert datasets.load("wards").fingerprint == data.fingerprint
    assert served.asked == [("who/wards", "main", "https://mirror")]


def test_what_the_hub_itself_makes_of_a_set_is_found_and_classes_have_their_names(served):
    """In folders by split; the mirror's address may end with a slash."""
    names = {"info": {"features": {"class": {"names": ["no", "so", "yes", "new"]}}}}
    made, sink = pq.read_table(io.BytesIO(table(12)[1])), io.BytesIO()
    pq.write_table(made.replace_schema_metadata({"huggingface": json.dumps(names)}), sink)
    paths = "default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"
    served.sets["who/wards"] = dict.fromkeys(paths, sink.getvalue())
    os.environ["HF_ENDPOINT"] = "https://mirror/ "
    how = {"folder": "default/", "revision": "refs/convert/parquet"}
    data = datasets.add_from_hub("wards", "who/wards", ("age", "beds"), "class", **how)
    assert len(data.train) == 24 and len(data.test) == 12
    assert data.class_names == ("no", "so", "yes") and data.feature_names == ("age", "beds")
    assert served.asked == [("who/wards", "refs/convert/parquet", "https://mirror")]
    data = datasets.add_from_hub("wards", "who/wards", "age", "class", **how, class_names="abc")
    assert data.class_names == (*"abc",)


@refused("hub")
def test_what_is_no_set_of_the_hub_is_refused_and_nothing_written(served, places, code, message):
    odd = {"gap": [0.5] * 3 + [None] + [0.5] * 8, "ragged": [[1.0]] * 11 + [[1.0, 2.0]]}
    odd |= {"hole": [float("nan") if i == 5 else i for i in range(12)]}
    served.sets["who/wards"] = {f"x/{TRAIN}": table(12, **odd)[1]}
    asked = {"features": "photo", "label": "class", "folder": "x"} | eval(f"dict({code})")
    with pytest.raises((DatasetError, ValueError), match=message):
        datasets.add_from_hub("wards", "who/wards", splits=("train",), **asked)
    assert not (places / "cache" / "datasets").exists()
