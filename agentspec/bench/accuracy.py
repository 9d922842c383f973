"""`agentspec bench accuracy`: are the calls right, and does holding them to a grammar cost any of that?

Every prompt is answered twice at temperature 0: with a call that is enforced, and by the model left alone,
out of whose text whatever looks like a call is taken, unchecked, as people do who have no grammar.

A reply is right where it has the accepted calls, in any order: each of the accepted tool, each argument one
of the values that are accepted for it, and none left out that must be there. Strings are compared as in the
Berkeley Function-Calling Leaderboard (Patil et al., 2024): without case, white space and `,./-_*^`.

It must not know how results are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TypeAlias, cast

from agentspec.errors import ConfigError
from agentspec.types import Json

__all__ = [
    "Answered",
    "Ask",
    "Call",
    "Findings",
    "Record",
    "bench_accuracy",
    "best_effort",
    "is_right",
    "kept_in",
    "read_records",
]

Call: TypeAlias = tuple[str, Mapping[str, Json]]
"""A tool's name and its arguments."""

_MOST_CALLS = 6  # calls of one reply whose orders are tried


@dataclass(frozen=True, slots=True)
class Record:
    """A prompt with the calls that are right. accepted: of each call, by tool: the values by argument"""

    name: str
    messages: Sequence[Mapping[str, Json]]
    tools: Sequence[Mapping[str, Json]]
    accepted: Sequence[Mapping[str, Mapping[str, Sequence[Json]]]]


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply. calls: those that are valid; invalid: how many are not; cut: whether it ran out of tokens"""

    calls: Sequence[Call]
    invalid: int
    cut: bool
    text: str = ""


Ask: TypeAlias = Callable[[Record, bool], Answered]
"""Answers a record: with an enforced call, or left alone."""


@dataclass(slots=True)
class Findings:
    """Counts over all prompts."""

    prompts: int = 0
    valid_calls: int = 0
    exact_match: int = 0
    unconstrained_valid_calls: int = 0
    unconstrained_exact_match: int = 0
    length_stops: int = 0
    wrong: tuple[str, ...] = ()  # right when left alone, and wrong under the grammar

    def as_json(self) -> dict[str, Json]:
        """The figures by name; the matches as shares of the prompts."""
        return {
            "prompts": self.prompts,
            "valid_calls": self.valid_calls,
            "exact_match": self._share(self.exact_match),
            "unconstrained_valid_calls": self.unconstrained_valid_calls,
            "unconstrained_exact_match": self._share(self.unconstrained_exact_match),
            "length_stops": self.length_stops,
            "lost_by_enforcing": list(self.wrong),
        }

    def _share(self, count: int) -> float | None:
        return round(count / self.prompts, 4) if self.prompts else None


def bench_accuracy(
    records: Sequence[Record], ask: Ask, *, report: Callable[[int], None] = lambda _: None
) -> Findings:
    """Asks and judges. report: told after every prompt how many there are in all."""
    found = Findings()
    for record in records:
        enforced, alone = ask(record, True), ask(record, False)
        taken = list(alone.calls) or list(best_effort(alone.text))
        right, right_alone = is_right(enforced.calls, record), is_right(taken, record)
        found.prompts += 1
        found.valid_calls += bool(enforced.calls) and not enforced.invalid
        found.unconstrained_valid_calls += bool(alone.calls) and not alone.invalid
        found.exact_match += right and not enforced.invalid
        found.unconstrained_exact_match += right_alone
        found.length_stops += enforced.cut
        if right_alone and not right:
            found.wrong += (record.name,)
        report(len(records))
    return found


def kept_in(path: Path, ask: Ask) -> Ask:
    """Asks what the JSONL file at `path` does not hold yet, and adds the answer to it.

    Raises ConfigError where the file is something else.
    """
    held: dict[tuple[str, bool], Answered] = {}
    if path.exists():
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                known = json.loads(line)
                calls = [(str(name), arguments) for name, arguments in known["calls"]]
                answered = Answered(calls, int(known["invalid"]), bool(known["cut"]), str(known["text"]))
                held[str(known["id"]), bool(known["enforced"])] = answered
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path} does not hold replies of an earlier run: {error}",
                hint="name a new file, or delete this one",
            ) from error

    def answer(record: Record, enforced: bool) -> Answered:
        key = (record.name, enforced)
        if key not in held:
            held[key] = found = ask(record, enforced)
            line = {"id": record.name, "enforced": enforced, "calls": found.calls, "invalid": found.invalid}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "cut": found.cut, "text": found.text}) + "\n")
        return held[key]

    return answer


# ----------------------------------------------------------------------------------------------- judging


def is_right(calls: Sequence[Call], record: Record) -> bool:
    """Whether these are the accepted calls, in any order."""
    if len(calls) != len(record.accepted) or len(calls) > _MOST_CALLS:
        return False
    return any(all(map(_fits, calls, order)) for order in permutations(record.accepted))


def _fits(call: Call, accepted: Mapping[str, Mapping[str, Sequence[Json]]]) -> bool:
    name, arguments = call
    wanted = accepted.get(name)
    return wanted is not None and _values_fit(arguments, wanted)


def _values_fit(arguments: Mapping[str, Json], wanted: Mapping[str, Sequence[Json]]) -> bool:
    if not arguments.keys() <= wanted.keys():
        return False
    for key, values in wanted.items():
        if key in arguments:
            if not any(_same(arguments[key], value) for value in values):
                return False
        elif "" not in values:  # what may be left out has an empty value among the accepted ones
            return False
    return True


def _same(value: Json, accepted: Json) -> bool:
    match value, accepted:
        case str(), str():
            return _plain(value) == _plain(accepted)
        case bool(), _:
            return value is accepted
        case int() | float(), int() | float():
            return not isinstance(accepted, bool) and float(value) == float(accepted)
        case Mapping(), Mapping():
            lists = {key: one if isinstance(one, list) else [one] for key, one in accepted.items()}
            return _values_fit(value, lists) or value == accepted
        case list(), list():
            return len(value) == len(accepted) and all(map(_same, value, accepted))
        case _:
            return value == accepted


def _plain(text: str) -> str:
    return re.sub(r"[\s,./\-_*^]", "", text).lower().replace("'", '"')


def best_effort(text: str) -> Iterator[Call]:
    """Whatever in the text is a JSON object with a name and arguments."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(value.get("name"), str) and isinstance(arguments, dict):
            yield value["name"], arguments
            at = end
        else:
            at += 1


# ------------------------------------------------------------------------------------------------- files


def read_records(path: Path) -> list[Record]:
    """The records of a JSONL file that ask for a call: `messages`, `tools` in OpenAI form, and `accepted`.

    Raises ConfigError for a file that cannot be read or has no such record.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    records = list(_records(path, lines))
    if not records:
        raise ConfigError(
            f"{path} has no record that asks for a call",
            hint='a line is {"messages": [...], "tools": [...], "accepted": [{tool: {argument: [values]}}]}',
        )
    return records


def _records(path: Path, lines: Iterable[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            match json.loads(line):
                case {"messages": [*messages], "tools": [*tools], "accepted": [_, *_] as accepted} as record:
                    yield Record(
                        str(record.get("id", number)),
                        cast("list[Mapping[str, Json]]", messages),
                        cast("list[Mapping[str, Json]]", tools),
                        cast("list[Mapping[str, Mapping[str, Sequence[Json]]]]", accepted),
                    )
        except ValueError as error:
            raise ConfigError(f"{path}:{number} is not JSON: {error}") from error
