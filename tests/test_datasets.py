"""Datasets: where they are looked for, how they are cached, and what is said when they fail."""

import contextlib
import gzip
import hashlib
import http.server
import io
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import types
import urllib.error
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedlib import datasets
from fedlib.datasets import DatasetError, cache, digits, parquet, vision
from fedlib.datasets.records import RECORDS

TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"


def encoded(pixels, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(stream, kind)
    return stream.getvalue()


def write(path, pixels, image="image", label="label", pictures=None, **columns):
    """Write pictures in the Hugging Face layout; labels count up unless given."""
    if pictures is None:
        pictures = [encoded(p) for p in pixels]
    cells = [{"bytes": b, "path": None} for b in pictures]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = {image: pa.array(cells, kind), label: [i % 10 for i in range(len(cells))]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table | columns), path)


def noise(n, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A data folder and a cache of its own for every test, and no network."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDLIB_DOWNLOAD", "0")
    return tmp_path


@pytest.fixture
def mnist(places):
    """A tiny MNIST with writers, in Parquet; returns its pixels."""
    folder = places / "data" / "mnist"
    pixels = noise(25, (28, 28, 1))
    write(folder / TRAIN, pixels[:20], writer_id=list(range(20)), place=["a"] * 20)
    write(folder / TEST, pixels[20:], writer_id=list(range(5)), place=["b"] * 5)
    return pixels


def entry_of(places):
    return next((places / "cache" / "datasets").glob("mnist-*/meta.json")).parent


# ---------------------------------------------------------------- digits


def test_digits():
    data = datasets.load("digits")
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.shape == (16, 16, 1) and data.classes == 10
    assert data.train.features.dtype == np.uint8 and data.train.labels.dtype == np.int64
    assert data.train.features.max() == 255 and data.train.features.min() == 0
    assert not data.train.features.flags.writeable
    both = [np.bincount(part.labels) / len(part) for part in (data.train, data.test)]
    assert np.abs(both[0] - both[1]).max() < 1 / 360
    scaled = data.train.features / 255
    assert scaled.mean() == pytest.approx(data.mean[0], abs=1e-4)
    assert scaled.std() == pytest.approx(data.std[0], abs=1e-4)
    assert repr(data) == (
        "Dataset(digits: 1,437 train, 360 test, 16x16x1, 10 classes, embedded in scikit-learn)"
    )


def test_digits_are_the_same_bytes_everywhere():
    fingerprint = datasets.load("digits").fingerprint
    assert fingerprint.startswith("3c274b76a9ca56bb")


def test_upscaling_is_bilinear():
    levels = np.zeros((1, 8, 8), np.int64)
    levels[0, 0, 0] = 16
    large = digits.upscale(levels)[0, :, :, 0]
    assert large.shape == (16, 16)
    assert large[:3, :3].tolist() == [[255, 191, 64], [191, 143, 48], [64, 48, 16]]
    assert np.all(digits.upscale(np.full((1, 8, 8), 16)) == 255)


# ---------------------------------------------------------------- Parquet and the cache


