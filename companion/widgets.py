"""Interactive figures for JupyterLab: controls of the same functions that draw the static figures.

An exception in a widget callback is not shown. Every explorer therefore draws once directly when it
is made, and shows later errors in a line of its own. Pages without a kernel show pictures that were
drawn beforehand, with a slider for the values of one control.
"""

import json
import re
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython import get_ipython
from IPython.display import HTML
from matplotlib.figure import Figure
from PIL import Image

from companion import claims, frames, plotting
from companion.claims import CONTRADICTED, HOLDS
from companion.panels import Panel
from companion.plotting.style import readable
from fedrun import Experiment, find_result
from fedrun.train import rounds


def claims_table(frame: pd.DataFrame, name: str, scale: str) -> HTML:
    """Return the papers' claims among tests as a table, with all tests in a folded table below it.

    A claim has one row, with the verdict of its most faithful setting (`claims.answers`). Tested
    claims come first; rows beyond ``MOST`` are folded, too. The tests are written to
    ``figures/<scale>``, where the scorecard reads them.

    Args:
        frame: tests, as `claims.table` returns.
        name: the name of the file.
        scale: the scale.
    """
    plotting.save_table(frame, name, scale)
    answers = claims.answers(frame, claims.sentences(frame))
    answers = answers.sort_values("parts", key=lambda n: n.eq(0), kind="stable")
    rows, every = claims.headlines(answers), claims.shown(frame)
    there = " ".join([*rows["verdict"], *every["verdict"]])
    marks = [f"<b>{mark}</b>: {what}" for mark, what in claims.MARKS.items() if mark in there]
    more = _verdicts(rows[MOST:]) if len(rows) > MOST else ""
    label = (
        f"{len(rows[MOST:])} more claims and {len(every)} tests" if more else f"{len(every)} tests"
    )
    folded = f"<details><summary>{label}</summary>{more}{_verdicts(every)}</details>"
    return HTML(f"{_verdicts(rows[:MOST])}{folded}<p>{'; '.join([*marks, GLOSSARY])}</p>")


def folded(label: str, table: pd.DataFrame) -> HTML:
    """Return a table that opens with a click on its label."""
    with pd.option_context("display.max_colwidth", None):
        text = readable(re.sub(r"\n *", "", table.to_html(index=False, border=0)))
    return HTML(f"<details><summary>{escape(label)}</summary>{text}</details>")


def _verdicts(table: pd.DataFrame) -> str:
    """Return a table as HTML, with verdicts in bold and some in colour."""
    bold = '<b style="color:{}">{}</b>'.format
    formats: Any = {"verdict": lambda v: bold(_COLOURS.get(v.split(" (")[0], "inherit"), v)}
    with pd.option_context("display.max_colwidth", None):
        text = table.to_html(index=False, escape=False, formatters=formats, border=0)
    return re.sub("<(td|th)>", r'<\1 style="text-align:left">', readable(text))


def name_scales_in_tables() -> None:
    """Have IPython show each `pandas.DataFrame` with the names that scales have in figures."""
    if shell := get_ipython():
        html = shell.display_formatter.formatters["text/html"]
        html.for_type(pd.DataFrame, lambda table: readable(table._repr_html_()))


def data_menu(shown: Sequence[Panel], width: str = "22em") -> w.Dropdown:
    """Return a menu of panels by name, real data first; its value is the chosen panel.

    The names are those in figures. Panels of the same name are distinguished by their rounds.
    """
    every = sorted(shown, key=lambda p: p.scale == "quick")
    alike = {p.name for p in every if sum(p.name == other.name for other in every) > 1}
    rounds = [f", {p.frame['round'].max():,} rounds" * (p.name in alike) for p in every]
    names = [readable(p.name + more) for p, more in zip(every, rounds, strict=True)]
    options = list(zip(names, every, strict=True))
    return w.Dropdown(options=options, description="data", layout={"width": width})


def follow(control: Any, menu: w.Dropdown, offers: Callable[[Any], Sequence[Any]]) -> None:
    """Have a control offer the options of the chosen panel, now and whenever the menu changes.

    The control keeps its value if it is still an option. Call this before both widgets are given to
    an explorer, which would otherwise redraw first.

    Args:
        control: the widget whose options change.
        menu: the menu that determines them.
        offers: returns the options, given the value of the menu.
    """

    def offer(_: object) -> None:
        if menu.value is None:  # the menu has no options, which the explorer reports
            return
        kept, control.options = control.value, [*offers(menu.value)]
        if kept in control.options:
            control.value = kept

    menu.observe(offer, names="value")
    offer(None)


