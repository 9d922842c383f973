"""What is asked of the office's assistant."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.bench.agents.world import Mentions, Task

__all__ = ["TASKS"]

TASKS: Sequence[Task] = (
    Task(
        name="cancel an event",
        world="office",
        request="List the events of 2026-03-10 and cancel the budget review.",
        solution=[("list_events", {"date": "2026-03-10"}), ("cancel_event", {"event": "E-12"})],
        answer="The budget review is cancelled.",
        ends={"E-12": {"cancelled": True}},
    ),
    Task(
        name="move an event",
        world="office",
        request="List the events of 2026-03-11 and move the interview to 2026-03-13 at 14:00.",
        solution=[
            ("list_events", {"date": "2026-03-11"}),
            ("move_event", {"event": "E-13", "date": "2026-03-13", "time": "14:00"}),
        ],
        answer="The interview is on 2026-03-13 at 14:00.",
        ends={"E-13": {"date": "2026-03-13", "time": "14:00", "cancelled": False}},
    ),
    Task(
        name="add an event",
        world="office",
        request="Add a lunch with Maria Costa on 2026-03-12 at 12:30.",
        solution=[("add_event", {"date": "2026-03-12", "time": "12:30", "title": "Lunch with Maria Costa"})],
        answer="The lunch is on 2026-03-12 at 12:30.",
        ends={
            "E-17": {"date": "2026-03-12", "time": "12:30", "title": Mentions(["lunch", "maria"])},
        },
    ),
    Task(
        name="when is it",
        world="office",
        request="List the events of 2026-03-12. At what time does the design workshop begin?",
        solution=[("list_events", {"date": "2026-03-12"})],
        answer="It begins at 11:00.",
        says=Mentions([("11:00", "11 am", "11am")]),
    ),
    Task(
        name="write to a colleague",
        world="office",
        request="Find Yuki Tanaka and send a mail there: the printer on floor 3 is broken.",
        solution=[
            ("find_person", {"name": "Yuki Tanaka"}),
            (
                "send_mail",
                {
                    "to": "yuki@acme.example",
                    "subject": "Printer",
                    "body": "The printer on floor 3 is broken.",
                },
            ),
        ],
        answer="Yuki Tanaka has been told.",
        ends={"mail 1": {"to": "yuki@acme.example", "text": Mentions(["printer", "3"])}},
    ),
    Task(
        name="tell the time by mail",
        world="office",
        request="List the events of 2026-03-12, find Elif Kaya, and send her a mail with the time of "
        "the contract talk.",
        solution=[
            ("list_events", {"date": "2026-03-12"}),
            ("find_person", {"name": "Elif Kaya"}),
            (
                "send_mail",
                {
                    "to": "elif@acme.example",
                    "subject": "Contract talk",
                    "body": "The contract talk is on 2026-03-12 at 15:00.",
                },
            ),
        ],
        answer="Elif Kaya knows that it is at 15:00.",
        ends={"mail 1": {"to": "elif@acme.example", "text": Mentions([("15:00", "3:00 PM", "3 PM")])}},
    ),
    Task(
        name="move and tell",
        world="office",
        request="List the events of 2026-03-10 and move the team meeting to 11:00 on the same day. "
        "Then find Nils Berg and send him a mail with the new time.",
        solution=[
            ("list_events", {"date": "2026-03-10"}),
            ("move_event", {"event": "E-11", "date": "2026-03-10", "time": "11:00"}),
            ("find_person", {"name": "Nils Berg"}),
            (
                "send_mail",
                {
                    "to": "nils@acme.example",
                    "subject": "Team meeting",
                    "body": "The team meeting is now at 11:00.",
                },
            ),
        ],
        answer="The team meeting is at 11:00, and Nils Berg knows.",
        ends={
            "E-11": {"date": "2026-03-10", "time": "11:00", "cancelled": False},
            "mail 1": {"to": "nils@acme.example", "text": Mentions([("11:00", "11 AM")])},
        },
    ),
    Task(
        name="cancel and tell",
        world="office",
        request="List the events of 2026-03-11 and cancel the call with the printers. Then find Tom "
        "Okafor and send him a mail that it is cancelled.",
        solution=[
            ("list_events", {"date": "2026-03-11"}),
            ("cancel_event", {"event": "E-14"}),
            ("find_person", {"name": "Tom Okafor"}),
            (
                "send_mail",
                {
                    "to": "tom@acme.example",
                    "subject": "Cancelled",
                    "body": "The call with the printers is cancelled.",
                },
            ),
        ],
        answer="It is cancelled, and Tom Okafor knows.",
        ends={
            "E-14": {"cancelled": True},
            "mail 1": {"to": "tom@acme.example", "text": Mentions([("cancel", "not take place")])},
        },
    ),
    Task(
        name="which team",
        world="office",
        request="Find Maria Costa. Which team is she in, and what is her mail address?",
        solution=[("find_person", {"name": "Maria Costa"})],
        answer="Design; maria@acme.example.",
        says=Mentions(["design", "maria@acme.example"]),
    ),
    Task(
        name="a time that is taken",
        world="office",
        request="List the events of 2026-03-11. Add a planning hour on that day: at 10:00, or at "
        "11:00 if 10:00 is taken.",
        solution=[
            ("list_events", {"date": "2026-03-11"}),
            ("add_event", {"date": "2026-03-11", "time": "11:00", "title": "Planning hour"}),
        ],
        answer="It is at 11:00, since 10:00 was taken.",
        ends={"E-17": {"date": "2026-03-11", "time": "11:00", "title": Mentions(["planning"])}},
    ),
    Task(
        name="two days compared",
        world="office",
        request="List the events of 2026-03-10, then those of 2026-03-11. What is the title of the "
        "event that begins at the earliest time of day?",
        solution=[("list_events", {"date": "2026-03-10"}), ("list_events", {"date": "2026-03-11"})],
        answer="On 2026-03-10, with the team meeting.",
        says=Mentions(["team meeting"]),
    ),
)
