"""Structured output over the whole way, from a model that draws nearly at random: what it may say is all that holds it.

The pool is too small for all at once, and the worker dies in between, so the state of most grammars is rebuilt.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clients import Completion, Delta, FinishReason, InvalidRequestError, OctavoError, ResourceExhaustedError
from clients.results import join
from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import REPOSITORY
from tests.integration.schemas import SCHEMAS
from tests.oracle.lookup import LookupOracle
from tests.oracle.tokenizer import EOS

PROMPT = "Say something that fits"
DRAWN: dict[str, Any] = {"temperature": 1.0, "max_tokens": 600}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Every token follows every other with about the same probability."""
    model = LookupOracle({}, margin=0.1).write(tmp_path_factory.mktemp("flat"))
    with cluster(
        model,
        tmp_path_factory.mktemp("structured"),
        worker_args=["--num-gpu-blocks-override", "44"],
        scheduler_args=["--worker-grace", "60", "--preemption-mode", "recompute"],
    ) as running:
        yield running


def assert_fits(schema: dict[str, Any], completion: Completion) -> None:
    assert completion.finish_reason is FinishReason.STOP, completion.text
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(
        json.loads(completion.text)
    )


def test_fifty_schemas_parse_and_validate(server: Cluster) -> None:
    assert len(SCHEMAS) == 50
    before = server.stats()
    with server.frozen_worker():  # so that all of them begin together
        streams = [
            server.generate(PROMPT, json_schema=schema, seed=seed, **DRAWN) for seed, schema in enumerate(SCHEMAS)
        ]
        server.wait_for(lambda stats: stats.queues.running + stats.queues.waiting == len(SCHEMAS), "all are there")
    head = next(streams[-1])
    server.worker.kill()
    server.worker.start()
    for schema, stream in zip(SCHEMAS, streams, strict=True):
        first = [head] if stream is streams[-1] else []
        assert_fits(schema, join("", [*first, *stream], stream.usage))
    stats = server.wait_empty()
    assert stats.worker.restarts > before.worker.restarts
    assert stats.counters.preemptions > before.counters.preemptions


def test_a_seed_repeats_itself_though_the_worker_dies(server: Cluster) -> None:
    request: dict[str, Any] = {"json_schema": SCHEMAS[-11], "seed": 4, "logprobs": 0, **DRAWN}
    alone = server.complete(PROMPT, **request)
    streams = [server.generate(PROMPT, **request), server.generate(PROMPT, ignore_eos=True, max_tokens=200)]
    heads = [list(islice(stream, 5)) for stream in streams]
    server.worker.kill()
    server.worker.start()
    again, neighbour = (join("", [*head, *stream], stream.usage) for head, stream in zip(heads, streams, strict=True))
    assert (again.token_ids, again.text) == (alone.token_ids, alone.text)
    assert len(again.token_ids) > 20
    assert len(neighbour.token_ids) == 200


@pytest.mark.parametrize(
    "regex",
    [
        "[a-c]{5,9}",
        "(Yes|No)\\.",
        "[0-9]{4}-[0-9]{2}",
        "😀{2,3}!",
        "x(y|z)*w",
        '[^"\\x00-\\x1f\\x7f-\\U0010ffff]{1,20}',
    ],
)
def test_the_text_matches_the_regex(server: Cluster, regex: str) -> None:
    completion = server.complete(PROMPT, regex=regex, n=4, **DRAWN)
    for choice in completion.choices:
        assert choice.finish_reason is FinishReason.STOP
        assert re.fullmatch(regex.replace("\\U0010ffff", "\U0010ffff"), choice.text)


def test_the_text_is_one_of_the_choices(server: Cluster) -> None:
    texts = ["left", "right", "lefty", 'say "é"\n']
    completion = server.complete(PROMPT, choice=texts, n=40, seed=1, **DRAWN)
    assert {choice.text for choice in completion.choices} == set(texts)


