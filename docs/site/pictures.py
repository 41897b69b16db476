"""Pictures of the papers' systems in one grammar, written as docs/pictures/*.svg.

Each has a server, clients, what travels between them and what stays.
A system is told in words, one for each thing: "e1" to "e6" are experts, "h1" to "h6" the private
parts of clients, "base" is what these share, "x" a client's own model, "gate" and "phi" are what
they are called, "data" is a client's examples. A "-" before a word draws it faint: there, and left
out. Pictures are SVG on a card of their own, so that they can be read on a dark page.
`python docs/site/pictures.py` writes them anew.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
INK, PALE, CARD, FIELD = "#222222", "#8a8a8a", "#ffffff", "#f3f4f6"
STEP, WIDE, HIGH = 34, 200, 96  # between things; a client's field
SHAPES = {
    "x": "M-12 -12H12V12H-12ZM-12 -12L12 12M-12 12L12 -12",
    "gate": "M0 -14L14 0L0 14L-14 0Z",
    "phi": "M-12 -12H12V12H-12ZM-4 -12V12M4 -12V12M-12 -4H12M-12 4H12",
    "base": "M-13 12H13L7 -12H-7Z",
    "h": "M-13 -9H13V9H-13Z",
}
KEY = {"e": "expert", "h": "private part", "base": "shared part", "x": "own model"}
KEY |= {"gate": "gate", "phi": "q(z|y)", "data": "data"}
SKEWED = ((0.8, 0.1, 0.1), (0.1, 0.7, 0.2), (0.2, 0.2, 0.6))  # the clients' data


@dataclass(frozen=True)
class Client:
    """A client of a picture: what stays with it, what it is sent and what it sends, in words.

    ``down`` and ``up`` are None where nothing travels. ``said`` stands below its field.
    """

    stays: str
    down: str | None = None
    up: str | None = None
    said: str = ""


@dataclass(frozen=True)
class Picture:
    """A system: the server's things, its clients, and a sentence for those who cannot see it."""

    title: str
    server: str
    clients: Sequence[Client]
    said: str

    def svg(self) -> str:
        """Return the picture as the text of an SVG file."""
        width = len(self.clients) * (WIDE + 24) + 24
        things, words = self.server.split(), self.server
        half = max(80.0, len(things) * STEP / 2 + 46)
        drawn = [
            _text(width / 2, 26, self.title, 15, weight="bold"),
            _field(width / 2 - half, 42, 2 * half, 66),
            _text(width / 2 - half + 32, 79, "server", 12),
            *_things(width / 2 + 22, 75, things),
        ]
        for i, client in enumerate(self.clients):
            drawn += _client(24 + i * (WIDE + 24), i, client)
            words += f" {client.stays} {client.down or ''} {client.up or ''}"
        there = {_kind(word) for word in words.split()}
        drawn += _key([name for name in KEY if name in there], width)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 400" width="{width}"'
        label = f' role="img" aria-label="{html.escape(self.said)}" font-family="sans-serif">'
        card = f'<rect width="{width}" height="400" rx="10" fill="{CARD}"/>'
        return "\n".join([head + label, card, *drawn, "</svg>\n"])


def _kind(word: str) -> str:
    """Return what a word stands for: a name of the key."""
    return word.lstrip("-").rstrip("123456")


def _client(left: float, i: int, client: Client) -> list[str]:
    middle = left + WIDE / 2
    drawn = [_field(left, 236, WIDE, HIGH), _text(left + 30, 256, f"client {i + 1}", 12)]
    for words, x, start, end in (
        (client.down, middle - 50, 118, 228),
        (client.up, middle + 50, 228, 118),
    ):
        if words is not None:
            half = 11 * len(words.split()) + 2
            card = f'x="{x - half}" y="158" width="{2.0 * half}" height="28" fill="{CARD}"'
            drawn += [_arrow(x, start, end), f"<rect {card}/>"]
            drawn += _things(x, 172, words.split(), 22, 0.62)
    drawn += _things(middle, 296, client.stays.split(), shares=SKEWED[i])
    return [*drawn, _text(middle, 348, client.said, 12, PALE)]


def _places(middle: float, words: Sequence[str], step: float) -> list[tuple[str, float]]:
    first = middle - step * (len(words) - 1) / 2
    return [(word, first + step * i) for i, word in enumerate(words)]


def _things(
    x: float, y: float, words: Sequence[str], step: float = STEP, size: float = 1.0, **how: Any
) -> list[str]:
    return [_one(word, at, y, size, **how) for word, at in _places(x, words, step)]


def _one(
    word: str, x: float, y: float, size: float, shares: Sequence[float] = (0.6, 0.3, 0.1)
) -> str:
    """Return one thing, about 28 units wide, with its middle at a place."""
    kind, number = _kind(word), word[-1]
    fill, ink = (COLOURS[int(number) - 1], CARD) if number.isdecimal() else (FIELD, INK)
    if kind == "data":
        bars = [(9 * i - 12, 24 * share) for i, share in enumerate(shares)]
        rect = '<rect x="{}" y="{:g}" width="7" height="{:g}" fill="' + PALE + '"/>'
        body = "".join(rect.format(at, 12 - high, high) for at, high in bars)
    elif kind == "e":
        body = f'<circle r="13" fill="{fill}"/>'
    else:
        body = f'<path d="{SHAPES[kind]}" fill="{fill}" stroke="{INK}" stroke-width="1.4"/>'
    body += _text(0, 4.5, number, 13, ink, weight="bold") if number.isdecimal() else ""
    faint = ' opacity="0.2"' if word.startswith("-") else ""
    return f'<g transform="translate({x:g} {y:g}) scale({size:g})"{faint}>{body}</g>'


