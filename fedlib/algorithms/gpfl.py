"""GPFL: features are steered by embeddings of the labels (Zhang et al., 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, linear, normalize, relu

from fedlib.algorithms.fedavg import FedAvg, mean, placed
from fedlib.algorithms.splitting import Opened, Split
from fedlib.engine import Phase, State
from fedlib.federation import Federation
from fedlib.models import Net, Params, drawn, part
from fedlib.randomness import torch_seed
from fedlib.values import value

LABELS, STEERED = "labels.weight", "steered."
SIDES = ("scale", "shift")
EVERYBODY, MINE, RECEIVED = "everybody", "mine", "received_labels"


@value
class GPFL(Split):
    """Base below a personal head, which reads features steered by what the client's labels are.

    Every label has a shared embedding e_y of D numbers. Features are steered by a context c,
    steer(h; c) = ReLU(h (scale(c) + 1) + shift(c)), where scale and shift are a linear layer, ReLU
    and layer normalisation each, shared. The personal head reads features steered by the mean of
    the embeddings with the client's label shares; those steered by the plain mean should have the
    label's embedding as the nearest by cosine, and be near the received one, with the weight
    ``near``. ``decay`` is the weight decay of embeddings and steering. Contexts are of the received
    embeddings, and distances of an example; as released contexts are of those that the client had
    before, at first zero, and distances of whole batches.
    """

    near: float = 0.01
    decay: float = 0.1

    def check(self) -> None:
        FedAvg.check(self)
        if self.near < 0 or self.decay < 0:
            raise ValueError(f"GPFL needs near >= 0 and decay >= 0, got {self.near}, {self.decay}")

    @property
    def experts(self) -> str:
        """How the names of a personal head's leaves begin."""
        return "head."

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return the model, the labels' embeddings and the steering."""
        model, d = FedAvg.leaves(self, fed, seed), fed.net.width
        new = drawn(
            lambda: {
                "labels": nn.Embedding(fed.classes, d),
                **{f"{STEERED}{side}.layer": nn.Linear(d, d) for side in SIDES},
                **{f"{STEERED}{side}.norm": nn.LayerNorm(d) for side in SIDES},
            },
            torch_seed(seed, "model", 1),
        )
        return {**model, **placed(new, fed)}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is of a personal head."""
        return name.startswith("head.")

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the contexts, ``[clients, D]`` each."""
        share = fed.shares("label")[rows]
        labels = state.shared[LABELS].expand(len(rows), -1, -1)
        return {EVERYBODY: labels.mean(1), MINE: (share.unsqueeze(1) @ labels).squeeze(1)}

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return the received embeddings."""
        return {RECEIVED: state.shared[LABELS]}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase that trains everything at once."""
        names = ("base.", "head.", LABELS, STEERED)
        return (Phase(self.client, self.epochs, self.batch_size, train=names),)

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the head's cross-entropy, and what the embeddings say of the steered features."""
        y, weight = batch["y"], batch["weight"]
        h = self.features(net, params, batch)
        said = net.logits(params, steer(params, h, ctx[MINE]))
        everybody = steer(params, h, ctx[EVERYBODY])
        cosine = normalize(everybody, dim=-1) @ normalize(params[LABELS], dim=-1).mT
        losses = cross_entropy(said, y, reduction="none") + cross_entropy(
            cosine, y, reduction="none"
        )
        far = root(((everybody - ctx[RECEIVED][y]) ** 2).sum(-1))
        loss = mean(losses, weight) + self.near * mean(far, weight)
        decayed = [params[LABELS], *part(params, STEERED).values()]
        return loss + self.decay / 2 * torch.stack([(t**2).sum() for t in decayed]).sum()

    def opened(self, net: Net, params: Params, ctx: Params, code: Params) -> Opened:
        """Return the features steered by the client's own labels."""
        h = code["h"]
        return Opened(steer(params, h, ctx[MINE]), h.new_zeros(len(h), net.classes))


def steer(params: Params, h: Tensor, context: Tensor) -> Tensor:
    """Return features ``[B, D]`` steered by a context ``[D]``."""
    scale, shift = (
        _read(part(params, f"{STEERED}{side}."), context) for side in ("scale", "shift")
    )
    return relu(h * (scale + 1) + shift)


def root(squares: Tensor) -> Tensor:
    """Return the square root, whose gradient at 0 is 0."""
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1).sqrt(), 0)


def _read(layer: Params, context: Tensor) -> Tensor:
    said = relu(linear(context, layer["layer.weight"], layer["layer.bias"]))
    return layer_norm(said, said.shape[-1:], layer["norm.weight"], layer["norm.bias"])
