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
from tests.integration.processes import child_environment, wait_until
from tests.worker.conftest import TinyModel

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


def failure(*arguments: str) -> tuple[int, str]:
    """Exit code of a worker that cannot start, and what it wrote besides its log."""
    with worker(*arguments, "--log-format", "json") as process:
        _, errors = process.communicate(timeout=CAP_S)
    assert "Traceback" not in errors
    said = [line for line in errors.splitlines() if not line.startswith("{")]
    assert len(said) == 1
    return process.returncode, said[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_on_the_port_that_it_logs_and_a_signal_ends_it_well(llama: TinyModel, number: signal.Signals) -> None:
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
                protocol_version=1,
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
            process.send_signal(number)
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
                process.send_signal(signal.SIGTERM)
                break
        assert process.wait(CAP_S) == 0


def test_a_port_in_use_is_one_line_that_names_it(llama: TinyModel) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        code, message = failure("--model", str(llama.path), "--port", str(port), *SMALL)
    assert code == 1
    assert f"127.0.0.1:{port}: Address already in use" in message and "--port" in message


def test_a_model_that_is_not_there_is_one_line_that_names_it(tmp_path: Path) -> None:
    code, message = failure("--model", str(tmp_path / "none"), "--port", "0")
    assert (code, str(tmp_path / "none") in message) == (2, True)


def test_a_broken_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert failure("--model", str(tmp_path), "--port", "0")[0] == 1


def test_too_little_memory_is_one_line_that_names_the_flag(llama: TinyModel) -> None:
    code, message = failure("--model", str(llama.path), "--port", "0", "--kv-cache-memory-bytes", "10")
    assert (code, "--kv-cache-memory-bytes 10" in message) == (1, True)
    code, message = failure("--model", str(llama.path), "--port", "0", *SMALL, "--swap-space", "64TiB")
    assert (code, "--swap-space 70368744177664 is more than" in message) == (1, True)


def test_more_positions_than_the_model_has_are_refused(llama: TinyModel) -> None:
    code, message = failure("--model", str(llama.path), "--port", "0", "--max-model-len", "513")
    assert (code, "--max-model-len is 513" in message and "512" in message) == (2, True)


def test_bad_usage_is_exit_code_2() -> None:
    assert failure("--model", "m", "--port", "70000")[0] == 2