def test_any_json_object(server: Cluster) -> None:
    settings = DRAWN | {"max_tokens": 600, "logit_bias": {ord("}"): 4.0, ord('"'): 4.0}}
    completion = server.complete(PROMPT, json_object=True, seed=1, n=3, **settings)
    for choice in completion.choices:
        assert choice.finish_reason is FinishReason.STOP
        assert isinstance(json.loads(choice.text), dict)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: expr\nexpr: term ("+" term)*\nterm: /[0-9]{1,2}/ | "(" expr ")"',
        'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9] [0-9]? | "(" expr ")"',
    ],
)
def test_a_context_free_grammar_in_lark_or_ebnf(server: Cluster, grammar: str) -> None:
    completion = server.complete(PROMPT, grammar=grammar, seed=5, **DRAWN)
    text = completion.text
    assert completion.finish_reason is FinishReason.STOP
    assert re.fullmatch(r"[0-9+()]+", text) and isinstance(eval(text.replace("0", "1")), int)


def test_masks_come_before_bias_and_go_with_other_rules(server: Cluster) -> None:
    """EOS is likely by bias, and allowed by the form only at its end; min_tokens puts it off."""
    bias = {EOS: 50.0, ord("q"): 60.0}
    completion = server.complete(PROMPT, regex="[ab]{2,40}", logit_bias=bias, min_tokens=9, bad_words=["b"], **DRAWN)
    assert completion.text == "a" * 9
    assert completion.stop_token_id == EOS


@pytest.mark.parametrize("stop", [[], ["bcd"]], ids=["plain", "held back"])
def test_a_form_that_the_other_rules_forbid_ends_with_the_text_so_far(server: Cluster, stop: list[str]) -> None:
    stream = server.generate(PROMPT, regex="abcd", allowed_token_ids=[97, 98, 100, EOS], stop=stop, **DRAWN)
    seen: list[Delta] = []
    with pytest.raises(OctavoError, match="leave no token to go on with"):
        seen.extend(stream)
    assert "".join(delta.text for delta in seen) == "ab"


def test_explosive_grammars_end_alone(server: Cluster) -> None:
    neighbour = server.generate(PROMPT, json_schema=SCHEMAS[-10], seed=3, **DRAWN)
    rules = "\n".join(f"r{i}: r{i + 1} r{i + 1} r{i + 1}" for i in range(25))
    for form in (
        {"regex": "((a{0,100}){0,100}){0,100}b"},
        {"regex": r"(\p{L}{0,500}\w{1,500}){0,50}"},
        {"grammar": f'start: r0\n{rules}\nr25: "a"'},
        {"grammar": 'start: e\ne: e e | e e e | "a" | "b"?'},
    ):
        with contextlib.suppress(InvalidRequestError, ResourceExhaustedError):
            completion = server.complete(PROMPT, **form, **(DRAWN | {"max_tokens": 40}))
            assert len(completion.token_ids) <= 40
    assert_fits(SCHEMAS[-10], collect(neighbour))
    server.wait_empty()


def test_a_malformed_one_is_refused_by_name_and_nothing_else_is(server: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match=r"sampling_params\.json_schema: is refused: Invalid type: text"):
        server.complete(PROMPT, json_schema={"type": "text"}, **DRAWN)
    assert_fits(SCHEMAS[0], server.complete(PROMPT, json_schema=SCHEMAS[0], **DRAWN))


MODEL = REPOSITORY / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.slow  # fifty answers of a real model
@pytest.mark.timeout(900)
@pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL} is absent: `make demo` fetches it")
def test_fifty_schemas_on_a_real_vocabulary(tmp_path: Path) -> None:
    with cluster(MODEL, tmp_path, worker_args=["--num-gpu-blocks-override", "1200"], threads=2) as real:
        streams = [
            real.generate(PROMPT, json_schema=schema, seed=seed, timeout=600, temperature=1.0, max_tokens=400)
            for seed, schema in enumerate(SCHEMAS)
        ]
        for schema, stream in zip(SCHEMAS, streams, strict=True):
            assert_fits(schema, collect(stream))
