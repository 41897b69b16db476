"""The predictor of a client, or of all clients together, as a plain torch module."""

import keyword

import torch
from torch import Tensor, nn

from fedlib.engine.protocol import LOG_DENSITY, Algorithm, State, eval_view, train_view
from fedlib.federation import Federation
from fedlib.models import Params, is_statistic, select_prefix

EXAMPLES = 256  # on which a network's and an algorithm's predictions are compared
CONTEXT, SHARE = "context.", "share"  # name of the module of constants, and in it of log p(s)


class Trained(nn.Module):
    """An algorithm's prediction for one client, or for a new client, as a module.

    Shared and local parameters become parameters of the module under their own names (a "_" is
    appended to a Python keyword); running statistics and constants become buffers. The networks are
    in eval mode.

    Args:
        fed: the federation.
        algorithm: the algorithm.
        state: the state with the parameters, after ``assign_clusters``.
        clients: indices of the clients whose predictions are used, int64 ``[clients]``.
        alone: whether the module predicts for the single client in ``clients``. If false, it
            averages the predictions of all of them, as for a new client, and its tensors have a
            client axis.
    """

    def __init__(
        self, fed: Federation, algorithm: Algorithm, state: State, clients: Tensor, *, alone: bool
    ) -> None:
        super().__init__()
        self._net, self._algorithm, self._alone = fed.net, algorithm, alone
        self._rows, context = range(len(clients)), algorithm.client_constants(fed, state, clients)
        told = algorithm.round_constants(fed, state)
        common = {n: torch.as_tensor(c, device=fed.device) for n, c in told.items()}
        if len(clients) > 1:
            sizes = train_view(algorithm, fed).sizes[clients]
            common = {**common, SHARE: (sizes / sizes.sum()).to(torch.float32).log()}
        own = {n: self._row(t[clients]) for n, t in state.client_params.items()}
        context = {n: self._row(t) for n, t in context.items()}
        # For each group: the names of tensors in this module by their names in the algorithm.
        self._shared, self._own = self._hold(state.server_params), self._hold(own)
        self._context, self._common = self._hold(context, CONTEXT), self._hold(common, CONTEXT)

    def _row(self, t: Tensor) -> Tensor:
        return t[0] if self._alone else t

    def _hold(self, params: Params, under: str = "") -> dict[str, str]:
        """Register copies of tensors in submodules made for their dotted names."""
        names = {}
        for name, param in params.items():
            *path, last = (_word(step) for step in f"{under}{name}".split("."))
            module: nn.Module = self
            for step in path:
                if step not in module._modules:
                    module.add_module(step, nn.Module())
                module = module.get_submodule(step)
            own, trains = param.detach().clone(), param.is_floating_point() and not under
            if trains and not is_statistic(name):
                module.register_parameter(last, nn.Parameter(own))
            else:
                module.register_buffer(last, own)
            names[name] = ".".join([*path, last])
        return names

    def params(self) -> Params:
        """Return the parameters and running statistics under the names of the algorithm."""
        held = self._held()
        return {n: held[at] for n, at in {**self._shared, **self._own}.items()}

    def _held(self) -> Params:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of normalised examples.

        Args:
            x: normalised examples, ``[B, ...]``.

        Returns:
            Scores ``[B, classes]`` whose softmax is p(y|x).
        """
        held = self._held()
        groups = (self._shared, self._own, self._context, self._common)
        shared, own, context, common = ({n: held[at] for n, at in g.items()} for g in groups)
        code = self._algorithm.shared_forward(self._net, shared, x)
        if self._alone:
            mine = {**shared, **own}, {**context, **common}
            return self._algorithm.predict(self._net, *mine, code).logp
        rows = [[{n: t[i] for n, t in g.items()} for g in (own, context)] for i in self._rows]
        clients = [({**shared, **mine}, {**about, **common}) for mine, about in rows]
        return self._together(shared, clients, code)

    def _together(
        self, shared: Params, clients: list[tuple[Params, Params]], code: Params
    ) -> Tensor:
        """Return the prediction for a new client's examples; see ``evaluate_global``."""
        net, algorithm = self._net, self._algorithm
        outputs = [algorithm.new_client_output(net, w, ctx, code) for w, ctx in clients]
        mean = outputs[0]
        if len(clients) > 1:
            first = next(iter(code.values()))
            none = first.new_zeros(first.shape[0], dtype=torch.float32)
            log_p = [one.pop(LOG_DENSITY, none) for one in outputs]
            log_share = clients[0][1][SHARE].unsqueeze(1)
            p = (log_share + torch.stack(log_p)).softmax(0)
            stacked = {n: torch.stack([one[n] for one in outputs]) for n in mean}
            mean = {n: torch.einsum("sb,sb...->b...", p, t) for n, t in stacked.items()}
        return algorithm.combine_clients(net, shared, code, mean)


def _word(step: str) -> str:
    """Return a part of a name that torch's exporters accept as a Python identifier."""
    return f"{step}_" if not step or keyword.iskeyword(step) else step


def module_of(
    fed: Federation, algorithm: Algorithm, state: State, client: int | str | None = None
) -> nn.Module:
    """Return the predictor of a client, or the one for a new client, as a module in eval mode.

    If the prediction is that of a single network, the network itself is returned, a ``Classifier``;
    otherwise a ``Trained``. It is on the federation's device.

    Args:
        fed: the federation, as built by ``Task.build``.
        algorithm: the algorithm that was trained.
        state: the state after some round.
        client: a client's id, as in ``fed.ids``, or its name, as in ``fed.client_names``. None for
            the joint prediction of all clients for a new one. Default: None.

    Raises:
        ValueError: if there is no such client.
    """
    row = 0 if client is None else fed.row(client)
    seen = eval_view(algorithm, fed)
    state = algorithm.assign_clusters(seen, state)
    some = torch.tensor([row], device=fed.device)
    trained = Trained(seen, algorithm, state, some, alone=client is not None).eval()
    params = trained.params()
    if client is None:
        params = {n: t for n, t in params.items() if n in state.server_params}
    if network := _bare(fed, trained, params):
        return network
    if client is None:
        inside = train_view(algorithm, fed).member_rows
        trained = Trained(seen, algorithm, state, inside, alone=False).eval()
    return trained


def _bare(fed: Federation, trained: Trained, params: Params) -> nn.Module | None:
    """Return the network itself if it predicts as the algorithm does on some examples.

    The network's parameters may have a common prefix, as those of a second model have.
    """
    first, *_ = fed.net.init(0)
    prefixes = sorted({n.removesuffix(first) for n in params if n.endswith(first)}, key=len)
    table = fed.test if len(fed.test.y) else fed.train
    if not prefixes or not len(table.y):
        return None
    x = table.inputs(torch.arange(min(EXAMPLES, len(table.y)), device=fed.device))
    with torch.no_grad():
        p = trained(x).softmax(-1)
        for prefix in prefixes:
            network = fed.net.filled(select_prefix(params, prefix))
            if network is not None:
                mine = fed.net.log_probs(network(x)).softmax(-1)
                if torch.allclose(mine, p, 1e-4, 1e-5):
                    return network
    return None