def _key(names: Sequence[str], width: float) -> list[str]:
    drawn = []
    for name, x in _places(width / 2, names, min(112.0, (width - 40) / len(names))):
        word = name + "1" if name in "eh" else name
        drawn += [_one(word, x - 34, 378, 0.55), _text(x - 22, 382, KEY[name], 11, anchor="start")]
    return drawn


def _field(x: float, y: float, width: float, height: float) -> str:
    at = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"'
    return f'<rect {at} fill="{FIELD}" stroke="{PALE}"/>'


def _arrow(x: float, start: float, end: float) -> str:
    tip = 7 if end > start else -7
    line = f'<path d="M{x:g} {start:g}V{end:g}" stroke="{INK}" stroke-width="1.6"/>'
    return line + f'<path d="M{x - 5:g} {end - tip:g}H{x + 5:g}L{x:g} {end:g}Z" fill="{INK}"/>'


def _text(
    x: float, y: float, said: str, size: float, fill: str = INK, weight: str = "normal",
    anchor: str = "middle",
) -> str:  # fmt: skip
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{html.escape(said)}</text>' if said else ""


_MIXED = Client("data gate", "e1 e2 e3 phi", "e1 e2 e3 phi", "trains all experts and its gate")
_POOL = "h1 h2 h3"


def _pooled(own: int, choice: str = _POOL, said: str = "trains its gate only") -> Client:
    return Client(f"data {choice} gate", f"base {_POOL}", f"h{own}", said)


PICTURES = {
    "fedmix": Picture(
        "FedMix: experts are shared, gates stay at home",
        "e1 e2 e3 phi",
        [_MIXED] * 3,
        "The server sends all experts and the table q(z|y) to each client. A client trains them "
        "and a gate of its own, which never leaves it, and sends experts and table back.",
    ),
    "pruning": Picture(
        "FedMix with pruning: only the experts that a client uses travel",
        "e1 e2 e3 phi",
        [
            Client("data gate", "e1 e2 -e3 phi", "e1 -e2 -e3 phi", "prunes another one"),
            Client("data gate", "-e1 e2 -e3 phi", "-e1 e2 -e3 phi", "uses expert 2 only"),
            Client("data gate", "-e1 e2 e3 phi", "-e1 e2 e3 phi", "uses experts 2 and 3"),
        ],
        "An expert of which a client makes little use is neither trained nor sent back, and later "
        "the server no longer sends it.",
    ),
    "opt_out": Picture(
        "Local and global experts: everyone has both, and shares data or not",
        "e1",
        [
            *[Client("data e1 x gate", "e1", "e1", "opts in")] * 2,
            Client("data e1 x gate", "e1", None, "opts out: sends nothing"),
        ],
        "The server's model is the global expert. Each client has a copy, a local expert and a "
        "gate between them. A client that opts out receives the global expert and sends nothing.",
    ),
    "ifca": Picture(
        "Adaptive experts: each client trains one cluster, now and then a random one",
        "e1 e2 e3",
        [
            Client("data", "e1 e2 e3", "e1 -e2 -e3", "1 fits best"),
            Client("data", "e1 e2 e3", "-e1 e2 -e3", "2 fits best"),
            Client("data", "e1 e2 e3", "-e1 -e2 e3", "2 fits best: explores 3"),
        ],
        "The server sends all cluster models. A client trains the one that fits its data best, or "
        "with a small probability one at random, and sends back that one only.",
    ),
    "mixture": Picture(
        "Adaptive experts: then each client mixes all clusters with its own model",
        "e1 e2 e3",
        [Client("data x gate", "e1 e2 e3", None, "trains x, then its gate")] * 3,
        "Each client receives all cluster models, trains a local expert, and then a gate over all "
        "of them. Nothing is sent back.",
    ),
    "parts": Picture(
        "Personalised methods: one part of the model is shared, one stays",
        "base",
        [Client(f"data h{i}", "base", "base", "trains both") for i in (1, 2, 3)],
        "The server averages the base of the model; each client's head never leaves it. "
        "Methods differ in which part stays and in how the parts are trained.",
    ),
    "pm_moe": Picture(
        "PM-MoE: every client chooses among the private parts of all",
        f"base {_POOL}",
        [_pooled(1), _pooled(2), _pooled(3)],
        "Clients send their private parts to the server, which sends all of them to everybody. "
        "Nothing of these is trained any more; each client trains a gate that mixes them.",
    ),
    "denoising": Picture(
        "Energy denoising: parts that are sure of the wrong examples are left out",
        f"base {_POOL}",
        [
            _pooled(1, "h1 h2 -h3", "leaves out the third"),
            _pooled(2, "-h1 h2 h3", "leaves out the first"),
            _pooled(3, "h1 -h2 h3", "leaves out the second"),
        ],
        "As PM-MoE, but for each example the private parts whose energy says that they do not "
        "know it are left out before the gate mixes the others.",
    ),
}
"""FedMix, its pruning, opting out, clusters, the mixture over them, parts, PM-MoE, denoising."""

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (Path(__file__).parents[1] / "pictures" / f"{name}.svg").write_text(picture.svg())
