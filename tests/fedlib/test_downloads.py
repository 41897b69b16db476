"""Downloads, against a local server that truncates, corrupts, stalls, drops and lies."""

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import re
import socket
import struct
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_datasets import TEST, TRAIN, entry_of, folders, noise, own_places, resize, write
from test_datasets_kinds import write_texts

from fedlib import data as datasets
from fedlib.data import DatasetError, cache, download, sources, vision
from fedlib.data.records import RECORDS


class Host:
    """What a server has, how it misbehaves, and what was asked of it.

    faults: for the next answers, one each; "" is an honest one. always: for all that follow.
    """

    def __init__(self):
        self.files, self.faults, self.always = {}, [], ""
        self.asked, self.etag = [], '"one"'
        self.released = threading.Event()

    def paths(self):
        return [path for path, _ in self.asked]


def misbehave(host, monkeypatch, *faults, always=""):
    """Set faults; whoever waits for a stalled server is impatient, all others are not."""
    host.faults, host.always = list(faults), always
    if "stall" in (*faults, always):
        monkeypatch.setattr(download, "STALLED_AFTER", 0.25)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        host = self.server.host
        host.asked.append((self.path, self.headers.get("Range")))
        fault = host.faults.pop(0) if host.faults else host.always
        self.close_connection = True
        body = host.files.get(self.path.partition("?")[0])
        if fault == "drop":
            # A reset, not an orderly end.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            return
        if body is None or fault.isdigit():
            self.send_error(int(fault) if fault.isdigit() else 404)
            return
        if fault.startswith("redirect "):
            self.send_response(302)
            self.send_header("Location", fault.partition(" ")[2])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.answer(host, fault, body)

    def answer(self, host, fault, body):
        start = self.start(host, fault, len(body))
        self.send_response(206 if start is not None else 200)
        if fault == "corrupt":
            body = bytes(b ^ 1 for b in body)
        if fault == "wrong size":
            body += b"more"
        rest = body[start or 0 :]
        if start is not None:
            at = start + 1 if fault == "shifted" else start
            end = "9" * 5000 if fault == "far" else len(body)
            self.send_header("Content-Range", f"bytes {at}-{len(body) - 1}/{end}")
        if fault not in ("no length", "endless"):
            told = fault.partition("length ")[2] or str(len(rest))
            self.send_header("Content-Length", told)
        if fault == "changed":
            host.etag = '"two"'
        self.send_header("ETag", host.etag)
        self.end_headers()
        with contextlib.suppress(OSError):  # the reader may be gone
            self.body(host, fault, rest)

    def start(self, host, fault, size):
        """Where the rest begins that is asked for, None for all of it."""
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        expected = self.headers.get("If-Range")
        if not wanted or fault == "no range" or expected not in (None, host.etag):
            return None
        return int(wanted[1]) if int(wanted[1]) < size else None

    def body(self, host, fault, rest):
        half = len(rest) // 2
        if fault in ("truncate", "stall", "reset"):
            self.wfile.write(rest[:half])
            self.wfile.flush()
            if fault == "stall":
                host.released.wait(20)
            if fault == "reset":
                time.sleep(0.05)  # let the half arrive
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
        elif fault == "endless":
            while not host.released.is_set():
                self.wfile.write(rest)
        else:
            self.wfile.write(rest)

    def finish(self):
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


@pytest.fixture
def host(monkeypatch):
    """A server on this machine; its address is `host.url`."""
    server = Server(("127.0.0.1", 0), Handler)
    server.host = known = Host()
    known.url = f"http://127.0.0.1:{server.server_port}"
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setattr(download, "PAUSE", 0.01)
    monkeypatch.setattr(download, "STALLED_AFTER", 10)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield known
    known.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def places(tmp_path, monkeypatch):
    root = own_places(tmp_path, monkeypatch)
    monkeypatch.delenv("FEDLIB_DATA")
    monkeypatch.delenv("FEDLIB_DOWNLOAD")
    return root


BODY = np.random.default_rng(3).bytes(200_000)


def sha256(body):
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def get(host, target, body=BODY, **options):
    host.files.setdefault("/file", body)
    return download.file([f"{host.url}/file"], target, sha256(body), **options)


# ---------------------------------------------------------------- one file


