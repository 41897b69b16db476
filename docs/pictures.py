"""Pictures of the papers' systems: `python docs/pictures.py` draws ``docs/pictures/``.

One grammar for all: a server, clients, what travels between them, and what stays.
``pictures.json`` has what each shows: FedMix, its pruning, opting out, clusters, the mixture over
them, parts, PM-MoE and denoising.

A system is told in words, one for each thing: "e1" to "e6" are experts, "h1" to "h6" the private
parts of clients, "base" is what these share, "x" a client's local expert, "gate" and "phi" are what
they are called, "data" is a client's examples. A "-" before a word draws it faint: there, and left
out; a "/" begins a row. Pictures are SVG on a card of their own, so that they can be read on a dark
page, and narrow enough for the letters to be read on a phone.
"""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
INK, PALE, CARD, FIELD = "#222222", "#707070", "#ffffff", "#f3f4f6"
STEP, WIDE, HIGH, TALL = 32, 144, 106, 432  # between things; a client's field; the whole
MIDDLE, BOLD = 'text-anchor="middle"', 'text-anchor="middle" font-weight="bold"'
SHAPES = {
    "x": "M-12 -12H12V12H-12ZM-12 -12L12 12M-12 12L12 -12",
    "gate": "M0 -14L14 0L0 14L-14 0Z",
    "phi": "M-12 -12H12V12H-12ZM-4 -12V12M4 -12V12M-12 -4H12M-12 4H12",
    "base": "M-13 12H13L7 -12H-7Z",
    "h": "M-13 -9H13V9H-13Z",
}
KEY = {"e": "expert", "h": "private part", "base": "shared part", "x": "local expert"}
KEY |= {"gate": "gate", "phi": "q(z|y)", "data": "data", "-": "left out"}
SKEWED = ((0.8, 0.1, 0.1), (0.1, 0.7, 0.2), (0.2, 0.2, 0.6))  # the clients' data


@dataclass(frozen=True)
class Client:
    """A client of a picture: what stays with it, what it is sent and what it sends, in words.

    ``down`` and ``up`` are None where nothing travels. ``caption`` stands below its field.
    """

    stays: str
    down: str | None = None
    up: str | None = None
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A system: the server's things, its clients, and a sentence for those who cannot see it."""

    title: str
    server: str
    clients: Sequence[Client]
    alt: str

    def svg(self) -> str:
        """Return the picture as the text of an SVG file."""
        width = len(self.clients) * (WIDE + 8) + 8
        things, words = self.server.split(), self.server
        half = len(things) * STEP / 2 + 46
        name, _, what = self.title.partition(": ")
        drawn = [
            _field(0, 0, width, TALL, CARD),
            _text(width / 2, 24, name, 16, how=BOLD),
            _text(width / 2, 46, what, 15),
            _field(width / 2 - half, 60, 2 * half, 56),
            _text(width / 2 - half + 34, 93, "server", 14),
            *_things(width / 2 + 28, 88, things),
        ]
        for i, client in enumerate(self.clients):
            drawn += _client(8 + i * (WIDE + 8), i, client)
            words += f" {client.stays} {client.down or ''} {client.up or ''}"
        each = words.replace("/", "").split()[::-1]
        drawn += _key({"-" if word[0] == "-" else _kind(word): word for word in each}, width)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TALL}"'
        label = f' role="img" aria-label="{html.escape(self.alt)}" font-family="sans-serif">'
        return "\n".join([f'{head} width="{width}"{label}', *drawn, "</svg>\n"])


def _kind(word: str) -> str:
    """Return what a word stands for: a name of the key."""
    return word.lstrip("-").rstrip("123456")


