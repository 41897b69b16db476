"""Searching a space with Ray Tune: on one machine, or on a Ray cluster."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from companion import frames
from fedlib import paths
from fedlib.randomness import torch_seed
from fedlib.runs import Experiment, RunDiverged, run
from fedlib.runs.tuning.space import Space
from fedlib.runs.tuning.stages import STAGES, Stage
from papers.recipes import Adaptive, seeded

SEED = 11  # of a task that no figure shows


class NoRay(RuntimeError):
    """There is no Ray to search with."""


def tune(
    setting: Adaptive,
    spaces: Mapping[str, Space],
    *,
    trials: int,
    seed: int = SEED,
    workers: int = 1,
    address: str | None = None,
    device: str = "cpu",
) -> tuple[Adaptive, pd.DataFrame]:
    """Tune the four stages one after another, each with the best of those before it.

    Returns the tuned setting and every trial: stage, trial, score, best and the parameters. See
    ``search``. Source: 003, sec. 4.4.
    """
    tables = []
    with _session(workers, address):
        for stage in STAGES:
            table = search(
                stage, setting, spaces[stage.name], trials=trials, seed=seed, device=device
            )
            best = table.loc[table["best"]].to_dict("records")[0]  # of Python's own numbers
            chosen = {name: best[name] for name, _ in spaces[stage.name].axes}
            setting = stage.apply(setting, chosen)
            tables.append(table)
    return setting, pd.concat(tables, ignore_index=True)


def search(
    stage: Stage,
    setting: Adaptive,
    space: Space,
    *,
    trials: int,
    seed: int = SEED,
    workers: int = 1,
    address: str | None = None,
    device: str = "cpu",
) -> pd.DataFrame:
    """Return the trials of one stage, each scored by its clients' mean validation accuracy.

    ``trials`` points of the space are drawn at random from ``seed``, which is also the task's. On
    one machine ``workers`` trials run at once; at the ``address`` of a Ray cluster as many as fit,
    and ``$FEDLIB_RUNS`` must be a folder that all its machines share. An interrupted search
    continues, and its trials are runs of the store, so that none is trained twice. A trial that
    diverges scores 0. NoRay where Ray is not installed.
    """
    _, ray_tune, variants = _ray()
    # Stages draw points of their own: with one seed all would lie at the same places.
    draw = torch_seed(seed, "search", zlib.crc32(stage.name.encode())) % 2**32
    name = f"{stage.name}-{_mark(stage.name, setting, space, trials, seed)}"
    folder = paths.runs() / ".searches"  # hidden from the list of runs
    trial = ray_tune.with_resources(
        _objective(stage, setting, seed, device),
        {"cpu": 1, "gpu": int(device.startswith("cuda"))},
    )
    with _session(workers, address):
        if ray_tune.Tuner.can_restore(str(folder / name)):
            tuner = ray_tune.Tuner.restore(str(folder / name), trial, restart_errored=True)
        else:
            how = ray_tune.TuneConfig(
                metric="score",
                mode="max",
                num_samples=trials,
                search_alg=variants(random_state=draw),
            )
            tuner = ray_tune.Tuner(
                trial,
                param_space=space.domains(ray_tune),
                tune_config=how,
                run_config=ray_tune.RunConfig(name=name, storage_path=str(folder), verbose=0),
            )
        found = [(r.config, r.metrics or {}) for r in tuner.fit()]
    # Ray hands a restored search back in another order; a trial's id ends with its number.
    found.sort(key=lambda trial: str(trial[1].get("trial_id", "")).rpartition("_")[2])
    rows = [{**config, "score": metrics.get("score", 0.0)} for config, metrics in found]
    table = pd.DataFrame(rows).assign(stage=stage.name, trial=range(len(rows)))
    return table.assign(best=table.index == table["score"].idxmax())


def score(experiment: Experiment, device: str = "cpu") -> float:
    """Return the clients' mean validation accuracy in the end; 0 for a run that diverges."""
    try:
        result = run(experiment, device=device, progress=False)
    except RunDiverged:
        return 0.0
    return float(
        frames.ended(frames.together({"": [result]}), "validation_accuracy")["value"].iloc[0]
    )


def where(name: str) -> Path:
    """Return the file in which a search's trials are kept with the project."""
    return paths.results() / "tuning" / f"{name}.csv"


def stored(name: str) -> pd.DataFrame | None:
    """Return the trials of a search that is kept with the project; None if there is none."""
    return pd.read_csv(where(name)) if where(name).is_file() else None


def _objective(stage: Stage, setting: Adaptive, seed: int, device: str) -> Any:
    def objective(chosen: dict[str, Any]) -> dict[str, float]:
        experiment = stage.experiment(stage.apply(setting, chosen))
        return {"score": score(seeded(experiment, seed), device)}

    return objective


@contextmanager
def _session(workers: int, address: str | None) -> Iterator[None]:
    """Have Ray running: the one that is, or one of our own that ends with this."""
    ray, _, _ = _ray()
    started = not ray.is_initialized()
    if started:
        options = {"address": address} if address else {"num_cpus": workers}
        ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False, **options)
    try:
        yield
    finally:
        if started:
            ray.shutdown()


def _mark(*what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]


def _ray() -> tuple[Any, Any, Any]:
    try:
        import ray
        from ray import tune as ray_tune
        from ray.tune.search.basic_variant import BasicVariantGenerator
    except ImportError as error:
        raise NoRay('tuning needs Ray: pip install "fedlib[ray]"') from error
    return ray, ray_tune, BasicVariantGenerator