def test_an_honest_file_is_fetched_once(host, tmp_path):
    target = tmp_path / "new" / "file"
    assert get(host, target, size=len(BODY)).read_bytes() == BODY
    get(host, target)
    assert len(host.asked) == 1
    assert {p.name for p in target.parent.iterdir()} <= {"file", "file.lock"}


@pytest.mark.parametrize(
    "fault", ["truncate", "stall", "drop", "reset", "503", "429", "shifted", "far"]
)
def test_a_fault_that_passes_is_survived(host, tmp_path, fault, monkeypatch):
    misbehave(host, monkeypatch, *(["truncate"] if fault in ("shifted", "far") else []), fault)
    assert get(host, tmp_path / "file").read_bytes() == BODY
    assert 2 <= len(host.asked) <= 3


@pytest.mark.parametrize("fault", ["truncate", "stall", "reset"])
def test_what_arrived_is_not_fetched_again(host, tmp_path, fault, monkeypatch):
    misbehave(host, monkeypatch, fault, fault)
    get(host, tmp_path / "file")
    starts = [int(wanted[6:-1]) if wanted else 0 for _, wanted in host.asked]
    assert starts[0] == 0 < starts[1] <= starts[2]
    assert starts[2] >= len(BODY) // 2


def test_a_later_process_resumes(host, tmp_path):
    host.always = "truncate"
    with pytest.raises(DatasetError, match=r"ended after [\d,]+ of 200,000 bytes \(4 attempts\)"):
        get(host, tmp_path / "file")
    assert not (tmp_path / "file").exists()
    arrived = (tmp_path / "file.part").stat().st_size
    assert arrived > len(BODY) // 2
    host.always, host.asked = "", []
    assert get(host, tmp_path / "file").read_bytes() == BODY
    assert host.asked == [("/file", f"bytes={arrived}-")]


def test_a_whole_part_is_only_checked(host, tmp_path):
    (tmp_path / "file.part").write_bytes(BODY)
    (tmp_path / "file.part.json").write_text(json.dumps({"etag": None, "size": len(BODY)}))
    assert get(host, tmp_path / "file").read_bytes() == BODY and not host.asked


@pytest.mark.parametrize(
    "note", ["", "[]", '{"etag": "\\"zero\\"", "size": 200000}', '{"etag": 1, "size": "2"}']
)
def test_a_part_of_another_version_is_not_resumed(host, tmp_path, note):
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    (tmp_path / "file.part.json").write_text(note)
    assert get(host, tmp_path / "file").read_bytes() == BODY


def test_a_part_longer_than_the_file(host, tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 300_000)
    (tmp_path / "file.part.json").write_text(json.dumps({"etag": host.etag, "size": 400_000}))
    assert get(host, tmp_path / "file").read_bytes() == BODY


@pytest.mark.parametrize("second", ["no range", "changed"])
def test_a_server_that_cannot_resume(host, tmp_path, second):
    host.faults = ["truncate", second]
    assert get(host, tmp_path / "file").read_bytes() == BODY


def test_a_file_that_changes_between_attempts(host, tmp_path):
    """Half of one version and half of another never make a file."""
    other = BODY[::-1]
    host.faults = ["truncate"]
    whole = Handler.answer

    def answer(self, known, fault, body):
        whole(self, known, fault, body)
        known.files["/file"], known.etag = other, '"two"'

    host.files["/file"] = BODY
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "answer", answer)
        assert get(host, tmp_path / "file", other).read_bytes() == other


def test_a_corrupt_file_is_fetched_once_more(host, tmp_path):
    host.faults = ["corrupt"]
    assert get(host, tmp_path / "file").read_bytes() == BODY
    assert len(host.asked) == 2


def test_a_file_that_stays_corrupt(host, tmp_path):
    host.always = "corrupt"
    wrong = sha256(bytes(b ^ 1 for b in BODY))
    with pytest.raises(DatasetError) as caught:
        get(host, tmp_path / "file")
    for words in (f"{host.url}/file", wrong, sha256(BODY)):
        assert words in str(caught.value)
    assert len(host.asked) == 2
    assert not [p for p in tmp_path.iterdir() if p.name in ("file", "file.part")]


