"""Ways to damage a file: bytes cut, flipped and swapped, false headers, and hostile JSON."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

Way = Callable[[random.Random, bytes], bytes]

DEEP = 100_000
HOSTILE = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "1e308", "9" * 400, "9" * 5000, "-0.0",
    "null", "true", '""', "[]", "{}", '"' + "x" * 100_000 + '"', '"\\ud800"',
    "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 500 + "]" * 500,
    '{"kind": "os.system"}', '{"kind": "__class__"}', '{"kind": "Experiment"}',
    '{"kind": "FromFunction", "function": "os:system"}',
    '{"kind": "FromFunction", "function": "builtins:exec"}',
    '{"kind": "FedAvg"}', '{"kind": ["FedAvg"]}', '{"kind": "eval", "code": "1"}',
    '{"__class__": "os.system"}',
    '{"__reduce__": ["os.system", ["true"]]}', '"__import__(\'os\').system(\'true\')"',
)  # fmt: skip
"""JSON values that files of fedlib hold in few of their places."""


def cut(rng: random.Random, data: bytes) -> bytes:
    """Truncate at a random place."""
    return data[: rng.randrange(len(data))]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Flip one random bit."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def scramble(rng: random.Random, data: bytes) -> bytes:
    """Overwrite a random stretch with random bytes."""
    at = rng.randrange(len(data))
    length = rng.randint(1, 64)
    return data[:at] + rng.randbytes(length) + data[at + length :]


def garbage(rng: random.Random, data: bytes) -> bytes:
    """Replace all bytes by random ones."""
    return rng.randbytes(rng.choice((0, 1, 8, 100, len(data))))


def zeros(rng: random.Random, data: bytes) -> bytes:
    """Overwrite a random stretch with zeros, as after a crash of the machine."""
    at = rng.randrange(len(data))
    length = rng.randint(1, len(data) - at)
    return data[:at] + bytes(length) + data[at + length :]


BYTES: tuple[Way, ...] = (cut, flip, flip, flip, scramble, garbage, zeros)


def in_json(rng: random.Random, data: bytes) -> bytes:
    """Replace a random part of a JSON text by something hostile, or drop or rename it."""
    box, mark = [json.loads(data)], "\x00here\x00"
    holder, key = rng.choice([*_places(box)])
    how = rng.random()
    if isinstance(holder, dict) and how < 0.15:
        holder.pop(key)
    elif isinstance(holder, dict) and how < 0.3:
        holder[rng.choice(("kind", "__class__", "", f"{key}x"))] = holder.pop(key)
    else:
        holder[key] = mark
    return json.dumps(box[0]).replace(json.dumps(mark), rng.choice(HOSTILE)).encode()


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every part of JSON data as its container and its key there."""
    pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for key, item in list(pairs):
        yield holder, key
        if isinstance(item, dict | list):
            yield from _places(item)


def in_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Falsify the header of a safetensors file: its length, offsets, shapes, types, metadata."""
    (length,) = struct.unpack("<Q", data[:8])
    head, body = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.2:
        lie = rng.choice((0, 1, length - 1, length + 1, 100_000_001, 2**40, 2**63, 2**64 - 1))
        return struct.pack("<Q", lie) + head + body
    said = json.loads(head)
    tensor = said[rng.choice([n for n in said if n != "__metadata__"])]
    first, last = tensor["data_offsets"]
    lies: list[Callable[[], object]] = [
        lambda: tensor.update(data_offsets=[-1, last]),
        lambda: tensor.update(data_offsets=[first, 2**62]),
        lambda: tensor.update(data_offsets=[last, first]),
        lambda: tensor.update(data_offsets=[0, last - first]),
        lambda: tensor.update(shape=[2**31, 2**31, 2**31]),
        lambda: tensor.update(shape=[-1]),
        lambda: tensor.update(dtype=rng.choice(("F64", "I8", "object", "os.system"))),
        lambda: said["__metadata__"].update(completed=rng.choice(("-1", "1", "9" * 5000, "NaN"))),
        lambda: said["__metadata__"].update(segments=rng.choice(HOSTILE)),
        lambda: said.pop("__metadata__"),
        lambda: said["__metadata__"].update(data="elsewhere, ffff"),
    ]
    rng.choice(lies)()
    text = json.dumps(said).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body
