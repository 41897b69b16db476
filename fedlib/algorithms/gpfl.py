"""GPFL: features are steered by embeddings of the labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, linear, normalize, relu

from fedlib.algorithms.arithmetic import mean, placed
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.splitting import Opened, Split
from fedlib.engine import State
from fedlib.federation import Federation
from fedlib.models import Net, Params, drawn, part
from fedlib.randomness import torch_seed
from fedlib.values import value, within

LABELS, STEERED = "labels.weight", "steered."
SIDES = ("scale", "shift")
EVERYBODY, MINE, RECEIVED = "everybody", "mine", "received_labels"


@value
class GPFL(Split):
    """Base below a personal head, which reads features steered by what the client's labels are.

    Every label y has a shared embedding e_y of D numbers; scale and shift, shared, are a linear
    layer, ReLU and layer normalisation each. ``near`` is lambda, ``decay`` mu, the weight decay of
    embeddings and steering.

        steer(h; c) = ReLU(h (scale(c) + 1) + shift(c))
        logits      = head_s(steer(h; c_s)),  c_s = sum_y p(y|s) e_y,  c_g = mean_y e_y
        loss        = CE(logits) + CE(cos(steer(h; c_g), e)) + lambda |steer(h; c_g) - e_y|
                      + mu/2 (|e|^2 + |steering|^2)

    Contexts c and the e_y of the distance are of the received embeddings.

    Reference: Zhang et al., GPFL: simultaneously learning global and personalized feature
    information for personalized federated learning, ICCV 2023. A method of 004. Deviation: as
    released contexts are of the embeddings that the client had before, at first zero, and the
    distance is of whole batches.

    >>> root(torch.tensor([4.0, 0.0]))  # distances; the gradient at 0 is 0
    tensor([2., 0.])
    """

    experts = "head."
    trains = ("base.", "head.", LABELS, STEERED)
    limits = within(near=">= 0", decay=">= 0")
    near: float = 0.01
    decay: float = 0.1

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

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return the contexts, ``[clients, D]`` each."""
        share = fed.shares("label")[rows]
        labels = state.shared[LABELS].expand(len(rows), -1, -1)
        return {EVERYBODY: labels.mean(1), MINE: (share.unsqueeze(1) @ labels).squeeze(1)}

    def broadcast(self, fed: Federation, state: State) -> Params:
        """Return the received embeddings."""
        return {RECEIVED: state.shared[LABELS]}

    def loss(self, net: Net, params: Params, ctx: Params, batch: Params) -> Tensor:
        """Return the head's cross-entropy, and what the embeddings say of the steered features."""
        y, weight = batch["y"], batch["weight"]
        h = self.features(net, params, batch)
        said = net.logits(params, steer(params, h, ctx[MINE]))
        everybody = steer(params, h, ctx[EVERYBODY])
        cosine = normalize(everybody, dim=-1) @ normalize(params[LABELS], dim=-1).mT
        right, near = (cross_entropy(a, y, reduction="none") for a in (said, cosine))
        losses = right + near
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

    def read(layer: Params) -> Tensor:
        said = relu(linear(context, layer["layer.weight"], layer["layer.bias"]))
        return layer_norm(said, said.shape[-1:], layer["norm.weight"], layer["norm.bias"])

    scale, shift = (read(part(params, f"{STEERED}{side}.")) for side in SIDES)
    return relu(h * (scale + 1) + shift)


def root(squares: Tensor) -> Tensor:
    """Return the square root, whose gradient at 0 is 0."""
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1).sqrt(), 0)
