"""Draft sources of other packages, and of the program itself.

An installed package announces a source by an entry point of the group `agentspec.drafts`:

    [project.entry-points."agentspec.drafts"]
    mine = "my_package:MyDraft"

A program passes it in place: `ChatAgentSpec(draft_plugins={"mine": MyDraft})`. Either is called with a
`DraftContext` when an engine is made, and returns a `Draft` of that name. This module must not know any
particular source.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from agentspec.config import BUILT_IN_SOURCES
from agentspec.drafts.base import Draft
from agentspec.errors import ConfigError
from agentspec.types import Vocabulary

__all__ = ["GROUP", "DraftContext", "DraftPlugin", "check_sources", "plugin_drafts"]

GROUP = "agentspec.drafts"


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a source is made with.

    vocab:    the target's vocabulary
    tokenize: reply text to the target's tokens. Raises ValueError on bytes that no token spells.
    """

    vocab: Vocabulary
    tokenize: Callable[[bytes], list[int]]


DraftPlugin: TypeAlias = Callable[[DraftContext], Draft]
"""Makes a source: most often its class. Engines are shared by settings that hold the same plugins."""


def check_sources(names: Iterable[str], plugins: Collection[str] = ()) -> None:
    """Raises ConfigError for a source that there is not.

    plugins: names of sources that are passed in place
    """
    unknown = sorted(set(names) - {*BUILT_IN_SOURCES, *plugins})
    if not unknown:
        return
    known = sorted({*BUILT_IN_SOURCES, *plugins, *(point.name for point in entry_points(group=GROUP))})
    for name in unknown:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"there is no draft source named {name!r}{guess}",
                hint=f"draft_sources may name: {', '.join(known)}",
            )


def plugin_drafts(context: DraftContext, plugins: Mapping[str, DraftPlugin] | None = None) -> list[Draft]:
    """The sources that are passed in place, then those of installed packages, by name.

    plugins: by name; one takes the place of an installed source of its name

    Raises ConfigError naming the plugin that cannot be loaded, or that makes no source of its name.
    """
    given = plugins or {}
    drafts = [_make(name, repr(plugin), plugin, context) for name, plugin in sorted(given.items())]
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name not in given:
            drafts.append(_make(point.name, point.value, _loaded_from(point), context))
    return drafts


def _loaded_from(point: EntryPoint) -> DraftPlugin:
    def plugin(context: DraftContext) -> Draft:
        made: Draft = point.load()(context)
        return made

    return plugin


def _make(name: str, origin: str, plugin: DraftPlugin, context: DraftContext) -> Draft:
    """Calls a plugin.

    origin: where it is from, for errors
    """
    try:
        draft = plugin(context)
        made = draft.name
    except Exception as error:  # anybody's code; it is reported by name
        raise ConfigError(
            f"the draft plugin {name!r} ({origin}) cannot be loaded: {error!r}",
            hint="mend it, or take it out; a plugin is called with a DraftContext and returns a Draft",
        ) from error
    if made != name or name in BUILT_IN_SOURCES:
        raise ConfigError(
            f"the draft plugin {name!r} ({origin}) makes a source named {made!r}",
            hint="the two names must be equal, and no built-in source's",
        )
    return draft
