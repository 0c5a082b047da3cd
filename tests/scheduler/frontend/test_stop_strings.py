"""Stop strings: the automaton against the rule in a few slow lines, over random texts, strings and cuts."""

from __future__ import annotations

import random

import pytest

from scheduler.frontend.stop_strings import StopScanner, StopStrings


def rule(text: str, stops: list[str], *, include: bool = False, counts_from: int = 0) -> tuple[str, str | None]:
    """The text that is delivered, and the string that ended it. counts_from: ends before this place do not count."""
    ends = ((end, index) for end in range(counts_from, len(text) + 1) for index in range(len(stops)))
    for end, index in ends:
        if text[:end].endswith(stops[index]):
            return text[: end if include else end - len(stops[index])], stops[index]
    return text, None


def scan(
    parts: list[str], stops: list[str], *, include: bool = False, skipped: int = 0
) -> tuple[list[str], str | None]:
    """The texts given out for each part and at the end. skipped: parts, from the first on, that do not count."""
    scanner = StopScanner(StopStrings(stops, count_from_start=skipped == 0), include=include)
    given = [scanner.feed(part, counts=index >= skipped) for index, part in enumerate(parts)]
    return [*given, "" if scanner.matched else scanner.flush()], scanner.matched


@pytest.mark.parametrize(
    ("parts", "stops", "given", "matched"),
    [
        (["ab", "STOP", "cd"], ["STOP"], ["ab", "", "", ""], "STOP"),
        (["abSTOPcd"], ["STOP"], ["ab", ""], "STOP"),
        (["abS", "TO", "P"], ["STOP"], ["ab", "", "", ""], "STOP"),
        (["abS", "TO", "n"], ["STOP"], ["ab", "", "STOn", ""], None),
        (["STSTO"], ["STOP"], ["ST", "STO"], None),
        (["aab", "c"], ["aac", "b"], ["aa", "", ""], "b"),
        (["ab"], ["b", "ab"], ["a", ""], "b"),
        (["ab"], ["ab", "b"], ["", ""], "ab"),
        (["a", "b"], ["b", "ab"], ["a", "", ""], "b"),  # "ab" can never win, so "a" need not wait
        (["x", "y", "z"], ["xyz", "y"], ["x", "", "", ""], "y"),
        (["aa", "a"], ["aa"], ["", "", ""], "aa"),
        (["日本", "語"], ["本語"], ["日", "", ""], "本語"),
    ],
)
def test_what_is_given_out_when(parts: list[str], stops: list[str], given: list[str], matched: str | None) -> None:
    assert scan(parts, stops) == (given, matched)


def test_included_strings_hold_nothing_back() -> None:
    assert scan(["abS", "TO", "P!"], ["STOP"], include=True) == (["abS", "TO", "P", ""], "STOP")


def test_a_string_that_is_complete_too_early_does_not_count_and_one_that_began_early_does() -> None:
    assert scan(["STOP", "a", "STOP"], ["STOP"], skipped=1) == (["STOP", "a", "", ""], "STOP")
    assert scan(["aST", "OPb"], ["STOP"], skipped=1) == (["a", "", ""], "STOP")
    assert scan(["xy", "z"], ["xyz", "y"], skipped=1) == (["", "", ""], "xyz")


def random_case(dice: random.Random) -> tuple[list[str], list[str]]:
    alphabet = "ab" if dice.random() < 0.5 else "abc"
    stops = ["".join(dice.choices(alphabet, k=dice.randint(1, 5))) for _ in range(dice.randint(1, 4))]
    parts = ["".join(dice.choices(alphabet, k=dice.randint(0, 4))) for _ in range(dice.randint(1, 8))]
    return stops, parts


def test_equals_the_rule_whatever_the_cuts() -> None:
    dice = random.Random(1)
    for _ in range(20_000):
        stops, parts = random_case(dice)
        include = dice.random() < 0.3
        skipped = dice.choice([0, 0, 1, 2])
        given, matched = scan(parts, stops, include=include, skipped=skipped)
        counts_from = sum(map(len, parts[:skipped])) + 1
        assert ("".join(given), matched) == rule("".join(parts), stops, include=include, counts_from=counts_from)


def test_a_character_waits_only_if_what_follows_can_still_cut_it_off() -> None:
    """Every held-back character is cut off by some continuation that begins no later than the stop string's length."""
    dice = random.Random(2)
    for _ in range(3000):
        stops, parts = random_case(dice)
        given, matched = scan(parts, stops)
        if matched:
            continue
        text, delivered = "".join(parts), "".join(given[:-1])
        futures = {stop[place:] for stop in stops for place in range(len(stop))}
        shortest = min(len(rule(text + future, stops)[0]) for future in {"", *futures})
        assert len(delivered) == shortest, (stops, parts)
