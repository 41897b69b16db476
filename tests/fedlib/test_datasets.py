"""Datasets: where they are looked for, how they are cached, and what is said when they fail."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import refused
from datafiles import TEST, TRAIN, cells, encoded, entry_of, folders, noise, write

from fedlib import data as datasets
from fedlib.data import RECORDS, DatasetError, parquet


@pytest.fixture
def mnist(places):
    """A tiny MNIST with writers, in Parquet; returns its pixels."""
    folder = places / "data" / "mnist"
    pixels = noise(25, (28, 28, 1))
    write(folder / TRAIN, pixels[:20], writer_id=list(range(20)), place=["a"] * 20)
    write(folder / TEST, pixels[20:], writer_id=list(range(5)), place=["b"] * 5)
    return pixels


def test_digits():
    data = datasets.load("digits")
    x = data.train.features
    assert x.dtype == np.uint8 and not x.flags.writeable
    assert data.fingerprint.startswith("3c274b76a9ca56bb")  # the same bytes everywhere
    look = (x / 255).mean(), (x / 255).std()
    assert look == pytest.approx((*data.mean, *data.std), abs=1e-4)
    said = "1,437 train, 360 test, 16x16x1, 10 classes, embedded in scikit-learn"
    assert repr(data) == f"Dataset(digits: {said})"


def test_parquet_is_decoded_exactly_and_once(mnist, places, monkeypatch):
    data = datasets.load("mnist_sample")
    assert np.array_equal(data.train.features, mnist[:20])
    assert np.array_equal(data.test.features, mnist[20:])
    assert data.train.labels.tolist() == [i % 10 for i in range(20)]
    assert data.train.columns["writer_id"].tolist() == list(range(20))
    assert data.test.columns["place"].tolist() == ["b"] * 5
    with pytest.raises(ValueError, match="read-only"):
        data.train.features[0] = 0
    monkeypatch.setattr(parquet, "decoded", None)
    assert datasets.load("mnist_sample").fingerprint == data.fingerprint
    monkeypatch.delenv("FEDLIB_DATA")  # what was decoded stays
    assert datasets.load("mnist_sample").fingerprint == data.fingerprint


def test_changed_files_are_decoded_again_and_replace_the_old(mnist, places):
    before = datasets.load("mnist_sample")
    write(places / "data" / "mnist" / TRAIN, noise(20, (28, 28, 1), seed=9))
    after = datasets.load("mnist_sample")
    assert after.fingerprint != before.fingerprint and not after.train.columns
    assert len(folders(places)) == 1


DAMAGES = {
    "gone": ("train.features.npy", None),
    "flipped": ("train.features.npy", lambda old: old[:-1] + bytes([old[-1] ^ 1])),
    "hostile": ("meta.json", lambda old: b'{"files": 3}'),
    "other": ("meta.json", lambda old: old.replace(b"0.1307", b"0.1407")),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cache_is_rebuilt(mnist, places, name, damage):
    """`make robust` damages every file of one in a hundred ways, and kills who writes it."""
    before = datasets.load("mnist_sample")
    target = entry_of(places) / name
    content = target.read_bytes()
    target.unlink()
    if damage:
        target.write_bytes(damage(content))
    data = datasets.load("mnist_sample")
    assert (data.fingerprint, data.mean) == (before.fingerprint, before.mean)
    assert np.array_equal(data.train.features, mnist[:20])


COLOUR = encoded(noise(1, (28, 28, 3))[0])
ONE = cells([encoded(noise(1, (28, 28, 1))[0])])
TWICE = pa.Table.from_arrays([ONE, [1], [1]], ["image", "label", "label"])


@refused("files")
def test_files_of_another_shape(mnist, places, code, message):
    path, table = places / "data" / "mnist" / TRAIN, eval(code)
    if table is None:
        path.write_bytes(path.read_bytes()[:-100])
    else:
        pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path)
    with pytest.raises(DatasetError, match=message) as caught:
        datasets.load("mnist_sample")
    assert TRAIN in str(caught.value)


def test_missing_data_says_where_and_how(places):
    with pytest.raises(DatasetError) as caught:
        datasets.load("mnist_sample")
    for words in ("'mnist_sample'", str(places / "data" / "mnist"), str(places / "cache"),
                  "Set FEDLIB_DATA", "samples are not downloaded"):  # fmt: skip
        assert words in str(caught.value)


def test_records_are_consistent():
    for record in RECORDS.values():
        channels = 0 if len(record.shape) == 1 else record.shape[2]
        assert len(record.mean) == len(record.std) == channels
        assert len(set(record.class_names)) == len(record.class_names)
        assert len(record.splits) == 1 + (record.sizes[1] > 0)
        assert re.fullmatch("[0-9a-f]{40}|main", record.revision)
    classes = {"cifar100": 100, "femnist": 62, "tiny_imagenet": 200}
    assert {name: len(RECORDS[name].class_names) for name in classes} == classes
    assert list(RECORDS["cifar100"].class_names) == sorted(RECORDS["cifar100"].class_names)
