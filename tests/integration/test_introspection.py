"""What people look at: reflection, health, the stats, grpcurl."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.integration.harness import Cluster, cluster
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


def grpcurl(*args: str) -> str:
    binary = shutil.which(
        "grpcurl", path=f"{Path(sys.executable).parent}:{Path.home() / '.local/bin'}"
    ) or shutil.which("grpcurl")
    if binary is None:
        pytest.skip("grpcurl is neither beside the interpreter nor on PATH")
    return subprocess.run([binary, "-plaintext", *args], check=True, capture_output=True, text=True, timeout=30).stdout


def test_grpcurl_needs_no_proto_files(server: Cluster) -> None:
    address = server.scheduler.address
    assert set(SERVING) <= set(grpcurl(address, "list").split())
    stats = json.loads(grpcurl(address, "octavo.serving.v1.AdminService/GetStats"))
    assert stats["blocks"]["total"] == 64
    body = json.dumps({"text": "hello", "samplingParams": {"temperature": 0, "maxTokens": 3, "ignoreEos": True}})
    answer = grpcurl("-d", body, address, "octavo.serving.v1.GenerationService/Generate")
    assert re.search(r'"(completionTokens|completion_tokens)": 3\b', answer), (
        answer
    )  # versions differ in the case of names
