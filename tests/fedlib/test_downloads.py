"""Downloads by huggingface_hub, from a hub on this machine that breaks off, lies and fails."""

import contextlib
import hashlib
import http.server
import io
import json
import re
import threading
import time
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafiles import TRAIN, cells, encoded, entry_of, folders, noise, resize, write
from huggingface_hub import constants

from fedlib import data as datasets
from fedlib.data import DatasetError
from fedlib.data.records import RECORDS

COMMIT = "c" * 40


def sha256(body):
    return hashlib.sha256(body).hexdigest()


class Hub(http.server.ThreadingHTTPServer):
    """What a hub has, {repository: {path: body}}, how it misbehaves, and what was asked of it.

    faults: for the next files that are sent, one each, "" for an honest answer; always: for all
    that follow. listed: changes to what the listing says of every file.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.sets, self.faults, self.always, self.listed = {}, [], "", {}
        self.asked = []

    def offer(self, name, files, elsewhere=None):
        """Put the files of a set where its record says that they are."""
        repository, _, folder = RECORDS[name].hub.rpartition("/")
        folder = elsewhere or folder
        self.sets[repository] = {f"{folder}/{file}": body for file, body in files.items()}

    def sent(self):
        """The ranges that were asked for of each file, in turn; "" for all of it."""
        return [asked for verb, path, asked in self.asked if verb == "GET" and "/resolve/" in path]

    def listing(self, repository):
        return [
            {"type": "file", "path": path, "oid": "0" * 40, "size": len(body)}
            | {"lfs": {"oid": sha256(body), "size": len(body), "pointerSize": 9}}
            | self.listed
            for path, body in self.sets[repository].items()
        ]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server, unquote(self.path.partition("?")[0])
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        api = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        file = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api and api[1] in hub.sets:
            commit = COMMIT if api[3] == "main" else api[3]
            told = {"id": api[1], "sha": commit, "siblings": []}
            self.answer(json.dumps(told if api[2] == "revision" else hub.listing(api[1])).encode())
        elif file and file[3] in hub.sets.get(file[1], {}):
            self.file(hub, file[2], hub.sets[file[1]][file[3]])
        else:
            self.send_error(404)

    def answer(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in ({"Content-Length": len(body)} | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(OSError):  # the reader may be gone
                self.wfile.write(body)

    def file(self, hub, commit, body):
        whole, start, fault = body, 0, ""
        if self.command == "GET":
            fault = hub.faults.pop(0) if hub.faults else hub.always
            start = int((re.findall(r"\d+", self.headers.get("Range", "")) or [0])[0])
        if fault.isdigit():
            return self.send_error(int(fault))
        if fault == "corrupt":
            body = bytes(b ^ 1 for b in body)
        headers = {"ETag": f'"{sha256(whole)}"', "X-Repo-Commit": commit}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        half = (len(body) - start) // 2 if fault == "truncate" else len(body)
        headers["Content-Length"] = len(body) - start
        self.answer(body[start : start + half], 206 if start else 200, **headers)
        self.close_connection = self.close_connection or bool(fault)

    def log_message(self, *args):
        pass


@pytest.fixture
def served(places, monkeypatch):
    """A hub on this machine, which HF_ENDPOINT names, and an impatient huggingface_hub."""
    server = Hub()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("FEDLIB_DATA", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)  # what it writes at once
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def femnist(served, places, monkeypatch):
    """Three pictures on the hub; returns their pixels."""
    resize(monkeypatch, "femnist", 3, 0)
    pixels, body = pictures(places, "femnist", 3)
    served.offer("femnist", {TRAIN: body})
    return pixels


def pictures(places, name, count, seed=0, **columns):
    """Pixels, and a Parquet file of them as the hub has it."""
    record = RECORDS[name]
    pixels = noise(count, record.shape, seed)
    extra = {"writer_id": [f"f{seed}_{i % 2}" for i in range(count)]} if name == "femnist" else {}
    write(places / "made", pixels, record.features[0], record.label, **extra, **columns)
    return pixels, (places / "made").read_bytes()


def test_a_set_of_several_files_is_fetched_once(served, places, monkeypatch):
    resize(monkeypatch, "femnist", 6, 0)
    parts = [pictures(places, "femnist", 4, 1), pictures(places, "femnist", 2, 0)]
    files = {f"train-0000{i}-of-00002.parquet": body for i, (_, body) in enumerate(parts)}
    served.offer("femnist", files | {"README.md": b"not asked for"})
    data = datasets.load("femnist")
    assert np.array_equal(data.train.features, np.concatenate([pixels for pixels, _ in parts]))
    writers = ["f1_0", "f1_1", "f1_0", "f1_1", "f0_0", "f0_1"]
    assert data.train.columns["writer_id"].tolist() == writers
    assert len(data.test) == 0
    assert data.source == "downloaded from the Hugging Face hub, flwrlabs/femnist"
    asked = len(served.asked)
    assert served.sent() == ["", ""]
    assert datasets.load("femnist").fingerprint == data.fingerprint
    assert datasets.describe("femnist")[0] == "cache"
    assert len(served.asked) == asked


@pytest.mark.parametrize("name", ["mnist", "cifar100", "tiny_imagenet"])
def test_pictures_come_from_the_commit_of_their_record(served, places, monkeypatch, name):
    resize(monkeypatch, name, 3, 2)
    extra = {"coarse_label": [0] * 3} if name == "cifar100" else {}
    train, test = pictures(places, name, 3, **extra), pictures(places, name, 2, 1)
    last = RECORDS[name].splits[1]
    served.offer(name, {
        "train-00000-of-00001-1359597a978bc4fa.parquet": train[1],
        f"{last}-00000-of-00001-70d52db3c749a935.parquet": test[1],
    })  # fmt: skip
    data = datasets.load(name)
    assert np.array_equal(data.train.features, train[0])
    assert np.array_equal(data.test.features, test[0])
    paths = [path for _, path, _ in served.asked]
    assert all(RECORDS[name].revision in path for path in paths) and len(paths) > 2


def test_a_fault_that_passes_is_survived(served, femnist):
    served.faults = ["truncate"] * 3
    assert np.array_equal(datasets.load("femnist").train.features, femnist)
    assert len(served.sent()) == 4


def test_a_file_that_is_corrupt_is_refused(served, femnist, places):
    served.always = "corrupt"
    with pytest.raises(DatasetError, match=f"{TRAIN} cannot be read.*Set FEDLIB_DATA.*HF_ENDPOINT"):
        datasets.load("femnist")
    assert not folders(places)


@pytest.mark.parametrize("fault", ["404", "500", "truncate"])
def test_faults_that_stay_are_errors_that_say_what_to_do(served, femnist, places, fault):
    served.always = fault
    with pytest.raises(DatasetError, match=r"'femnist' failed: .*cannot be had.*Set FEDLIB_DATA"):
        datasets.load("femnist")
    assert not folders(places)


def test_offline_what_was_downloaded_is_all_there_is(served, femnist, places, monkeypatch):
    before = datasets.load("femnist")
    asked = len(served.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for path in entry_of(places, "femnist").iterdir():
        path.unlink()  # decoded anew from the downloaded file
    assert datasets.load("femnist").fingerprint == before.fingerprint
    with pytest.raises(DatasetError, match=r"fancyzhx/ag_news cannot be had: .*HF_HUB_OFFLINE"):
        datasets.load("ag_news")
    assert len(served.asked) == asked


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({TRAIN: 4}, r"holds 4 training .* official femnist has 3"),
        ({"valid-00000-of-00001.parquet": 3}, "no files of all splits .'train',. in data"),
        ({TRAIN: 3, "train-00000-of-00001-abc.parquet": 3}, r"holds 6 training"),
    ],
    ids=["size", "split", "twice"],
)
def test_a_hub_with_another_set(served, femnist, places, files, message):
    served.offer("femnist", {name: pictures(places, "femnist", n)[1] for name, n in files.items()})
    with pytest.raises(DatasetError, match=message):
        datasets.load("femnist")
    assert not folders(places)


@pytest.mark.parametrize(
    ("path", "message"),
    [(f"../../data/{TRAIN}", "femnist' failed"), ("/etc/evil", "no files of all splits")],
    ids=["above", "root"],
)
def test_a_hub_is_not_believed(served, femnist, places, path, message):
    served.listed = {"path": path}
    with pytest.raises(DatasetError, match=message):
        datasets.load("femnist")
    assert not folders(places) and not list((places / "data").iterdir())


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
    asked = len(served.asked)
    assert datasets.load("wards").fingerprint == data.fingerprint and len(served.asked) == asked


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"features": "foto"}, "Field .foto. does not exist"),
        ({"columns": ["hospital"]}, "Field .hospital. does not exist"),
        ({"columns": ["odd"]}, "column 'odd' of type struct.* cannot be kept"),
        ({"label": "age"}, "column 'age' must hold integers, not float64"),
        ({"features": "gap"}, "row 3: column 'gap' holds no value"),
        ({"features": "ragged"}, "row 11: 2 numbers in 'ragged', not 1"),
        ({"features": ("age", "ward")}, "features must be uint8"),
        ({"features": "endless"}, "example 5 has features that are NaN or infinite"),
        ({"label": "beds", "columns": ["ward"], "class_names": "abc"}, "12 different names"),
        ({"folder": "y"}, "who/wards has no files of all splits .* in y"),
        ({"name": "mnist"}, "'mnist' is the name of a dataset that is known"),
    ],
)
def test_what_is_no_set_of_the_hub_is_refused_and_nothing_written(served, places, asked, said):
    gap = [0.5] * 3 + [None] + [0.5] * 8
    ragged = [[1.0]] * 11 + [[1.0, 2.0]]
    endless = [0.5] * 5 + [np.inf] * 7
    served.sets["who/wards"] = {f"x/{TRAIN}": table(12, gap=gap, ragged=ragged, endless=endless)[1]}
    usual = {"name": "wards", "features": "photo", "label": "class", "folder": "x"}
    with pytest.raises((DatasetError, ValueError), match=said):
        datasets.add_from_hub(repository="who/wards", splits=("train",), **{**usual, **asked})
    assert not (places / "cache" / "datasets").exists()
