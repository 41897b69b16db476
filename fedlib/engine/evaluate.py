"""Evaluation of all clients in large batches; shared computations are done once per example."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.engine import width
from fedlib.engine.program import one_client, vmap_clients
from fedlib.engine.protocol import LOG_DENSITY, Algorithm, State, eval_view, tensors, train_view
from fedlib.engine.width import Width
from fedlib.federation import ClientData, Federation
from fedlib.models import Batch, FunctionalModel, Params
from fedlib.parallel import map_chunks, map_ordered
from fedlib.values import short_repr


@dataclass(eq=False)
class Scores:
    """The result of an evaluation.

    Args:
        accuracy: of each client, float64 ``[clients]``; nan for a client without examples.
        nll: mean negative log-likelihood of each client in nats, float64 ``[clients]``.
        gate: mean of p(z|x, s) over the examples of each label, float64 ``[classes, K]``; None if
            the model is not a mixture.
    """

    accuracy: np.ndarray
    nll: np.ndarray
    gate: np.ndarray | None = None


@dataclass(eq=False)
class Encoded:
    """The results of ``Algorithm.shared_forward`` for the examples of a table.

    Args:
        code: the results by name, ``[encoded examples, ...]``.
        at: position in ``code`` of each example of the table, int64 ``[N]``.
    """

    code: Params
    at: Tensor

    def of(self, examples: Tensor) -> Params:
        """Return the results for some examples of the table, ``[*examples.shape, ...]`` by name."""
        return {n: t[self.at[examples]] for n, t in self.code.items()}


def encode(
    fed: Federation, algorithm: Algorithm, state: State, table: ClientData, everything: bool = False
) -> Encoded:
    """Apply ``Algorithm.shared_forward`` to the examples of a table.

    Args:
        fed: the federation.
        algorithm: the algorithm.
        state: the state whose ``server_params`` are used.
        table: the examples.
        everything: whether to encode all examples, or only those that some client holds (the
            default).
    """
    held = torch.full((len(table.y),), everything, device=fed.device)
    held[table.indices] = True
    used = torch.nonzero(held)[:, 0]
    at = torch.zeros(len(table.y), dtype=torch.int64, device=fed.device)
    at[used] = torch.arange(len(used), device=fed.device)

    def encode_block(some: Tensor) -> Params:
        with torch.no_grad():
            return algorithm.shared_forward(fed.net, state.server_params, table.inputs(some))

    parts = map_ordered(encode_block, used.split(width.BLOCK), "examples") if len(used) else []
    return Encoded({n: torch.cat([p[n] for p in parts]) for n in parts[0]} if parts else {}, at)


def evaluate(
    fed: Federation,
    algorithm: Algorithm,
    state: State,
    table: ClientData,
    encoded: Encoded | None = None,
) -> Scores:
    """Evaluate every client on its own examples of a table.

    Args:
        fed: the federation.
        algorithm: the algorithm.
        state: the state with the parameters.
        table: the examples, such as ``fed.test``.
        encoded: the result of ``encode``, if it is known. Default: computed here.
    """
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
        # Not y[:0], which would keep y in memory until the last group is evaluated.
        seen = (y[mask], out.gate[mask]) if out.gate.shape[-1] else (torch.empty(0),) * 2
        return torch.stack([right, nll]).cpu(), *seen

    most = partial(Width(fed, state).of_prediction, encoded.code)
    groups = (
        [everyone[i] for i in width.group_by_size(sizes[everyone], most)] if len(everyone) else []
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
    """Return the accuracy for a new client, on all test examples.

    The ``new_client_output`` of the participating clients is averaged with weights p(s) = N_s / N,
    or p(s|x) if they return log p(x|s) (Reisser et al., 2021, App. F), and ``combine_clients``
    turns the average into a prediction. Without local parameters this evaluates the global model;
    with FedMix, the mixture with marginalised gates. If every client predicts with a network of its
    own, about ``width.MOST`` equally spaced examples are evaluated. Without test examples it is
    nan.

    Args:
        fed: the federation.
        algorithm: the algorithm.
        state: the state with the parameters.
        encoded: the result of ``encode`` for all test examples. Default: computed here.
    """
    if not len(fed.test.y):
        return float("nan")
    fed = eval_view(algorithm, fed)
    state = algorithm.assign_clusters(fed, state)
    encoded = encoded or encode(fed, algorithm, state, fed.test, everything=True)
    inside, clients = train_view(algorithm, fed), fed.num_clients
    rows = inside.member_rows
    sizes, first = inside.sizes[rows], rows.new_zeros(1)
    if not state.client_params and not algorithm.client_constants(fed, state, first):
        rows, sizes, clients = first, sizes.new_ones(1), 1  # all clients predict the same
    log_share = (sizes / sizes.sum()).to(torch.float32).log().unsqueeze(1)
    ask = _asking(fed, algorithm, state)
    # If each client evaluates a network of its own, about ``MOST`` examples are evaluated.
    every = len(fed.test.y) // width.MOST if "x" in encoded.code and clients > 1 else 1
    asked = torch.arange(0, len(fed.test.y), max(1, every), device=fed.device)

    def hits(block: Tensor) -> int:
        code = encoded.of(block)
        groups = rows.split(Width(fed, state).of_prediction(code, len(block)))
        output_of = lambda net, w, ctx, _: algorithm.new_client_output(net, w, ctx, code)  # noqa: E731
        each = (ask(output_of, i, {}) for i in groups)
        first, log_p = next(each), log_share.expand(-1, len(block))
        said: Iterable[Params] = chain([first], each)
        if LOG_DENSITY in first:  # all in memory at once, which is affordable for gates
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

    blocks = asked.split(width.BLOCK)
    return sum(right for _, right in map_chunks(hits, blocks, "newcomers")) / len(asked)


def evaluate_everywhere(
    fed: Federation, algorithm: Algorithm, state: State, encoded: Encoded | None = None
) -> np.ndarray:
    """Return every client's accuracy on the same examples of all clients' tests, ``[clients]``.

    At most ``width.MOST`` equally spaced examples are used. The accuracy measures how well a
    client's model generalises beyond its own data.

    Args:
        fed: the federation.
        algorithm: the algorithm.
        state: the state with the parameters.
        encoded: the result of ``encode`` for all test examples. Default: computed here.
    """
    if not len(fed.test.y):
        return np.full(fed.num_clients, np.nan)
    every = -(-len(fed.test.y) // width.MOST)
    some = torch.arange(0, len(fed.test.y), every, device=fed.device)
    encoded = encoded or encode(fed, algorithm, state, fed.test, everything=True)
    first, like = _alike(fed, algorithm, state, encoded.of(some[:1]))
    sizes = np.zeros(fed.num_clients, dtype=np.int64)
    sizes[first] = len(some)
    table = replace(fed.test, indices=some, sizes=sizes, side={}, shared=True)
    return evaluate(fed, algorithm, state, table, encoded).accuracy[first][like]


class _Noted(Mapping[str, Tensor]):
    """A dictionary of tensors that records which of them were read."""

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
    """Return one client of each set with equal predictions, and the set of every client.

    Two clients predict alike if the prediction reads no parameter of their own, and the constants
    that it reads are equal. This holds for all clients of FedAvg and for those of one cluster of
    IFCA.
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
    except (AttributeError, TypeError):  # the method needs a real dict
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
    """Return ``method(net, params, ctx, code)`` of every client's own examples, ``[held, ...]``.

    Args:
        fed: the federation.
        algorithm: the algorithm.
        state: the state with the parameters.
        table: the examples.
        method: a function of one client that returns a tensor ``[B, ...]``.

    Returns:
        The results client after client, in the order of ``table.indices``.
    """
    encoded, ask = encode(fed, algorithm, state, table), _asking(fed, algorithm, state)
    sizes, found = table.sizes, dict[int, Tensor]()
    usual = int(sizes[~width.oversized(sizes)].max(initial=0))
    most = partial(Width(fed, state).of_prediction, encoded.code)
    for group in width.group_by_size(sizes, most):
        held, real = table.padded(group, max(usual, int(sizes[group].max())))
        said = ask(method, torch.as_tensor(group, device=fed.device), encoded.of(held))
        each = said[real].split(sizes[group].tolist())
        found |= zip(group.tolist(), each, strict=True)
    return torch.cat([found[row] for row in range(fed.num_clients)])