class Explorer(w.VBox):
    """Controls above a figure; without a kernel, the first figure or a sequence of pictures.

    Args:
        parts: the widgets; the last one is the figure.
        pictures: PNGs by label, shown without a kernel.
        start: the position of the picture that is shown first.
    """

    def __init__(
        self, parts: Sequence[w.Widget], pictures: Mapping[str, bytes], start: int
    ) -> None:
        super().__init__(parts)
        self._first, self.pictures, self._start = parts[-1].value, pictures, start

    def __repr__(self) -> str:
        return STILL  # that of ipywidgets includes the values of controls, such as whole frames

    def _repr_mimebundle_(self, **how: Any) -> dict[str, Any]:
        """Return the live view, and the static one for pages without a kernel."""
        still = {"image/png": b64encode(self._first).decode()}
        if self.pictures:
            still["text/html"] = moving(self.pictures, self._start)
        return {**super()._repr_mimebundle_(**how), **still}


def explorer(draw: Callable[..., Figure], *, moves: str = "", **controls: w.Widget) -> w.VBox:
    """Return controls above a figure, which is redrawn when one of them changes.

    A menu without options, as of panels that the chosen data set lacks, leaves a line that says so.

    Args:
        draw: returns the figure, given the values of the controls by name.
        moves: the name of a control with options. Pages without a kernel show a figure for each of
            its options, which are drawn here with the other controls as they are; "" shows the
            first figure only.
        controls: the widgets by name.
    """
    for control in controls.values():
        if isinstance(control, w.Dropdown) and not control.options:
            return w.VBox([w.HTML(f"Nothing to explore: no {control.description} to choose from.")])
    status, drawing = w.HTML(), threading.Lock()  # callbacks may come from several threads

    def drawn() -> Figure:
        return draw(**{name: c.value for name, c in controls.items()})

    layout = {"max_width": "100%", "align_self": "flex-start"}
    image = w.Image(value=_png(drawn()), format="png", layout=layout)

    def redraw(_: object) -> None:
        with drawing:
            try:
                image.value = _png(drawn())
                status.value = ""
            except Exception as error:
                status.value = f"<b>{type(error).__name__}</b>: {escape(str(error))}"

    mover = controls[moves] if moves else None
    start = mover.index if mover else 0
    seen = {label: _small(drawn()) for label in _options(mover)} if mover else {}
    for control in controls.values():
        control.observe(redraw, names="value")
    return Explorer([w.HBox([*controls.values()], layout=_WRAP), status, image], seen, start)


def _options(control: Any) -> Iterator[str]:
    """Set a control to each of its options; yield the label of its picture."""
    start = control.index
    for i in range(len(control.options)):
        control.index = i
        yield f"{control.description} {control.label}".strip()
    control.index = start


def _png(figure: Figure, dpi: float | str = "figure") -> bytes:
    png = BytesIO()
    figure.savefig(png, format="png", dpi=dpi)
    plt.close(figure)
    return png.getvalue()