def test_parquet_is_decoded_exactly_and_once(mnist, places, monkeypatch):
    data = datasets.load("mnist")
    assert np.array_equal(data.train.features, mnist[:20])
    assert np.array_equal(data.test.features, mnist[20:])
    assert data.train.labels.tolist() == [i % 10 for i in range(20)]
    assert data.train.columns["writer_id"].tolist() == list(range(20))
    assert data.test.columns["place"].tolist() == ["b"] * 5
    assert isinstance(data.train.features, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data.train.features[0] = 0
    assert data.source == "Parquet files of $FEDLIB_DATA/mnist"
    monkeypatch.setattr(parquet, "decode", None)
    again = datasets.load("mnist")
    assert again.fingerprint == data.fingerprint
    monkeypatch.delenv("FEDLIB_DATA")  # what was decoded stays
    assert datasets.load("mnist").fingerprint == data.fingerprint


def test_changed_files_are_decoded_again_and_replace_the_old(mnist, places):
    before = datasets.load("mnist")
    write(places / "data" / "mnist" / TRAIN, noise(20, (28, 28, 1), seed=9))
    after = datasets.load("mnist")
    assert after.fingerprint != before.fingerprint and not after.train.columns
    assert len(list((places / "cache" / "datasets").glob("mnist-*/"))) == 1


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_colour_and_any_picture_format(places, kind):
    pixels = np.repeat(noise(6, (1, 1, 3)), 32, 1).repeat(32, 2)
    folder = places / "data" / "cifar10"
    for name, part in ((TRAIN, pixels[:4]), (TEST, pixels[4:])):
        options = {"pictures": [encoded(p, kind) for p in part]}
        write(folder / name, part, image="img", **options)
    data = datasets.load("cifar10")
    assert data.shape == (32, 32, 3)
    assert np.abs(data.train.features.astype(int) - pixels[:4]).max() <= (0 if kind == "PNG" else 8)


def test_several_files_per_split(mnist, places):
    folder = places / "data" / "mnist"
    (folder / TRAIN).unlink()
    for i, part in enumerate((mnist[:12], mnist[12:20])):
        write(folder / f"train-0000{i}-of-00002.parquet", part)
    assert np.array_equal(datasets.load("mnist").train.features, mnist[:20])
    (folder / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(DatasetError, match=r"missing: train-00000-of-00002\.parquet"):
        datasets.load("mnist")


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "meta", "meta gone", "header"])
def test_a_damaged_cache_is_rebuilt(mnist, places, damage):
    before = datasets.load("mnist").fingerprint
    entry = entry_of(places)
    target = entry / ("meta.json" if "meta" in damage else "train.features.npy")
    content = bytearray(target.read_bytes())
    if damage in ("delete", "meta gone"):
        target.unlink()
    else:
        if damage == "flip":
            content[len(content) // 2] ^= 1
        elif damage == "header":
            content[:6] = b"broken"
        else:
            content = content[: len(content) // 2]
        target.write_bytes(content)
    data = datasets.load("mnist")
    assert data.fingerprint == before and np.array_equal(data.train.features, mnist[:20])


def test_a_failed_decoding_leaves_nothing_behind(mnist, places):
    write(places / "data" / "mnist" / TEST, None, pictures=[encoded(mnist[0]), b"no picture"])
    with pytest.raises(DatasetError, match=r"test-00000-of-00001\.parquet, row 1: undecodable"):
        datasets.load("mnist")
    assert not [p for p in (places / "cache" / "datasets").iterdir() if p.is_dir()]


def test_what_a_killed_process_left_is_removed(mnist, places):
    datasets.load("mnist")
    entry = entry_of(places)
    left = entry.parent / f"{entry.name}.abc.partial"
    entry.rename(left)
    datasets.load("mnist")
    assert entry.exists() and not left.exists()


def _load_and_count(barrier, results):
    decoded = []
    original = parquet.decode

    def slow(*args):
        decoded.append(1)
        time.sleep(0.3)
        return original(*args)

    parquet.decode = slow
    barrier.wait()
    results.put((datasets.load("mnist").fingerprint, len(decoded)))


def test_two_processes_at_once_decode_once(mnist, places):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    both = [context.Process(target=_load_and_count, args=(barrier, results)) for _ in range(2)]
    for process in both:
        process.start()
    (one, a), (two, b) = results.get(timeout=30), results.get(timeout=30)
    for process in both:
        process.join(30)
    assert one == two and a + b == 2  # train and test, by one of them


@pytest.mark.skipif(os.name == "nt" or not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error_that_names_the_place(mnist, places, monkeypatch):
    monkeypatch.setattr(cache, "path_of", lambda folder, split, column: Path("/dev/full"))
    with pytest.raises(DatasetError, match=r"cannot write decoded data to .*FEDLIB_CACHE"):
        datasets.load("mnist")


def test_a_cache_that_cannot_be_written(mnist, places, monkeypatch):
    (places / "file").write_text("")
    monkeypatch.setenv("FEDLIB_CACHE", str(places / "file"))
    with pytest.raises(DatasetError, match="FEDLIB_CACHE"):
        datasets.load("mnist")


# ---------------------------------------------------------------- bad files


def test_truncated_parquet(mnist, places):
    path = places / "data" / "mnist" / TRAIN
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DatasetError, match=rf"{TRAIN} is not a readable Parquet file .*bytes"):
        datasets.load("mnist")


def test_corrupt_parquet_page(mnist, places):
    path = places / "data" / "mnist" / TRAIN
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=TRAIN):
        datasets.load("mnist")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "picture"}, "no column 'image' or 'img'; its columns are 'picture', 'label'"),
        ({"label": "class"}, "no column 'label' or 'fine_label'"),
        ({"pictures": [None]}, "row 0: the picture holds no bytes"),
        ({"pictures": [encoded(noise(1, (8, 8, 1))[0])]}, "row 0: picture of 8x8 .* 28x28"),
        ({"pictures": []}, "holds no examples"),
        ({"writer_id": pa.array([None], pa.int64())}, "row 0: column 'writer_id' holds no value"),
        ({"writer_id": [[1]]}, "column 'writer_id' of type .* cannot be kept"),
    ],
)
def test_files_of_another_shape(mnist, places, options, message):
    write(places / "data" / "mnist" / TRAIN, mnist[:1], **options)
    with pytest.raises(DatasetError, match=message) as caught:
        datasets.load("mnist")
    assert TRAIN in str(caught.value)


