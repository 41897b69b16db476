"""Panels of a notebook: the runs of a section on the data sets of a scale."""

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from companion import trained
from companion.claims import Claim, judging
from companion.diverged import DIVERGED, lost
from companion.frames import frame_of, together
from companion.inference import LEAST_SEEDS
from companion.plotting import INITIAL, UNTRAINED, Title, title
from companion.plotting.style import MISSING, seeds_of
from companion.sections import (
    OWN,
    PROTOCOL,
    ROUNDS,
    USUAL,
    NothingStored,
    Run,
    Section,
    Setting,
    has_data,
)
from companion.trained import no_runs
from fedlib import data
from fedlib.algorithms import MajorityClass
from fedrun import Experiment, Result, find_result
from fedrun.baseline import BelowBaseline
from fedrun.sweeps import sweep


@dataclass(frozen=True, eq=False)
class Panel:
    """Runs of several methods on one data set: their setting and their metrics.

    Attributes:
        dataset: the name of the data set.
        scale: one of ``SCALES``.
        setting: the setting.
        frame: the metrics of all runs.
        trained: whether `panels` asked for these runs; False for stored results (`stored`).
        absent: methods that the frame lacks, and why, such as "2 of 3 seeds" or "not trained yet".
        left: the places at which no method has been trained yet, such as "p = 0.4".
        untrained: the runs that did not train: method, seed, and place.
        initial: the runs whose kept model is the initial one.
        rising: how much each method's accuracy still rises at the end (`companion.trained.Survey`).
        rounds: the number of rounds that was asked for; 0 for the setting's own.
    """

    dataset: str
    scale: str
    setting: Setting
    frame: pd.DataFrame = field(repr=False)
    trained: bool
    absent: Mapping[str, str] = field(default_factory=dict)
    left: Sequence[str] = ()
    untrained: pd.DataFrame = field(default_factory=no_runs, repr=False)
    initial: pd.DataFrame = field(default_factory=no_runs, repr=False)
    rising: Mapping[str, float] = field(default_factory=dict, repr=False)
    rounds: int = 0

    @property
    def name(self) -> Title:
        """The title of the panel, such as "CIFAR-10 (standard)".

        If other data stand in for the paper's, the title names them.
        """
        raw = self.dataset in data.names()  # others, such as partitions, have their own titles
        trained_on = self.setting.task.dataset if raw else self.dataset
        return self.titled(f"{title(trained_on, self.scale)} ({self.scale})")

    @property
    def counted(self) -> str:
        """The number of seeds of the methods in words, such as "2 to 3 seeds"."""
        runs = self.frame.groupby("method")["seed"].nunique()
        return seeds_of(runs.to_frame("seeds"))

    def titled(self, words: str) -> Title:
        """Return a title for a part of the panel, with which figures list what it lacks."""
        marked = {UNTRAINED: self.untrained, INITIAL: self.initial}
        absent = {**self.absent, **dict.fromkeys(self.left, MISSING)}
        return Title(words, absent, marked, dict(self.setting.looks))

    @property
    def lacking(self) -> str:
        """The places at which no method has been trained, in words; "" if there are none."""
        return f"still without {' and '.join(self.left)}" if self.left else ""

    def only(self, methods: Collection[str]) -> "Panel":
        """Return the panel with some of its methods, be they present or absent."""
        absent = {method: why for method, why in self.absent.items() if method in methods}
        return replace(self, frame=self.frame[self.frame["method"].isin(methods)], absent=absent)

    def judged(self, judge: Callable[..., Sequence[Claim]], *more: Any) -> list[Claim]:
        """Return the claims that ``judge`` makes of the frame.

        All seeds count. The claims state how many seeds did not train, and at which places no run
        is stored yet. They are ours if the paper speaks of another data set (digits stand for all).
        Intervals are corrected for the looks of the setting. A claim about the end of training is
        ``still training`` if a curve that it compares rises by a point or more, unless the setting
        has the paper's own rounds.

        Args:
            judge: returns claims, given a frame and ``more``.
            more: further arguments of ``judge``.
        """
        marked = {trained.UNTRAINED_NOTE: self.untrained, trained.INITIAL_NOTE: self.initial}
        with judging(self.dataset, dict(self.setting.looks)):
            every = trained.noted(lambda f: judge(f, *more), self.frame, marked)
        if self.scale != "quick":
            how = self.faithful, self.setting.exploratory
            every = [one.on(self.dataset, *how) for one in every]
        if self.faithful not in (PROTOCOL, OWN, ROUNDS):
            every = [one.unless_rising(self.rising) for one in every]
        if not self.left:
            return every
        return [replace(one, measured=f"{one.measured}; {self.lacking}") for one in every]

    @property
    def faithful(self) -> str:
        """How faithful the setting is to the paper's: one of `companion.sections.FAITHFUL`."""
        return self.setting.faithful or USUAL[self.scale]

    def claims(self, judge: "Callable[[Panel], Sequence[Claim]]") -> list[Claim]:
        """Return the claims that ``judge`` makes of the panel: see `judged`."""
        return self.judged(lambda frame: judge(replace(self, frame=frame)))

    @property
    def diverged(self) -> set[str]:
        """The methods that are absent because a run diverged."""
        return {method for method, why in self.absent.items() if why == DIVERGED}


