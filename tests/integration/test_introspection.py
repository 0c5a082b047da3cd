"""What people look at: reflection, health, the stats, and all of it from a command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.integration.harness import Cluster, cluster, collect
from tests.integration.processes import ServiceProcess

SERVING = [f"octavo.serving.v1.{name}Service" for name in ("Admin", "Generation", "Tokenizer")]
STEPPING = ["octavo.worker.v1alpha1.WorkerService"]
HEALTH = "grpc.health.v1.Health"


@pytest.fixture(scope="module")
def server(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(
        uniform_model, tmp_path_factory.mktemp("introspection"), worker_args=["--num-gpu-blocks-override", "64"]
    ) as running:
        yield running


def services(process: ServiceProcess) -> list[str]:
    with grpc.insecure_channel(process.address) as channel:
        names: list[str] = list(ProtoReflectionDescriptorDatabase(channel).get_services())
    return names


def test_reflection_lists_the_services_of_both_ports(server: Cluster) -> None:
    assert {*SERVING, HEALTH} <= set(services(server.scheduler))
    assert {*STEPPING, HEALTH} <= set(services(server.worker))


def test_model_info_describes_the_model(server: Cluster) -> None:
    info = server.client.model_info(timeout=10)
    assert info.architecture == "LlamaForCausalLM"
    assert info.dtype == "float32"
    assert info.logits_width == 320
    assert info.max_model_len == 4096
    assert info.block_size == 16
    assert set(info.eos_token_ids) == {257, 258}
    assert info.has_chat_template
    assert len(info.tokenizer_digest) == 32
    assert info.weights_digest


def test_stats_add_up(server: Cluster) -> None:
    before = server.wait_empty()
    server.complete("count me", max_tokens=30, ignore_eos=True)
    after = server.wait_empty()
    counters = after.counters
    assert after.blocks.total == 64
    assert counters.finished - before.counters.finished == 1
    assert counters.generated_tokens - before.counters.generated_tokens == 30
    assert counters.steps > before.counters.steps
    assert counters.computed_tokens == counters.kept_tokens + counters.recomputed_tokens + counters.wasted_tokens
    assert after.worker.address == server.worker.address
    assert after.worker.connected
    assert after.worker.restarts == 0


def curl(address: str, method: str, body: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The answers that a command line tool shows which knows nothing but reflection. buf comes with the development
    packages, grpcurl does not; both print protobuf's JSON."""
    buf = Path(sys.executable).parent / "buf"
    url = f"http://{address}/{method}"
    command = [
        buf,
        "curl",
        "--protocol=grpc",
        "--http2-prior-knowledge",
        "--emit-defaults",
        "-d",
        json.dumps(body or {}),
    ]
    shown = subprocess.run([*command, url], check=True, capture_output=True, text=True, timeout=60).stdout
    answers, decoder = [], json.JSONDecoder()
    while shown := shown.lstrip():
        answer, end = decoder.raw_decode(shown)
        answers.append(answer)
        shown = shown[end:]
    return answers


def test_a_command_line_needs_no_proto_files(server: Cluster) -> None:
    address, admin = server.scheduler.address, "octavo.serving.v1.AdminService"
    (stats,) = curl(address, f"{admin}/GetStats")
    assert stats["blocks"]["total"] == 64
    asked = {"temperature": 0, "maxTokens": 3, "ignoreEos": True}
    answers = curl(
        address,
        "octavo.serving.v1.GenerationService/Generate",
        {"text": "x" * 40, "samplingParams": asked, "cacheSalt": "mine"},
    )
    assert answers[-1]["usage"]["completionTokens"] == 3
    server.wait_empty()
    assert curl(address, f"{admin}/ProbePrefix", {"text": "x" * 40, "cacheSalt": "mine"})[0]["cachedTokens"] == 32
    assert curl(address, f"{admin}/DropPrefix", {"cacheSalt": "mine"}) == [{"droppedBlocks": 2, "keptBlocks": 0}]


def test_a_command_line_shows_why_a_request_waits_and_what_steps_do(server: Cluster) -> None:
    address, admin = server.scheduler.address, "octavo.serving.v1.AdminService"
    holder = server.generate("h" * 500, request_id="holder", max_tokens=400, ignore_eos=True)
    first = next(holder)
    with server.frozen_worker():
        waiter = server.generate("w" * 800, request_id="waiter", max_tokens=3, ignore_eos=True)
        server.wait_for(lambda stats: stats.queues.waiting == 1, "it waits")
        (told,) = curl(address, f"{admin}/ExplainRequest", {"requestId": "waiter"})
        assert re.fullmatch(r"needs 50 blocks, \d+ free, \d+ evictable, watermark \d+", told["summary"])
        assert [record["text"] for record in told["sequences"][0]["history"]] == [
            f"step {told['sequences'][0]['history'][0]['stepId']}: queued, waiting 1"
        ]
        listed = curl(address, f"{admin}/ListRequests")[0]["sequences"]
        assert [(one["requestId"], one["state"]) for one in listed] == [
            ("holder", "SEQUENCE_STATE_RUNNING"),
            ("waiter", "SEQUENCE_STATE_WAITING"),
        ]
    assert len(first.token_ids) + len(collect(holder).token_ids) == 400
    assert len(collect(waiter).token_ids) == 3
    server.wait_empty()