def measure(
    fed: Federation, algorithm: Algorithm, state: State, table: ClientData, metrics: Sequence[Any]
) -> dict[str, np.ndarray]:
    """Return metrics of every client's own examples, float64 ``[clients]`` by name.

    Args:
        fed, algorithm, state, table: as in ``evaluate``.
        metrics: functions of labels, probabilities and side information: ``fedlib.metrics.Metric``.

    Returns:
        the metrics; nan for a client without examples.
    """
    found = {metric.name: np.full(fed.num_clients, np.nan) for metric in metrics}
    if not len(table.indices):
        return found
    fed = eval_view(algorithm, fed)
    state = algorithm.assign_clusters(fed, state)
    logp = tabulate(fed, algorithm, state, table, lambda *one: algorithm.predict(*one).logp)
    columns = {"y": table.y[table.indices], "p": logp.double().exp(), **table.side}
    ends = np.cumsum(table.sizes)[:-1]
    parts = [np.split(column.cpu().numpy(), ends) for column in columns.values()]
    for row, (y, p, *side) in enumerate(zip(*parts, strict=True)):
        known = dict(zip(table.side, side, strict=True))
        for metric in metrics if len(y) else ():
            try:
                found[metric.name][row] = metric(y, p, known)
            except Exception as error:
                what = f"__call__(self, labels, probabilities, side) of client {fed.ids[row]}"
                error.add_note(f"in {type(metric).__name__}.{what}, which must return a number")
                raise
    return found