def _client(left: float, i: int, client: Client) -> list[str]:
    middle = left + WIDE / 2
    drawn = [_field(left, 244, WIDE, HIGH), _text(left + 33, 263, f"client {i + 1}", 14)]
    down, up = (client.down, middle - 36, 124, 236), (client.up, middle + 36, 236, 124)
    for sent, x, start, end in (down, up):
        if sent is not None:
            things, drawn = sent.split(), [*drawn, _arrow(x, start, end)]
            for row, y in _places(180, [things[:2], things[2:]] if things[3:] else [things], 28):
                drawn.append(_field(x - 12 * len(row), y - 14, 24 * len(row), 28, CARD))
                drawn += _things(x, y, row, 23, 0.78)
    for row, y in _places(305, [row.split() for row in client.stays.split("/")], 34):
        drawn += _things(middle, y, row, shares=SKEWED[i])
    lines = wrap(client.caption, 20)
    return drawn + [_text(middle, 368 + 17 * k, line, 14, PALE) for k, line in enumerate(lines)]


def _places(middle: float, words: Sequence[Any], step: float) -> list[tuple[Any, float]]:
    first = middle - step * (len(words) - 1) / 2
    return [(word, first + step * i) for i, word in enumerate(words)]


def _things(
    x: float, y: float, words: Sequence[str], step: float = STEP, size: float = 1.0, **how: Any
) -> list[str]:
    return [_one(word, at, y, size, **how) for word, at in _places(x, words, step)]


def _one(word: str, x: float, y: float, size: float, shares: Sequence[float] = SKEWED[0]) -> str:
    """Return one thing, about 28 units wide, with its middle at a place."""
    kind, number = _kind(word), word[-1]
    fill = COLOURS[int(number) - 1] if number.isdecimal() else FIELD
    ink = CARD if number in "16" else INK
    if kind == "data":
        bars = [(9 * i - 12, 24 * share) for i, share in enumerate(shares)]
        rect = '<rect x="{}" y="{:g}" width="7" height="{:g}" fill="' + PALE + '"/>'
        body = "".join(rect.format(at, 12 - high, high) for at, high in bars)
    elif kind == "e":
        body = f'<circle r="13" fill="{fill}"/>'
    else:
        body = f'<path d="{SHAPES[kind]}" fill="{fill}" stroke="{INK}" stroke-width="1.4"/>'
    body += _text(0, 5.2, number, 15, ink, BOLD) if number.isdecimal() else ""
    faint = ' opacity="0.3"' if word.startswith("-") else ""
    return f'<g transform="translate({x:g} {y:g}) scale({size:g})"{faint}>{body}</g>'


def _key(words: Mapping[str, str], width: float) -> list[str]:
    """Return the key: a word for each of the names that are there."""
    names = [(KEY[name], words[name]) for name in KEY if name in words]
    drawn, x = [], (width - sum(34 + 7 * len(name) for name, _ in names)) / 2
    for name, word in names:
        drawn += [_one(word, x + 8, 412, 0.55), _text(x + 20, 416, name, 12.5, how="")]
        x += 34 + 7 * len(name)
    return drawn


def _field(x: float, y: float, width: float, height: float, fill: str = FIELD) -> str:
    at = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"'
    return f'<rect {at} fill="{fill}" stroke="{PALE if fill == FIELD else fill}"/>'


def _arrow(x: float, start: float, end: float) -> str:
    tip = 7 if end > start else -7
    line = f'<path d="M{x:g} {start:g}V{end:g}" stroke="{INK}" stroke-width="1.6"/>'
    return line + f'<path d="M{x - 5:g} {end - tip:g}H{x + 5:g}L{x:g} {end:g}Z" fill="{INK}"/>'


def _text(x: float, y: float, text: str, size: float, fill: str = INK, how: str = MIDDLE) -> str:
    style = f'font-size="{size}" fill="{fill}" {how}'
    return f'<text x="{x:g}" y="{y:g}" {style}>{html.escape(text)}</text>'


HERE = Path(__file__).parent
PICTURES = {
    name: Picture(**{**told, "clients": [Client(*words) for words in told["clients"]]})
    for name, told in json.loads((HERE / "pictures.json").read_text("utf-8")).items()
}

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (HERE / "pictures" / f"{name}.svg").write_text(picture.svg(), "utf-8")
