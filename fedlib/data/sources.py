"""Official files from the web, decoded: the hub's Parquet, CIFAR's archives, MNIST's mirrors."""

import math
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlib import paths
from fedlib.data import cache, download, parquet, vision
from fedlib.data.records import DatasetError, Record

HUB = "https://huggingface.co"

# Decode a dataset into a folder; returns what its readers shall know.
Way = Callable[[str, Record, Path], dict[str, Any]]


def build(name: str, record: Record, target: Path, advice: str) -> dict[str, Any]:
    """Download a dataset and decode it into `target`, the first way that works.

    advice: how else to get the data, for the error message. DatasetError when no way works.
    """
    reasons = []
    for way in ways(name, record):
        try:
            return way(name, record, target)
        except DatasetError as error:
            reasons.append(str(error))
            for half in target.iterdir():
                half.unlink()
    raise DatasetError(f"downloading {name!r} failed: {' '.join(reasons)} {advice}")


def ways(name: str, record: Record) -> list[Way]:
    """How a dataset can be downloaded, in the order to try."""
    found: list[Way] = []
    if record.torchvision:
        found.append(_from_mirrors)
    if record.hub and not (record.archive and mirror(name)):
        found.append(_from_hub)
    # CIFAR's own host is slow at best, so it comes last; a mirror is one of that host.
    if record.archive:
        found.append(_from_archive)
    return found


def mirror(name: str) -> str | None:
    """The address that the environment names for a dataset's files, without a final slash."""
    return os.environ.get(mirror_variable(name), "").strip().rstrip("/") or None


def mirror_variable(name: str) -> str:
    """The environment variable that may name another address for a dataset's files."""
    return f"FEDLIB_MIRROR_{name.upper()}"


def _from_hub(name: str, record: Record, target: Path) -> dict[str, Any]:
    owner, repository, folder = str(record.hub).split("/")
    hub = (os.environ.get("FEDLIB_HUB", "").strip() or HUB).rstrip("/")
    page = f"{hub}/datasets/{owner}/{repository}"
    tree = f"{hub}/api/datasets/{owner}/{repository}/tree/main/{folder}"
    known = _checksums(download.listing(f"{tree}?recursive=true"), folder, page)
    files: dict[str, list[Path]] = {}
    for split in record.splits:
        files[split] = [
            _fetched(name, file, [f"{page}/resolve/main/{folder}/{file}"], *known[file])
            for file in parquet.shards(known, split, page)
        ]
        if not files[split]:
            raise DatasetError(f"{page} has no files of split {split!r} in {folder}.")
    parquet.require_official(name, record, files, page)
    meta = parquet.store(files, record, target, name)
    taken = {path.name: known[path.name][0] for paths in files.values() for path in paths}
    source = f"downloaded from the Hugging Face hub, {owner}/{repository}"
    return meta | {"source": source, "checksums": taken}


def _checksums(entries: Any, folder: str, where: str) -> dict[str, tuple[str, int]]:
    """Checksum and size of every file that a folder of the hub lists with both."""
    known = {}
    try:
        for entry in entries:
            parent, _, name = str(entry["path"]).rpartition("/")
            if entry["type"] == "file" and parent == folder and entry.get("lfs"):
                oid = str(entry["lfs"]["oid"]).removeprefix("sha256:")
                if not re.fullmatch("[0-9a-f]{64}", oid):
                    raise ValueError(f"{oid!r} is no SHA-256")
                known[name] = (f"sha256:{oid}", int(entry["size"]))
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise DatasetError(f"{where} lists its files in an unknown way: {error!r}.") from error
    return known


def _from_archive(name: str, record: Record, target: Path) -> dict[str, Any]:
    archive = record.archive
    assert archive is not None
    place, _, file = archive.url.rpartition("/")
    checksum = f"md5:{archive.md5}"
    path = _fetched(name, file, [archive.url], checksum)
    sources = {"train": archive.train, "test": archive.test}
    try:
        with tarfile.open(path, "r:gz") as tar:
            rows = {
                split: _rows(tar, record, sources[split], size)
                for split, size in zip(sources, record.sizes, strict=True)
            }
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} is not a readable archive: {error}") from error
    heads, (height, width, channels) = len(archive.labels), record.shape
    for split, table in rows.items():
        pixels = table[:, heads:].reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
        _save(target, split, record, pixels, table[:, heads - 1], path)
        for i, column in enumerate(archive.labels[:-1]):
            cache.save(target, split, cache.EXTRA + column, table[:, i].astype(np.int64))
    return {"source": f"downloaded from {place.partition('//')[2]}", "checksums": {file: checksum}}


def _rows(
    tar: tarfile.TarFile, record: Record, members: tuple[str, ...], size: int
) -> NDArray[np.uint8]:
    """The rows of a split, [size, labels and pixels], read in place: nothing is extracted."""
    assert record.archive is not None
    width = len(record.archive.labels) + math.prod(record.shape)
    content = b"".join(_member(tar, name, size // len(members) * width) for name in members)
    return np.frombuffer(content, np.uint8).reshape(size, width)


def _member(tar: tarfile.TarFile, name: str, size: int) -> bytes:
    try:
        member = tar.getmember(name)
    except KeyError:
        raise DatasetError(f"{tar.name!r} has no member {name!r}") from None
    content = tar.extractfile(member) if member.isfile() else None
    if content is None or member.size != size:
        raise DatasetError(
            f"{tar.name!r}: member {name!r} has {member.size:,} bytes, not {size:,}, or is no file"
        )
    return content.read()


def _from_mirrors(name: str, record: Record, target: Path) -> dict[str, Any]:
    arrays, taken = {}, {}
    for file, md5, urls in vision.resources(record):
        taken[file] = f"md5:{md5}"
        path = _fetched(name, file, urls, taken[file])
        shape = record.shape if "images" in file else ()
        arrays[file.partition("-idx")[0]] = vision.read_idx(path, shape)
    for split, prefix, size in zip(("train", "test"), ("train", "t10k"), record.sizes, strict=True):
        features, labels = arrays[f"{prefix}-images"], arrays[f"{prefix}-labels"]
        if not len(features) == len(labels) == size:
            raise DatasetError(f"{len(features):,} {split} examples where {size:,} are expected")
        _save(target, split, record, features, labels, f"{prefix}-labels")
    host = f"the mirrors of torchvision's {record.torchvision}"
    return {"source": f"downloaded from {host}", "checksums": taken}


def _fetched(
    name: str, file: str, urls: Sequence[str], checksum: str, size: int | None = None
) -> Path:
    """A file of a dataset, from the mirror that the environment names, else from its addresses."""
    if base := mirror(name):
        urls = [f"{base}/{file}"]
    return download.file(urls, paths.cache() / "downloads" / name / file, checksum, size)


def _save(
    target: Path, split: str, record: Record, features: NDArray[np.uint8],
    labels: NDArray[np.uint8], where: object,
) -> None:  # fmt: skip
    if labels.max(initial=0) >= len(record.class_names):
        raise DatasetError(f"{where} holds label {labels.max()}")
    cache.save(target, split, "features", features)
    cache.save(target, split, "labels", labels.astype(np.int64))