def test_a_damaged_file_on_disk_is_replaced(host, tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    assert get(host, tmp_path / "file").read_bytes() == BODY


@pytest.mark.parametrize(
    ("fault", "message", "asked"),
    [
        ("404", "answered 404", 1),
        ("403", "answered 403", 1),
        ("500", r"answered 500 .*\(4 attempts\)", 4),
        ("wrong size", "has 200,004 bytes, but 200,000 are expected", 1),
        ("drop", r"\(4 attempts\)", 4),
        ("stall", r"(timed out|Timeout).*\(4 attempts\)", 4),
        ("redirect file:///etc/passwd", "Redirection .* is not allowed", 1),
        ("redirect ftp://127.0.0.1/file", "no http or https address", 1),
        ("redirect http://[", "no valid address", 1),
    ],
)
def test_faults_that_stay_are_errors(host, tmp_path, fault, message, asked, monkeypatch):
    misbehave(host, monkeypatch, always=fault)
    with pytest.raises(DatasetError, match=message) as caught:
        get(host, tmp_path / "file", size=len(BODY))
    assert host.url in str(caught.value) or "redirect" in fault
    assert len(host.asked) == asked and not (tmp_path / "file").exists()


@pytest.mark.parametrize("fault", ["no length", "length \u00b2", "length " + "9" * 5000])
def test_no_length_is_no_reason_to_trust(host, tmp_path, fault):
    host.always = fault
    assert get(host, tmp_path / "file").read_bytes() == BODY
    host.always = "endless"
    with pytest.raises(DatasetError, match="sends more than it should"):
        get(host, tmp_path / "other", size=len(BODY))


def test_redirects_are_followed(host, tmp_path):
    host.files["/elsewhere"] = BODY
    host.faults = ["redirect /elsewhere"]
    assert get(host, tmp_path / "file").read_bytes() == BODY
    assert host.paths() == ["/file", "/elsewhere"]


def test_the_second_mirror_helps(host, tmp_path):
    host.files["/good"] = BODY
    urls = [f"{host.url}/bad", f"{host.url}/good"]
    assert download.file(urls, tmp_path / "file", sha256(BODY)).read_bytes() == BODY
    with pytest.raises(DatasetError, match=r"/bad: .*404.*/worse: .*404") as caught:
        download.file([f"{host.url}/bad", f"{host.url}/worse"], tmp_path / "b", sha256(BODY))
    assert str(caught.value).count(host.url) == 2


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://localhost/x", "x", "", "http://[", "http://localhost/\u00e4"],
)
def test_only_the_web_is_asked(tmp_path, url):
    with pytest.raises(DatasetError, match=r"no (http or https|valid) address"):
        download.file([url], tmp_path / "file", sha256(b""))


def test_nobody_listens(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.01)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
        with pytest.raises(DatasetError, match=r"refused.*\(4 attempts\)"):
            download.file([url], tmp_path / "file", sha256(b""))


def test_progress_keeps_a_download_alive(host, tmp_path, monkeypatch):
    """A host that hangs up every time is outlasted as long as it brings something."""
    monkeypatch.setattr(download, "ENOUGH", 1)
    host.faults = ["truncate"] * 9
    assert get(host, tmp_path / "file").read_bytes() == BODY
    assert len(host.asked) == 10


