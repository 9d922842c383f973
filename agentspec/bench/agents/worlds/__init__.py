"""Back ends without a clock, a network or chance, and the tasks that are set in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentspec.bench.agents.world import Task, World
from agentspec.bench.agents.worlds.files import Files
from agentspec.bench.agents.worlds.files_tasks import TASKS as FILES_TASKS
from agentspec.bench.agents.worlds.office import Office
from agentspec.bench.agents.worlds.office_tasks import TASKS as OFFICE_TASKS
from agentspec.bench.agents.worlds.shop import Shop
from agentspec.bench.agents.worlds.shop_tasks import TASKS as SHOP_TASKS

__all__ = ["TASKS", "WORLDS"]

WORLDS: Mapping[str, type[World]] = {"shop": Shop, "office": Office, "files": Files}

TASKS: Sequence[Task] = (*SHOP_TASKS, *OFFICE_TASKS, *FILES_TASKS)
