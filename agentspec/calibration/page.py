"""A report as one page: HTML with its styles and figures inside, no scripts, nothing loaded from elsewhere.

`page.html` is its text. Whatever comes from a trace or a file's name is escaped. It must not know how figures
are drawn or where the page is written.
"""

from __future__ import annotations

import importlib.resources
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from agentspec.calibration.measure import Measure
from agentspec.calibration.report import ReportData, Setting

__all__ = ["page"]

_MOST_NAMES: Final = 12
"""Of each kind in the last section."""


def page(
    data: ReportData, figures: Mapping[str, str], *, files: Sequence[str], rows_drawn: int, few: int
) -> str:
    """The whole page.

    figures:    an `<svg>` element for each of `agentspec.calibration.figures.names`
    files:      the names of what was read
    rows_drawn: how many rows of `data.measures` the figure of acceptance has
    few:        how many proposals make a bin of the figure of reliability pale
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"count": _count, "percent": _percent}

    def cells(one: Measure) -> Markup:
        texts = [_count(one.count), *map(_percent, (one.acceptance, one.alpha, one.ece, one.over_confident))]
        return Markup("").join(Markup("<td>{}</td>").format(text) for text in texts)

    template = importlib.resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        title="What drafts are worth",
        data=data,
        files=files,
        figures={name: Markup(svg) for name, svg in figures.items()},
        tiles=_tiles(data),
        cells=cells,
        few=few,
        shown=rows_drawn,
        rows=len(data.measures),
        origins=_origins(data),
        settings=_settings(data.setting),
        most=_MOST_NAMES,
    )


def _tiles(data: ReportData) -> Sequence[tuple[str, str]]:
    return [
        ("tokens per pass", f"{data.achieved:.2f}"),
        ("tokens per pass at most", f"{data.bound:.2f}"),
        ("replies", _count(data.replies)),
        ("tokens", _count(data.tokens)),
        ("target passes", _count(data.passes)),
        ("tokens proposed", _count(data.proposed)),
    ]


def _origins(data: ReportData) -> Sequence[tuple[str, int]]:
    origin = data.origin
    return [
        ("forced: the only legal ones", origin.forced),
        *((f"proposed by {source}", count) for source, count in origin.sources.most_common()),
        ("the target itself", origin.target),
    ]


def _settings(setting: Setting) -> Mapping[str, Counter[str]]:
    models = Counter({f"{model}, draft {draft or 'none'}": n for (model, draft), n in setting.models.items()})
    return {
        "models": models,
        "law": setting.laws,
        "sampling": Counter({_sampling(json.loads(text)): n for text, n in setting.samplings.items()}),
        "tool set": Counter({name or "none": n for name, n in setting.tool_sets.items()}),
        "agent": Counter({name or "none": n for name, n in setting.agents.items()}),
    }


def _sampling(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the defaults"


def _count(value: int) -> str:
    return f"{value:,}"


def _percent(share: float) -> str:
    return f"{share:.1%}"
