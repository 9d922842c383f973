"""An office: people, a calendar and a mailbox, in memory. It must not know its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.bench.agents.world import IN_STEPS, State, Tool, World, text
from agentspec.types import Json

__all__ = ["Office"]

_PEOPLE = {
    "Nils Berg": ("nils@acme.example", "Sales"),
    "Maria Costa": ("maria@acme.example", "Design"),
    "Tom Okafor": ("tom@acme.example", "Sales"),
    "Yuki Tanaka": ("yuki@acme.example", "Support"),
    "Elif Kaya": ("elif@acme.example", "Legal"),
}

_DATE = text("the day", pattern="[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = text("the time of day", pattern="[0-2][0-9]:[0-5][0-9]")
_EVENT = text("the event's number", pattern="E-[0-9]+")


@dataclass(slots=True)
class _Event:
    date: str
    time: str
    title: str
    cancelled: bool = False


class Office(World):
    """Five people, six events on three days, an empty outbox."""

    instructions = f"You are the assistant of an office. Today is Monday, 2026-03-09. {IN_STEPS}"

    def __init__(self) -> None:
        self._events = {
            "E-11": _Event("2026-03-10", "09:00", "Team meeting"),
            "E-12": _Event("2026-03-10", "14:00", "Budget review"),
            "E-13": _Event("2026-03-11", "10:00", "Interview with Jan Novak"),
            "E-14": _Event("2026-03-11", "16:30", "Call with the printers"),
            "E-15": _Event("2026-03-12", "11:00", "Design workshop"),
            "E-16": _Event("2026-03-12", "15:00", "Contract talk"),
        }
        self._sent: list[tuple[str, str, str]] = []

    def tools(self) -> Sequence[Tool]:
        return (
            Tool(
                "find_person",
                "Look up a colleague: mail address and team.",
                {"name": text("the person's full name")},
                self._find_person,
            ),
            Tool(
                "list_events",
                "List a day's events: the number, time and title of each.",
                {"date": _DATE},
                self._list_events,
            ),
            Tool(
                "add_event",
                "Put a new event into the calendar.",
                {"date": _DATE, "time": _TIME, "title": text("what it is called")},
                self._add_event,
            ),
            Tool(
                "move_event",
                "Move an event that list_events has shown to another day or time.",
                {"event": _EVENT, "date": _DATE, "time": _TIME},
                self._move_event,
            ),
            Tool(
                "cancel_event",
                "Cancel an event that list_events has shown.",
                {"event": _EVENT},
                self._cancel_event,
            ),
            Tool(
                "send_mail",
                "Send a mail to somebody whom find_person has found.",
                {
                    "to": text("the mail address"),
                    "subject": text("the subject"),
                    "body": text("the text of the mail, with every fact that matters"),
                },
                self._send_mail,
            ),
        )

    def state(self) -> State:
        events: dict[str, dict[str, Json]] = {
            number: {
                "date": event.date,
                "time": event.time,
                "title": event.title,
                "cancelled": event.cancelled,
            }
            for number, event in self._events.items()
        }
        mails: dict[str, dict[str, Json]] = {
            f"mail {place}": {"to": to, "text": f"{subject}\n{body}"}
            for place, (to, subject, body) in enumerate(self._sent, start=1)
        }
        return {**events, **mails}

    def _find_person(self, name: str) -> str:
        known = _PEOPLE.get(name)
        return f"{name}: {known[0]}, team {known[1]}" if known else f"nobody is called {name}"

    def _list_events(self, date: str) -> str:
        due = sorted(
            (event.time, number, event.title)
            for number, event in self._events.items()
            if event.date == date and not event.cancelled
        )
        return "\n".join(f"{number}: {time} {title}" for time, number, title in due) or f"nothing on {date}"

    def _add_event(self, date: str, time: str, title: str) -> str:
        other = self._taken(date, time)
        if other:
            return f"not added: {other} is at that time"
        number = f"E-{11 + len(self._events)}"
        self._events[number] = _Event(date, time, title)
        return f"added: {number}, {date} {time} {title}"

    def _move_event(self, event: str, date: str, time: str) -> str:
        moved = self._events.get(event)
        if moved is None or moved.cancelled:
            return f"not moved: {_no_event(event)}"
        other = self._taken(date, time)
        if other not in ("", event):
            return f"not moved: {other} is at that time"
        moved.date, moved.time = date, time
        return f"{event} is now on {date} at {time}"

    def _cancel_event(self, event: str) -> str:
        found = self._events.get(event)
        if found is None or found.cancelled:
            return f"not cancelled: {_no_event(event)}"
        found.cancelled = True
        return f"{event} is cancelled"

    def _send_mail(self, to: str, subject: str, body: str) -> str:
        if to not in {address for address, _ in _PEOPLE.values()}:
            return f"not sent: there is no address {to}; find_person gives it"
        self._sent.append((to, subject, body))
        return f"sent to {to}"

    def _taken(self, date: str, time: str) -> str:
        """The event at that time; empty where there is none."""
        return next(
            (
                number
                for number, event in self._events.items()
                if (event.date, event.time, event.cancelled) == (date, time, False)
            ),
            "",
        )


def _no_event(event: str) -> str:
    return f"there is no event {event}; list_events gives the number"
