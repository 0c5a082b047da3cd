"""The rules of text and ends, a line each: as a stream and as a whole answer, alone and all in one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from clients import AsyncClient, Completion, FinishReason, Stats
from tests.integration.harness import Cluster, cluster
from tests.oracle.lookup import LookupOracle, chain
from tests.oracle.tokenizer import BOS, END_OF_TURN, EOS, byte_ids

LETTERS, FOX, TURNS, MARKED, STRAY = 300, 301, 302, 303, 304
WORD = 259  # "w!"
A, B, C, D, E, F = b"abcdef"
FOX_IDS = byte_ids("🦊")
X, Y, Q, R, M = b"xyqrm"
BEFORE, BEHIND = b"({"
LANES: dict[int, int] = {
    **chain(LETTERS, A, B, C, D, WORD, E, F, EOS),
    **chain(FOX, *FOX_IDS, ord("z"), EOS),
    **chain(TURNS, X, END_OF_TURN, Y, EOS, Q, R),
    **chain(MARKED, M, BOS, END_OF_TURN),
    **chain(STRAY, BEFORE, 0xC3, BEHIND, EOS),
}
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@dataclass(frozen=True, slots=True)
class Row:
    """What is asked for, and what must come. ids: the output's; stop: the string or the id that ended it. text: the
    output's; with echoed, that of the prompt before it."""

    name: str
    start: int
    params: dict[str, Any]
    text: str
    ids: list[int]
    reason: FinishReason = STOP
    stop: str | int | None = None
    echoed: str = ""


