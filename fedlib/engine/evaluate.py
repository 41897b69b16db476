"""Evaluation of all clients in large batches; what is shared is computed once per example."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.engine import costs
from fedlib.engine.program import one_client, vmap_clients
from fedlib.engine.protocol import LOG_DENSITY, Algorithm, State, eval_view, tensors, train_view
from fedlib.federation import ClientData, Federation
from fedlib.models import Batch, FunctionalModel, Params
from fedlib.parallel import map_chunks, map_ordered
from fedlib.values import short_repr


@dataclass(eq=False)
class Scores:
    """What an evaluation found, client by client.

    ``accuracy`` and ``nll`` float64 ``[clients]`` (nan for a client without examples); ``gate``
    float64 ``[classes, K]`` or None: the mean of p(z|x, s) over the examples of each label.
    """

    accuracy: np.ndarray
    nll: np.ndarray
    gate: np.ndarray | None = None


@dataclass(eq=False)
class Encoded:
    """What the shared leaves say of a table's examples, each computed once.

    ``code`` ``[examples, ...]`` by name; ``at`` ``[N]`` is an example's place in it.
    """

    code: Params
    at: Tensor

    def of(self, examples: Tensor) -> Params:
        """Return the code of some of the table's examples, ``[*examples.shape, ...]`` each."""
        return {n: t[self.at[examples]] for n, t in self.code.items()}


def encode(
    fed: Federation, algorithm: Algorithm, state: State, table: ClientData, everything: bool = False
) -> Encoded:
    """Encode the examples of ``table`` that some client holds, or all of them."""
    held = torch.full((len(table.y),), everything, device=fed.device)
    held[table.indices] = True
    used = torch.nonzero(held)[:, 0]
    at = torch.zeros(len(table.y), dtype=torch.int64, device=fed.device)
    at[used] = torch.arange(len(used), device=fed.device)

    def encode_block(some: Tensor) -> Params:
        with torch.no_grad():
            return algorithm.shared_forward(fed.net, state.server_params, table.inputs(some))

    parts = map_ordered(encode_block, used.split(costs.BLOCK), "examples") if len(used) else []
    return Encoded({n: torch.cat([p[n] for p in parts]) for n in parts[0]} if parts else {}, at)


def evaluate(
    fed: Federation,
    algorithm: Algorithm,
    state: State,
    table: ClientData,
    encoded: Encoded | None = None,
) -> Scores:
    """Score every client on its own examples of ``table`` with the server's current leaves."""
    fed = eval_view(algorithm, fed)
    state = algorithm.assign_clusters(fed, state)
    encoded = encoded or encode(fed, algorithm, state, table)
    hits, lost = torch.zeros(fed.num_clients).double(), torch.zeros(fed.num_clients).double()
    sizes = np.asarray(table.sizes)
    everyone = np.flatnonzero(sizes)
    ask = _asking(fed, algorithm, state)

    def score(group: np.ndarray) -> tuple[Tensor, ...]:
        clients = torch.as_tensor(group, device=fed.device)
        held, mask = table.padded(group)
        y, code = table.y[held], encoded.of(held)
        out = ask(algorithm.predict, clients, code)
        if not hasattr(out, "logp"):
            what = "must return a Prediction, as Prediction.single(logp)"
            raise TypeError(f"{type(algorithm).__name__}.predict {what}, got {short_repr(out)}")
        _require_log_probs(algorithm, out.logp)
        right = ((out.logp.argmax(-1) == y) & mask).sum(1).double()
        nll = torch.where(mask, _surprise(out.logp, y), 0).sum(1).double()
        # Not y[:0], which would keep all of y until the last group is scored.
        seen = (y[mask], out.gate[mask]) if out.gate.shape[-1] else (torch.empty(0),) * 2
        return torch.stack([right, nll]).cpu(), *seen

    most = partial(costs.prediction_width, fed, encoded.code)
    groups = (
        [everyone[i] for i in costs.group_by_size(sizes[everyone], most)] if len(everyone) else []
    )
    found = map_ordered(score, groups, "scores")
    for group, (sums, *_) in zip(groups, found, strict=True):
        hits[group], lost[group] = sums
    gates = [(y, gate) for _, y, gate in found if gate.shape[-1]]
    gate = _by_label(gates, fed.classes) if gates else None
    with np.errstate(invalid="ignore", divide="ignore"):
        return Scores(hits.numpy() / sizes, lost.numpy() / sizes, gate)


