"""A federation over a real wire: an experiment as Flower's ServerApp and ClientApp.

The server holds what is shared, its optimiser's state and its memory, every client its own examples
and its rows of what is local. In a round go down what ``Algorithm.download`` says and up a client's
message, and before the first one a client tells how many examples it has. An algorithm is the same
object as in the simulation, and ends with the same bits (README.md says how to run it). Whether a
client takes part is its own machine's word; what it says is checked before the server uses it, and
who says what cannot be is left out and named.
"""

import copy
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedlib import paths
from fedlib.engine import Algorithm, State, play_round, select
from fedlib.engine.protocol import train_view
from fedlib.federation import OPTED_IN, ClientData, Federation
from fedlib.models import FunctionalModel, Params
from fedlib.partition import Partition
from fedlib.values import ALLOWED, from_code, short_repr
from fedrun import Experiment
from fedrun.files import load_tensors, raw, save_tensors, write
from fedrun.train import require_params

NODE = "client"  # in a node's configuration: whose machine it is
OPT_OUT = "opt_out"  # ... and the share of its examples that it keeps at home
MOST = 2**24  # examples that a client may say it has, unless a run's configuration says more
KINDS = (
    "float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64",
)  # fmt: skip
SERVER, LEDGER = "server.safetensors", "wire.json"
RAW = "fedlib.raw"  # how tensors are packed: their bytes, without a header
PACE = 0.5  # seconds between two looks who has joined

Mine = Callable[[Experiment, Mapping[str, Any]], Federation]


def packed(params: Params) -> ArrayRecord:
    """Return tensors as Flower's arrays, whose ``data`` are the tensors' bytes and nothing else."""
    record = {}
    for name, t in params.items():
        kind = str(t.dtype).removeprefix("torch.")
        record[name] = Array(kind, tuple(t.shape), RAW, raw(t).numpy().tobytes())
    return ArrayRecord(record)


def unpacked(record: ArrayRecord, device: str | torch.device = "cpu") -> Params:
    """Return the tensors that ``packed`` was given, bit by bit."""
    params = {}
    for name, array in record.items():
        sent = torch.from_numpy(np.frombuffer(array.data, dtype=np.uint8).copy())
        if array.dtype not in KINDS:
            raise ValueError(f"{name} is of the unknown kind {short_repr(array.dtype)}")
        params[name] = sent.view(getattr(torch, array.dtype)).view(array.shape).to(device)
    return params


def payload(content: RecordDict) -> int:
    """Return the bytes of all arrays in a message."""
    records = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


def experiment_of(context: Context) -> Experiment:
    """Return the experiment of a run's configuration, the code that it prints as.

    ValueError for what a wire has no use for: stages after others, and clients that send nothing.
    """
    for name in os.environ.get("FEDLIB_IMPORT", "").split():  # the machine's own word
        import_module(name)
        ALLOWED.add(name)
    experiment: Experiment = from_code(str(context.run_config["experiment"]))
    if experiment.first_stage or not experiment.algorithm.communicates:
        raise ValueError(f"nothing travels in {experiment}: only a federation from its start does")
    return experiment


def run_folder(experiment: Experiment, context: Context) -> Path:
    """Return where this machine keeps what is its own of a run."""
    return paths.runs() / ".flower" / f"{experiment.key}-{context.run_id}"


def _save(path: Path, params: Params, completed: int) -> None:
    said = {"completed": str(completed)}
    write(path, lambda file: save_tensors(file, params, said), "what a round has left")


# --- a client ----------------------------------------------------------------------------------


def of_task(experiment: Experiment, node: Mapping[str, Any]) -> Federation:
    """Return one client of the experiment's task: that of the row ``client`` of a node."""
    whole = experiment.task.build(experiment.seed, str(node.get("device", "cpu")))
    return whole.permuted(np.array([int(node[NODE])]))