def having(shown: Sequence[Panel], *methods: str) -> list[Panel]:
    """Return the panels that have all of these methods."""
    return [p for p in shown if {*methods} <= {*p.frame["method"].unique()}]


def on_real_data(shown: Sequence[Panel]) -> list[Panel]:
    """Return the panels of the standard and paper scales; all panels if there are none."""
    return [p for p in shown if p.scale != "quick"] or [*shown]


def run_here(shown: Sequence[Panel]) -> list[Panel]:
    """Return the panels of the quick scale, which run on the reader's own machine."""
    return [p for p in shown if p.scale == "quick"]


def panels(
    section: Section,
    methods: Sequence[str],
    scale: str,
    dataset: str = "",
    *,
    larger: Sequence[str] = (),
    seeds: int = 0,
    rounds: int = 0,
    device: str = "auto",
) -> list[Panel]:
    """Return one panel per data set of ``scale``; runs that are not stored are trained first.

    At the quick scale the stored results of the larger scales that `Section.beside` names follow:
    what a reader's machine has just computed stands next to what the paper's data give.

    Args:
        section: the experiments and their settings.
        methods: the names of the methods; all for an empty sequence. A data set that lacks one of
            them is shown without it.
        scale: one of ``SCALES``.
        dataset: one data set of the scale; all of them for "".
        larger: further methods, which are shown at the larger scales only.
        seeds: the number of seeds; 0 takes the setting's own.
        rounds: the number of rounds; 0 takes the setting's own.
        device: where runs are trained.

    Raises:
        NothingStored: if FEDLIB_STORED=1 forbids training at this scale, and no run is stored.
        OtherData: if the section has no such data set at this scale.
    """
    every, settings = [*methods, *larger], section.settings(scale, dataset)
    if only_stored(scale):
        if found := stored(section, every, scale, dataset):
            return found
        part = f"{section.name}:{dataset}".rstrip(":")
        raise NothingStored(
            f"of {part} nothing is stored at the {scale} scale; to train it: "
            f"python -m papers campaign --scale {scale} --section {part}"
        )
    methods = methods if scale == "quick" else every
    shown = []
    for name, setting in settings.items():
        asked = section.by_run(scale, name, methods, seeds=seeds, rounds=rounds)
        done = iter(_trained([e for _, es in asked for e in es], device))
        runs = [(run, [next(done) for _ in es]) for run, es in asked]
        frame = together((run.method, run.where, results) for run, results in runs)
        more: dict[str, Any] = {**trained.survey(runs)._asdict(), "rounds": rounds}
        shown.append(Panel(name, scale, setting, frame, trained=True, **more))
    beside = section.beside if scale == "quick" else ()
    return shown + [p for larger_scale in beside for p in stored(section, every, larger_scale)]


