"""One file over HTTP: resumed, checked and retried; whole and right, or not there at all.

A file grows as `<file>.part`, with a note beside it of which version of the file that is. What is
there already is asked for again only where the server has another version, or cannot resume.
"""

import hashlib
import http.client
import json
import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError

from filelock import FileLock

from fedlib import progress
from fedlib.data.records import DatasetError

STALLED_AFTER = 30.0  # seconds without a byte
ATTEMPTS = 4  # in a row that bring less than ENOUGH
ENOUGH = 1 << 20  # bytes
PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds; doubled after every failure
LARGEST = 8 << 30  # bytes of a file of which nobody said how large it is
LARGEST_LISTING = 16 << 20
# Worth another attempt though the server answered that it will not.
_TEMPORARY = {408, 425, 429}

Found = TypeVar("Found")


class _Broken(Exception):
    """An attempt failed in a way that another one may not."""


class _Changed(_Broken):
    """What is there of a file is of no more use."""


def allowed() -> bool:
    """Whether the environment leaves downloads on (FEDLIB_DOWNLOAD=0 turns them off)."""
    return os.environ.get("FEDLIB_DOWNLOAD", "1").strip().lower() not in ("0", "false", "no", "off")


def file(urls: Sequence[str], target: Path, checksum: str, size: int | None = None) -> Path:
    """Have at `target` the file of that checksum, from the first of its addresses that has it.

    checksum: "md5:..." or "sha256:...", in hex. size: bytes, where known. Two processes download
    once. DatasetError names addresses and reasons; what arrived of a file is kept for the next try.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.is_file() and _sum(target, checksum) == checksum:
            return target
        reasons = []
        for url in urls:
            try:
                return _checked(url, target, checksum, size)
            except DatasetError as error:
                reasons.append(str(error))
    raise DatasetError(" ".join(reasons))


def listing(url: str) -> Any:
    """A JSON document. DatasetError when it cannot be had."""

    def attempt() -> Any:
        with _opened(url, {}) as response, _network():
            content = response.read(LARGEST_LISTING)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _Broken(f"the answer is no JSON: {error}") from error

    return _persist(url, attempt)


def _checked(url: str, target: Path, checksum: str, size: int | None) -> Path:
    part = target.with_name(f"{target.name}.part")
    for _ in range(2):  # what was resumed may be a mixture; a second one starts from nothing
        _persist(url, lambda: _attempt(url, part, size), lambda: _length(part))
        found = _sum(part, checksum)
        if found == checksum:
            part.replace(target)
            _note(part).unlink(missing_ok=True)
            return target
        part.unlink()
    raise DatasetError(f"{url} has checksum {found}, but {checksum} is expected.")


def _persist(url: str, attempt: Callable[[], Found], done: Callable[[], int] = lambda: 0) -> Found:
    """What an attempt returns, after failures that are followed by growing pauses."""
    failures, most = 0, done()
    while True:
        try:
            return attempt()
        except _Broken as error:
            if done() >= most + ENOUGH:
                failures = 0
            most = max(most, done())
            failures += 1
            if failures >= ATTEMPTS:
                raise DatasetError(f"{url}: {error} ({ATTEMPTS} attempts).") from error
            time.sleep(min(PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))


def _attempt(url: str, part: Path, size: int | None) -> None:
    """Bring what is missing of a file into `part`."""
    have, known = _length(part), _noted(part)
    if have and known and have == known["size"]:
        return  # complete, but its process ended before it was checked
    try:
        with _opened(url, _resume(have, known)) as response:
            start, version = _version(response)
            if start and (start != have or version != known):
                raise _Changed("the file changed while it was fetched")
            _note(part).write_text(json.dumps(version))
            _receive(url, response, part, start, _agreed(url, version["size"], size))
    except _Changed:
        part.unlink(missing_ok=True)
        raise


def _receive(url: str, response: Any, part: Path, start: int, total: int | None) -> None:
    """Write an answer's body to `part`, from `start` on, until `total` bytes are there."""
    bar = progress.bar(total or 0, f"fetching {part.stem}", done=start)
    bar.unit, bar.unit_scale = "B", True
    with part.open("ab" if start else "wb") as out, bar:
        for block in _blocks(response):
            start += out.write(block)
            bar.update(len(block))
            if start > (LARGEST if total is None else total):
                raise DatasetError(f"{url} sends more than it should: {start:,} bytes.")
    if total is not None and start < total:
        raise _Broken(f"the connection ended after {start:,} of {total:,} bytes")


