"""Attacks from outside: on who opted out, with a spec, with a picture, on a parent, by size.

What opted out is changed before a task is built, and a server's messages are compared byte by byte
(as a control, what takes part is changed). Specs come as text and name functions of Python that do
harm. Pictures come in every kind that Pillow can write. The parent of a run on two cores is killed
with SIGKILL or SIGTERM, and its copies must be gone. One client has thousands of examples beside
thousands of clients with two, and memory for the examples only.
"""

import gc
import io
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from benchmarks.robustness import child, tiny
from benchmarks.robustness.fuzz import told
from benchmarks.robustness.plan import Plan, Row
from benchmarks.robustness.sweeps import children, gone
from fedlib import data, parallel
from fedlib.algorithms import IFCA, SCAFFOLD, FedAvg, FedMix
from fedlib.data import DatasetError
from fedlib.models import MLP
from fedlib.partition import (
    Dirichlet,
    LocalHoldout,
    MatchedHoldout,
    NaturalPartition,
    OptOut,
    Shards,
)
from fedlib.tasks import Task
from fedlib.values import from_code, from_dict
from fedrun import run
from papers.specialists.opting import trace

HARMFUL = (
    "os:system", "os:remove", "subprocess:run", "shutil:rmtree", "builtins:eval", "builtins:exec",
    "pathlib:Path.unlink", "importlib:import_module", "pickle:loads", "webbrowser:open",
    "torchvision.models._api:load_state_dict_from_url",
)  # fmt: skip
FORMATS = {
    "PNG": True, "JPEG": True, "BMP": True, "GIF": True, "TIFF": True, "WEBP": True,
    "EPS": False, "PDF": False, "PPM": False, "PCX": False, "TGA": False, "SGI": False,
    "ICO": False,
}  # fmt: skip
"""Kinds of picture, and whether a data set may hold them."""


def measure(plan: Plan) -> list[Row]:
    """Attack in all ways."""
    return [opted_out(plan), named(plan), pictures(plan), *orphans(plan), unequal(plan)]


def opted_out(plan: Plan) -> Row:
    """Change what opted out before tasks are built; no byte of what a server sees may follow."""
    row, rng = Row("what opted out is changed before the build"), plan.rng("opted out")
    for _ in range(max(4, plan.cases // 10)):
        shares = [Dirichlet(6, rng.choice([0.1, 1.0]), 20), Shards(6, 2)]
        who = OptOut(clients=rng.choice([0.2, 0.5]), share=rng.choice([0.5, 1.0]))
        task = Task("digits", rng.choice(shares), MLP((4,)), MatchedHoldout(200, 5, 5), opt_out=who)
        algorithm = rng.choice([FedAvg(), FedMix(experts=2), SCAFFOLD(), IFCA(clusters=2)])
        how = {"rounds": 2, "cohort": 2}
        seen, control = (trace(task, algorithm, inside=i, **how) for i in (False, True))
        row.note("no byte changed" if not seen.changed else "bytes changed")
        row.check(not seen.changed, "nothing reached the server", f"{algorithm}, {who}: {seen}")
        row.check(control.changed > 0, "the control did")
    return row


def named(plan: Plan) -> Row:
    """Let specs that come as text name functions; none may be called, nor its module imported."""
    row = Row("a spec as text that names a function")
    place = plan.place("named")
    (place / "spy_of_specs.py").write_text(f"open({str(place / 'imported')!r}, 'w')\n", "utf-8")
    sys.path.insert(0, str(place))
    try:
        for function in (*HARMFUL, "spy_of_specs:net"):
            spec = {"kind": "Module", "function": function}
            for read, text in ((from_code, f"Module({function!r})"), (from_dict, spec)):
                _refused(row, read, text, function)
        row.check(not (place / "imported").exists(), "no module imported")
    finally:
        sys.path.remove(str(place))
    return row


def _refused(row: Row, read: Any, text: Any, function: str) -> None:
    try:
        read(text)
    except ValueError:
        row.note("refused")
    else:
        row.broke(f"{function} was taken")


def pictures(plan: Plan) -> Row:
    """Store pictures of every kind in a data set; only those that it may hold are read."""
    row, place = Row("a picture of another kind in a data set"), plan.place("pictures")
    with tiny.home(place / "home"):
        for kind, fine in FORMATS.items():
            file = io.BytesIO()
            Image.new("RGB", (16, 16), (200, 10, 60)).save(file, kind)
            folder = place / kind
            folder.mkdir()
            cells = [{"bytes": file.getvalue()}] * 8
            table = pa.table({"image": cells, "label": [0, 1] * 4})
            pq.write_table(table, folder / "train-00000-of-00001.parquet")
            ended = child.call(lambda folder=folder: _added(folder))
            as_it_may = ended.said == ("read" if fine else "refused")
            if as_it_may:
                row.note(str(ended.said))
            else:
                row.broke(f"{kind}: {ended}")
    return row


def _added(folder: Path) -> str:
    """Say whether a folder became a data set; any process that it starts is an error."""

    def look(event: str, _: Any) -> None:
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            raise RuntimeError(f"{event} while a picture was read")

    sys.addaudithook(look)
    try:
        data.add_from_hub("attack", folder, columns=(), splits=("train",))
    except DatasetError:
        return "refused"
    return "read"


def orphans(plan: Plan) -> list[Row]:
    """Kill the parent of a run on two cores at a random moment; its copies must end."""
    rows = []
    for how in (signal.SIGKILL, signal.SIGTERM):
        row, rng = Row(f"{how.name} to the parent of a run on two cores"), plan.rng("orphan", how)
        for life in range(max(3, plan.kills // 12)):
            with tiny.home(plan.place(f"orphan-{how.name}-{life}")):
                parent = child.Child(_on_two_cores, own_group=True)
                while not (team := children(parent.pid)) and not parent.over():
                    time.sleep(0.002)
                time.sleep(rng.random() / 5)
                over = parent.over()
                if not over:
                    team = children(parent.pid) or team
                    os.kill(parent.pid, how)
                parent.wait()
                row.note("done before the kill" if over else "killed")
                row.check(gone(team), "no process left", "a copy went on without its parent")
        rows.append(row)
    return rows


def _on_two_cores() -> None:
    torch.set_num_threads(2)
    parallel.MIN_SECONDS = 0.0  # also where a round is shorter than a fork
    run(replace(tiny.MIX, rounds=100), chunk=1, progress=False)


def unequal(plan: Plan) -> Row:
    """Build a federation of one large client beside many small ones, with little memory."""
    row = Row("one client of 20,000 examples beside 2,000 to 8,000 of two")
    for small in (2000, 4000, 8000):
        with tiny.home(plan.place(f"unequal-{small}")):
            ended = child.call(lambda small=small: _built(small))
        fine = ended.code == 0 and ended.said == small + 1
        row.note("built in 400 MiB") if fine else row.broke(f"{small}: {ended.error or ended}")
    return row


def _built(small: int) -> int:
    rng, owners = np.random.default_rng(0), np.arange(small).repeat(2)
    owner = np.concatenate([owners, np.full(20_000, small)])
    x = rng.normal(size=(len(owner), 4)).astype(np.float32)
    data.add("unequal", (x, rng.integers(2, size=len(owner)), {"owner": owner.astype(str)}))
    task = Task(
        "unequal", NaturalPartition("owner"), MLP((4,)), LocalHoldout(test=0.2, validation=0.1)
    )
    gc.collect()
    child.limit_memory(400 << 20)
    try:
        return int(task.build(0).num_clients)
    except Exception as error:
        raise RuntimeError(told(error)) from error