def test_pauses_grow_and_end(host, tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(download, "PAUSE", 1.0)
    monkeypatch.setattr(download, "LONGEST_PAUSE", 3.0)
    monkeypatch.setattr(download.time, "sleep", slept.append)
    host.always = "500"
    with pytest.raises(DatasetError):
        get(host, tmp_path / "file")
    assert slept == [1.0, 2.0, 3.0]


def test_two_at_once_download_once(host, tmp_path):
    both = [threading.Thread(target=get, args=(host, tmp_path / "file")) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(30)
    assert (tmp_path / "file").read_bytes() == BODY and len(host.asked) == 1


@pytest.mark.parametrize("answer", [b"<html>", b"[" * 200_000, b"\xff"])
def test_a_listing_that_is_none(host, answer):
    host.files["/list"] = answer
    with pytest.raises(DatasetError, match="the answer is no JSON"):
        download.listing(f"{host.url}/list")


# ---------------------------------------------------------------- the hub


def offer(host, name, files, **changes):
    """Put files on a pretended hub, as its listing and its downloads; returns the listing."""
    owner, repository, folder = RECORDS[name].hub.split("/")
    entries = [{"type": "directory", "path": f"{folder}/more", "oid": "0", "size": 0}]
    for file, body in files.items():
        host.files[f"/datasets/{owner}/{repository}/resolve/main/{folder}/{file}"] = body
        lfs = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 1}
        entries.append(
            {"type": "file", "path": f"{folder}/{file}", "size": len(body), "lfs": lfs} | changes
        )
    entries.append({"type": "file", "path": f"{folder}/README.md", "oid": "1", "size": 3})
    host.files[f"/api/datasets/{owner}/{repository}/tree/main/{folder}"] = json.dumps(
        entries
    ).encode()
    return entries


@pytest.fixture
def hub(host, places, monkeypatch):
    monkeypatch.setenv("FEDLIB_HUB", host.url + "/")
    return host


def pictures(tmp_path, record, count, seed=0, **columns):
    pixels = noise(count, record.shape, seed)
    write(tmp_path / "made.parquet", pixels, label=record.label[0], **columns)
    return pixels, (tmp_path / "made.parquet").read_bytes()


def test_femnist_from_the_hub(hub, tmp_path, monkeypatch):
    resize(monkeypatch, "femnist", 6, 0)
    record, writers = RECORDS["femnist"], ["f2", "f1", "f2", "f1", "f3", "f1"]
    parts = [
        pictures(tmp_path, record, 3, i, writer_id=writers[3 * i : 3 * i + 3], hsf_id=[0] * 3)
        for i in range(2)
    ]
    offer(hub, "femnist", {f"train-0000{i}-of-00002.parquet": b for i, (_, b) in enumerate(parts)})
    data = datasets.load("femnist")
    assert np.array_equal(data.train.features, np.concatenate([pixels for pixels, _ in parts]))
    assert data.train.columns["writer_id"].tolist() == [1, 0, 1, 0, 2, 0]
    assert len(data.test) == 0
    assert data.source == "downloaded from the Hugging Face hub, flwrlabs/femnist"
    asked = len(hub.asked)
    assert datasets.load("femnist").fingerprint == data.fingerprint
    assert datasets.verify("femnist") == []
    assert len(hub.asked) == asked and datasets.describe("femnist").place == "cache"
    meta = json.loads((entry_of(tmp_path, "femnist") / "meta.json").read_text())
    assert meta["checksums"] == {
        f"train-0000{i}-of-00002.parquet": sha256(body) for i, (_, body) in enumerate(parts)
    }


def test_tiny_imagenet_and_texts_from_the_hub(hub, tmp_path, monkeypatch):
    resize(monkeypatch, "tiny_imagenet", 3, 2)
    record = RECORDS["tiny_imagenet"]
    train, valid = pictures(tmp_path, record, 3), pictures(tmp_path, record, 2, 1)
    files = {
        "train-00000-of-00001-1359597a978bc4fa.parquet": train[1],
        "valid-00000-of-00001-70d52db3c749a935.parquet": valid[1],
    }
    offer(hub, "tiny_imagenet", files)
    assert np.array_equal(datasets.load("tiny_imagenet").test.features, valid[0])
    resize(monkeypatch, "ag_news", 2, 1)
    for name, texts in ((TRAIN, ["a b", "a"]), (TEST, ["b c"])):
        write_texts(tmp_path / name, texts)
    offer(hub, "ag_news", {name: (tmp_path / name).read_bytes() for name in (TRAIN, TEST)})
    data = datasets.load("ag_news")
    assert data.vocabulary == ("<pad>", "<unk>", "a", "b")
    assert data.test.features[0, :3].tolist() == [3, 1, 0]


@pytest.mark.parametrize("fault", ["truncate", "corrupt", "503"])
def test_the_hub_has_a_bad_day(hub, tmp_path, monkeypatch, fault):
    resize(monkeypatch, "femnist", 3, 0)
    pixels, body = pictures(tmp_path, RECORDS["femnist"], 3)
    offer(hub, "femnist", {TRAIN: body})
    misbehave(hub, monkeypatch, "", fault)
    assert np.array_equal(datasets.load("femnist").train.features, pixels)


def test_a_mirror_of_the_files_is_checked_against_the_hub(hub, tmp_path, monkeypatch):
    resize(monkeypatch, "femnist", 3, 0)
    pixels, body = pictures(tmp_path, RECORDS["femnist"], 3)
    offer(hub, "femnist", {TRAIN: body})
    monkeypatch.setenv("FEDLIB_MIRROR_FEMNIST", f"{hub.url}/mine/")
    hub.files[f"/mine/{TRAIN}"] = bytes(b ^ 1 for b in body)
    with pytest.raises(DatasetError) as caught:
        datasets.load("femnist")
    for words in (f"/mine/{TRAIN}", sha256(body), "Set FEDLIB_DATA", "FEDLIB_MIRROR_FEMNIST"):
        assert words in str(caught.value)
    hub.files[f"/mine/{TRAIN}"] = body
    assert np.array_equal(datasets.load("femnist").train.features, pixels)
    assert not [path for path in hub.paths() if "resolve" in path]


def test_a_hub_with_another_set(hub, tmp_path, monkeypatch):
    offer(hub, "femnist", {TRAIN: pictures(tmp_path, RECORDS["femnist"], 3)[1]})
    with pytest.raises(DatasetError, match=r"holds 3 training .* official femnist has 814,277"):
        datasets.load("femnist")
    assert not folders(tmp_path)
    offer(hub, "femnist", {"valid-00000-of-00001.parquet": b"x"})
    with pytest.raises(DatasetError, match="no files of split 'train'"):
        datasets.load("femnist")
    offer(hub, "femnist", {"train-00000-of-99999999999.parquet": b"x"})  # no memory for as many
    with pytest.raises(DatasetError, match="no files of split 'train'"):
        datasets.load("femnist")
    offer(hub, "femnist", {"train-00001-of-00002.parquet": b"x"})
    with pytest.raises(DatasetError, match=r"missing: train-00000-of-00002\.parquet"):
        datasets.load("femnist")


@pytest.mark.parametrize(
    "listing",
    [
        b"3", b"[3]", b'{"error": "gone"}', b'[{"type": "file"}]',
        b'[{"type": "file", "path": "data/x", "size": 1, "lfs": {"oid": "../../etc"}}]',
        b'[{"type": "file", "path": "data/x", "size": "a", "lfs": {"oid": "' + b"a" * 64 + b'"}}]',
        b'[{"type": "file", "path": "data/x", "size": 1e9999, "lfs": {"oid": "%s"}}]' % (b"a" * 64),
    ],
)  # fmt: skip
def test_hostile_listings(hub, listing):
    hub.files["/api/datasets/flwrlabs/femnist/tree/main/data"] = listing
    with pytest.raises(DatasetError, match="in an unknown way"):
        datasets.load("femnist")


def test_a_listing_cannot_name_files_elsewhere(hub, tmp_path, monkeypatch):
    body = pictures(tmp_path, RECORDS["femnist"], 3)[1]
    offer(hub, "femnist", {f"../../{TRAIN}": body, f"..{TRAIN}": body})
    with pytest.raises(DatasetError, match="no files of split"):
        datasets.load("femnist")


# ---------------------------------------------------------------- CIFAR's own archives


def cifar_rows(name, count, seed):
    """Rows of the binary format, and what they mean: pixels, labels."""
    labels = len(RECORDS[name].archive.labels)
    pixels = noise(count, (32, 32, 3), seed)
    heads = np.stack([np.arange(count, dtype=np.uint8)] * labels, 1)
    heads[:, 0] //= labels
    return np.concatenate([heads, pixels.transpose(0, 3, 1, 2).reshape(count, -1)], 1), pixels


def tar_of(members, kind=tarfile.REGTYPE):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.type = len(body), kind
            if kind == tarfile.SYMTYPE:
                info.size, info.linkname = 0, "/etc/passwd"
            tar.addfile(info, io.BytesIO(body))
    return stream.getvalue()


def cifar(name, counts=(5, 2)):
    """The members of a small archive, and the pixels of both splits."""
    archive = RECORDS[name].archive
    train, test = cifar_rows(name, counts[0], 1), cifar_rows(name, counts[1], 2)
    parts = np.split(train[0], len(archive.train))
    members = {m: part.tobytes() for m, part in zip(archive.train, parts, strict=True)}
    return members | {archive.test[0]: test[0].tobytes()}, (train[1], test[1])


def serve_cifar(host, monkeypatch, name, body):
    """Let the official archive be this one, on the official host and on a mirror."""
    resize(monkeypatch, name, 5, 2)
    record = RECORDS[name]
    file = record.archive.url.rpartition("/")[2]
    host.files[f"/kriz/{file}"] = host.files[f"/mirror/{file}"] = body
    archive = replace(
        record.archive, url=f"{host.url}/kriz/{file}", md5=hashlib.md5(body).hexdigest()
    )
    monkeypatch.setitem(RECORDS, name, replace(record, archive=archive))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_archives_are_read_in_place(hub, monkeypatch, name):
    members, (train, test) = cifar(name)
    serve_cifar(hub, monkeypatch, name, tar_of(members))
    data = datasets.load(name)  # the hub has nothing, so its own host is asked
    assert [path.split("/")[1] for path in hub.paths()] == ["api", "kriz"]
    assert np.array_equal(data.train.features, train) and np.array_equal(data.test.features, test)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4]
    if name == "cifar100":
        assert data.train.columns["coarse_label"].tolist() == [0, 0, 1, 1, 2]
    assert datasets.verify(name) == []


