"""Experiments in simulated worlds, as `venice sim` runs them; no rack is needed.

    from venice import sim

    experiment = sim.experiment("incast-1g").quick().set("topology.tor.switch.latency", "2us")
    results = experiment.run()
    print(results.points[0]["goodput"], results.findings)

See docs/guide/warehouse.md. `%%time` and Ctrl-C work as usual; a notebook shows results as a table.
"""

import html
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from . import _venice
from .errors import Invalid
from .sizes import whole

__all__ = [
    "Experiment",
    "Finding",
    "Histogram",
    "Interrupted",
    "Point",
    "Progress",
    "Results",
    "Shipped",
    "experiment",
    "experiments",
    "load",
    "read",
]

_RESULTS = "results.json"


class Shipped(NamedTuple):
    """An experiment that comes with Venice."""

    name: str
    """Its name."""
    title: str
    """One line about it."""
    paper: str
    """Section and figure of its paper."""
    world: str
    """The world that runs it."""


class Progress(NamedTuple):
    """The progress of a run."""

    done: int
    """Points that are done."""
    points: int
    """All points of the run."""
    place: str
    """The place of the running point: `servers=8 client=epoll`."""
    virtual_s: float
    """Its virtual time so far."""
    expected_s: float | None
    """Its virtual time at the end, if it goes on as before; `None`: unknown."""
    events: int
    """Events of the point so far."""
    wall_s: float
    """Seconds that it has taken."""


class Histogram(NamedTuple):
    """A distribution, by buckets of rising value."""

    unit: str
    """Unit of the values."""
    values: list[float]
    """The highest value of each bucket."""
    counts: list[int]
    """The number of values in each bucket."""

    def cdf(self) -> tuple[list[float], list[float]]:
        """Returns values, and the shares of all that are at most as large."""
        total, below, shares = sum(self.counts), 0, []
        for count in self.counts:
            below += count
            shares.append(below / total)
        return self.values, shares


class Finding(NamedTuple):
    """A statement of a paper, judged on the points that ran."""

    claim: str
    """The statement."""
    paper: str
    """Section or figure of the paper."""
    expression: str
    """What must hold."""
    holds: bool | None
    """True if it holds; `None`: not known, as points are missing."""


