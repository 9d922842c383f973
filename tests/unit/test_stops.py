"""Stop strings over any cut of the bytes."""

from __future__ import annotations

import random

import pytest

from agentspec.engine.stops import StopScanner


def scan(parts: list[bytes], stops: list[str]) -> tuple[bytes, bool]:
    scanner = StopScanner(stops)
    out = b"".join(scanner.feed(part) for part in parts)
    return (out if scanner.stopped else out + scanner.flush()), scanner.stopped


def test_text_without_a_stop_string_passes_whole() -> None:
    assert scan([b"a END", b"IN", b"G b"], ["ENDS"]) == (b"a ENDING b", False)


def test_nothing_of_a_stop_string_is_passed_on() -> None:
    scanner = StopScanner(["<end>"])
    assert scanner.feed(b"ab<en") == b"ab"
    assert scanner.feed(b"d>cd") == b""
    assert scanner.stopped
    assert scanner.feed(b"more") == b""


def test_the_earliest_of_several_wins() -> None:
    assert scan([b"one two three"], ["three", "two"]) == (b"one ", True)


def test_a_held_back_start_that_comes_to_nothing_is_released() -> None:
    scanner = StopScanner(["abc"])
    assert scanner.feed(b"xab") == b"x"
    assert scanner.feed(b"d") == b"abd"


def test_empty_stop_strings_are_ignored() -> None:
    assert scan([b"text"], [""]) == (b"text", False)


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_of_the_bytes_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab") for _ in range(30)).encode()
    stops = ["".join(rng.choice("ab") for _ in range(rng.randint(2, 7))) for _ in range(2)]
    parts, rest = [], text
    while rest:
        size = rng.randint(1, 4)
        parts.append(rest[:size])
        rest = rest[size:]
    ends = [at for stop in stops if (at := text.find(stop.encode())) >= 0]
    out, stopped = scan(parts, stops)
    # a stop string that ends earlier is seen first, even if another one begins before it
    assert stopped == bool(ends)
    assert text.startswith(out)
    assert all(stop.encode() not in out for stop in stops)