def test_a_mirror_of_cifar_is_asked_alone(hub, monkeypatch):
    members, (train, _) = cifar("cifar10")
    serve_cifar(hub, monkeypatch, "cifar10", tar_of(members))
    monkeypatch.setenv("FEDLIB_MIRROR_CIFAR10", f"{hub.url}/mirror/")
    assert datasets.describe("cifar10").where == f"{hub.url}/mirror"
    assert np.array_equal(datasets.load("cifar10").train.features, train)
    assert hub.paths() == ["/mirror/cifar-10-binary.tar.gz"]


def test_the_hub_comes_before_the_slow_host(hub, tmp_path, monkeypatch):
    members, _ = cifar("cifar100")
    serve_cifar(hub, monkeypatch, "cifar100", tar_of(members))
    record = RECORDS["cifar100"]
    made = [pictures(tmp_path, record, n, n, coarse_label=[0] * n) for n in (5, 2)]
    offer(hub, "cifar100", {TRAIN: made[0][1], TEST: made[1][1]})
    assert np.array_equal(datasets.load("cifar100").train.features, made[0][0])
    assert not [path for path in hub.paths() if "kriz" in path]


def hostile_archives():
    members, _ = cifar("cifar10")
    test = "cifar-10-batches-bin/test_batch.bin"
    label = {test: b"\x0a" + members[test][1:]}
    return {
        "no member": (tar_of({"../../evil": b"x", "/etc/evil": b"x"}), "has no member"),
        "too short": (tar_of(members | {test: members[test][:-1]}), "6,145 bytes, not 6,146"),
        "too long": (tar_of(members | {test: members[test] * 9}), "not 6,146"),
        "links": (tar_of(members, tarfile.SYMTYPE), "no file"),
        "folders": (tar_of(members, tarfile.DIRTYPE), "no file"),
        "labels": (tar_of(members | label), "label 10"),
        "cut": (tar_of(members)[:-20_000], "not a readable archive"),
        "no archive": (b"\x1f\x8b" + bytes(500), "not a readable archive"),
    }