class Point:
    """A point of a run. `point["goodput"]` is a figure, `point.place["servers"]` a place."""

    def __init__(self, raw: dict[str, Any], values: dict[str, tuple[float | None, str]]) -> None:
        self._outcome: dict[str, Any] = raw["outcome"] or {}
        self._values = values
        self.place: dict[str, Any] = {at["name"]: at["value"] for at in raw["coordinates"]}
        """Its value on each sweep, or the name of its variant."""
        self.state: str = raw["state"]
        """`done`, `interrupted` or `not-run`."""
        self.wall_s: float = raw["wall_s"]
        """Seconds that it took."""
        self.events: int = self._outcome.get("events", 0)
        """Events handled."""
        self.virtual_s: float = self._outcome.get("virtual_ps", 0) / 1e12
        """Virtual time that passed."""
        self.trace_hash: str = self._outcome.get("trace_hash", "")
        """A hash over all events; equal runs have equal ones."""

    def __getitem__(self, figure: str) -> float:
        """Returns a figure; percentiles of distributions are figures too: `latency.p99_9`."""
        value = self._values[figure][0]
        return float("nan") if value is None else value

    def __repr__(self) -> str:
        return f"<Point {self._words()} {self.state}>"

    def _words(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.place.items())

    @property
    def figures(self) -> list[str]:
        """The names of its figures."""
        return list(self._values)

    def unit(self, figure: str) -> str:
        """Returns the unit of a figure; empty for a ratio."""
        return self._values[figure][1]

    def histogram(self, name: str) -> Histogram:
        """Returns a distribution, such as `latency`."""
        for raw in self._outcome.get("histograms", []):
            if raw["name"] == name:
                values = [value / raw["per_unit"] for value, _ in raw["buckets"]]
                return Histogram(raw["unit"], values, [count for _, count in raw["buckets"]])
        raise KeyError(name)

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Returns virtual seconds and values of a figure over time."""
        for raw in self._outcome.get("series", []):
            if raw["name"] == name:
                return [at for at, _ in raw["points"]], [value for _, value in raw["points"]]
        raise KeyError(name)


class Results:
    """Results of a run."""

    def __init__(self, text: str) -> None:
        values = json.loads(_venice.sim_values(text))
        raw = json.loads(text)
        self._text = text
        self._raw = raw
        self.name: str = raw["name"]
        """The experiment's name."""
        self.interrupted: bool = raw["interrupted"]
        """True if not all points ran to their end."""
        self.config: dict[str, Any] = raw["config"]
        """The configuration, without what is swept."""
        self.points = [Point(*both) for both in zip(raw["points"], values, strict=True)]
        """A result for each point, in the experiment's order."""
        verdicts = {"holds": True, "does-not-hold": False}
        self.findings = [
            Finding(one["claim"], one["paper"], one["expression"], verdicts.get(one["verdict"]))
            for one in raw["findings"]
        ]
        """The findings, judged on these points."""

    def __repr__(self) -> str:
        held = sum(finding.holds is True for finding in self.findings)
        findings = f"{held} of {len(self.findings)} findings hold"
        return f"<Results {self.name}: {len(self.points)} points, {findings}>"

    def rows(self, figures: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Returns a row for each point that ran: its place, and these figures, or all. `pandas.DataFrame`
        and `polars.DataFrame` take it."""
        wanted = None if figures is None else list(figures)
        rows = []
        for point in self.points:
            if point.state == "not-run":
                continue
            names = point.figures if wanted is None else wanted
            rows.append({**point.place, **{name: point[name] for name in names}})
        return rows

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes `results.json` and `experiment.toml` into a folder, which is made, as `venice sim run`
        does: `venice sim report FOLDER` draws the figures, `venice sim compare` takes it too."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        for name, text in [(_RESULTS, self._text), ("experiment.toml", self._raw["experiment"])]:
            new = path / f".{name}.new"
            new.write_text(text)
            new.replace(path / name)

    def _repr_html_(self) -> str:
        figures = _figures_of(self._raw["experiment"], self.points)
        head = [*(self.points[0].place if self.points else {}), *figures]
        cells = [_row("th", head)]
        for point in self.points:
            values = [f"{point[name]:.6g}" if name in point.figures else "" for name in figures]
            cells.append(_row("td", [*(str(value) for value in point.place.values()), *values]))
        signs = {True: "holds", False: "does not hold", None: "not known"}
        claims = [f"<li>{signs[one.holds]}: {html.escape(one.claim)}</li>" for one in self.findings]
        return f"<table>{''.join(cells)}</table><ul>{''.join(claims)}</ul>"


class Interrupted(KeyboardInterrupt):
    """A run was interrupted by Ctrl-C."""

    def __init__(self, results: Results) -> None:
        super().__init__("interrupted: the results so far are in .results")
        self.results = results
        """The results so far."""


class Experiment:
    """An experiment. Its methods return another one with the change."""

    def __init__(self, inner: "_venice.Experiment") -> None:
        self._inner = inner
        about = json.loads(inner.about())
        self.name: str = about["name"]
        """Its name."""
        self.title: str = about["title"]
        """One line about it."""
        self.description: str = about.get("description", "")
        """Paragraphs about it."""
        self.paper: str = about.get("paper", "")
        """Section and figure of the paper."""
        self.world: str = about["world"]
        """The world that runs it."""

    def __repr__(self) -> str:
        return f"<Experiment {self.name}: {self.title}>"

    @property
    def config(self) -> dict[str, Any]:
        """All keys that can be set, with their values; what is swept is not in it."""
        config: dict[str, Any] = json.loads(self._inner.config())
        return config

    def points(self, points: str = "") -> list[dict[str, Any]]:
        """Returns the place of each point, or of those that a filter takes: `servers=1|8,client=epoll`."""
        raw = json.loads(self._inner.points(points))
        return [{at["name"]: at["value"] for at in point["place"]} for point in raw]

    def quick(self) -> "Experiment":
        """The small variant, which takes seconds."""
        return Experiment(self._inner.quick())

    def set(self, key: str | Mapping[str, Any], value: Any = None) -> "Experiment":
        """Sets a key, or several: `set("topology.tor.switch.latency", "2us")`, `set({"seed": 7, "cores": 2})`. A key
        that is swept takes this value alone."""
        pairs = dict(key) if isinstance(key, Mapping) else {key: value}
        inner = self._inner
        for name, new in pairs.items():
            inner = inner.set(name, _json(name, new))
        return Experiment(inner)

    def sweep(self, key: str, values: Iterable[Any]) -> "Experiment":
        """Sweeps a key over values, or a sweep that is there over others."""
        return Experiment(self._inner.sweep(key, _json(key, list(values))))

    def to_toml(self) -> str:
        """Returns it as a file that `venice sim run` takes."""
        return self._inner.to_toml()

    def run(
        self,
        points: str = "",
        *,
        threads: int = 1,
        progress: Callable[[Progress], None] | bool = True,
    ) -> Results:
        """Runs all points, or those that a filter takes: `servers=1|8,client=epoll`.

        `threads` are those of one point, without effect on results: more than one pay for thousands of
        nodes on idle processors.
        `progress` is called some times a second; true shows a line on the terminal, or in the notebook.

        Raises `Interrupted` on Ctrl-C, with the results so far.
        """
        count = whole(threads, "threads")
        if not 1 <= count <= 1024:
            raise Invalid(f"threads: {count}: pass 1 to 1024")
        line = _Line(sys.stderr)
        told = progress if callable(progress) else line.show if progress else _ignore

        def observe(
            done: int, of: int, place: str, now: int, end: int | None, events: int, took: float
        ) -> None:
            expected = None if end is None else end / 1e12
            told(Progress(done, of, place, now / 1e12, expected, events, took))

        try:
            text, raised = self._inner.run(points, count, _machine(), observe)
        finally:
            line.clear()
        results = Results(text)
        if isinstance(raised, KeyboardInterrupt):
            raise Interrupted(results) from raised
        if raised is not None:
            raise raised
        return results


def experiments() -> list[Shipped]:
    """Returns the experiments that come with Venice."""
    return [Shipped(*row) for row in _venice.sim_list()]


def experiment(name: str) -> Experiment:
    """Returns an experiment that comes with Venice."""
    return Experiment(_venice.Experiment.named(name))


def read(file: str | os.PathLike[str]) -> Experiment:
    """Reads an experiment from a file in TOML."""
    text = Path(file).read_text()
    try:
        return Experiment(_venice.Experiment.read(text))
    except Invalid as error:
        raise Invalid(f"{file}: {error}") from None


def load(folder: str | os.PathLike[str]) -> Results:
    """Reads the results of `venice sim run`, or of `Results.save`, from their folder."""
    return Results((Path(folder) / _RESULTS).read_text())


class _Line:
    """One line on a terminal that says how far a run is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._len = 0

    def show(self, at: Progress) -> None:
        if not self._stream.isatty() and "ipykernel" not in sys.modules:
            return
        of = "" if not at.expected_s else f" of {at.expected_s:.3g}"
        rate = at.events / max(at.wall_s, 1e-9) / 1e6
        text = f"{at.done + 1}/{at.points} {at.place} {at.virtual_s:.3g}{of} s, {rate:.1f} M events/s"
        self._write(text)

    def clear(self) -> None:
        if self._len:
            self._write("")
            self._stream.write("\r")

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._len))
        self._stream.flush()
        self._len = len(text)


def _ignore(_: Progress) -> None:
    pass


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _machine() -> str:
    return f"{platform.machine()}, {_processors()} cores, {platform.system()} {platform.release()}"


def _json(key: str, value: Any) -> str:
    """Returns a value as JSON, numbers of numpy included."""
    try:
        return json.dumps(value, allow_nan=False, default=lambda other: other.item())
    except (AttributeError, TypeError, ValueError):
        raise Invalid(f"{key}: {value!r} is no number, text, boolean, list or table") from None


def _figures_of(experiment: str, points: list[Point]) -> list[str]:
    """Returns the figures that the experiment draws; if there are none, those of the first point."""
    inner = json.loads(_venice.Experiment.read(experiment).about())
    drawn = [figure["y"] for figure in inner.get("figure", [])]
    all_names = points[0].figures if points else []
    names: list[str] = []
    for name in drawn:
        parts = [name, *(f"{name}.{part}" for part in ("p50", "p99", "p99_9"))]
        names.extend(part for part in parts if part in all_names and part not in names)
    return names or all_names


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