def _trained(experiments: Sequence[Experiment], device: str) -> list[Result]:
    """Return the results of experiments without a warning about those below the baseline.

    Figures draw the baseline, and a method of a paper that stays below it is a result.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BelowBaseline)
        return sweep(experiments, device=device)


def several(
    sections: Sequence[Section], scale: str, dataset: str = "", **more: Any
) -> Callable[[Section], list[Panel]]:
    """Return a function that returns the `panels` of each section.

    It returns none for a section that lacks the data set, or of which nothing is stored if nothing
    may be trained.

    Args:
        sections: the sections.
        scale: one of ``SCALES``.
        dataset: one data set of the scale; all of them for "".
        more: further arguments of `panels`.

    Raises:
        NothingStored: if nothing may be trained, and no section has stored runs.
        OtherData: if no section has the data set.
    """
    if dataset:
        known = [name for section in sections for name in section.settings(scale)]
        has_data(scale, dataset, dict.fromkeys(known))

    def shown(section: Section) -> list[Panel]:
        lacking = dataset and dataset not in section.settings(scale)
        with suppress(NothingStored):
            return [] if lacking else panels(section, [], scale, dataset, **more)
        return []

    if only_stored(scale) and not any(map(shown, sections)):
        names = ", ".join(section.name for section in sections)
        raise NothingStored(f"of {names} nothing is stored at the {scale} scale")
    return shown


def only_stored(scale: str) -> bool:
    """Return whether FEDLIB_STORED=1 forbids training, which it does at larger scales only."""
    return scale != "quick" and os.environ.get("FEDLIB_STORED") == "1"


def stored(
    section: Section, methods: Sequence[str], scale: str, dataset: str = "", *, part: bool = False
) -> list[Panel]:
    """Return a panel per data set of ``scale``, or of one, from stored results.

    While a campaign is under way, methods have different seeds: see `comparable`. Missing methods
    are listed as ``absent``. A data set has no panel if one end of a range is still to be trained,
    because the effect of skew or of exploration cannot be told from one end, nor a mean over the
    range. It has none either if only the baseline is stored.

    Args:
        section: the experiments and their settings.
        methods: the names of the methods; all for an empty sequence.
        scale: one of ``SCALES``.
        dataset: one data set of the scale; all of them for "".
        part: whether a data set has a panel even if an end of a range is missing, for comparisons
            of single numbers.
    """
    shown = []
    for name, setting in section.settings(scale, dataset).items():
        asked = section.by_run(scale, name, methods)
        found = [(run, [find_result(e) for e in every]) for run, every in asked]
        there = comparable(found, section.apart, setting.looks)
        alone = all(isinstance(run.experiment.algorithm, MajorityClass) for run, _ in there)
        if not alone and (part or _ends(there) == _ends(found)):
            frame = together((run.method, run.where, results) for run, results in there)
            gone = _absent(found, {run.method for run, _ in there})
            given_up = {run.method for run, _ in lost(section, scale, name)} if gone else {}
            gone |= {method: DIVERGED for method in gone if method in given_up}
            missing: dict[str, Any] = {"absent": gone, "left": _left(found, there)}
            missing |= trained.survey(there)._asdict()
            shown.append(Panel(name, scale, setting, frame, trained=False, **missing))
    return shown


def _ends(runs: Iterable[tuple[Run, Any]]) -> dict[Any, tuple[float, float]]:
    """Return the least and the largest value of each number in the places of runs."""
    places = pd.DataFrame([run.where for run, _ in runs]).select_dtypes("number")
    return {name: (column.min(), column.max()) for name, column in places.items()}


def _left(found: Iterable[tuple[Run, Any]], there: Iterable[tuple[Run, Any]]) -> list[str]:
    """Return the numbers in places that are planned but have no run, such as "p = 0.4"."""
    asked, done = (
        {place: None for run, _ in runs for place in run.where.items()} for runs in (found, there)
    )
    lacking = [place for place in asked if place not in done]
    return [f"{name} = {at:g}" for name, at in lacking if isinstance(at, int | float)]


def _absent(
    found: Sequence[tuple[Run, Sequence[Result | None]]], there: Collection[str]
) -> dict[str, str]:
    """Return why methods are absent: how many of their seeds or places are stored."""
    absent = {}
    for method in dict.fromkeys(run.method for run, _ in found if run.method not in there):
        places = [results for run, results in found if run.method == method]
        stored = [sum(one is not None for one in results) for results in places]
        least = min(range(len(places)), key=stored.__getitem__)
        absent[method] = MISSING
        if stored[least]:
            absent[method] = f"{stored[least]} of {len(places[least])} seeds"
        elif any(stored):
            absent[method] = f"{sum(map(bool, stored))} of {len(places)} places"
    return absent


def comparable(
    found: Sequence[tuple[Run, Sequence[Result | None]]],
    apart: str = "",
    looks: Sequence[tuple[int, int]] = (),
) -> list[tuple[Run, list[Result]]]:
    """Return the runs that can be compared: the same seeds, and all methods at the same places.

    A run that lacks one of its first ``LEAST_SEEDS`` seeds is left out (or the first seed, if no
    run has so many), and so is a seed that one of the remaining runs lacks. Means over places must
    be over the same places: methods and places are left out, those that lack most first, until
    every method is at every place that is planned for it. For example, without p = 0.2 with
    exploration, a mean over p with exploration would be over other p than without it: p = 0.2 is
    left out altogether.

    While seeds are added for another look at a claim, the seeds of the last look are kept until all
    planned ones are stored, because each judgement of a part of them would be a look of its own.

    Args:
        found: by run, a result per seed, None if it is not stored.
        apart: the name in places whose values are not compared with each other: see `Section`.
        looks: the number of looks by the least number of seeds for which it holds: see `Setting`.
    """
    if apart:
        parts: dict[Any, list[tuple[Run, Sequence[Result | None]]]] = {}
        for one in found:
            parts.setdefault(one[0].where.get(apart), []).append(one)
        return [one for part in parts.values() for one in comparable(part, looks=looks)]
    there = [[*results, None].index(None) for _, results in found]
    least = LEAST_SEEDS if max(there, default=0) >= LEAST_SEEDS else 1
    asked = [(len(results), str(run.where), run.method) for run, results in found]
    rows = pd.DataFrame(asked, columns=["asked", "place", "method"]).assign(seeds=there)
    while (lacks := rows["seeds"] < rows["asked"].clip(1, least)).any():
        shares = {
            (line, name): share
            for line in ("place", "method")
            for name, share in lacks.groupby(rows[line], sort=False).mean().items()
        }
        line, name = max(shares, key=lambda one: shares[one])
        rows = rows[rows[line] != name]
    rows = _on_a_grid([run for run, _ in found], rows)
    most = rows.loc[rows["seeds"] < rows["asked"], "seeds"].min()
    most = max((least - 1 for least, _ in looks if least - 1 <= most), default=most)
    kept = ((*found[i], None if pd.isna(most) else int(most)) for i in rows.index)
    return [(run, [r for r in results[:count] if r is not None]) for run, results, count in kept]


def _on_a_grid(runs: Sequence[Run], rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without the values (p = 0.2) at which some method lacks a planned run.

    The value that lacks the largest share of its runs is removed first; of equal ones, one of the
    quantity with the most values.
    """
    theirs = [run.method in {*rows["method"]} for run in runs]
    every = pd.DataFrame([run.where for run in runs])[theirs].dropna(how="all")
    asked = every
    while (gone := ~asked.index.to_series().isin(rows.index)).any():
        shares = {
            (share, asked[name].nunique(), name, number)
            for name in asked
            for number, share in gone.groupby(asked[name]).mean().items()
        }
        _, _, name, number = max(shares)
        asked = asked[asked[name] != number]
    return rows[~rows.index.isin(every.index.difference(asked.index))]