def _agreed(url: str, announced: int | None, expected: int | None) -> int | None:
    """The size of a file, where anybody knows it."""
    if announced is None:
        return expected
    if announced > LARGEST if expected is None else announced != expected:
        right = f"at most {LARGEST:,}" if expected is None else f"{expected:,}"
        raise DatasetError(f"{url} has {announced:,} bytes, but {right} are expected.")
    return announced


def _resume(have: int, known: dict[str, Any] | None) -> dict[str, str]:
    """The headers that ask for the rest of the same version of a file."""
    if not have or not known:
        return {}
    tag = known["etag"]
    strong = {"If-Range": tag} if tag and not tag.startswith("W/") else {}
    return {"Range": f"bytes={have}-", **strong}


def _version(response: Any) -> tuple[int, dict[str, Any]]:
    """Where an answer starts in its file, and which version of how many bytes that is."""
    sent, start = response.headers, 0
    size = _number(sent.get("Content-Length", ""))
    if response.status == 206:
        part = re.fullmatch(r"bytes (\w+)-\w+/(\w+)", sent.get("Content-Range", "").strip())
        first, size = (_number(part[1]), _number(part[2])) if part else (None, None)
        if first is None or size is None:
            raise _Broken("the server resumes, but does not say where")
        start = first
    elif response.status != 200:
        raise _Broken(f"the server answered {response.status}")
    return start, {"etag": sent.get("ETag"), "size": size}


def _number(text: str) -> int | None:
    """The whole number that a header holds, None for anything else."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


@contextmanager
def _opened(url: str, headers: dict[str, str]) -> Iterator[Any]:
    _require_http(url)
    headers = {"User-Agent": "fedlib", "Accept-Encoding": "identity", **headers}
    try:
        request = urllib.request.Request(url, headers=headers)
        with _network():
            response = urllib.request.build_opener(_Redirects).open(request, timeout=STALLED_AFTER)
    except ValueError as error:
        raise DatasetError(f"{url} is no valid address, or leads to none: {error}.") from error
    with response:
        yield response


def _blocks(response: Any) -> Iterator[bytes]:
    while True:
        with _network():
            block = response.read1(1 << 16)  # what has come, so that a stall loses nothing
        if not block:
            return
        yield block


@contextmanager
def _network() -> Iterator[None]:
    """Tell failures of the network, which may pass, from answers and from failures of the disk."""
    try:
        yield
    except HTTPError as error:
        error.close()
        reason = f"the server answered {error.code} {error.reason}"
        if error.code == 416:
            raise _Changed(reason) from error
        if 300 <= error.code < 500 and error.code not in _TEMPORARY:
            raise DatasetError(f"{error.url}: {reason}.") from error
        raise _Broken(reason) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(" ".join(f"{type(error).__name__}: {error}".split())) from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects to the web only, and never from a safe connection to an open one."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _require_http(newurl)
        if req.type == "https" and not newurl.lower().startswith("https:"):
            raise DatasetError(f"{req.full_url} redirects to {newurl}, which is not encrypted.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _require_http(url: str) -> None:
    if not url.lower().startswith(("http://", "https://")):
        raise DatasetError(f"{url} is no http or https address.")


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _noted(part: Path) -> dict[str, Any] | None:
    """Which version of its file a part is of, None when that is not known."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        note = json.loads(_note(part).read_text())
        if isinstance(note["etag"], str | None) and isinstance(note["size"], int | None):
            return note
    return None


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _sum(path: Path, like: str) -> str:
    """The checksum of a file, of the same kind as another."""
    kind = like.partition(":")[0]
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{digest.hexdigest()}"