def evaluate_global(
    fed: Federation, algorithm: Algorithm, state: State, encoded: Encoded | None = None
) -> float:
    """Return the accuracy on all test examples of what the clients predict together.

    The ``new_client_output`` of those who take part is averaged with p(s) = N_s / N, or with p(s|x)
    where they say how well they know it (000, App. F), and made a prediction by
    ``combine_clients``: for an algorithm without local leaves that is the global model, for FedMix
    the mixture with the gates marginalised. ``encoded`` must hold every test example. Where an
    output runs a personal network for every example, ``MOST`` examples at even distances stand for
    all.
    """
    fed = eval_view(algorithm, fed)
    state = algorithm.assign_clusters(fed, state)
    encoded = encoded or encode(fed, algorithm, state, fed.test, everything=True)
    inside, clients = train_view(algorithm, fed), fed.num_clients
    rows = inside.member_rows
    sizes, first = inside.sizes[rows], rows.new_zeros(1)
    if not state.client_params and not algorithm.client_constants(fed, state, first):
        rows, sizes, clients = first, sizes.new_ones(1), 1  # all say the same, whoever opts out
    log_share = (sizes / sizes.sum()).to(torch.float32).log().unsqueeze(1)
    ask = _asking(fed, algorithm, state)
    every = costs.test_stride(encoded.code, len(fed.test.y), clients)
    asked = torch.arange(0, len(fed.test.y), every, device=fed.device)

    def hits(block: Tensor) -> int:
        code = encoded.of(block)
        groups = rows.split(costs.prediction_width(fed, code, len(block)))
        output_of = lambda net, w, ctx, _: algorithm.new_client_output(net, w, ctx, code)  # noqa: E731
        each = (ask(output_of, i, {}) for i in groups)
        first, log_p = next(each), log_share.expand(-1, len(block))
        said: Iterable[Params] = chain([first], each)
        if LOG_DENSITY in first:  # only then are all held at once: as small as FedMix's gates are
            said = [*said]
            log_p = log_p + torch.cat([one.pop(LOG_DENSITY) for one in said]).to(log_share)
        shares = log_p.softmax(0).split([len(i) for i in groups])
        outputs: Params = {}
        for share, output in zip(shares, said, strict=True):
            for name, t in output.items():
                part = torch.einsum("sb,sb...->b...", share, t)
                outputs[name] = outputs[name] + part if name in outputs else part
        with torch.no_grad():
            logp = algorithm.combine_clients(fed.net, state.server_params, code, outputs)
        return int((logp.argmax(-1) == fed.test.y[block]).sum())

    blocks = asked.split(costs.BLOCK)
    return sum(right for _, right in map_chunks(hits, blocks, "newcomers")) / len(asked)


def evaluate_everywhere(
    fed: Federation, algorithm: Algorithm, state: State, encoded: Encoded | None = None
) -> np.ndarray:
    """Return every client's accuracy on the same examples of the test split, ``[clients]``.

    They are at most ``MOST`` of all test examples, at even distances, which ``encoded`` must hold:
    how much of what a client has learned is about more than its own data.
    """
    every = -(-len(fed.test.y) // costs.MOST)
    some = torch.arange(0, len(fed.test.y), every, device=fed.device)
    encoded = encoded or encode(fed, algorithm, state, fed.test, everything=True)
    first, like = _alike(fed, algorithm, state, encoded.of(some[:1]))
    sizes = np.zeros(fed.num_clients, dtype=np.int64)
    sizes[first] = len(some)
    table = replace(fed.test, indices=some, sizes=sizes, side={}, shared=True)
    return evaluate(fed, algorithm, state, table, encoded).accuracy[first][like]


class _Noted(Mapping[str, Tensor]):
    """Tensors by name, and which of them were looked at."""

    def __init__(self, of: Params) -> None:
        self.of, self.seen = of, set[str]()

    def __getitem__(self, name: str) -> Tensor:
        self.seen.add(name)
        return self.of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.of)

    def __len__(self) -> int:
        return len(self.of)


