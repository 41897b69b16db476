"""Searching the parameters of experiments over a space that is a value, with Ray Tune."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow.compute as pc

from fedlib import paths
from fedlib.randomness import torch_seed
from fedlib.runs import Experiment, RunDiverged, run
from fedlib.values import key_of, value


class NoRay(RuntimeError):
    """There is no Ray to search with."""


@value
class Uniform:
    """A number between ``low`` and ``high``, uniform in itself or in its logarithm (``log``)."""

    low: float
    high: float
    log: bool = True

    def check(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"low must be below high, and above 0 for log, got {self}")

    def domain(self, tune: Any) -> Any:
        """Return it as Ray Tune names it."""
        return (tune.loguniform if self.log else tune.uniform)(self.low, self.high)


@value
class Choice:
    """One of some values."""

    of: tuple[Any, ...]

    def check(self) -> None:
        if not self.of:
            raise ValueError("Choice.of must name at least one value")
        try:
            key_of(self, version=0)
            hash(self.of)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Choice.of must hold numbers, text and values: {error}") from None

    def domain(self, tune: Any) -> Any:
        """Return it as Ray Tune names it."""
        return tune.choice(list(self.of))


@value
class Space:
    """What is searched: ``axes`` are pairs of a parameter's name and its ``Uniform | Choice``."""

    axes: tuple[tuple[str, Any], ...]

    def check(self) -> None:
        names = [name for name, _ in self.axes]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a space needs axes with different names, got {names}")
        for name, axis in self.axes:
            if not isinstance(axis, Uniform | Choice):
                raise TypeError(f"Space.axes: {name!r} must be a Uniform or a Choice, got {axis!r}")


def search(
    name: str,
    experiment: Callable[[Mapping[str, Any]], Experiment],
    space: Space,
    *,
    trials: int,
    seed: int,
    of: object = None,
    workers: int = 1,
    address: str | None = None,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Return the trials of a search: what each chose, and its ``score`` (see there).

    ``trials`` points of the space are drawn at random from ``seed`` and the ``name``, so that
    searches of other names draw others; ``experiment`` makes an experiment of each, which ``of``
    tells from those of other searches with the name. On one machine ``workers`` trials run at once;
    at the ``address`` of a Ray cluster as many as fit, and ``$FEDLIB_RUNS`` must be a folder that
    all its machines share. An interrupted search continues, and its trials are runs of the store,
    so that none is trained twice. NoRay where Ray is not installed.
    """
    _, tune, variants = _ray()
    draw = torch_seed(seed, "search", zlib.crc32(name.encode())) % 2**32
    mark = hashlib.sha256(repr((name, of, space, trials, seed)).encode()).hexdigest()[:12]
    folder, place = paths.runs() / ".searches", f"{name}-{mark}"  # hidden from the list of runs

    def objective(chosen: dict[str, Any]) -> dict[str, float]:
        return {"score": score(experiment(chosen), device)}

    needs = {"cpu": 1, "gpu": int(device.startswith("cuda"))}
    trial = tune.with_resources(objective, needs)
    config = tune.TuneConfig(
        metric="score", mode="max", num_samples=trials, search_alg=variants(random_state=draw)
    )
    with session(workers, address):
        if tune.Tuner.can_restore(str(folder / place)):
            tuner = tune.Tuner.restore(str(folder / place), trial, restart_errored=True)
        else:
            tuner = tune.Tuner(
                trial,
                param_space={name: axis.domain(tune) for name, axis in space.axes},
                tune_config=config,
                run_config=tune.RunConfig(name=place, storage_path=str(folder), verbose=0),
            )
        found = [(r.config, r.metrics or {}) for r in tuner.fit()]
    # Ray hands a restored search back in another order; a trial's id ends with its number.
    found.sort(key=lambda trial: str(trial[1].get("trial_id", "")).rpartition("_")[2])
    return [{**config, "score": metrics.get("score", 0.0)} for config, metrics in found]


def score(experiment: Experiment, device: str = "cpu") -> float:
    """Return the clients' mean validation accuracy in the end; 0 for a run that diverges."""
    try:
        result = run(experiment, device=device, progress=False)
    except RunDiverged:
        return 0.0
    held, kept = (result.select(m) for m in ("validation_accuracy", "kept_round"))
    last = kept["value"][-1].as_py() if len(kept) else pc.max(held["round"]).as_py()
    there = held.filter(pc.field("round") == int(last))
    return float(there["value"].to_numpy().mean())


@contextmanager
def session(workers: int, address: str | None) -> Iterator[None]:
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


def _ray() -> tuple[Any, Any, Any]:
    try:
        import ray
        from ray import tune
        from ray.tune.search.basic_variant import BasicVariantGenerator
    except ImportError as error:
        raise NoRay('tuning needs Ray: pip install "fedlib[ray]"') from error
    return ray, tune, BasicVariantGenerator
