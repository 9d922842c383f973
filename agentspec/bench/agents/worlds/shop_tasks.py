"""What is asked of the shop's assistant."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.bench.agents.world import Mentions, Task

__all__ = ["TASKS"]

TASKS: Sequence[Task] = (
    Task(
        name="cancel an open order",
        world="shop",
        request="Find the order of Nils Berg and cancel it.",
        solution=[("find_order", {"customer": "Nils Berg"}), ("cancel_order", {"order": "A-1043"})],
        answer="Order A-1043 is cancelled.",
        ends={"A-1043": {"status": "cancelled", "quantity": 2}, "BOTTLE-2": {"stock": 5}},
    ),
    Task(
        name="where an order goes",
        world="shop",
        request="Find the order of Maria Costa. What is its number, and which city does it go to?",
        solution=[("find_order", {"customer": "Maria Costa"})],
        answer="Order A-1044 goes to Porto.",
        says=Mentions(["A-1044", "Porto"]),
    ),
    Task(
        name="order by name",
        world="shop",
        request="Search for the climbing rope and order two of it for Anna Weber, to Graz. What is "
        "the number of the new order?",
        solution=[
            ("search_items", {"words": "climbing rope"}),
            ("place_order", {"customer": "Anna Weber", "item": "ROPE-5", "quantity": 2, "city": "Graz"}),
        ],
        answer="The order is A-1048.",
        ends={
            "A-1048": {"customer": "Anna Weber", "item": "ROPE-5", "quantity": 2, "city": "Graz"},
            "ROPE-5": {"stock": 4},
        },
        says=Mentions(["A-1048"]),
    ),
    Task(
        name="price of what was ordered",
        world="shop",
        request="Find the order of Yuki Tanaka, then search for its item. What does that item cost?",
        solution=[("find_order", {"customer": "Yuki Tanaka"}), ("search_items", {"words": "STOVE-1"})],
        answer="It costs 56.00 EUR.",
        says=Mentions(["56"]),
    ),
    Task(
        name="stock of what was ordered",
        world="shop",
        request="Find the order of Tom Okafor, then search for its item. How many are in stock?",
        solution=[("find_order", {"customer": "Tom Okafor"}), ("search_items", {"words": "SOCKS-9"})],
        answer="40 are in stock.",
        says=Mentions(["40"]),
    ),
    Task(
        name="the same again",
        world="shop",
        request="Find the order of Ingrid Dahl, then order one more of the same item for her, to the "
        "same city.",
        solution=[
            ("find_order", {"customer": "Ingrid Dahl"}),
            ("place_order", {"customer": "Ingrid Dahl", "item": "LAMP-7", "quantity": 1, "city": "Bergen"}),
        ],
        answer="Order A-1048 is placed.",
        ends={
            "A-1048": {"customer": "Ingrid Dahl", "item": "LAMP-7", "quantity": 1, "city": "Bergen"},
            "LAMP-7": {"stock": 11},
        },
    ),
    Task(
        name="exchange an order",
        world="shop",
        request="Find the order of Elif Kaya and cancel it. Then search for the trail lamp and order "
        "one for her, to Izmir.",
        solution=[
            ("find_order", {"customer": "Elif Kaya"}),
            ("cancel_order", {"order": "A-1047"}),
            ("search_items", {"words": "trail lamp"}),
            ("place_order", {"customer": "Elif Kaya", "item": "LAMP-7", "quantity": 1, "city": "Izmir"}),
        ],
        answer="Order A-1047 is cancelled and A-1048 is placed.",
        ends={
            "A-1047": {"status": "cancelled"},
            "TENT-4": {"stock": 1},
            "A-1048": {"customer": "Elif Kaya", "item": "LAMP-7", "quantity": 1, "city": "Izmir"},
            "LAMP-7": {"stock": 11},
        },
    ),
    Task(
        name="too late to cancel",
        world="shop",
        request="Find the order of Yuki Tanaka. Cancel it if it is still open; otherwise say what its "
        "status is.",
        solution=[("find_order", {"customer": "Yuki Tanaka"}), ("cancel_order", {"order": "A-1046"})],
        answer="It cannot be cancelled: it has been shipped.",
        says=Mentions(["shipped"]),
    ),
    Task(
        name="not enough in stock",
        world="shop",
        request="Search for the water bottle. If five are in stock, order five for Paul Roy, to Lyon; "
        "otherwise say how many there are.",
        solution=[("search_items", {"words": "water bottle"})],
        answer="Only 3 are in stock, so nothing was ordered.",
        says=Mentions([("3", "three")]),
    ),
    Task(
        name="the cheaper of two",
        world="shop",
        request="Search for STOVE-1, then for ROPE-5. Order one of the cheaper item for Lena Vogt, to Ulm.",
        solution=[
            ("search_items", {"words": "STOVE-1"}),
            ("search_items", {"words": "ROPE-5"}),
            ("place_order", {"customer": "Lena Vogt", "item": "STOVE-1", "quantity": 1, "city": "Ulm"}),
        ],
        answer="STOVE-1 costs less, and is ordered.",
        ends={
            "A-1048": {"customer": "Lena Vogt", "item": "STOVE-1", "quantity": 1, "city": "Ulm"},
            "STOVE-1": {"stock": 1},
        },
    ),
    Task(
        name="cancel two orders",
        world="shop",
        request="Find the order of Nils Berg and cancel it. Then find the order of Tom Okafor and cancel it.",
        solution=[
            ("find_order", {"customer": "Nils Berg"}),
            ("cancel_order", {"order": "A-1043"}),
            ("find_order", {"customer": "Tom Okafor"}),
            ("cancel_order", {"order": "A-1045"}),
        ],
        answer="Orders A-1043 and A-1045 are cancelled.",
        ends={
            "A-1043": {"status": "cancelled"},
            "BOTTLE-2": {"stock": 5},
            "A-1045": {"status": "cancelled"},
            "SOCKS-9": {"stock": 44},
        },
    ),
)