def _alike(
    fed: Federation, algorithm: Algorithm, state: State, code: Params
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of clients no two of whom predict alike, and which of these each is like.

    Two do if a prediction looks at no leaf of their own, and finds the same in what it looks at of
    their context: all of FedAvg's clients, those of one cluster of IFCA's.
    """
    fed = eval_view(algorithm, fed)
    state = algorithm.assign_clusters(fed, state)
    clients = torch.arange(fed.num_clients, device=fed.device)
    context = algorithm.client_constants(fed, state, clients)
    mine, theirs = ({n: t[0] for n, t in of.items()} for of in (state.client_params, context))
    params: Any = _Noted({**state.server_params, **mine})
    known: Any = _Noted({**theirs, **algorithm.round_constants(fed, state)})
    try:
        with torch.no_grad():
            algorithm.predict(fed.net, params, known, code)
        asked = params.seen & mine.keys()
    except (AttributeError, TypeError):  # it takes nothing but a dict
        asked = {""}
    if asked:
        return (np.arange(fed.num_clients),) * 2
    columns = [t.reshape(len(clients), -1).double() for n, t in context.items() if n in known.seen]
    told = torch.cat([0.0 * clients[:, None], *columns], 1).cpu().numpy()
    _, first, like = np.unique(told, axis=0, return_index=True, return_inverse=True)
    return first, like.reshape(-1)


def tabulate(
    fed: Federation,
    algorithm: Algorithm,
    state: State,
    table: ClientData,
    method: Callable[..., Tensor],
) -> Tensor:
    """Return ``method(net, params, ctx, code) [B, ...]`` of every client's own examples.

    ``[held, ...]``, client after client. What is shared is computed once per example.
    """
    encoded, ask = encode(fed, algorithm, state, table), _asking(fed, algorithm, state)
    sizes, found = table.sizes, dict[int, Tensor]()
    usual = int(sizes[~costs.oversized(sizes)].max(initial=0))
    most = partial(costs.prediction_width, fed, encoded.code)
    for group in costs.group_by_size(sizes, most):
        held, real = table.padded(group, max(usual, int(sizes[group].max())))
        said = ask(method, torch.as_tensor(group, device=fed.device), encoded.of(held))
        each = said[real].split(sizes[group].tolist())
        found |= zip(group.tolist(), each, strict=True)
    return torch.cat([found[row] for row in range(fed.num_clients)])


def _asking(fed: Federation, algorithm: Algorithm, state: State) -> Callable[..., Any]:
    """Return what asks some clients: ``ask(method, rows, code)`` is ``[clients, B, ...]``.

    ``method`` is called with ``(net, params, ctx, code)``, the code being a client's own.
    """
    broadcast = algorithm.round_constants(fed, state)

    def ask(method: Callable[..., Any], clients: Tensor, code: Params) -> Any:
        one = one_client(method, fed.net, broadcast, state.server_params)
        own = {n: t[clients] for n, t in state.client_params.items()}
        found = algorithm.client_constants(fed, state, clients)
        context = tensors(algorithm, "client_constants", found, len(clients))
        with torch.no_grad():
            return vmap_clients(one, len(clients))(own, context, code)

    return ask


def nll(
    algorithm: Algorithm, net: FunctionalModel, params: Params, ctx: Params, batch: Batch
) -> Tensor:
    """Return one client's mean negative log-likelihood on a batch: what early stopping watches."""
    logp, weight = _logp(algorithm, net, params, ctx, batch), batch.weight
    return (_surprise(logp, batch.y) * weight).sum() / weight.sum().clamp(min=1)


def accuracy(
    algorithm: Algorithm, net: FunctionalModel, params: Params, ctx: Params, batch: Batch
) -> Tensor:
    """Return one client's accuracy on a batch with leaves of its own; nan for an empty batch."""
    logp, weight = _logp(algorithm, net, params, ctx, batch), batch.weight
    right = (logp.argmax(-1) == batch.y).to(logp.dtype) * weight
    return right.sum() / weight.sum()


def _logp(
    algorithm: Algorithm, net: FunctionalModel, params: Params, ctx: Params, batch: Batch
) -> Tensor:
    return algorithm.predict(net, params, ctx, algorithm.shared_forward(net, params, batch.x)).logp


def _require_log_probs(algorithm: Algorithm, logp: Tensor) -> None:
    """ValueError for logits ``[..., classes]``: what is measured as nll would be another number.

    A network whose softmax stands where its logarithm should, as in released code, returns p
    itself: that is let through. So is nan, of a run that diverged.
    """
    off = [(total - 1).abs().nan_to_num().max() for total in (logp.exp().sum(-1), logp.sum(-1))]
    if min(off) > 0.01:
        need = "must return log-probabilities, as logits.log_softmax(-1): p(y|x) must sum to 1"
        raise ValueError(f"{type(algorithm).__name__}.predict {need}, and is off by {off[0]:.3g}")


def _surprise(logp: Tensor, y: Tensor) -> Tensor:
    """Return -log p of the labels ``[...]``, from log p ``[..., classes]``."""
    return -logp.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def _by_label(gates: Sequence[tuple[Tensor, ...]], classes: int) -> np.ndarray:
    y = torch.cat([y for y, _ in gates])
    gate = torch.cat([g for _, g in gates]).double()
    total = torch.zeros(classes, gate.shape[1], dtype=torch.float64, device=gate.device)
    total.index_add_(0, y, gate)
    return (total / torch.bincount(y, minlength=classes).unsqueeze(1)).cpu().numpy()
