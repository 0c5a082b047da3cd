"""Text deltas are whole characters, however a character is split over tokens."""

from __future__ import annotations

from pathlib import Path

from clients import FinishReason
from tests.integration.harness import cluster
from tests.oracle.lookup import LookupOracle, chain
from tests.oracle.tokenizer import END_OF_TURN, EOS, byte_ids

# One, two, three and four bytes per character; no byte occurs twice, as a lane demands.
ANSWER = "aé漢🦊"


def test_characters_split_over_tokens_are_delivered_whole(tmp_path: Path) -> None:
    start = 300
    oracle = LookupOracle(chain(start, *byte_ids(ANSWER), EOS))
    with cluster(oracle.write(tmp_path / "model"), tmp_path) as server:
        deltas = list(server.generate(token_ids=[start], max_tokens=50))
        assert [token for delta in deltas for token in delta.token_ids] == [*byte_ids(ANSWER), EOS]
        assert "".join(delta.text for delta in deltas) == ANSWER
        for delta in deltas:
            assert all(character in ANSWER for character in delta.text)
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert deltas[-1].stop_token_id == EOS

        # A prompt that is text goes through the tokenizer: the lane is entered at its last byte.
        assert server.complete("prompt a").text == ANSWER[1:]
        # Stopping inside the last character leaves the characters before it whole.
        stopped = server.complete(token_ids=[start], stop_token_ids=[byte_ids("🦊")[0]])
        assert stopped.text.startswith("aé漢")
        assert stopped.finish_reason is FinishReason.STOP


def test_a_chat_is_rendered_and_ends_with_its_turn(tmp_path: Path) -> None:
    oracle = LookupOracle(chain(*byte_ids(" yes"), END_OF_TURN))
    with cluster(oracle.write(tmp_path / "model"), tmp_path) as server:
        answer = server.complete(messages=[{"role": "user", "content": "Well?"}])
        assert answer.text == "yes"  # the template ends in "assistant: ", whose last byte enters the lane
        assert answer.stop_token_id == END_OF_TURN
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len("user: Well?") + 1 + len("assistant: ")
        assert answer.usage.completion_tokens == 4
