"""`python -m worker` as a real process: what it says, and how it ends."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from octavo.worker.v1alpha1 import worker_pb2 as pb
from octavo.worker.v1alpha1 import worker_pb2_grpc as pb_grpc
from tests.integration.fork_server import ForkedProcess
from tests.integration.processes import REPOSITORY, child_environment, wait_until
from tests.worker.conftest import TinyModel
from worker.step import PROTOCOL_VERSION

CAP_S = 60.0
SMALL = ("--backend", "torch", "--num-gpu-blocks-override", "16", "--threads", "1")


@contextlib.contextmanager
def worker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A worker's process with its standard error piped; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "worker", *arguments], env=child_environment(), stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def log_lines(process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    """The JSON log lines as they come, each within the cap."""
    assert process.stderr is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stream = process.stderr
    threading.Thread(target=lambda: [lines.put(line) for line in stream], daemon=True).start()
    give_up = time.monotonic() + CAP_S
    while True:
        yield json.loads(lines.get(timeout=give_up - time.monotonic()))


def failure(log: Path, *arguments: str) -> tuple[int, str]:
    """Exit code of a worker that cannot start, and what it wrote besides its log lines."""
    arguments = (*arguments, "--log-format", "json")
    process = ForkedProcess("worker", arguments, env=child_environment(), folder=REPOSITORY, log=log)
    try:
        code = process.wait(CAP_S)
    finally:
        process.send_signal(signal.SIGKILL)
    said = [line for line in log.read_text().splitlines() if not line.startswith("{")]
    assert len(said) == 1, said
    return code, said[0]


def test_it_serves_on_the_port_that_it_logs_and_a_signal_ends_it_well(llama: TinyModel) -> None:
    with worker("--model", str(llama.path), "--port", "0", *SMALL) as process:
        lines = log_lines(process)
        seen = {}
        for line in lines:
            seen[line["event"]] = line
            if line["event"] == "serving":
                break
        assert seen["model loaded"]["architecture"] == "LlamaForCausalLM"
        assert seen["model loaded"]["backend"] == "torch"
        assert seen["kv cache allocated"]["num_blocks"] == 16
        assert seen["kv cache allocated"]["num_host_blocks"] == 4
        with grpc.insecure_channel(f"127.0.0.1:{seen['serving']['port']}") as channel:
            stub = pb_grpc.WorkerServiceStub(channel)
            capacity = stub.GetCapacity(pb.GetCapacityRequest(), timeout=CAP_S)
            assert capacity.num_device_blocks == 16
            opening = pb.Open(
                protocol_version=PROTOCOL_VERSION,
                config_digest=capacity.config_digest,
                num_device_blocks=16,
                group_epoch=1,
                num_rows=1,
                max_num_batched_tokens=8,
                max_model_len=8,
            )
            requests: queue.SimpleQueue[pb.ExecuteRequest] = queue.SimpleQueue()
            requests.put(pb.ExecuteRequest(open=opening))
            responses = stub.Execute(iter(requests.get, None), timeout=CAP_S)
            assert next(responses).opened.group_epoch == 1
            process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError) as caught:
                next(responses)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert process.wait(CAP_S) == 0
        assert next(line for line in lines if line["event"] == "stopped")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_it_imports(llama: TinyModel, number: signal.Signals) -> None:
    with worker("--model", str(llama.path), "--port", "0", *SMALL) as process:

        def catches_signals() -> bool:
            status = Path(f"/proc/{process.pid}/status").read_text()
            caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
            return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

        wait_until(catches_signals, "the worker has begun")
        process.send_signal(number)
        assert process.wait(CAP_S) == 0


def test_a_signal_ends_it_while_it_loads(llama: TinyModel) -> None:
    with worker("--model", str(llama.path), "--port", "0", *SMALL) as process:
        for line in log_lines(process):
            if line["event"] == "loading":
                process.send_signal(signal.SIGINT)
                break
        assert process.wait(CAP_S) == 0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker.log"


def test_a_port_in_use_is_one_line_that_names_it(llama: TinyModel, log: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        code, message = failure(log, "--model", str(llama.path), "--port", str(port), *SMALL)
    assert code == 1
    assert f"127.0.0.1:{port}: Address already in use" in message and "--port" in message


def test_a_model_that_is_not_there_is_one_line_that_names_it(tmp_path: Path, log: Path) -> None:
    code, message = failure(log, "--model", str(tmp_path / "none"), "--port", "0")
    assert (code, str(tmp_path / "none") in message) == (2, True)


def test_a_broken_model_is_one_line(tmp_path: Path, log: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert failure(log, "--model", str(tmp_path), "--port", "0")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("--kv-cache-memory-bytes", "10"), 1, "--kv-cache-memory-bytes 10"),
        ((*SMALL, "--swap-space", "64TiB"), 1, "--swap-space 70368744177664 is more than"),
        (("--max-model-len", "513"), 2, "--max-model-len is 513, the model has positions for 512 tokens"),
        (("--port", "70000"), 2, "--port"),
    ],
)
def test_what_cannot_be_had_is_one_line_that_names_the_flag(
    llama: TinyModel, log: Path, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    code, said = failure(log, "--model", str(llama.path), "--port", "0", *arguments)
    assert (code, message in said) == (exit_code, True), said
