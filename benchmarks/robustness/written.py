"""kill -9 of whoever decodes a data set into the cache, and of whoever exports results.

The same storms over whoever decodes a data set of 360 pictures into the cache, whose source changes
between them, and over whoever exports results.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.robustness import tiny
from benchmarks.robustness.plan import Plan, Row
from benchmarks.robustness.storms import calm, storm
from fedlib import data as datasets
from fedlib import paths
from fedrun import find_result
from fedrun.results import export, exported

NAME = "mnist_sample"
MIX = tiny.RUNS["FedMix"].key
PICTURES = {"train": 300, "test": 60}


def measure(plan: Plan) -> list[Row]:
    """Kill the writers of the cache and of ``results/``."""
    with data(plan.place("data")):
        return [_cache(plan), _exports(plan)]


@contextmanager
def data(folder: Path) -> Iterator[Path]:
    """Let a small data set of random pictures be found in $FEDLIB_DATA."""
    target = folder / NAME
    target.mkdir()
    rng = np.random.default_rng(0)
    for split, n in PICTURES.items():
        pictures = [{"bytes": _png(rng.integers(256, size=(28, 28)))} for _ in range(n)]
        table = pa.table({"image": pictures, "label": rng.integers(10, size=n)})
        pq.write_table(table, target / f"{split}-00000-of-00001.parquet")
    before = os.environ.get("FEDLIB_DATA")
    os.environ["FEDLIB_DATA"] = str(folder)
    try:
        yield target
    finally:
        os.environ.pop("FEDLIB_DATA")
        if before is not None:
            os.environ["FEDLIB_DATA"] = before


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "png")
    return file.getvalue()


def opened() -> str:
    """Open the data set, decoding it if need be; return its fingerprint, checked."""
    data = datasets.load(NAME)
    assert len(data.train) == PICTURES["train"]
    return data.fingerprint


def _cache(plan: Plan) -> Row:
    """The source changes its time in every life, so that older entries are deleted, too."""
    row, rng, life = Row("`kill -9` while a data set is decoded into the cache"), plan.rng("c"), 0
    with tiny.home(plan.place("calm-cache")):
        how, expected = calm(opened), opened()
    source = Path(os.environ["FEDLIB_DATA"]) / NAME
    with tiny.home(plan.place("storm-cache")):
        while row.outcomes["killed"] < plan.kills // 4 and not row.broken:
            life += 1
            for path in source.iterdir():
                os.utime(path, (life, life))
            storm(row, rng, opened, how, lambda: None)
            row.check(opened() == expected, "finished with the same examples")
            left = [p.name for p in (paths.cache() / "datasets").iterdir() if p.is_dir()]
            row.check(len(left) == 1, "one entry and no litter", f"left in the cache: {left}")
            row.check(not tiny.litter(paths.cache()), "no temporary file")
    return row


def _exports(plan: Plan) -> Row:
    """What was exported before is there, old or new, after every kill."""
    row, rng = Row("`kill -9` while results are exported"), plan.rng("export")

    def act() -> None:
        results = [find_result(tiny.RUNS[name]) for name in ("FedMix", "Local, best state")]
        for some in (results, results[:1], results):
            export([r for r in some if r is not None], "killed")

    with tiny.home(plan.place("storm-exports")):
        for name in ("FedMix", "Local, best state"):
            tiny.play(tiny.RUNS[name])
        how = calm(act)
        expected = _exported()

        def look() -> None:
            held = _exported()
            row.check(
                MIX in held and all(expected[key] == said for key, said in held.items()),
                "looks: every file whole",
            )

        while row.outcomes["killed"] < plan.kills // 4 and not row.broken:
            storm(row, rng, act, how, look)
            left = tiny.litter(paths.results())
            row.check(not left, "no litter", f"left in results: {left}")
    return row


def _exported() -> dict[str, tuple[bytes, dict[str, Any]]]:
    """Return the metrics and provenance of every exported run, by key."""
    runs = exported()
    return {r.experiment.key: (r.metrics.to_pandas().to_csv().encode(), r.provenance) for r in runs}
