"""Figures that are legible on white and on near-black, as SVG for pages and as PNG.

Drawn with matplotlib (the extra `plots`), which is imported only when something is drawn. Its global state is
left alone: no pyplot, and settings hold while a figure is made. It must not know what figures show.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from agentspec.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "INK", "MARKERS", "as_png", "as_svg", "curves", "drawing", "new_figure", "plain_axes"]

COLOURS: Final = ("#3b7fc4", "#d55e00", "#009e73", "#c9599b", "#8a7a3a", "#7d7f86")
"""Told apart with any colour vision, the last two by their markers too; contrast of at least 3.4 with white
and with near-black."""

MARKERS: Final = ("o", "s", "^", "D", "v", "P")

INK: Final = "#1b1c1f"
"""Of text and axes. In an SVG it becomes `currentColor`, so that the page decides."""

_SETTINGS: Final[dict[Any, Any]] = {  # releases of matplotlib type its keys differently
    "font.size": 9.0,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "text.parse_math": False,  # names may hold dollar signs
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "agentspec",  # the same figure is the same file
}


@contextmanager
def drawing() -> Iterator[None]:
    """Whatever makes or saves a figure does it in here.

    Raises ConfigError where matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigError(
            "figures need matplotlib, which is not installed",
            hint="pip install 'langchain-agentspec[plots]'",
        ) from error
    with mpl.rc_context(_SETTINGS):
        yield


def new_figure(width: float = 5.4, height: float = 3.6) -> Figure:
    """An empty figure of so many inches. To be called while `drawing`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plain_axes(
    axes: Axes, *, title: str, xlabel: str, ylabel: str = "", grid: Literal["x", "y", "both"] = "both"
) -> None:
    """Titles, labels and a faint grid."""
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis=grid)


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    log_x: bool = False,
    reference: tuple[str, float] | None = None,
) -> Figure:
    """A line for each series of points (x, y).

    log_x:     whether x is drawn on a logarithmic scale; all x are then above 0
    reference: a horizontal line that they are to be read against: what it is, and where
    """
    with drawing():
        figure = new_figure()
        axes = figure.add_subplot()
        plain_axes(axes, title=title, xlabel=xlabel, ylabel=ylabel)
        if log_x:
            _logarithmic(axes)
        for index, (name, points) in enumerate(series.items()):
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                label=name,
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=4.5,
                linewidth=1.6,
            )
        if reference is not None:
            name, level = reference
            axes.axhline(level, label=name, color=INK, linewidth=1.0, linestyle=(0, (5, 3)))
        if series or reference is not None:
            figure.legend(loc="outside lower center", ncols=3)
        return figure


def _logarithmic(axes: Axes) -> None:
    """The x axis, with plain numbers: matplotlib's own are in its notation for formulas, which is off."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def as_svg(figure: Figure, name: str) -> str:
    """An `<svg>` element for the inside of a page: transparent, in the page's own colour of text.

    name: tells its ids from those of other figures of the page
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))  # else it says when it was made, and links
    with drawing():
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    return text.replace(INK, "currentColor")


def as_png(figure: Figure, dpi: int = 200) -> bytes:
    """A PNG on white."""
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()