def test_labels_and_pictures_of_another_kind(mnist, places):
    path = places / "data" / "mnist" / TRAIN
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cell = pa.array([{"bytes": encoded(mnist[0]), "path": None}], kind)
    for table, message in (
        ({"image": cell, "label": [10]}, r"row 0: label 10 is outside 0\.\.9"),
        ({"image": cell, "label": ["3"]}, "must hold integers"),
        ({"image": [b"x"], "label": [1]}, "must be a struct with bytes"),
    ):
        pq.write_table(pa.table(table), path)
        with pytest.raises(DatasetError, match=message):
            datasets.load("mnist")


# ---------------------------------------------------------------- not there


def test_unknown_name():
    with pytest.raises(ValueError, match=r"'cifar-10'.*digits.*did you mean 'cifar10'"):
        datasets.load("cifar-10")
    assert {"digits", "mnist", "fashion_mnist", "cifar10"} <= set(datasets.names())


def test_missing_data_says_where_and_how(places, monkeypatch):
    with pytest.raises(FileNotFoundError) as caught:
        datasets.load("mnist")
    for words in ("'mnist'", str(places / "data" / "mnist" / TRAIN), str(places / "cache"),
                  "Set FEDLIB_DATA", "FEDLIB_DOWNLOAD"):  # fmt: skip
        assert words in str(caught.value)
    monkeypatch.delenv("FEDLIB_DATA")
    with pytest.raises(DatasetError, match="not set"):
        datasets.load("mnist")
    monkeypatch.setenv("FEDLIB_DATA", str(places / "nowhere"))
    with pytest.raises(FileNotFoundError, match="no such folder"):
        datasets.load("mnist")


def test_half_a_dataset(mnist, places):
    (places / "data" / "mnist" / TEST).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {TEST}"):
        datasets.load("mnist")


# ---------------------------------------------------------------- torchvision


def _official(pixels, targets, fail=None):
    """A stand-in for one of torchvision's classes."""

    def make(root, train, download):
        assert download
        if fail:
            raise fail
        half = slice(None, 4) if train else slice(4, None)
        return types.SimpleNamespace(data=pixels[half], targets=targets[half])

    return make


@pytest.fixture
def stand_in(places, monkeypatch):
    """Put a class in the place of torchvision's CIFAR10, and allow downloads."""
    monkeypatch.delenv("FEDLIB_DOWNLOAD")

    def install(**options):
        pixels = noise(6, (32, 32, 3))
        module = types.SimpleNamespace(
            datasets=types.SimpleNamespace(CIFAR10=_official(pixels, list(range(6)), **options))
        )
        monkeypatch.setattr(vision, "torchvision", lambda: module)
        return pixels

    return install


def test_download_is_cached(stand_in):
    pixels = stand_in()
    data = datasets.load("cifar10")
    assert np.array_equal(data.train.features, pixels[:4]) and data.test.labels.tolist() == [4, 5]
    assert data.source == "downloaded by torchvision"
    stand_in(fail=AssertionError("asked twice"))
    assert datasets.load("cifar10").fingerprint == data.fingerprint


