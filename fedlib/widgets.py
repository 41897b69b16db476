"""Explorers for JupyterLab: thin controls over the same functions that draw the static figures.

An error inside a widget callback would vanish, so every explorer draws once directly when it is
made, and shows later errors in a line of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML, display
from matplotlib.figure import Figure

from fedlib import plotting
from fedlib.claims.rule import FAILS, HOLDS
from fedlib.experiment import Experiment
from fedlib.live import LiveRun


def claims_table(frame: pd.DataFrame) -> HTML:
    """Return a frame of claims as a table in which verdicts stand out by word and colour."""
    shown = frame.drop(columns="clear")
    formats = {"verdict": lambda v: f'<b style="color:{_COLOURS.get(v, "inherit")}">{v}</b>'}
    with pd.option_context("display.max_colwidth", None):
        table = shown.to_html(index=False, escape=False, formatters=formats, border=0)
    left = {f"<{cell}>": f'<{cell} style="text-align:left">' for cell in ("td", "th")}
    for plain, aligned in left.items():
        table = table.replace(plain, aligned)
    return HTML(table)


def explorer(draw: Callable[..., Figure], **controls: w.Widget) -> w.VBox:
    """Return controls above a figure: ``draw(**values)`` is called anew when a value changes."""
    screen = _Screen(lambda: draw(**{name: c.value for name, c in controls.items()}))
    for control in controls.values():
        control.observe(lambda _: screen.redraw(), names="value")
    return w.VBox([w.HBox(list(controls.values()), layout=_WRAP), screen.status, screen.output])


def watch(experiment: Experiment, settings: dict[str, Any] | None = None) -> w.VBox:
    """Return a live view of q(z|y) forming while ``experiment`` trains: play, pause, step, scrub.

    ``settings`` are keyword arguments of the FedMix algorithm with the widgets that set them; the
    button "start again" makes a new run with their values.
    """
    return _Watch(experiment, settings or {}).box


_COLOURS = {HOLDS: "#0173b2", FAILS: "#a8480b"}
_WRAP = w.Layout(flex_flow="row wrap", grid_gap="4px 16px")


class _Screen:
    """A figure that can be redrawn, and the line that says what went wrong.

    JupyterLab delivers sliders in one thread of the kernel and buttons in another: one draws at a
    time.
    """

    def __init__(self, draw: Callable[[], Figure]) -> None:
        self._draw = draw
        self._one = threading.RLock()
        self.status = w.HTML()
        self.output = w.Output()
        self._show()

    def redraw(self) -> None:
        """Draw again; an error is shown instead of being swallowed."""
        with self._one:
            try:
                self._show()
                self.status.value = ""
            except Exception as error:
                self.complain(error)

    def complain(self, error: Exception) -> None:
        """Say what went wrong."""
        self.status.value = f"<b>{type(error).__name__}</b>: {escape(str(error))}"

    def _show(self) -> None:
        figure = self._draw()
        self.output.clear_output(wait=True)
        with self.output:
            display(figure)
        plt.close(figure)


class _Watch:
    def __init__(self, experiment: Experiment, settings: dict[str, Any]) -> None:
        self.experiment, self.settings = experiment, settings
        self.live = LiveRun(experiment)
        last = experiment.rounds
        self.play = w.Play(min=0, max=last, interval=250, show_repeat=False)
        self.round = w.IntSlider(0, 0, last, description="round", continuous_update=False)
        self.step = w.Button(description="step one round", icon="step-forward")
        self.again = w.Button(description="start again", icon="refresh")
        self.trained = w.Label()
        w.jslink((self.play, "value"), (self.round, "value"))
        self.screen = _Screen(self._figure)
        self.round.observe(lambda _: self.screen.redraw(), names="value")
        self.step.on_click(lambda _: self._step())
        self.again.on_click(lambda _: self._restart())
        runs = w.HBox([self.play, self.round, self.step, self.trained], layout=_WRAP)
        choose = w.HBox([*settings.values(), self.again], layout=_WRAP)
        self.box = w.VBox([choose, runs, self.screen.status, self.screen.output])

    def _figure(self) -> Figure:
        # Both are read anew each round: a new start, or an earlier round, ends a long training.
        while (live := self.live).completed < (at := self.round.value):
            live.advance(live.completed + 1)
            self.trained.value = f"{live.completed} rounds trained"
        self.trained.value = f"{live.completed} rounds trained"
        return specialisation_frame(live, at)

    def _step(self) -> None:
        self.round.value = min(self.round.value + 1, self.round.max)

    def _restart(self) -> None:
        try:
            chosen = {name: c.value for name, c in self.settings.items()}
            algorithm = replace(self.experiment.algorithm, **chosen)
            self.live = LiveRun(replace(self.experiment, algorithm=algorithm))
        except Exception as error:
            self.screen.complain(error)
            return
        if self.round.value:
            self.round.value = 0  # which redraws
        else:
            self.screen.redraw()


def specialisation_frame(live: LiveRun, at: int) -> Figure:
    """Return one frame of the live view: q(z|y) after ``at`` rounds, and its entropies so far."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(plotting.PAGE, 3.0), gridspec_kw={"width_ratios": [1, 2]}
    )
    q = live.history[at]["q"]
    left.imshow(q, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    left.set(title=f"q(z|y) after {at} rounds", xlabel="expert z", ylabel="label y")
    left.set_xticks(range(q.shape[1]), [str(k + 1) for k in range(q.shape[1])])
    left.set_yticks(range(len(live.labels)), live.labels)
    for name, label in (
        ("q_entropy", "mean entropy of a row"),
        ("q_marginal_entropy", "entropy of the marginal"),
    ):
        right.plot([float(h[name]) for h in live.history[: at + 1]], label=label)
    most = float(np.log(q.shape[1]))
    right.axhline(most, color="grey", linewidth=0.8, linestyle=":", label="log K")
    right.set(
        xlabel="communication round",
        ylabel="nats",
        xlim=(0, live.experiment.rounds),
        ylim=(-0.05, 1.05 * max(most, 0.1)),
    )
    figure.legend(fontsize="small", loc="outside lower right", ncols=3)
    return figure
