"""Official files from the web, decoded: the hub's Parquet, CIFAR's archives, MNIST's mirrors."""

import os
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fedlib import paths
from fedlib.datasets import cache, download, parquet, vision
from fedlib.datasets.records import Archive, DatasetError, Record

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
    entries = download.listing(
        f"{hub}/api/datasets/{owner}/{repository}/tree/main/{folder}?recursive=true"
    )
    known = _checksums(entries, folder, f"{hub}/datasets/{owner}/{repository}")
    base = mirror(name) or f"{hub}/datasets/{owner}/{repository}/resolve/main/{folder}"
    files: dict[str, list[Path]] = {}
    for split in record.splits:
        files[split] = [
            download.file([f"{base}/{quote(file)}"], _folder(name) / file, *known[file])
            for file in parquet.shards(known, split, f"{hub}/datasets/{record.hub}")
        ]
        if not files[split]:
            raise DatasetError(f"{hub}/datasets/{record.hub} has no files of split {split!r}.")
    parquet.require_official(name, record, files, f"{hub}/datasets/{record.hub}")
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
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise DatasetError(f"{where} lists its files in an unknown way: {error!r}.") from error
    return known


def _from_archive(name: str, record: Record, target: Path) -> dict[str, Any]:
    archive = record.archive
    assert archive is not None
    base = mirror(name)
    file = archive.url.rpartition("/")[2]
    checksum = f"md5:{archive.md5}"
    url = f"{base}/{file}" if base else archive.url
    path = download.file([url], _folder(name) / file, checksum)
    splits = zip(("train", "test"), (archive.train, archive.test), record.sizes, strict=True)
    try:
        with tarfile.open(path, "r:gz") as tar:
            for split, members, size in splits:
                _unpack(tar, archive, record, members, size, target, split)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} is not a readable archive: {error}") from error
    host = archive.url.rpartition("/")[0].partition("//")[2]
    return {"source": f"downloaded from {host}", "checksums": {file: checksum}}


def _unpack(
    tar: tarfile.TarFile,
    archive: Archive,
    record: Record,
    members: tuple[str, ...],
    size: int,
    target: Path,
    split: str,
) -> None:
    """Save the arrays of a split from its members, which are read in place, never extracted."""
    height, width, channels = record.shape
    first = len(archive.labels)
    row = first + height * width * channels
    content = b"".join(_member(tar, name, size // len(members) * row) for name in members)
    rows = np.frombuffer(content, np.uint8).reshape(size, row)
    pixels = rows[:, first:].reshape(size, channels, height, width).transpose(0, 2, 3, 1)
    labels = rows[:, first - 1].astype(np.int64)
    if labels.max(initial=0) >= len(record.class_names):
        raise DatasetError(f"{tar.name!r}: label {labels.max()} in {', '.join(members)}")
    cache.save(target, split, "features", np.ascontiguousarray(pixels))
    cache.save(target, split, "labels", labels)
    for i, column in enumerate(archive.labels[:-1]):
        cache.save(target, split, cache.EXTRA + column, rows[:, i].astype(np.int64))


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
    base = mirror(name)
    for file, md5, urls in vision.resources(record):
        checksum = f"md5:{md5}"
        urls = (f"{base}/{file}",) if base else urls
        path = download.file(urls, _folder(name) / file, checksum)
        shape = record.shape if "images" in file else ()
        arrays[file.partition("-idx")[0]] = vision.read_idx(path, shape)
        taken[file] = checksum
    for split, prefix, size in zip(("train", "test"), ("train", "t10k"), record.sizes, strict=True):
        features, labels = arrays[f"{prefix}-images"], arrays[f"{prefix}-labels"]
        if not len(features) == len(labels) == size:
            raise DatasetError(f"{len(features):,} {split} examples where {size:,} are expected")
        if labels.max(initial=0) >= len(record.class_names):
            raise DatasetError(f"{prefix}-labels holds label {labels.max()}")
        cache.save(target, split, "features", features)
        cache.save(target, split, "labels", labels.astype(np.int64))
    host = f"the mirrors of torchvision's {record.torchvision}"
    return {"source": f"downloaded from {host}", "checksums": taken}


def _folder(name: str) -> Path:
    """Where the files of a dataset are downloaded to."""
    return paths.cache() / "downloads" / name
