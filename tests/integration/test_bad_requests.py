"""Bad input is refused with the field, the value and the limit, and harms nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients import InvalidRequestError, NotFoundError
from tests.integration.harness import Cluster, cluster, scheduler_process, worker_process
from tests.integration.processes import ServiceProcess
from tests.oracle.tokenizer import VOCAB_SIZE

LIMIT = 256


@pytest.fixture(scope="module")
def server(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    args = ["--max-model-len", str(LIMIT)]
    with cluster(uniform_model, tmp_path_factory.mktemp("bad-requests"), scheduler_args=args) as running:
        yield running


@pytest.mark.parametrize(
    ("request_fields", "field", "named"),
    [
        ({"token_ids": [1] * (LIMIT + 1)}, "token_ids.ids", [str(LIMIT + 1), str(LIMIT)]),
        ({"prompt": "x" * (LIMIT + 1)}, "text", [str(LIMIT + 1), str(LIMIT)]),
        ({"prompt": "x" * 2**20}, "text", [str(2**20), str(LIMIT)]),
        ({"messages": [{"role": "user", "content": "x" * 2**20}]}, "chat.messages", [str(LIMIT)]),
        ({"token_ids": [1] * 200, "max_tokens": 57}, "sampling_params.max_tokens", ["200", "57", str(LIMIT)]),
        ({"prompt": ""}, "text", []),
        ({"token_ids": []}, "token_ids.ids", []),
        ({"messages": []}, "chat.messages", []),
        ({"token_ids": [1, VOCAB_SIZE]}, "token_ids.ids", [str(VOCAB_SIZE)]),
        ({"token_ids": [2**32 - 1]}, "token_ids.ids", [str(2**32 - 1), str(VOCAB_SIZE)]),
        ({"prompt": "x", "top_p": 0.0}, "sampling_params.top_p", ["0", "1"]),
        ({"prompt": "x", "top_p": float("nan")}, "sampling_params.top_p", ["nan", "1"]),
        ({"prompt": "x", "temperature": 2.5}, "sampling_params.temperature", ["2.5", "2"]),
        ({"prompt": "x", "temperature": -1.0}, "sampling_params.temperature", ["-1", "2"]),
        ({"prompt": "x", "min_p": 1.5}, "sampling_params.min_p", ["1.5", "1"]),
        ({"prompt": "x", "top_k": -2}, "sampling_params.top_k", ["-2"]),
        ({"prompt": "x", "max_tokens": 0}, "sampling_params.max_tokens", ["0", "1"]),
        ({"prompt": "x", "logprobs": 21}, "sampling_params.logprobs", ["21", "20"]),
        ({"prompt": "x", "stop_token_ids": [VOCAB_SIZE]}, "sampling_params.stop_token_ids", [str(VOCAB_SIZE)]),
        ({"prompt": "x", "tenant": "t" * 257}, "tenant", ["257", "256"]),
        ({"prompt": "x", "stop": ["y", ""]}, "sampling_params.stop[1]", ["has 0 characters", "1 to 256"]),
        ({"prompt": "x", "min_tokens": 5, "max_tokens": 4}, "sampling_params.min_tokens", ["5", "at most 4"]),
        ({"prompt": "x", "presence_penalty": 2.5}, "sampling_params.presence_penalty", ["2.5", "[-2, 2]"]),
        ({"prompt": "x", "logit_bias": {3: 101.0}}, "sampling_params.logit_bias", ["101.0", "token 3", "[-100, 100]"]),
        ({"prompt": "x", "bad_words": ["ok", ""]}, "sampling_params.bad_words", ["index 1"]),
        ({"prompt": "x", "regex": "(a"}, "sampling_params.regex", ["is refused", "regex"]),
        ({"prompt": "x", "choice": []}, "sampling_params.choice", ["is empty"]),
        ({"prompt": "x", "n": 2, "temperature": 0.0}, "sampling_params.n", ["2", "temperature"]),
        ({"prompt": "x", "n": 65, "temperature": 1.0}, "sampling_params.n", ["65", "64"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None,
)
def test_refused_with_field_value_and_limit(
    server: Cluster, request_fields: dict[str, Any], field: str, named: list[str]
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        server.complete(**request_fields)
    assert [violation.field for violation in refused.value.violations] == [field]
    for word in named:
        assert word in refused.value.violations[0].description
        assert word in refused.value.message
    assert len(server.complete("and now a good one", max_tokens=3, ignore_eos=True).token_ids) == 3


def test_the_limit_itself_is_served(server: Cluster) -> None:
    answer = server.complete(token_ids=[1] * (LIMIT - 1), ignore_eos=True)
    assert len(answer.token_ids) == 1
    answer = server.complete(token_ids=[1] * 200, max_tokens=LIMIT - 200, ignore_eos=True)
    assert len(answer.token_ids) == LIMIT - 200


def test_another_model_is_not_found(server: Cluster) -> None:
    with pytest.raises(NotFoundError, match="no-such-model"):
        server.complete("x", model="no-such-model")
    name = server.client.model_info(timeout=10).served_model_name
    assert server.complete("x", model=name, max_tokens=1, ignore_eos=True).usage is not None


def test_a_prompt_that_can_never_fit_the_pool_is_refused(uniform_model: Path, tmp_path: Path) -> None:
    with cluster(uniform_model, tmp_path, worker_args=["--num-gpu-blocks-override", "8"]) as server:
        with pytest.raises(InvalidRequestError, match="block"):
            server.complete(token_ids=[1] * 129, max_tokens=1)
        assert len(server.complete("x", max_tokens=4, ignore_eos=True).token_ids) == 4


@pytest.mark.parametrize("service", ["worker", "scheduler"])
@pytest.mark.parametrize("missing", ["no/such/directory", "no/such/file.gguf"])
def test_a_model_that_is_not_there_ends_the_service_with_one_clear_line(
    service: str, missing: str, tmp_path: Path
) -> None:
    path = tmp_path / missing
    starters: dict[str, Callable[[], ServiceProcess]] = {
        "worker": lambda: worker_process(path, tmp_path),
        "scheduler": lambda: scheduler_process(path, tmp_path, "127.0.0.1:9"),
    }
    process = starters[service]()
    try:
        assert process.start().wait() != 0
    finally:
        process.kill()
    log = process.log_text()
    assert str(path) in log.strip().splitlines()[-1]
    assert "Traceback" not in log


def test_a_recording_that_is_there_already_is_refused_at_once(uniform_model: Path, tmp_path: Path) -> None:
    """Nobody answers at the worker's address: the scheduler must not wait for it to say so."""
    recording = tmp_path / "recording"
    recording.write_bytes(b"of another day")
    process = scheduler_process(uniform_model, tmp_path, "127.0.0.1:9", args=["--record", str(recording)])
    try:
        assert process.start().wait() == 2
    finally:
        process.kill()
    assert f"--record must name a new file, {recording} is there" in process.log_text()
    assert recording.read_bytes() == b"of another day"