def client_app(mine: Mine = of_task) -> ClientApp:
    """Return the app of a client, whose federation of one ``mine`` returns.

    ``mine`` is given the experiment and the node's configuration; the ``ids`` of what it returns
    name the client. The app looks at nothing that has opted out, and writes into the machine's log
    what it tells the server.
    """
    app = ClientApp()

    def opened(context: Context) -> tuple[Experiment, Federation]:
        e = experiment_of(context)
        fed = consenting(e, mine(e, context.node_config), context)
        return e, train_view(e.algorithm, fed)

    def log(fed: Federation, said: str) -> None:
        print(f"fedlib: client {fed.called(fed.ids)} told the server {said}", flush=True)

    @app.query("join")
    def join(message: Message, context: Context) -> Message:
        _, fed = opened(context)
        told: dict[str, Any] = {NODE: int(fed.ids[0]), "examples": int(fed.train.sizes[0])}
        if told["examples"]:
            told |= {"shape": [*fed.net.shape], "classes": fed.classes}
        log(fed, f"of its examples {told}")
        return Message(RecordDict({"told": ConfigRecord(told)}), reply_to=message)

    @app.query("shares")
    def shares(message: Message, context: Context) -> Message:
        e, fed = opened(context)
        condition = str(message.content["asked"]["condition"])
        if condition not in e.algorithm.shares_asked or not fed.train.sizes[0]:
            raise RuntimeError(f"{e.algorithm} needs nobody's shares of {condition}: none are told")
        share = fed.shares(condition)
        log(fed, f"its shares of {condition}: {share[0].tolist()}")
        return Message(RecordDict({"told": packed({"shares": share})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        e, fed = opened(context)
        if not fed.train.sizes[0]:
            raise RuntimeError(f"client {fed.called(fed.ids)} has opted out: it does not train")
        file = run_folder(e, context) / f"client-{fed.ids[0]}.safetensors"
        sent = _trained(e, fed, message.content, file)
        log(fed, f"round {int(message.content['round']['t']) + 1}: {', '.join(sent)}")
        return Message(RecordDict({"message": packed(sent)}), reply_to=message)

    return app


def consenting(e: Experiment, fed: Federation, context: Context) -> Federation:
    """Return a client's federation without what the experiment's ``OptOut`` takes from that client.

    And without what it withholds itself: the share ``opt_out`` of the node's configuration (1:
    all), the same examples whatever the server asks. No message changes that.
    """
    home, me = fed.full_view(), int(fed.ids[0])
    train, held = home.train, home.train.indices.cpu().numpy()
    inside, part = np.ones(len(held), bool), Partition(held, home.train.sizes)
    if OPTED_IN in train.side:
        inside &= train.side[OPTED_IN].cpu().numpy() > 0
    if e.task.opt_out is not None:
        first, population = e.task.partition.choose_clients()
        population = population or e.task.partition.num_clients()
        population = population or int(context.run_config["clients"])
        if not 0 <= first + me < population:
            raise ValueError(f"{e.task.opt_out} is of {population} clients, and this is no. {me}")
        labels = train.y.cpu().numpy()
        inside &= e.task.opt_out.stays_in(part, labels, e.seed, first + me, population)
    share = float(context.node_config.get(OPT_OUT, 0))
    if not 0 <= share <= 1:
        raise ValueError(f"{OPT_OUT} in the node's configuration must lie in [0, 1], got {share}")
    for place in np.flatnonzero(inside) if share else ():
        x = train.x[held[place]].cpu().contiguous().numpy()
        drawn = int.from_bytes(hashlib.sha256(x.tobytes()).digest()[:8], "big") / 2**64
        inside[place] = drawn >= share
    if inside.all():
        return fed
    flag = torch.as_tensor(inside.astype(np.int64), device=fed.device)
    train = replace(train, side={**train.side, OPTED_IN: flag})
    return replace(home, train=train, includes_opted_out=False)


def _trained(e: Experiment, fed: Federation, content: RecordDict, file: Path) -> Params:
    """Return a client's message of a round; its local parameters stay in a file of its own."""
    algorithm, t = e.algorithm, int(content["round"]["t"])
    got = {name: unpacked(record, fed.device) for name, record in content.array_records.items()}
    first = algorithm.init(fed, e.seed)
    own = load_tensors(file)[0] if file.exists() else first.client_params
    own = {n: param.to(fed.device) for n, param in own.items()}
    # In the order of the simulation: a sum over parameters has its bits.
    shared = {n: got["shared"][n] for n in first.server_params if n in got["shared"]}
    state = State(shared, own, {}, {**first.server_memory, **got["memory"]}, t, e.seed)
    message = _round(e.algorithm, fed, state, got["common"])
    if own:
        _save(file, state.client_params, t + 1)
    return message


def _round(algorithm: Algorithm, fed: Federation, state: State, common: Params) -> Params:
    """Return what the client of a federation of one sends; its local state is updated in place.

    It plays a round of the simulation in which the server broadcasts what it did, and no more.
    """
    mine = torch.zeros(1, dtype=torch.int64, device=fed.device)
    chosen, kept = algorithm.choose(fed, state, mine), state.server_memory
    decided = {n: t for n, t in chosen.server_memory.items() if t is not kept.get(n)}
    server = {
        "choose": lambda self, *args: chosen,
        "round_constants": lambda self, fed, state: {
            **algorithm.round_constants(fed, state),
            **common,
        },
        "weights": lambda self, *args: {},
        "communication_bytes": lambda self, *args: (None, None),
        "aggregate": lambda self, fed, state, *args: state,
    }
    client, kind = copy.copy(algorithm), type(algorithm)
    object.__setattr__(client, "__class__", type(kind.__name__, (kind,), server))
    at, seed = state.round, state.seed
    _, report = play_round(client, fed, state, round=at, seed=seed, cohort=1, chunk=1)
    return {**report.messages, **decided}


# --- the server --------------------------------------------------------------------------------


Read = Callable[[int, RecordDict], Any]  # what an answer of a row says; an error if it cannot be


@dataclass(eq=False)
class Peers:
    """The clients at the other end of a grid, ``nodes`` in the order of the federation's rows.

    ``refused`` says why an answer was not used, by the node that gave it, or did not.
    """

    grid: Grid
    nodes: Sequence[int]
    timeout: float | None = None
    refused: dict[int, str] = field(default_factory=dict)

    def ask(self, what: str, contents: Mapping[int, RecordDict], read: Read) -> dict[int, Any]:
        """Return what ``read`` makes of the answers to questions, each to a row.

        Rows are missing that do not answer, or with what cannot be: ``refused`` has them.
        """
        questions = [
            Message(content, dst_node_id=self.nodes[row], message_type=what)
            for row, content in contents.items()
        ]
        came = self.grid.send_and_receive(questions, timeout=self.timeout)
        replies = {m.metadata.src_node_id: m for m in came}
        found = {}
        self.refused = {}
        for row in contents:
            node = self.nodes[row]
            try:
                if node not in replies or replies[node].has_error():
                    why = replies[node].error.reason if node in replies else "no answer"
                    raise RuntimeError(why)
                found[row] = read(row, replies[node].content)
            except Exception as error:  # whatever somebody else's bytes provoke
                self.refused[node] = f"{error}" or type(error).__name__
                print(f"fedlib: node {node}, {what}: {self.refused[node]}", flush=True)
        return found

    def needed(self, what: str, there: bool) -> None:
        """RuntimeError, naming who was refused and why, unless there is enough to go on."""
        if not there:
            named = "; ".join(f"node {node}: {why}" for node, why in self.refused.items())
            raise RuntimeError(f"{what}: {named or 'nobody takes part'}")

    def shares(self, condition: str, values: int) -> Tensor:
        """Return p(condition | s) of every client, which each is asked for.

        RuntimeError if one tells none, or what is none.
        """

        def read(row: int, content: RecordDict) -> Tensor:
            share = unpacked(content.array_records["told"])["shares"]
            _formed({"shares": share}, {"shares": torch.zeros(1, values)})
            if share.min() < 0 or abs(float(share.sum()) - 1) > 1e-3:
                raise ValueError("shares are no distribution")
            return share

        question = RecordDict({"asked": ConfigRecord({"condition": condition})})
        asked = {row: question for row in range(len(self.nodes))}
        told = self.ask("query.shares", asked, read)
        self.needed(f"shares of {condition} are needed of everybody", len(told) == len(asked))
        return torch.cat([*told.values()])


def _formed(params: Params, form: Params) -> None:
    """Raise ValueError unless tensors are finite, with the names, kinds and shapes of others."""
    if params.keys() != form.keys():
        raise ValueError(f"parameters {short_repr(sorted(params))}, not {short_repr(sorted(form))}")
    for name, param in params.items():
        like = form[name]
        if param.dtype != like.dtype or param.shape != like.shape:
            got, due = (f"{str(t.dtype)[6:]} {[*t.shape]}" for t in (param, like))
            raise ValueError(f"{name} is {got}, not {due}")
        if not bool(param.isfinite().all()):
            raise ValueError(f"{name} is not finite")
        if not param.is_floating_point() and bool((param < 0).any()):
            raise ValueError(f"{name} is below 0")


@dataclass(eq=False)
class Absent(ClientData):
    """A split of which the server knows the sizes."""

    def __post_init__(self) -> None:
        """Hold nothing, whatever the sizes are."""

    def _missing(self, *args: Any, **more: Any) -> Any:
        raise RuntimeError("the examples are at the clients, and the server asks for some")

    batches = padded = client = subset = counts = _missing


@dataclass(eq=False)
class ServerView(Federation):
    """A federation as its server knows it: who there is, and of how many examples.

    What else an algorithm's server asks about, p(y|s), clients are asked for once, with ``ask``.
    """

    ask: Callable[[str, int], Tensor] = field(kw_only=True)

    def shares(self, condition: str) -> Tensor:
        """Return p(condition | s), float32 ``[clients, values]``, as the clients tell."""
        if condition not in self._shares:
            self._shares[condition] = self.ask(condition, self.values(condition))
        return self._shares[condition]


def joined(e: Experiment, grid: Grid, config: Mapping[str, Any]) -> tuple[Peers, ServerView]:
    """Wait for the nodes of ``clients`` clients; return those that take part, and what they tell.

    Nodes that tell what cannot be are left out, and so are those that claim one number, or another
    form of examples than most. RuntimeError if nobody is left.
    """
    while len(nodes := [*grid.get_node_ids()]) < int(config["clients"]):
        time.sleep(PACE)
    timeout = float(config["timeout"]) if config.get("timeout") else None
    all_nodes, most = Peers(grid, nodes, timeout), int(config.get("examples", MOST))

    def read(row: int, content: RecordDict) -> dict[str, Any]:
        told = dict(content["told"])
        for name, limit in ((NODE, 2**31 - 1), ("examples", most)):
            if type(told.get(name)) is not int or not 0 <= told[name] <= limit:
                raise ValueError(
                    f"{name} must be whole, 0 to {limit:,}: {short_repr(told.get(name))}"
                )
        form = [*told.get("shape", ()), told.get("classes")] if told["examples"] else [1]
        if any(type(n) is not int or n < 1 for n in form):
            raise ValueError(f"no form of examples: {short_repr(form)}")
        return told

    said = all_nodes.ask("query.join", {r: RecordDict() for r in range(len(nodes))}, read)
    claimed = Counter(told[NODE] for told in said.values())
    forms = Counter((*t["shape"], t["classes"]) for t in said.values() if t["examples"])
    usual = forms.most_common(1)[0][0] if forms else ()
    there = {}
    for row, told in said.items():
        if claimed[told[NODE]] > 1:
            all_nodes.refused[nodes[row]] = f"another node is client {told[NODE]}, too"
        elif told["examples"] and (*told["shape"], told["classes"]) != usual:
            all_nodes.refused[nodes[row]] = f"examples of {told}, where others have {[*usual]}"
        elif told["examples"]:
            there[told[NODE]] = nodes[row], told["examples"]
    for node, why in all_nodes.refused.items():
        print(f"fedlib: node {node} is left out: {why}", flush=True)
    all_nodes.needed("there are no clients", bool(there))
    ids = np.array(sorted(there))
    found = Peers(grid, [there[i][0] for i in ids.tolist()], timeout, all_nodes.refused)
    none, sizes = torch.zeros(0, dtype=torch.int64), [there[i][1] for i in ids.tolist()]
    train = Absent(none, none, none, np.array(sizes), none, none)
    other = replace(train, sizes=np.zeros_like(train.sizes))
    *shape, classes = usual
    net, kinds = FunctionalModel(e.task.model, tuple(shape), classes), e.task.partition.kinds()
    tables, where = (train, other, other), torch.device("cpu")
    return found, ServerView(net, classes, where, *tables, ids, kinds=kinds, ask=found.shares)


def form_of(e: Experiment, told: Federation) -> Params:
    """Return a message as a client's must be, but for its numbers: that of one with two examples.

    These are made up, as the server has none.
    """
    shape, tokens = told.net.shape, told.net.reads_tokens
    x = torch.zeros(2, *shape, dtype=torch.int32 if tokens else torch.float32)
    scale = torch.ones(0 if tokens else x[0].numel())
    side = {name: torch.zeros(2, dtype=torch.int64) for name in told.kinds}
    table = ClientData(x, torch.arange(2), torch.arange(2), np.array([2]), scale, 0 * scale, side)
    one = np.zeros(1, dtype=np.int64)
    tables, kinds = (table, table, table), told.kinds
    fed = Federation(told.net, told.classes, told.device, *tables, one, kinds=kinds)
    begun = replace(e.algorithm.init(fed, e.seed), round=0, seed=e.seed)
    return _round(e.algorithm, fed, begun, {})


def play(
    e: Experiment, clients: Peers, fed: Federation, state: State, t: int, form: Params
) -> tuple[State, dict[str, Any]]:
    """Play round ``t``; return the next state, and the bytes that were to go and that went.

    Clients whose message is not of the ``form`` are left out of it. RuntimeError if all are.
    """
    algorithm = e.algorithm
    rows = select(fed, e.cohort, e.seed, t)
    state = replace(state, round=t, seed=e.seed)
    where = torch.as_tensor(rows)
    common = algorithm.round_constants(fed, state)
    # What a client can make of what it is sent is not sent with it.
    common = {
        n: c for n, c in common.items() if not any(c is s for s in state.server_params.values())
    }
    down = {}
    for row in rows.tolist():
        handed = algorithm.download(state, row)
        parts = {"shared": handed.server_params, "memory": handed.server_memory, "common": common}
        down[row] = RecordDict({name: packed(params) for name, params in parts.items()})
        down[row]["round"] = ConfigRecord({"t": t})

    def read(row: int, content: RecordDict) -> tuple[Params, int]:
        message = unpacked(content.array_records["message"])
        _formed(message, form)
        if decided := {n: param for n, param in message.items() if n in state.server_memory}:
            where = torch.tensor([row])  # an error for what nobody can choose
            algorithm.client_params(fed, state.with_decisions(where, decided), where)
        return {n: message[n] for n in form}, payload(content)

    up = clients.ask("train", down, read)
    clients.needed(f"round {t + 1} has no message", bool(up))
    rows = rows[np.isin(rows, [*up])]
    where = torch.as_tensor(rows)
    messages = {n: torch.cat([up[row][0][n] for row in rows.tolist()]) for n in form}
    decided = {n: messages.pop(n) for n in [*messages] if n in state.server_memory}
    state = state.with_decisions(where, decided)
    with torch.no_grad():
        ledger = algorithm.communication_bytes(state, where, {**messages, **decided})
        state = algorithm.aggregate(fed, state, where, messages)
    sound = all(bool(param.isfinite().all()) for param in state.server_params.values())
    clients.needed(f"after round {t + 1} the server's parameters are not finite, of {[*up]}", sound)
    return state, {
        "clients": fed.ids[rows].tolist(),
        "ledger": [sent.tolist() for sent in ledger],
        "wire": [[payload(down[r]) for r in rows.tolist()], [up[r][1] for r in rows.tolist()]],
        "refused": {str(node): why for node, why in clients.refused.items()},
    }


server = ServerApp()
client = client_app()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Play an experiment's rounds with ``clients`` clients, and keep the server's final state."""
    e = experiment_of(context)
    home = run_folder(e, context)
    clients, fed = joined(e, grid, context.run_config)
    if clients.refused and isinstance(e.cohort, int):  # go on with who is left
        e = replace(e, cohort=min(e.cohort, fed.num_clients))
    begun = e.algorithm.init(fed, e.seed)
    require_params(e.algorithm, begun)
    state = replace(begun, client_params={})
    form = form_of(e, fed)
    rounds = []
    for t in range(e.rounds):
        state, sent = play(e, clients, fed, state, t, form)
        rounds.append(sent)
        _save(home / SERVER, state.flat(), t + 1)
        put = partial(Path.write_text, data=json.dumps(rounds), encoding="utf-8")
        write(home / LEDGER, put, "what was sent")
        down, up = map(sum, sent["wire"])
        print(f"round {t + 1} of {e.rounds}: {down:,} bytes down, {up:,} up", flush=True)
