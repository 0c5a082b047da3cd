"""The output of one sequence: when a stop string counts, and what is left when it ends otherwise."""

from __future__ import annotations

from scheduler.core.result import End, EndReason
from scheduler.core.sequence import SequenceSpec
from scheduler.frontend.sequence_output import Delta, SequenceOutput, WatchedOutput
from scheduler.frontend.stop_strings import StopScanner, StopStrings
from scheduler.frontend.tokenizer import Tokenizer


def watched(tokenizer: Tokenizer, *stops: str, min_tokens: int = 0) -> WatchedOutput:
    scanner = StopScanner(StopStrings(stops, count_from_start=min_tokens == 0))
    spec = SequenceSpec(sequence_id=1, prompt=(1,), max_tokens=99)
    return WatchedOutput(
        index=0, spec=spec, detokenizer=tokenizer.detokenizer(), scanner=scanner, min_tokens=min_tokens
    )


def pushed(output: WatchedOutput, token_ids: bytes) -> tuple[int, Delta]:
    """Pushes until the sequence ends: how many tokens that took, and what it gives."""
    for count, token_id in enumerate(token_ids, start=1):
        if output.push_token(token_id):
            return count, output.take(99)
    return len(token_ids), output.take(99)


def test_a_stop_string_counts_only_if_it_is_complete_after_min_tokens(byte_tokenizer: Tokenizer) -> None:
    cases = [(0, 2, ""), (1, 2, ""), (2, 5, "abc"), (3, 5, "abc"), (4, 5, "abc"), (5, 6, "abcabx")]
    for min_tokens, count, text in cases:
        output = watched(byte_tokenizer, "ab", min_tokens=min_tokens)
        taken, delta = pushed(output, b"abcabx")
        assert (taken, delta.text) == (count, text), min_tokens
        assert (delta.stop_string is None) == (min_tokens == 5)


def test_one_that_began_before_min_tokens_cuts_what_came_before(byte_tokenizer: Tokenizer) -> None:
    assert pushed(watched(byte_tokenizer, "abcd", min_tokens=3), b"xabcde")[1].text == "x"


def test_an_early_one_does_not_hide_a_longer_one_around_it(byte_tokenizer: Tokenizer) -> None:
    taken, delta = pushed(watched(byte_tokenizer, "xyz", "y", min_tokens=2), b"xyzy")
    assert (taken, delta.text, delta.stop_string) == (3, "", "xyz")


def test_the_marks_of_an_incomplete_character_can_complete_a_stop_string(byte_tokenizer: Tokenizer) -> None:
    output = watched(byte_tokenizer, "a\ufffd")
    assert pushed(output, b"xa\xf0\x9f") == (4, Delta(text="x", token_ids=(*b"xa\xf0\x9f",)))
    output.push_end(End(sequence_id=1, reason=EndReason.LENGTH, num_output_tokens=4))
    delta = output.take(99)
    assert delta.end == End(sequence_id=1, reason=EndReason.STOP, num_output_tokens=4)
    assert (delta.text, delta.stop_string) == ("", "a\ufffd")
    assert not output.has_news


def test_what_a_slow_reader_gets_in_pieces_ends_with_the_last(byte_tokenizer: Tokenizer) -> None:
    output = watched(byte_tokenizer, "d")
    for token_id in b"abcd":
        output.push_token(token_id)
    pieces = [output.take(3), output.take(3)]
    assert [piece.token_ids for piece in pieces] == [tuple(b"abc"), tuple(b"d")]
    assert "".join(piece.text for piece in pieces) == "abc"
    assert [(piece.end is not None, piece.stop_string) for piece in pieces] == [(False, None), (True, "d")]
    assert not output.has_news


def test_what_is_held_back_comes_when_the_request_fails(byte_tokenizer: Tokenizer) -> None:
    output = watched(byte_tokenizer, "cdx")
    for token_id in b"abcd":
        output.push_token(token_id)
    assert output.take(99).text == "ab"
    output.break_off()
    assert output.has_news
    assert output.take(99) == Delta(text="cd", token_ids=())
    assert not output.has_news


def test_an_incomplete_character_is_marked_when_the_request_fails(byte_tokenizer: Tokenizer) -> None:
    spec = SequenceSpec(sequence_id=1, prompt=(1,), max_tokens=99)
    output = SequenceOutput(index=0, spec=spec, detokenizer=byte_tokenizer.detokenizer())
    for token_id in b"ab\xf0\x9f":
        output.push_token(token_id)
    output.break_off()
    assert [output.take(2).text, output.take(2).text, output.has_news] == ["ab", "\ufffd", False]


def test_a_sequence_that_has_ended_does_not_break_off(byte_tokenizer: Tokenizer) -> None:
    output = watched(byte_tokenizer, "b")
    assert pushed(output, b"ab") == (2, Delta(text="a", token_ids=(*b"ab",), end=output.end, stop_string="b"))
    output.break_off()
    assert not output.has_news


def test_what_has_not_begun_does_not_break_off(byte_tokenizer: Tokenizer) -> None:
    """Else the caller of a refused request would get the echo of its prompt first."""
    output = watched(byte_tokenizer, "b")
    output.break_off()
    assert not output.has_news
