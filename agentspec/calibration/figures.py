"""The figures of a report, each drawn on axes that it is given.

It must not know pages or files; `agentspec.plots` knows how figures look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from agentspec.calibration.measure import Bin, Measure
from agentspec.calibration.report import ReportData
from agentspec.plots import COLOURS, INK, MARKERS, drawing, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FEW", "figure", "names", "rows", "sheet"]

FEW: Final = 20
"""Proposals. Bins of fewer are pale in the diagram of reliability, and no line goes through them."""

_MOST_ROWS: Final = 24
"""Of the bars by place; the table of the page has them all."""

_LONGEST_NAME: Final = 26


def names(data: ReportData) -> Sequence[str]:
    """The figures that there is something to draw for, in the order of the page."""
    return [name for name in _DRAW if data.sources or name in ("passes", "lengths")]


def figure(name: str, data: ReportData) -> Figure:
    """One of `names`. Raises ConfigError where matplotlib is not installed."""
    with drawing():
        drawn = new_figure(height=_height(name, data))
        _DRAW[name](drawn.add_subplot(), data)
        return drawn


def sheet(data: ReportData) -> Figure:
    """All of them in one figure, two in a row. Raises ConfigError where matplotlib is not installed."""
    shown = names(data)
    heights = [
        max(_height(name, data) for name in pair) for pair in zip(shown[::2], shown[1::2], strict=True)
    ]
    with drawing():
        drawn = new_figure(10.8, sum(heights))
        grid = drawn.add_gridspec(len(heights), 2, height_ratios=heights)
        for index, name in enumerate(shown):
            _DRAW[name](drawn.add_subplot(grid[divmod(index, 2)]), data)
        return drawn


def _height(name: str, data: ReportData) -> float:
    if name == "reliability":
        return 4.6
    return max(2.6, 1.1 + 0.24 * len(rows(data))) if name == "acceptance" else 3.0


def _passes(axes: Axes, data: ReportData) -> None:
    bars = {
        "every proposal accepted": data.bound,
        "expected (alpha)": data.expected,
        "achieved": data.achieved,
        "plain decoding": 1.0,
    }
    colours = (COLOURS[5], COLOURS[2], COLOURS[0], COLOURS[5])
    drawn = axes.barh([*bars], [*bars.values()], color=colours, height=0.62)
    axes.bar_label(drawn, labels=[f"{value:.2f}" for value in bars.values()], padding=4)
    axes.margins(x=0.14)
    plain_axes(axes, title="Tokens per target pass", xlabel="tokens per pass", grid="x")
    axes.tick_params(axis="y", length=0)


def _lengths(axes: Axes, data: ReportData) -> None:
    from matplotlib.ticker import MaxNLocator

    lengths = sorted(data.lengths)
    shares = [100 * data.lengths[length] / data.passes for length in lengths]
    axes.bar(lengths, shares, color=COLOURS[0], width=0.8)
    mean = data.achieved
    axes.axvline(mean, color=INK, linewidth=1.0, linestyle=(0, (5, 3)), label=f"mean {mean:.2f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right")
    plain_axes(
        axes,
        title="Accepted length",
        xlabel="tokens a pass gave, the verifier's own included",
        ylabel="% of passes",
        grid="y",
    )


def _reliability(axes: Axes, data: ReportData) -> None:
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle=(0, (5, 3)))
    axes.text(0.1, 0.16, "calibrated", rotation=45, rotation_mode="anchor", fontsize=8, alpha=0.75)
    most = max(bin_.count for one in data.sources.values() for bin_ in one.bins)
    for index, (source, one) in enumerate(data.sources.items()):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        many = [bin_ for bin_ in one.bins if bin_.count >= FEW]
        axes.plot(*_points(many), color=colour, linewidth=1.0, alpha=0.6)
        for bins, alpha in ((many, 0.85), ([bin_ for bin_ in one.bins if 0 < bin_.count < FEW], 0.4)):
            sizes = [14 + 200 * bin_.count / most for bin_ in bins]
            axes.scatter(*_points(bins), s=sizes, color=colour, marker=marker, alpha=alpha, linewidths=0)
        axes.plot([], [], color=colour, marker=marker, linewidth=1.0, label=_short(source))
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    axes.set_aspect("equal")
    axes.legend(loc="upper left")
    plain_axes(
        axes, title="Reliability", xlabel="confidence of the source", ylabel="probability to the target"
    )


def _points(bins: Sequence[Bin]) -> tuple[Sequence[float], Sequence[float]]:
    """Mean confidence and the target's mean probability, of bins that have proposals."""
    return [bin_.confidence / bin_.count for bin_ in bins], [bin_.target_prob / bin_.count for bin_ in bins]


def _acceptance(axes: Axes, data: ReportData) -> None:
    shown = rows(data)
    colours = {source: COLOURS[index % len(COLOURS)] for index, source in enumerate(data.sources)}
    places = range(len(shown))
    for index, ((source, place), one) in zip(places, shown.items(), strict=True):
        axes.barh(
            index,
            100 * one.acceptance,
            color=colours[source],
            height=0.66,
            alpha=0.55 if place else 1.0,
        )
    alphas = [100 * one.alpha for one in shown.values()]
    axes.scatter(alphas, places, s=26, marker="D", facecolors="none", edgecolors=INK, clip_on=False, zorder=3)
    axes.set_yticks(places, [_short(f"  {place}" if place else source) for source, place in shown])
    for label, (_, place) in zip(axes.get_yticklabels(), shown, strict=True):
        label.set_fontweight("normal" if place else "bold")
    for index, one in zip(places, shown.values(), strict=True):
        axes.text(103, index, f"{one.count:,}", va="center", fontsize=8, alpha=0.75)
    axes.text(103, -1, "n", va="center", fontsize=8, alpha=0.75)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.tick_params(axis="y", length=0, pad=8)
    plain_axes(
        axes,
        title="Acceptance by source and class",
        xlabel="% of verified proposals: accepted (bar), expected by alpha (◇)",
        grid="x",
    )


def rows(data: ReportData) -> Mapping[tuple[str, str], Measure]:
    """Each source in all places and then by place; of the places the busiest, where not all have room."""
    busiest = sorted(data.measures, key=lambda key: (not key[1], data.measures[key].count), reverse=True)
    shown = set(busiest[:_MOST_ROWS])
    found: dict[tuple[str, str], Measure] = {}
    for source, total in data.sources.items():
        found[source, ""] = total
        places = data.places(source).items()
        found |= {(source, place): one for place, one in places if (source, place) in shown}
    return found


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


_DRAW: Final[Mapping[str, Callable[[Axes, ReportData], None]]] = {
    "passes": _passes,
    "lengths": _lengths,
    "reliability": _reliability,
    "acceptance": _acceptance,
}