ABCD = [A, B, C, D]
INCLUDED = {"include_stop_in_output": True}
ON = {"ignore_eos": True}
ROWS = [
    Row("to EOS", LETTERS, {}, "abcdw!ef", [*ABCD, WORD, E, F, EOS], stop=EOS),
    Row("length", LETTERS, {"max_tokens": 3}, "abc", [A, B, C], LENGTH),
    Row("length on EOS", LETTERS, {"max_tokens": 8}, "abcdw!ef", [*ABCD, WORD, E, F, EOS], stop=EOS),
    Row("stop token", LETTERS, {"stop_token_ids": [C]}, "ab", [A, B, C], stop=C),
    Row("stop token is a word", LETTERS, {"stop_token_ids": [WORD]}, "abcd", [*ABCD, WORD], stop=WORD),
    Row("stop is a token", LETTERS, {"stop": ["c"]}, "ab", [A, B, C], stop="c"),
    Row("stop at the start", LETTERS, {"stop": ["a"]}, "", [A], stop="a"),
    Row("stop within a token", LETTERS, {"stop": ["w"]}, "abcd", [*ABCD, WORD], stop="w"),
    Row("stop ends a token", LETTERS, {"stop": ["!"]}, "abcdw", [*ABCD, WORD], stop="!"),
    Row("stop across tokens", LETTERS, {"stop": ["bcd"]}, "a", ABCD, stop="bcd"),
    Row("stop ends within a token", LETTERS, {"stop": ["dw"]}, "abc", [*ABCD, WORD], stop="dw"),
    Row("stop begins within a token", LETTERS, {"stop": ["!e"]}, "abcdw", [*ABCD, WORD, E], stop="!e"),
    Row("stop is all", LETTERS, {"stop": ["abcdw!ef"]}, "", [*ABCD, WORD, E, F], stop="abcdw!ef"),
    Row("stop never comes", LETTERS, {"stop": ["efg", "zzz"]}, "abcdw!ef", [*ABCD, WORD, E, F, EOS], stop=EOS),
    Row("held back at the length", LETTERS, {"stop": ["cdx"], "max_tokens": 4}, "abcd", ABCD, LENGTH),
    Row("two on one token, first complete wins", LETTERS, {"stop": ["w!", "w"]}, "abcd", [*ABCD, WORD], stop="w"),
    Row("two at one character, first listed wins", LETTERS, {"stop": ["d", "cd"]}, "abc", ABCD, stop="d"),
    Row("two at one character, the other way", LETTERS, {"stop": ["cd", "d"]}, "ab", ABCD, stop="cd"),
    Row("one within the other", LETTERS, {"stop": ["abcd", "bc"]}, "a", [A, B, C], stop="bc"),
    Row("stop beats length", LETTERS, {"stop": ["d"], "max_tokens": 4}, "abc", ABCD, stop="d"),
    Row("length before stop", LETTERS, {"stop": ["d"], "max_tokens": 3}, "abc", [A, B, C], LENGTH),
    Row("stop token before stop", LETTERS, {"stop": ["c"], "stop_token_ids": [C]}, "ab", [A, B, C], stop=C),
    Row("sixteen", LETTERS, {"stop": [*"nopqrstuvxyz123", "cd"]}, "ab", ABCD, stop="cd"),
    Row("stop before min_tokens", LETTERS, {"stop": ["b", "e"], "min_tokens": 4}, "abcdw!", [*ABCD, WORD, E], stop="e"),
    Row(
        "stop at min_tokens", LETTERS, {"stop": ["d"], "min_tokens": 4}, "abcdw!ef", [*ABCD, WORD, E, F, EOS], stop=EOS
    ),
    Row("stop behind min_tokens", LETTERS, {"stop": ["d"], "min_tokens": 3}, "abc", ABCD, stop="d"),
    Row("stop reaches over min_tokens", LETTERS, {"stop": ["cdw"], "min_tokens": 4}, "ab", [*ABCD, WORD], stop="cdw"),
    Row("included", LETTERS, {"stop": ["bc"], **INCLUDED}, "abc", [A, B, C], stop="bc"),
    Row(
        "included in a token",
        LETTERS,
        {"stop": ["w"], "include_stop_in_output": True},
        "abcdw",
        [*ABCD, WORD],
        stop="w",
    ),
    Row(
        "included, length",
        LETTERS,
        {"stop": ["c"], "max_tokens": 3, "include_stop_in_output": True},
        "abc",
        [A, B, C],
        stop="c",
    ),
    Row("emoji", FOX, {}, "🦊z", [*FOX_IDS, ord("z"), EOS], stop=EOS),
    Row("emoji cut at 1", FOX, {"max_tokens": 1}, "\ufffd", FOX_IDS[:1], LENGTH),
    Row("emoji cut at 2", FOX, {"max_tokens": 2}, "\ufffd", FOX_IDS[:2], LENGTH),
    Row("emoji cut at 3", FOX, {"max_tokens": 3}, "\ufffd", FOX_IDS[:3], LENGTH),
    Row("emoji whole", FOX, {"max_tokens": 4}, "🦊", FOX_IDS, LENGTH),
    Row("emoji is the stop", FOX, {"stop": ["🦊"]}, "", FOX_IDS, stop="🦊"),
    Row("emoji cut by a stop token", FOX, {"stop_token_ids": FOX_IDS[2:3]}, "\ufffd", FOX_IDS[:3], stop=FOX_IDS[2]),
    Row("the mark is the stop", FOX, {"stop": ["\ufffd"], "max_tokens": 2}, "", FOX_IDS[:2], stop="\ufffd"),
    Row("a stray byte", STRAY, {}, "(\ufffd{", [BEFORE, 0xC3, BEHIND, EOS], stop=EOS),
    Row("a stop behind a stray byte", STRAY, {"stop": ["\ufffd{"]}, "(", [BEFORE, 0xC3, BEHIND], stop="\ufffd{"),
    Row("the other EOS", TURNS, {}, "x", [X, END_OF_TURN], stop=END_OF_TURN),
    Row("ignore_eos", TURNS, {**ON, "max_tokens": 6}, "xyqr", [X, END_OF_TURN, Y, EOS, Q, R], LENGTH),
    Row(
        "ignore_eos, shown",
        TURNS,
        {**ON, "max_tokens": 5, "skip_special_tokens": False},
        "x<|end_of_turn|>y<|eos|>q",
        [X, END_OF_TURN, Y, EOS, Q],
        LENGTH,
    ),
    Row(
        "a special stop id",
        TURNS,
        {**ON, "stop_token_ids": [EOS]},
        "xy",
        [X, END_OF_TURN, Y, EOS],
        stop=EOS,
    ),
    Row("EOS is not in the text", TURNS, {"skip_special_tokens": False}, "x", [X, END_OF_TURN], stop=END_OF_TURN),
    Row(
        "a shown token is a stop string",
        TURNS,
        {**ON, "skip_special_tokens": False, "stop": ["x<|end"]},
        "",
        [X, END_OF_TURN],
        stop="x<|end",
    ),
    Row(
        "a skipped token parts no stop string",
        TURNS,
        {**ON, "stop": ["xy"]},
        "",
        [X, END_OF_TURN, Y],
        stop="xy",
    ),
    Row(
        "no space between special tokens",
        MARKED,
        {**ON, "skip_special_tokens": False, "max_tokens": 3},
        "m<|bos|><|end_of_turn|>",
        [M, BOS, END_OF_TURN],
        LENGTH,
    ),
    Row(
        "spaces between special tokens",
        MARKED,
        {**ON, "skip_special_tokens": False, "spaces_between_special_tokens": True, "max_tokens": 3},
        "m<|bos|> <|end_of_turn|>",
        [M, BOS, END_OF_TURN],
        LENGTH,
    ),
    Row("echo", LETTERS, {"echo": True, "max_tokens": 2}, "ab", [A, B], LENGTH, echoed="hé"),
    Row("echo and stop", LETTERS, {"echo": True, "stop": ["hé", "b"]}, "a", [A, B], stop="b", echoed="hé"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("text")
    with cluster(
        LookupOracle(LANES).write(folder / "model"), folder, worker_args=["--num-gpu-blocks-override", "256"]
    ) as made:
        yield made
        made.wait_empty()


def request_of(row: Row) -> dict[str, Any]:
    return {"token_ids": prompt_of(row), "temperature": 0.0, "logprobs": 1, **row.params}


def prompt_of(row: Row) -> list[int]:
    """Words are no text that the oracle's tokenizer can make, so prompts are ids; their text shows with echo only."""
    return [*byte_ids("hé"), row.start]


def check(row: Row, answer: Completion) -> None:
    choice = answer.choices[0]
    assert (choice.text, list(choice.token_ids), choice.finish_reason) == (
        echoed_text(row) + row.text,
        row.ids,
        row.reason,
    )
    assert (choice.stop_string if isinstance(row.stop, str) else choice.stop_token_id) == row.stop
    assert (choice.stop_string is None) or (choice.stop_token_id is None)
    assert [entry.token_id for entry in choice.logprobs] == row.ids
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(row.ids)
    assert answer.prompt_token_ids == (tuple(prompt_of(row)) if row.echoed else ())


def echoed_text(row: Row) -> str:
    return f"{row.echoed}w{chr(0x21 + row.start - WORD)}" if row.echoed else ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_alone(row: Row, server: Cluster) -> None:
    whole = server.client.complete(**request_of(row))
    check(row, whole)
    with server.client.generate(**request_of(row)) as stream:
        deltas = list(stream)
    seen = ""
    for delta in deltas:
        seen += delta.text
        assert whole.text.startswith(seen), "what has come is never taken back"
    assert seen == whole.text
    assert [id_ for delta in deltas for id_ in delta.token_ids] == row.ids
    assert [entry for delta in deltas for entry in delta.logprobs] == list(whole.logprobs)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)


def test_all_in_one_batch(server: Cluster) -> None:
    async def ask() -> list[Completion]:
        async with AsyncClient(server.scheduler.address) as client:
            return await asyncio.gather(*(client.complete(**request_of(row)) for row in ROWS * 3))

    for row, answer in zip(ROWS * 3, asyncio.run(ask()), strict=True):
        check(row, answer)


def test_each_child_of_a_request_stops_by_itself(server: Cluster) -> None:
    row = next(row for row in ROWS if row.name == "stop across tokens")
    answer = server.client.complete(**request_of(row) | {"temperature": 0.01, "n": 4})
    for choice in answer.choices:
        assert (choice.text, list(choice.token_ids), choice.stop_string) == (row.text, row.ids, row.stop)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4 * len(row.ids)


def test_logprobs_have_text_and_bytes(server: Cluster) -> None:
    answer = server.client.complete(token_ids=[FOX], temperature=0.0, logprobs=2, max_tokens=5)
    assert b"".join(entry.token_bytes for entry in answer.logprobs).decode() == answer.text == "🦊z"
    assert [entry.text for entry in answer.logprobs] == ["\ufffd"] * 4 + ["z"]
    for entry in answer.logprobs:
        assert (entry.top[0].token_id, entry.top[0].text, entry.top[0].token_bytes) == (
            entry.token_id,
            entry.text,
            entry.token_bytes,
        )
        assert len(entry.top) == 2
    special = server.client.complete(token_ids=[TURNS], temperature=0.0, logprobs=0)
    assert [entry.text for entry in special.logprobs] == ["x", "<|end_of_turn|>"]


def test_a_prompt_that_ends_in_mid_character_leaks_nothing(server: Cluster) -> None:
    prompt = [ord("p"), FOX_IDS[0]]
    answer = server.client.complete(token_ids=prompt, temperature=0.0, max_tokens=4)
    assert list(answer.token_ids) == [*FOX_IDS[1:], ord("z")]
    assert answer.text == "\ufffd\ufffd\ufffdz"
    echoed = server.client.complete(token_ids=prompt, temperature=0.0, max_tokens=4, echo=True)
    assert echoed.text == "p🦊z"


def test_past_a_stop_string_tokens_are_wasted_and_not_used(server: Cluster) -> None:
    def accounted(stats: Stats) -> bool:
        counters = stats.counters
        return counters.computed_tokens == counters.kept_tokens + counters.wasted_tokens + counters.recomputed_tokens

    before = server.wait_for(accounted, "no plan in flight").counters
    row = next(row for row in ROWS if row.name == "stop is a token")
    server.client.complete(**request_of(row))
    after = server.wait_for(accounted, "no plan in flight").counters
    assert after.generated_tokens - before.generated_tokens == len(row.ids)
    # The last token needs no computing; what was computed past it is not kept.
    assert after.kept_tokens - before.kept_tokens == len(prompt_of(row)) + len(row.ids) - 1


def test_a_stop_string_may_span_the_death_of_the_worker(server: Cluster) -> None:
    stop = "qr" * 100
    ids = [X, END_OF_TURN, Y, EOS, *[Q, R, EOS] * 99, Q, R]
    stream = server.generate(token_ids=[TURNS], ignore_eos=True, stop=[stop], logprobs=0)
    deltas = [next(stream)]
    server.worker.kill()
    server.worker.start()
    deltas += stream
    assert "".join(delta.text for delta in deltas) == "xy"
    assert [id_ for delta in deltas for id_ in delta.token_ids] == ids
    assert [entry.token_id for delta in deltas for entry in delta.logprobs] == ids
    assert deltas[-1].stop_string == stop
    assert server.stats().worker.restarts == 1