def _asking(fed: Federation, algorithm: Algorithm, state: State) -> Callable[..., Any]:
    """Return a function ``(method, clients, code)`` that calls a method for some clients.

    The method has the arguments ``(net, params, ctx, code)`` of one client; the results are
    ``[clients, B, ...]``.
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
    """Return one client's mean negative log-likelihood on a batch, for early stopping."""
    logp, weight = _logp(algorithm, net, params, ctx, batch), batch.weight
    return (_surprise(logp, batch.y) * weight).sum() / weight.sum().clamp(min=1)


def accuracy(
    algorithm: Algorithm, net: FunctionalModel, params: Params, ctx: Params, batch: Batch
) -> Tensor:
    """Return one client's accuracy on a batch, given its parameters; nan for an empty batch."""
    logp, weight = _logp(algorithm, net, params, ctx, batch), batch.weight
    right = (logp.argmax(-1) == batch.y).to(logp.dtype) * weight
    return right.sum() / weight.sum()


def _logp(
    algorithm: Algorithm, net: FunctionalModel, params: Params, ctx: Params, batch: Batch
) -> Tensor:
    return algorithm.predict(net, params, ctx, algorithm.shared_forward(net, params, batch.x)).logp


def _require_log_probs(algorithm: Algorithm, logp: Tensor) -> None:
    """Raise ValueError unless ``logp`` ``[..., classes]`` are log-probabilities.

    With logits the nll would be wrong. Probabilities in place of their logarithms pass, because
    released code makes this mistake, and so does nan, which a diverged run has.
    """
    off = [(total - 1).abs().nan_to_num().max() for total in (logp.exp().sum(-1), logp.sum(-1))]
    if min(off) > 0.01:
        need = "must return log-probabilities, as logits.log_softmax(-1): p(y|x) must sum to 1"
        raise ValueError(f"{type(algorithm).__name__}.predict {need}, and is off by {off[0]:.3g}")


def _surprise(logp: Tensor, y: Tensor) -> Tensor:
    """Return -log p(y) ``[...]`` from log p ``[..., classes]``."""
    return -logp.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def _by_label(gates: Sequence[tuple[Tensor, ...]], classes: int) -> np.ndarray:
    y = torch.cat([y for y, _ in gates])
    gate = torch.cat([g for _, g in gates]).double()
    total = torch.zeros(classes, gate.shape[1], dtype=torch.float64, device=gate.device)
    total.index_add_(0, y, gate)
    return (total / torch.bincount(y, minlength=classes).unsqueeze(1)).cpu().numpy()