def _small(figure: Figure) -> bytes:
    """Return a figure as a small PNG, of fewer pixels and few colours, as a page has many."""
    png = BytesIO()
    picture = Image.open(BytesIO(_png(figure, _COARSE))).convert("RGB")
    small = picture.quantize(_FEW, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(png, format="png", optimize=True)
    return png.getvalue()


def moving(pictures: Mapping[str, bytes], start: int = 0) -> str:
    """Return HTML that shows pictures with a slider and a button.

    It loads nothing, can occur on a page several times, and is readable on a dark one. Without
    scripts, the picture ``start`` remains.

    Args:
        pictures: PNGs by label.
        start: the position of the picture that is shown first.
    """
    labels = [*pictures]
    sources = [f"data:image/png;base64,{b64encode(png).decode()}" for png in pictures.values()]
    later = ["" if i == start else picture for i, picture in enumerate(sources)]
    given = json.dumps([*zip(labels, later, strict=True)]).replace("</", r"<\/")
    wide = Image.open(BytesIO(pictures[labels[start]])).width * 96 // _COARSE
    return _MOVING.substitute(
        key=f"{zlib.crc32(given.encode()):08x}", frames=given, start=start, last=len(labels) - 1,
        label=escape(labels[start]), first=sources[start], wide=wide,
    )  # fmt: skip


def watch(experiment: Experiment, settings: Mapping[str, w.Widget] | None = None) -> w.VBox:
    """Return a live view of q(z|y) while an experiment trains, with play, stop and step.

    A page without a kernel shows the stored run.

    Args:
        experiment: the experiment; nothing of it is stored.
        settings: widgets by field of the algorithm; another value trains a new run up to the same
            round.
    """
    start = -(-experiment.rounds // 3)  # by then rows of q differ, and still change
    at = w.IntSlider(start, 0, experiment.rounds, description="round", continuous_update=False)
    clock = w.Play(value=start, max=experiment.rounds, interval=_FRAME)
    w.link((clock, "value"), (at, "value"))
    live = [LiveRun(experiment)]

    def draw(round: int, **chosen: Any) -> Figure:
        algorithm = replace(experiment.algorithm, **chosen)
        if algorithm != live[0].experiment.algorithm:
            live[0] = LiveRun(replace(experiment, algorithm=algorithm))
        live[0].advance(round)
        return specialisation_frame(live[0], round)

    parts = [clock, *explorer(draw, round=at, **(settings or {})).children]
    pictures = dict(_remembered(experiment))
    return Explorer(parts, pictures, start=max(len(pictures) - 1, 0))


def _remembered(experiment: Experiment) -> Iterator[tuple[str, bytes]]:
    """Yield pictures of a stored run by round; none if it is not stored."""
    if (found := find_result(experiment)) is None:
        return
    frame, past = frames.together([("", {}, [found])]), LiveRun(experiment)
    course = frame[frame["metric"].isin(_ENTROPIES)].pivot_table("value", "round", "metric")
    past.history = [
        dict(zip(map(str, course), map(np.asarray, row), strict=True)) for row in course.to_numpy()
    ]
    for t in frames.logged_rounds(frame, "q", ""):
        past.history[t]["q"] = frames.matrix(frame, "q", "", experiment.seed, t)
        yield f"round {t}", _small(specialisation_frame(past, t))


STILL = "Controls: open the notebook in JupyterLab."  # shown without a kernel
MOST = 8  # the rows of claims that are not folded
GLOSSARY = 'all terms: <a href="../docs/GLOSSARY.md">glossary</a>'
_COLOURS = {HOLDS: "#0173b2", CONTRADICTED: "#a8480b"}
_FRAME = 500  # milliseconds between two frames of a live view
_COARSE, _FEW = 144, 64  # pixels per inch and colours of pictures on a page
_ENTROPIES = {"q_entropy": "mean entropy of a row", "q_marginal_entropy": "entropy of the marginal"}
_WRAP = w.Layout(flex_flow="row wrap", grid_gap="4px 16px")
_MOVING = Template(Path(__file__).with_name("moving.html").read_text("utf-8"))


class LiveRun:
    """An experiment that is trained step by step, and not stored.

    ``history[t]`` has what the algorithm logged after t rounds, by name (scalars, ``[experts]`` or
    ``[items, experts]``).
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.fed = experiment.task.build(experiment.seed, "auto")
        start = experiment.algorithm.init(self.fed, experiment.seed)
        self._course = rounds(experiment, self.fed, start)
        self.history: list[dict[str, np.ndarray]] = []
        self.advance(0)

    def advance(self, to: int) -> None:
        """Play rounds until ``to`` are completed.

        Raises:
            StopIteration: if these are more than the experiment's rounds.
        """
        while len(self.history) <= to:
            state, _, _ = next(self._course)
            seen = self.experiment.algorithm.log_metrics(self.fed, state)
            self.history.append({n: np.asarray(t.cpu()) for n, t in seen.items()})


def specialisation_frame(live: LiveRun, at: int) -> Figure:
    """Return the live view after ``at`` rounds: q(z|y), and its entropies so far."""
    # Not pyplot: its inline backend would show and close the unfinished figure in its thread.
    figure = Figure(figsize=(plotting.PAGE, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 2])
    q = live.history[at]["q"]
    left.imshow(q, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    left.set(title=f"q(z|y), round {at}", xlabel="expert z", ylabel="label y")
    left.set_xticks(range(q.shape[1]), [str(k + 1) for k in range(q.shape[1])])
    left.set_yticks(range(len(q)), live.fed.class_names)
    for name, label in _ENTROPIES.items():
        right.plot([float(h[name]) for h in live.history[: at + 1]], label=label)
    most = float(np.log(q.shape[1]))
    right.axhline(most, color="grey", linewidth=0.8, linestyle=":", label="log K")
    limits = {"xlim": (0, live.experiment.rounds), "ylim": (-0.05, 1.05 * max(most, 0.1))}
    right.set(xlabel="communication round", ylabel="nats", **limits)
    figure.legend(fontsize="small", loc="outside lower right", ncols=3)
    return figure