@pytest.mark.parametrize("failure", [urllib.error.URLError("no route"), RuntimeError("corrupted")])
def test_a_failed_download_tells_what_to_do(stand_in, failure, places):
    stand_in(fail=failure)
    with pytest.raises(DatasetError, match=r"downloading 'cifar10' .* Set FEDLIB_DATA") as caught:
        datasets.load("cifar10")
    assert caught.value.__cause__ is failure
    assert not [p for p in (places / "cache" / "datasets").iterdir() if p.is_dir()]


def test_downloads_can_be_forbidden(stand_in, monkeypatch):
    stand_in()
    monkeypatch.setenv("FEDLIB_DOWNLOAD", "0")
    with pytest.raises(FileNotFoundError, match="FEDLIB_DOWNLOAD"):
        datasets.load("cifar10")


def idx(array):
    """An array in the format of MNIST's own files, compressed."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(header + array.tobytes())


@contextlib.contextmanager
def serving(answer):
    """A server on this machine; answer(name) is the body sent for a file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = answer(self.path.rsplit("/", 1)[-1])
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("failure", [None, "corrupt", "cut short", "silent"])
def test_the_real_torchvision_against_a_local_server(places, monkeypatch, failure):
    real = vision.torchvision().datasets.MNIST
    pixels, labels = noise(5, (28, 28)), np.arange(5, dtype=np.uint8)
    parts = {"train": slice(0, 3), "t10k": slice(3, 5)}
    bodies = {}
    for name, part in parts.items():
        bodies[f"{name}-images-idx3-ubyte.gz"] = idx(pixels[part])
        bodies[f"{name}-labels-idx1-ubyte.gz"] = idx(labels[part])
    sums = [(name, hashlib.md5(body).hexdigest()) for name, body in bodies.items()]

    def answer(name):
        if failure == "silent":
            time.sleep(1)
        body = bodies[name]
        return {"corrupt": b"x" * len(body), "cut short": body[:-9]}.get(str(failure), body)

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("FEDLIB_DOWNLOAD")
    monkeypatch.setattr(real, "resources", sums)
    monkeypatch.setattr(vision, "STALLED_AFTER", 0.3)
    with serving(answer) as address:
        monkeypatch.setattr(real, "mirrors", [address])
        if failure:
            with pytest.raises(DatasetError, match=r"downloading 'mnist' .* Set FEDLIB_DATA"):
                datasets.load("mnist")
            failure = None  # the host recovers, and so do we
        data = datasets.load("mnist")
    assert np.array_equal(data.train.features[..., 0], pixels[:3])
    assert data.test.labels.tolist() == [3, 4]


def test_torchvision_is_not_installed(places, monkeypatch):
    monkeypatch.delenv("FEDLIB_DOWNLOAD")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(DatasetError, match="pip install torchvision"):
        datasets.load("cifar10")


def test_torchvision_imports_beside_the_installed_torch():
    code = (
        "from fedlib.datasets.vision import torchvision; tv = torchvision(); "
        "assert torchvision() is tv; print(tv.datasets.MNIST.__name__, tv.transforms.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["MNIST", "torchvision.transforms"], done.stderr


# ---------------------------------------------------------------- the real files


@pytest.mark.skipif("FEDLIB_DATA" not in os.environ, reason="FEDLIB_DATA is not set")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_real_data(name):
    if not (Path(os.environ["FEDLIB_DATA"]) / name).is_dir():
        pytest.skip(f"no {name} in FEDLIB_DATA")
    data = datasets.load(name)
    start = time.perf_counter()
    datasets.load(name)
    assert time.perf_counter() - start < 1
    record = RECORDS[name]
    assert data.shape == record.shape and len(data.test) == 10_000
    scaled = data.train.features[::97] / 255
    assert scaled.mean((0, 1, 2)) == pytest.approx(np.array(data.mean), abs=0.02)
    assert scaled.std((0, 1, 2)) == pytest.approx(np.array(data.std), abs=0.02)
    assert set(data.train.labels) == set(range(10))


def test_records_are_consistent():
    for record in RECORDS.values():
        assert len(record.mean) == len(record.std) == record.shape[2]
        assert len(set(record.class_names)) == len(record.class_names)
