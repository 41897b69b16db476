"""Official sets from the Hugging Face hub: huggingface_hub fetches and keeps files, we check them.

Files are those of one commit, and the library keeps each under the SHA-256 that the hub tells of
it, but does not compare that with what arrived.
"""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

from fedlib import paths, progress
from fedlib.data import parquet
from fedlib.data.records import DatasetError, Record

# Failures of the disk: no fault of the hub, and another attempt will not help.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES}


def allowed() -> bool:
    """Whether the environment leaves downloads on (FEDLIB_DOWNLOAD=0 turns them off)."""
    return os.environ.get("FEDLIB_DOWNLOAD", "1").strip().lower() not in ("0", "false", "no", "off")


def store(name: str, record: Record, target: Path) -> dict[str, Any]:
    """Fetch a set and decode it into the cache entry `target`; returns what readers shall know.

    DatasetError, with the file and both checksums, when one is damaged twice in a row.
    """
    repository, _, folder = record.hub.rpartition("/")
    for last in (False, True):
        snapshot = _snapshot(repository, folder, record)
        files = parquet.files_of(snapshot / folder, record)
        expected = {path: path.resolve().name for part in files.values() for path in part}
        damaged = {path: found for path in expected if (found := _sum(path)) != expected[path]}
        for path, found in damaged.items():
            if last:
                raise DatasetError(
                    f"{folder}/{path.name} of {repository} has SHA-256 {found}, but "
                    f"{expected[path]} is expected."
                )
            path.resolve().unlink()
            path.unlink(missing_ok=True)  # what links to it
        if not damaged:
            break
    if lacking := [split for split, part in files.items() if not part]:
        raise DatasetError(f"{repository} has no files of split {lacking[0]!r} in {folder}.")
    parquet.require_official(name, record, files, repository)
    return parquet.store(files, record, target, name) | {
        "source": f"downloaded from the Hugging Face hub, {repository}",
        "revision": snapshot.name,
        "checksums": {path.name: checksum for path, checksum in expected.items()},
    }


def _snapshot(repository: str, folder: str, record: Record) -> Path:
    """The folder of a commit, with the files of a set in it. DatasetError when it cannot be had."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if progress.quiet() or not progress.watched():
        disable_progress_bars()
    try:
        found = snapshot_download(
            repository,
            repo_type="dataset",
            revision=record.revision,
            allow_patterns=[f"{folder}/{split}-*.parquet" for split in record.splits],
            cache_dir=paths.cache() / "downloads",
            endpoint=os.environ.get("HF_ENDPOINT") or None,
        )
    except Exception as error:  # of its HTTP library too, which is another in every version
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DatasetError(f"{repository} cannot be had: {reason}.") from error
    return Path(found)


def _sum(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