@pytest.mark.parametrize("case", list(hostile_archives()))
def test_hostile_archives(hub, monkeypatch, tmp_path, case):
    body, message = hostile_archives()[case]
    serve_cifar(hub, monkeypatch, "cifar10", body)
    with pytest.raises(DatasetError, match=message):
        datasets.load("cifar10")
    written = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert "evil" not in written
    assert not folders(tmp_path)


# ---------------------------------------------------------------- MNIST's mirrors


def idx(array):
    """An array in the format of MNIST's own files, compressed."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(header + array.tobytes(), mtime=0)


@pytest.fixture
def mnist(host, places, monkeypatch):
    """A small MNIST on a mirror that torchvision knows; returns its pixels."""
    pixels, labels = noise(5, (28, 28)), np.arange(5, dtype=np.uint8)
    files = {}
    for name, part in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        files[f"{name}-images-idx3-ubyte.gz"] = idx(pixels[part])
        files[f"{name}-labels-idx1-ubyte.gz"] = idx(labels[part])
    host.files |= {f"/tv/{name}": body for name, body in files.items()}
    known = vision.torchvision().datasets.MNIST
    sums = [(name, hashlib.md5(body).hexdigest()) for name, body in files.items()]
    monkeypatch.setattr(known, "resources", sums)
    monkeypatch.setattr(known, "mirrors", [f"{host.url}/down/", f"{host.url}/tv/"])
    resize(monkeypatch, "mnist", 3, 2)
    return pixels


@pytest.mark.parametrize("fault", ["", "truncate", "corrupt"])
def test_mnist_from_the_mirrors_that_torchvision_knows(mnist, host, fault, monkeypatch):
    misbehave(host, monkeypatch, "404", fault)
    data = datasets.load("mnist")
    assert np.array_equal(data.train.features[..., 0], mnist[:3])
    assert data.test.labels.tolist() == [3, 4]
    assert data.source == "downloaded from the mirrors of torchvision's MNIST"
    host.always = "500"
    assert datasets.load("mnist").fingerprint == data.fingerprint


def test_another_mirror_of_mnist(mnist, host, monkeypatch):
    host.files |= {f"/mine{path[3:]}": body for path, body in host.files.items()}
    monkeypatch.setenv("FEDLIB_MIRROR_MNIST", f"{host.url}/mine")
    datasets.load("mnist")
    assert {path.split("/")[1] for path in host.paths()} == {"mine"}


def test_a_failed_download_says_what_to_do_and_recovers(mnist, host, places):
    host.always = "corrupt"
    with pytest.raises(DatasetError) as caught:
        datasets.load("mnist")
    for words in ("downloading 'mnist' failed", "/tv/train-images", "md5:", "Set FEDLIB_DATA",
                  "FEDLIB_MIRROR_MNIST"):  # fmt: skip
        assert words in str(caught.value)
    assert not folders(places)
    host.always = ""
    assert len(datasets.fetch("mnist").train) == 3


def test_a_damaged_entry_is_fetched_again(mnist, host, places):
    before = datasets.load("mnist").fingerprint
    (entry_of(places, "mnist") / "train.features.npy").write_bytes(b"damaged")
    assert "bytes, not" in datasets.verify("mnist")[0]
    asked = len(host.asked)
    assert datasets.load("mnist").fingerprint == before
    assert len(host.asked) == asked  # what was downloaded is still there


def test_mnist_of_another_size(mnist, host, monkeypatch):
    resize(monkeypatch, "mnist", 60_000, 10_000)
    with pytest.raises(DatasetError, match="3 train examples where 60,000 are expected"):
        datasets.load("mnist")


@pytest.mark.parametrize(
    "body", [b"", b"\x1f\x8b", gzip.compress(b""), gzip.compress(b"\0\0\x08\x03" + bytes(3)),
             gzip.compress(b"\0\0\x0d\x01" + bytes(9)), idx(noise(2, (28, 28)))[:-9],
             idx(noise(1, (27, 28)))],
    ids=["nothing", "magic only", "empty", "no labels", "other type", "cut short", "other size"],
)  # fmt: skip
def test_files_that_are_no_idx(tmp_path, body):
    (tmp_path / "x.gz").write_bytes(body)
    with pytest.raises(DatasetError, match="not a readable IDX file"):
        vision.read_idx(tmp_path / "x.gz", (28, 28, 1))


def test_downloads_can_be_forbidden(mnist, host, monkeypatch):
    monkeypatch.setenv("FEDLIB_DOWNLOAD", "0")
    for function in (datasets.load, datasets.fetch):
        with pytest.raises(FileNotFoundError, match="FEDLIB_DOWNLOAD"):
            function("mnist")
    assert datasets.describe("mnist").place == "missing" and not host.asked


def test_torchvision_is_not_installed(places, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DatasetError, match="pip install torchvision"):
        datasets.load("mnist")


def test_verify_and_describe_ask_nobody(hub):
    for name in datasets.names():
        datasets.describe(name)
        datasets.verify(name)
    assert not hub.asked


def test_every_download_has_a_checksum_of_its_publisher():
    for name, record in RECORDS.items():
        assert sources.ways(name, record)
        if record.archive:
            assert re.fullmatch("[0-9a-f]{32}", record.archive.md5)
            assert record.archive.url.startswith("https://")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_not_taken_for_a_damaged_archive(hub, monkeypatch):
    serve_cifar(hub, monkeypatch, "cifar10", tar_of(cifar("cifar10")[0]))
    monkeypatch.setattr(cache, "path_of", lambda folder, split, column: FULL)
    with pytest.raises(DatasetError, match="Free some space") as caught:
        datasets.load("cifar10")
    assert "archive" not in str(caught.value)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_not_taken_for_the_network(mnist, host, places):
    folder = places / "cache" / "downloads" / "mnist"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte.gz.part").symlink_to(FULL)
    with pytest.raises(DatasetError, match="Free some space"):
        datasets.load("mnist")
    assert len(host.asked) <= 2
