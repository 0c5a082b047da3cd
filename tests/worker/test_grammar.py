"""A row's grammar: which tokens it allows, from the tokenizer's bytes, wherever the row is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from tests.integration.processes import REPOSITORY
from tests.oracle.tokenizer import END_OF_TURN, EOS, VOCAB_SIZE, byte_ids, write_tokenizer
from worker.grammar import GrammarMatchers, RowMatcher, TokenizerSource
from worker.loader.resolve import resolve_model
from worker.loader.tokenizer_source import tokenizer_source
from worker.step import LogitRules, RowFlag

WIDTH = VOCAB_SIZE + 5  # logits are often wider than the vocabulary


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TokenizerSource:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return TokenizerSource(json=(directory / "tokenizer.json").read_text, eos_token_ids=(EOS, END_OF_TURN))


@pytest.fixture(scope="module")
def matchers(source: TokenizerSource) -> GrammarMatchers:
    return GrammarMatchers(source, WIDTH)


def matcher(matchers: GrammarMatchers, regex: str, output: str = "") -> RowMatcher:
    rules = LogitRules(grammar=LLMatcher.grammar_from_regex(regex), eos_token_ids=(EOS, END_OF_TURN))
    return matchers.matcher(rules, byte_ids(output))


def allowed(row: RowMatcher) -> set[int] | RowFlag:
    mask, flag = row.allowed()
    if flag is not RowFlag.OK:
        assert mask is None
        return flag
    assert mask is not None and mask.shape == (WIDTH,)
    return set(np.flatnonzero(mask).tolist())


def ids(*texts: str) -> set[int]:
    return {token for text in texts for token in byte_ids(text)}


ENDS = {EOS, END_OF_TURN}


def test_masks_follow_the_output(matchers: GrammarMatchers) -> None:
    row = matcher(matchers, "ab[xy]+")
    for token, expected in (("a", ids("a")), ("b", ids("b")), ("x", ids("x", "y")), ("y", ids("x", "y") | ENDS)):
        row.start()
        assert allowed(row) == expected
        row.append(*byte_ids(token))
    assert allowed(row) == ids("x", "y") | ENDS
    row.append(EOS)
    assert row.allowed() == (None, RowFlag.OK)  # one more is sampled before the scheduler has seen the end


def test_the_state_is_rebuilt_from_the_output(matchers: GrammarMatchers) -> None:
    assert allowed(matcher(matchers, "ab[xy]+", "ab")) == ids("x", "y")
    assert allowed(matcher(matchers, "ab[xy]+", "abx")) == ids("x", "y") | ENDS


def test_where_all_is_said_only_an_end_is_left(matchers: GrammarMatchers) -> None:
    assert allowed(matcher(matchers, "ab", "ab")) == ENDS


def test_an_output_that_does_not_match_is_a_dead_end_for_good(matchers: GrammarMatchers) -> None:
    row = matcher(matchers, "ab", "ac")
    assert [allowed(row), allowed(row)] == [RowFlag.DEAD_END, RowFlag.DEAD_END]


def test_a_grammar_that_none_is_ends_its_row(matchers: GrammarMatchers) -> None:
    row = matchers.matcher(LogitRules(grammar="start: nothing_there", eos_token_ids=(EOS,)), [])
    assert allowed(row) is RowFlag.DEAD_END


def test_a_mask_over_the_budget_ends_its_row(source: TokenizerSource) -> None:
    row = matcher(GrammarMatchers(source, WIDTH, mask_budget_s=0.0), "[a-z]+")
    assert [allowed(row), allowed(row)] == [RowFlag.GRAMMAR_TOO_SLOW, RowFlag.GRAMMAR_TOO_SLOW]


def test_what_llguidance_gives_up_on_is_too_slow(source: TokenizerSource) -> None:
    patient = GrammarMatchers(source, WIDTH, mask_budget_s=600.0)  # so that it is not the time that ends the row
    rules = "\n".join(f"r{i}: r{i + 1} r{i + 1} r{i + 1}" for i in range(25))
    row = patient.matcher(LogitRules(grammar=f'start: r0\n{rules}\nr25: "a"', eos_token_ids=(EOS,)), [])
    assert allowed(row) == {ord("a")}
    row.append(ord("a"))
    assert allowed(row) is RowFlag.GRAMMAR_TOO_SLOW


def test_a_broken_tokenizer_ends_rows_with_grammars_and_nothing_else() -> None:
    row = matcher(GrammarMatchers(TokenizerSource(json=lambda: "{}", eos_token_ids=(1,)), WIDTH), "a")
    assert allowed(row) is RowFlag.DEAD_END


def test_characters_over_several_tokens(matchers: GrammarMatchers) -> None:
    first, *rest = byte_ids("😀")
    row = matcher(matchers, "😀+")
    assert allowed(row) == {first}
    row.append(first)
    assert allowed(row) == {rest[0]}


GGUF = REPOSITORY / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.skipif(not GGUF.exists(), reason=f"{GGUF} is absent: `make demo` fetches it")
def test_the_tokenizer_of_a_gguf_file() -> None:
    found = tokenizer_source(resolve_model(str(GGUF)))
    assert found is not None and found.eos_token_ids == (2,)
    matchers = GrammarMatchers(found, 49_152)
    row = matchers.matcher(
        LogitRules(grammar=LLMatcher.grammar_from_regex("(yes| no|é|Answer)"), eos_token_ids=(2,)), []
    )
    mask, flag = row.allowed()
    assert mask is not None and flag is RowFlag.OK
    from scheduler.frontend.tokenizer import load_tokenizer

    token_bytes = load_tokenizer(str(GGUF)).token_bytes
    texts = {token_bytes[token].decode(errors="surrogateescape") for token in np.flatnonzero(mask)}
    assert {"yes", "y", " no", " ", "é", "Answer"} <= texts
    wholes = [b"yes", b" no", "é".encode(), b"Answer"]
    assert all(any(whole.startswith(token_bytes[token]) for whole in wholes) for token in np.flatnonzero(mask))


def test_models_without_a_tokenizer_or_an_end_have_no_grammars(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert tokenizer_source(resolve_model(str(tmp_path), with_weights=False)) is None
    write_tokenizer(tmp_path)
    found = tokenizer_source(resolve_model(str(tmp_path), with_weights=False))
    assert found is not None and found.eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')
    found = tokenizer_source(resolve_model(str(tmp_path), with_weights=False))
    assert found is not None and found.eos_token_ids == (8, 9)
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text("{}")
    for eos in ('"<|eos|>"', '{"content": "<|eos|>"}'):
        (tmp_path / "tokenizer_config.json").write_text(f'{{"eos_token": {eos}}}')
        found = tokenizer_source(resolve_model(str(tmp_path), with_weights=False))
        assert found is not None and found.eos_token_ids == (EOS,)
    (tmp_path / "tokenizer_config.json").unlink()
    assert tokenizer_source(resolve_model(str(tmp_path), with_weights=False)) is None
