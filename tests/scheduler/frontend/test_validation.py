"""The rules of a request, one line each: what is refused, with field, value and limit, and what open fields become."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scheduler.core.sequence import Sampling
from scheduler.frontend.errors import InvalidRequestError
from scheduler.frontend.model_info import ModelInfo
from scheduler.frontend.prompts import EncodedPrompt, encode_prompt
from scheduler.frontend.request import (
    ChatMessage,
    ChatPrompt,
    GenerateInput,
    Prompt,
    SamplingInput,
    TextPrompt,
    TokenPrompt,
)
from scheduler.frontend.sampling_defaults import SamplingDefaults
from scheduler.frontend.tokenizer import Tokenizer, load_tokenizer
from scheduler.frontend.validation import ValidatedRequest, validate
from tests.oracle.tokenizer import END_OF_TURN, SPECIAL_TOKENS

EOS = (257, 258)


def said(content: str) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def check(
    model: ModelInfo,
    *,
    prompt: tuple[int, ...] = (1, 2, 3),
    encoded: EncodedPrompt | None = None,
    defaults: SamplingDefaults | None = None,
    fields: dict[str, Any] | None = None,
    has_text: bool = True,
    **sampling: Any,
) -> ValidatedRequest:
    return validate(
        GenerateInput(request_id="r", sampling=SamplingInput(**sampling))
        if fields is None
        else GenerateInput(**fields),
        encoded or EncodedPrompt(field="token_ids.ids", token_ids=prompt),
        model=model,
        eos_token_ids=EOS,
        defaults=defaults or SamplingDefaults(),
        has_text=has_text,
        encode=str.encode,  # a token is a byte
    )


def violations(model: ModelInfo, **given: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequestError) as error:
        check(model, **given)
    for violation in error.value.violations:
        assert f"{violation.field}: {violation.description}" in str(error.value)
    return {violation.field: violation.description for violation in error.value.violations}


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, "in [0, 2]"),
        ("temperature", 2.1, "in [0, 2]"),
        ("temperature", math.nan, "in [0, 2]"),
        ("temperature", math.inf, "in [0, 2]"),
        ("top_k", -2, "at least 1, or 0 or -1 for off"),
        ("top_p", 0.0, "in (0, 1]"),
        ("top_p", 1.1, "in (0, 1]"),
        ("top_p", math.nan, "in (0, 1]"),
        ("min_p", -0.1, "in [0, 1]"),
        ("min_p", 1.1, "in [0, 1]"),
        ("min_p", -math.inf, "in [0, 1]"),
        ("max_tokens", 0, "at least 1"),
        ("presence_penalty", 2.01, "in [-2, 2]"),
        ("presence_penalty", math.nan, "in [-2, 2]"),
        ("frequency_penalty", -2.01, "in [-2, 2]"),
        ("repetition_penalty", 0.0, "in (0, 2]"),
        ("repetition_penalty", 2.01, "in (0, 2]"),
        ("repetition_penalty", math.nan, "in (0, 2]"),
        ("logprobs", 21, "in [0, 20]"),
        ("prompt_logprobs", 21, "in [0, 20]"),
        ("n", 0, "in [1, 64]"),
        ("n", 65, "in [1, 64]"),
    ],
)
def test_out_of_range(field: str, value: float, limit: str, model: ModelInfo) -> None:
    assert violations(model, **{field: value}) == {f"sampling_params.{field}": f"is {value}, must be {limit}"}


@pytest.mark.parametrize(
    ("sampling", "field", "description"),
    [
        ({"logit_bias": {320: 1.0}}, "logit_bias", "has the token 320, must be below 320 (the width of the logits)"),
        ({"logit_bias": {1: -100.5}}, "logit_bias", "has -100.5 for token 1, must be in [-100, 100]"),
        ({"logit_bias": {1: math.nan}}, "logit_bias", "has nan for token 1, must be in [-100, 100]"),
        (
            {"allowed_token_ids": (1, 320)},
            "allowed_token_ids",
            "has 320 at index 1, must be below 320 (the width of the logits)",
        ),
        (
            {"min_tokens": 5, "max_tokens": 4},
            "min_tokens",
            "is 5, must be at most 4 (sampling_params.max_tokens)",
        ),
        ({"bad_words": ("ok", "")}, "bad_words", "has an empty text at index 1, must have none"),
        ({"bad_words": ("x",) * 257}, "bad_words", "has 257 texts, must have at most 256"),
        ({"bad_words": ("x" * 65,)}, "bad_words", "has 65 tokens at index 0, must have at most 64"),
        ({"bad_words": ("x" * 1025,)}, "bad_words", "has 1025 bytes at index 0, must have at most 1024"),
    ],
)
def test_what_else_is_refused(sampling: dict[str, Any], field: str, description: str, model: ModelInfo) -> None:
    assert violations(model, **sampling) == {f"sampling_params.{field}": description}


def test_bad_words_need_a_tokenizer(model: ModelInfo) -> None:
    with pytest.raises(InvalidRequestError, match="bad_words: needs the model's tokenizer, and it has none"):
        validate(
            GenerateInput(request_id="r", sampling=SamplingInput(bad_words=("x",))),
            EncodedPrompt(field="token_ids.ids", token_ids=(1,)),
            model=model,
            eos_token_ids=EOS,
            defaults=SamplingDefaults(),
        )


def test_what_the_sampler_gets_of_rules(model: ModelInfo) -> None:
    sampling = check(
        model,
        min_tokens=2,
        stop_token_ids=(9,),
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={7: 1.0, 3: -1.0},
        allowed_token_ids=(8, 5, 8),
        bad_words=("ab", "c"),
        prompt_logprobs=0,
        defaults=SamplingDefaults(repetition_penalty=1.2),
    ).sampling
    assert sampling == Sampling(
        temperature=1.0,
        min_tokens=2,
        masked_token_ids=(9, 257, 258),
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        logit_bias=((3, -1.0), (7, 1.0)),
        allowed_token_ids=(5, 8),
        bad_words=((97, 98), (32, 97, 98), (99,), (32, 99)),
        num_prompt_logprobs=0,
    )
    assert check(model, min_tokens=2, ignore_eos=True).sampling.masked_token_ids == ()
    given = check(model, repetition_penalty=1.0, defaults=SamplingDefaults(repetition_penalty=1.2)).sampling
    assert given == Sampling(temperature=1.0)


def test_several_continuations_are_drawn_not_greedy(model: ModelInfo) -> None:
    assert check(model, n=64).n == 64
    assert check(model).n == check(model, n=1, temperature=0.0).n == 1
    greedy, drawn = SamplingDefaults(temperature=0.0), SamplingDefaults(temperature=0.5)
    why = "and greedy sequences are all the same"
    expected = f"is 2, must be 1: sampling_params.temperature is 0, {why}"
    assert violations(model, n=2, temperature=0.0, defaults=drawn) == {"sampling_params.n": expected}
    expected = f"is 2, must be 1: sampling_params.temperature is 0, the model's default, {why}"
    assert violations(model, n=2, defaults=greedy) == {"sampling_params.n": expected}
    assert check(model, n=2, temperature=0.1, defaults=greedy).n == 2


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 2.0},
        {"top_k": -1},
        {"top_p": 1.0},
        {"min_p": 1.0},
        {"max_tokens": 61},
        {"logprobs": 20},
        {"n": 1},
        {"n": 64},
        {"min_tokens": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "echo": False},
        {"include_stop_in_output": True, "spaces_between_special_tokens": True, "echo": True},
        {"stop_token_ids": (319,)},
        {"stop": ("é" * 256,) * 16},
    ],
)
def test_the_limits_themselves_and_neutral_values_pass(sampling: dict[str, Any], model: ModelInfo) -> None:
    assert check(model, **sampling).prompt == (1, 2, 3)


@pytest.mark.parametrize("field", ["request_id", "tenant", "cache_salt"])
def test_names_have_a_length(field: str, model: ModelInfo) -> None:
    fields = {"request_id": "r"}
    assert check(model, fields=fields | {field: "é" * 128})
    assert violations(model, fields=fields | {field: "é" * 129}) == {field: "has 258 bytes, must have at most 256"}


def test_unknown_fields_are_refused(model: ModelInfo) -> None:
    found = violations(model, fields={"request_id": "r", "unknown_fields": ("sampling_params.#99",)})
    assert found == {"sampling_params.#99": "is not known to this version of the server"}


def test_a_prompt_must_leave_room_for_a_token(model: ModelInfo) -> None:
    assert check(model, prompt=(1,) * 63).max_tokens == 1
    found = violations(model, prompt=(1,) * 64)
    assert found == {"token_ids.ids": "has 64 tokens, must have at most 63 (max_model_len 64, less one to generate)"}
    assert violations(model, prompt=(999,) * 64) == found  # a length is reason enough to look no further


def test_prompt_and_max_tokens_over_the_limit_names_all_three_numbers(model: ModelInfo) -> None:
    assert check(model, prompt=(1,) * 40, max_tokens=24).max_tokens == 24
    expected = "is 25, with a prompt of 40 tokens that makes 65, must be at most 64 (max_model_len)"
    assert violations(model, prompt=(1,) * 40, max_tokens=25) == {"sampling_params.max_tokens": expected}


def test_foreign_ids_are_named_with_their_place(model: ModelInfo) -> None:
    expected = "has 320 at index 1, must be below 320 (the width of the logits)"
    assert violations(model, prompt=(319, 320, 321)) == {"token_ids.ids": expected}
    assert violations(model, stop_token_ids=(0, 320)) == {"sampling_params.stop_token_ids": expected}


def test_an_empty_prompt_is_refused(model: ModelInfo) -> None:
    assert violations(model, prompt=()) == {"token_ids.ids": "is empty, must give at least one token"}


@pytest.mark.parametrize(
    ("prompt", "field", "description"),
    [
        (None, "prompt", "is missing, give one of text, chat and token_ids"),
        (TextPrompt(text=""), "text", "is empty, must give at least one token"),
        (TokenPrompt(ids=()), "token_ids.ids", "is empty, must give at least one token"),
        (ChatPrompt(messages=()), "chat.messages", "is empty, must have at least one message"),
        (ChatPrompt(messages=(said("a"), ChatMessage(role="", content="b"))), "chat.messages[1].role", "is empty"),
    ],
)
def test_prompts_of_each_kind(
    prompt: Prompt | None, field: str, description: str, model: ModelInfo, byte_tokenizer: Tokenizer
) -> None:
    assert violations(model, encoded=encode_prompt(prompt, byte_tokenizer, model.max_model_len)) == {field: description}


@pytest.mark.parametrize(
    ("field", "around", "prompt"),
    [
        ("text", 0, lambda text: TextPrompt(text=text)),
        ("chat.messages", 32, lambda text: ChatPrompt(messages=(said(text),))),  # "user: ", the rest as below
    ],
)
def test_a_text_that_cannot_fit_whatever_its_tokens_is_not_tokenised(
    field: str, around: int, prompt: Any, model: ModelInfo, byte_tokenizer: Tokenizer
) -> None:
    longest = SPECIAL_TOKENS[END_OF_TURN]
    assert byte_tokenizer.max_token_bytes == len(longest) == 15
    fits = "é" * ((64 * 15 - around) // 2)
    tokens = len(encode_prompt(prompt(fits), byte_tokenizer, 64).token_ids)
    assert violations(model, encoded=encode_prompt(prompt(fits), byte_tokenizer, 64)) == {
        field: f"has {tokens} tokens, must have at most 63 (max_model_len 64, less one to generate)"
    }
    assert violations(model, encoded=encode_prompt(prompt(fits + "é"), byte_tokenizer, 64)) == {
        field: "has 962 bytes of text, must have at most 960 "
        "(max_model_len 64, times the 15 bytes of the longest token)"
    }
    assert encode_prompt(TextPrompt(text=longest * 63), byte_tokenizer, 64).token_ids == (END_OF_TURN,) * 63


def test_a_template_that_refuses_is_the_callers_violation(
    model: ModelInfo, tmp_path_factory: Any, byte_model: Any
) -> None:
    directory = tmp_path_factory.mktemp("refuses")
    (directory / "tokenizer.json").write_bytes((byte_model / "tokenizer.json").read_bytes())
    (directory / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    prompt = ChatPrompt(messages=(said("a"), said("b")))
    encoded = encode_prompt(prompt, load_tokenizer(str(directory)), 64)
    expected = "the model's chat template refuses them: roles must alternate"
    assert violations(model, encoded=encoded) == {"chat.messages": expected}


def test_a_model_without_tokenizer_or_template_says_so(model: ModelInfo, tmp_path: Any) -> None:
    bare = load_tokenizer(str(tmp_path))
    text, chat = TextPrompt(text="a"), ChatPrompt(messages=(said("a"),))
    assert violations(model, encoded=encode_prompt(text, bare, 64)) == {
        "text": "the model has no tokenizer, give token_ids"
    }
    assert violations(model, encoded=encode_prompt(chat, bare, 64)) == {
        "chat": "the model has no chat template, give text or token_ids"
    }
    assert encode_prompt(TokenPrompt(ids=(1,)), bare, 64).token_ids == (1,)


def test_stop_strings_have_a_number_and_a_length(model: ModelInfo) -> None:
    assert violations(model, stop=("x",) * 17) == {"sampling_params.stop": "has 17 strings, must have at most 16"}
    assert violations(model, stop=("x", "", "y" * 257)) == {
        "sampling_params.stop[1]": "has 0 characters, must have 1 to 256",
        "sampling_params.stop[2]": "has 257 characters, must have 1 to 256",
    }


def test_a_model_without_text_has_no_stop_strings_and_no_echo(model: ModelInfo) -> None:
    why = "but the model has no tokenizer and gives no text"
    assert violations(model, has_text=False, stop=("x",), echo=True) == {
        "sampling_params.stop": f'is ["x"], {why}',
        "sampling_params.echo": f"is true, {why}",
    }


@pytest.mark.parametrize(
    ("field", "choices"),
    [("tool_call_parser", "hermes, llama3_json, mistral, none"), ("reasoning_parser", "think, none")],
)
def test_parsers_are_known_by_name(field: str, choices: str, model: ModelInfo) -> None:
    found = violations(model, fields={"request_id": "r", field: "no"})
    assert found == {field: f"is 'no', must be one of {choices}"}
    for choice in choices.split(", "):
        assert check(model, fields={"request_id": "r", field: choice})


@pytest.mark.parametrize("interval", [0, 2049])
def test_a_stream_interval_is_a_number_of_tokens_that_a_message_holds(interval: int, model: ModelInfo) -> None:
    found = violations(model, fields={"request_id": "r", "stream_interval": interval})
    assert found == {"stream_interval": f"is {interval}, must be in [1, 2048]"}
    for good in (1, 2048):
        assert check(model, fields={"request_id": "r", "stream_interval": good}).stream_interval == good


def test_all_violations_are_reported_together(model: ModelInfo) -> None:
    sampling = SamplingInput(temperature=3.0, top_p=0.0, bad_words=("",), n=0)
    fields = {"request_id": "r", "tenant": "t" * 257, "sampling": sampling, "unknown_fields": ("#99",)}
    assert list(violations(model, fields=fields, prompt=(1, 999))) == [
        "#99",
        "tenant",
        "sampling_params.temperature",
        "sampling_params.top_p",
        "sampling_params.n",
        "sampling_params.bad_words",
        "token_ids.ids",
    ]


def test_unset_max_tokens_goes_to_the_limit_or_as_far_as_the_core_can(model: ModelInfo) -> None:
    unset, given = check(model), check(model, max_tokens=61)
    assert (unset.max_tokens, unset.open_ended) == (61, True)
    assert (given.max_tokens, given.open_ended) == (61, False)


def test_open_fields_take_the_models_defaults(model: ModelInfo) -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.9, min_p=0.1)
    assert check(model, defaults=defaults).sampling == Sampling(temperature=0.6, top_k=20, top_p=0.9, min_p=0.1)
    given = check(model, defaults=defaults, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, logprobs=0)
    assert given.sampling == Sampling(temperature=1.0, num_logprobs=0)


@pytest.mark.parametrize("top_k", [-1, 0, 320, 2**31 - 1])
def test_top_k_of_the_whole_vocabulary_is_off(top_k: int, model: ModelInfo) -> None:
    assert check(model, top_k=top_k).sampling.top_k == 0


def test_eos_ends_unless_it_is_ignored(model: ModelInfo) -> None:
    assert check(model, stop_token_ids=(7,)).stop_token_ids == {7, *EOS}
    assert check(model, stop_token_ids=(7,), ignore_eos=True).stop_token_ids == {7}


def test_special_tokens_are_left_out_of_the_text_unless_wanted(model: ModelInfo) -> None:
    assert check(model).skip_special_tokens
    assert not check(model, skip_special_tokens=False).skip_special_tokens
