"""A shop: orders and items in SQLite, in memory. It must not know its tasks."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Sequence

from agentspec.bench.agents.world import IN_STEPS, State, Tool, World, number, text

__all__ = ["Shop"]

_SCHEMA = """
CREATE TABLE items (code TEXT PRIMARY KEY, name TEXT, price INTEGER, stock INTEGER);
CREATE TABLE orders (
    number TEXT PRIMARY KEY, customer TEXT, item TEXT, quantity INTEGER, city TEXT, status TEXT
);
"""

_ITEMS = [
    ("LAMP-7", "trail lamp", 3990, 12),
    ("BOTTLE-2", "water bottle", 900, 3),
    ("TENT-4", "two-person tent", 18900, 0),
    ("ROPE-5", "climbing rope", 7450, 6),
    ("STOVE-1", "camping stove", 5600, 2),
    ("SOCKS-9", "wool socks", 1250, 40),
]

_ORDERS = [
    ("A-1042", "Ingrid Dahl", "LAMP-7", 1, "Bergen", "shipped"),
    ("A-1043", "Nils Berg", "BOTTLE-2", 2, "Malmo", "open"),
    ("A-1044", "Maria Costa", "ROPE-5", 1, "Porto", "open"),
    ("A-1045", "Tom Okafor", "SOCKS-9", 4, "Leeds", "open"),
    ("A-1046", "Yuki Tanaka", "STOVE-1", 1, "Osaka", "shipped"),
    ("A-1047", "Elif Kaya", "TENT-4", 1, "Izmir", "open"),
]


class Shop(World):
    """Six items, six customers with an order each."""

    instructions = f"You are the assistant of a shop. {IN_STEPS}"

    def __init__(self) -> None:
        self._rows = sqlite3.connect(":memory:", isolation_level=None)
        weakref.finalize(self, self._rows.close)
        self._rows.executescript(_SCHEMA)
        self._rows.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", _ITEMS)
        self._rows.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", _ORDERS)

    def tools(self) -> Sequence[Tool]:
        return (
            Tool(
                "find_order",
                "Find a customer's order: its number, item code, quantity, city and status.",
                {"customer": text("the customer's full name")},
                self._find_order,
            ),
            Tool(
                "cancel_order",
                "Cancel an open order that find_order has found.",
                {"order": text("the order's number", pattern="A-[0-9]{4}")},
                self._cancel_order,
            ),
            Tool(
                "search_items",
                "Find an item by its name or code: its code, name, price and stock.",
                {"words": text("the item's name or code, or a part of it")},
                self._search_items,
            ),
            Tool(
                "place_order",
                "Order an item that search_items or find_order has found.",
                {
                    "customer": text("the customer's full name"),
                    "item": text("the item's code"),
                    "quantity": number("how many", least=1, most=20),
                    "city": text("where it goes"),
                },
                self._place_order,
            ),
        )

    def state(self) -> State:
        orders = self._rows.execute("SELECT number, customer, item, quantity, city, status FROM orders")
        names = ("customer", "item", "quantity", "city", "status")
        stock = self._rows.execute("SELECT code, stock FROM items")
        return {
            **{number: dict(zip(names, values, strict=True)) for number, *values in orders},
            **{code: {"stock": count} for code, count in stock},
        }

    def _find_order(self, customer: str) -> str:
        found = self._rows.execute(
            "SELECT number, item, quantity, city, status FROM orders WHERE lower(customer) = lower(?)",
            (customer,),
        ).fetchall()
        lines = [f"order {row[0]}, {row[4]}: {row[2]} of item {row[1]}, city {row[3]}" for row in found]
        return "\n".join(lines) or f"{customer} has no order"

    def _search_items(self, words: str) -> str:
        like = f"%{words.strip()}%"
        found = self._rows.execute(
            "SELECT * FROM items WHERE name LIKE ? OR code LIKE ?", (like, like)
        ).fetchall()
        return "\n".join(_shown(row) for row in found) or f"no item is called {words}"

    def _place_order(self, customer: str, item: str, quantity: int, city: str) -> str:
        found = self._item(item)
        if found is None:
            return f"not placed: there is no item {item}; search_items gives the code"
        if found[3] < quantity:
            return f"not placed: {found[3]} of {item} in stock"
        (last,) = self._rows.execute("SELECT max(number) FROM orders").fetchone()
        number = f"A-{int(last[2:]) + 1}"
        self._rows.execute(
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?, 'open')", (number, customer, item, quantity, city)
        )
        self._rows.execute("UPDATE items SET stock = stock - ? WHERE code = ?", (quantity, item))
        return f"placed: order {number}, {quantity} of {item}, to {city}"

    def _cancel_order(self, order: str) -> str:
        found = self._rows.execute(
            "SELECT item, quantity, status FROM orders WHERE number = ?", (order,)
        ).fetchone()
        if found is None:
            return f"not cancelled: there is no order {order}; find_order gives the number"
        item, quantity, status = found
        if status != "open":
            return f"not cancelled: order {order} is {status}"
        self._rows.execute("UPDATE orders SET status = 'cancelled' WHERE number = ?", (order,))
        self._rows.execute("UPDATE items SET stock = stock + ? WHERE code = ?", (quantity, item))
        return f"order {order} is cancelled"

    def _item(self, code: str) -> tuple[str, str, int, int] | None:
        found: tuple[str, str, int, int] | None = self._rows.execute(
            "SELECT code, name, price, stock FROM items WHERE code = ?", (code,)
        ).fetchone()
        return found


def _shown(row: tuple[str, str, int, int]) -> str:
    code, name, price, stock = row
    return f"item {code}: {name}, {price / 100:.2f} EUR, {stock} in stock"