def costs(section: Section, panel: Panel) -> pd.DataFrame:
    """Return the cost of every method of a panel, including its first stages.

    Each method of the section must have a single place.

    Returns:
        Columns method, seed, megabytes (sent and received by all clients), seconds (of training, on
        the machine that trained it), and client_mib (what a client holds after the last round; NaN
        for older runs).
    """
    rows, most = [], int(panel.frame["seed"].max()) + 1
    every = section.by_run(panel.scale, panel.dataset, seeds=most, rounds=panel.rounds)
    for run, experiments in every:
        own = set(panel.frame.loc[panel.frame["method"] == run.method, "seed"])
        for one in experiments:
            stages = [find_result(stage) for stage in one.stages]
            known = [result for result in stages if result is not None]
            if one.seed in own and len(known) == len(stages):
                rows.append({"method": run.method, "seed": one.seed, **_spent(known)})
    return pd.DataFrame(rows)


def _spent(stages: Sequence[Result]) -> dict[str, float]:
    """Return the cost of a chain of stages: traffic, seconds, and what a client holds."""
    each = [frame_of(r) for r in stages]
    sent = sum(m.loc[m["metric"].isin(["bytes_down", "bytes_up"]), "value"].sum() for m in each)
    seconds = sum(r.provenance["seconds"] for r in stages)
    held = stages[-1].provenance.get("client_mib", float("nan"))
    return {"megabytes": sent / 1e6, "seconds": seconds, "client_mib": held}
