"""Pictures of the papers' systems, by name."""

from companion.pictures import Client, Picture

_MIXED = Client("data gate", "e1 e2 e3 phi", "e1 e2 e3 phi", "trains experts and its gate")
_POOL = "h1 h2 h3"


def _pooled(own: int, choice: str = _POOL, said: str = "trains its gate only") -> Client:
    return Client(f"{choice} / data gate", f"base {_POOL}", f"h{own}", said)


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
        "Local and global experts: every client has both, and may opt out",
        "e1",
        [
            *[Client("e1 x / data gate", "e1", "e1", "opts in")] * 2,
            Client("e1 x / data gate", "e1", None, "opts out, sends nothing"),
        ],
        "The server's model is the global expert. Each client has a copy, a local expert and a "
        "gate between them. A client that opts out receives the global expert and sends nothing.",
    ),
    "ifca": Picture(
        "Adaptive experts: a client trains one cluster, at times a random one",
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
        "Adaptive experts: then a gate mixes clusters and a local expert",
        "e1 e2 e3",
        [Client("e1 e2 e3 x / data gate", "e1 e2 e3", None, "trains local expert, then gate")] * 3,
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
        "Energy denoising: parts least like a client's own are left out",
        f"base {_POOL}",
        [
            _pooled(1, "h1 h2 -h3", "leaves out part 3"),
            _pooled(2, "-h1 h2 h3", "leaves out part 1"),
            _pooled(3, "h1 -h2 h3", "leaves out part 2"),
        ],
        "As PM-MoE, but before a client trains its gate, it leaves out the private parts with the "
        "least energy score: those whose outputs on its training examples agree least with its "
        "own part's.",
    ),
}
"""FedMix, its pruning, opting out, clusters, the mixture over them, parts, PM-MoE, denoising."""
