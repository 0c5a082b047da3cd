"""The `octavo` command as a process, against a scripted server."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2

from clients.local import flags
from octavo.serving.v1 import generation_pb2
from tests.clients.peer import Peer, bad_request, fail, last_response, response
from tests.integration.processes import WAIT_CAP_S, child_environment

COMMAND = [sys.executable, "-m", "clients.cli"]


def octavo(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return python("-m", "clients.cli", *arguments, stdin=stdin)


def python(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=child_environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_CAP_S,
        check=False,
    )


async def answer(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
    yield response("Par", (1,))
    yield response("is", (2,), finish_reason=generation_pb2.FINISH_REASON_STOP)
    yield last_response(prompt_tokens=7, cached_tokens=4, completion_tokens=2)


def test_help_lists_the_commands_and_nothing_is_wrong_usage() -> None:
    shown = octavo("--help")
    assert shown.returncode == 0
    for command in ("serve", "generate", "chat", "demo", "info", "health"):
        assert re.search(rf"^ +{command} ", shown.stdout, re.MULTILINE), command
    assert octavo().returncode == 2
    assert octavo("--version").stdout.startswith("octavo ")


def test_the_command_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'tokenizers', 'numpy', 'scheduler', 'worker', 'kernels'}"
    done = python("-c", f"import clients.cli, sys; print({heavy} & set(sys.modules))")
    assert done.stdout == "set()\n"


def test_generate_sends_a_chat_message_if_the_model_has_a_template(peer: Peer, target: str) -> None:
    peer.script = answer
    peer.model_info.has_chat_template = True
    done = octavo("generate", "Capital?", "--target", target, "--max-tokens=8", "--seed=3", "--stop=a", "--stop=b")
    assert (done.returncode, done.stdout) == (0, "Paris\n")
    assert done.stderr.startswith("2 tokens, time to first token")
    assert done.stderr.endswith("prompt 7 tokens (4 cached)\n")
    (request,) = peer.requests
    assert [(turn.role, turn.content) for turn in request.chat.messages] == [("user", "Capital?")]
    sampling = request.sampling_params
    assert (sampling.max_tokens, sampling.seed, list(sampling.stop)) == (8, 3, ["a", "b"])
    assert not sampling.HasField("top_p")


def test_generate_sends_text_if_told_to_or_without_a_template(peer: Peer, target: str) -> None:
    peer.script = answer
    assert octavo("generate", "one", "--target", target).returncode == 0
    peer.model_info.has_chat_template = True
    assert octavo("generate", "-", "--raw", "--target", target, stdin="two").returncode == 0
    assert [request.text for request in peer.requests] == ["one", "two"]
    assert [request.sampling_params.max_tokens for request in peer.requests] == [512, 512], "the default is a bound"


def test_generate_sends_penalties_and_what_the_answer_must_be(peer: Peer, target: str, tmp_path: Path) -> None:
    peer.script = answer
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    flags = ("--min-tokens=2", "--presence-penalty=0.5", "--repetition-penalty=1.5", f"--json-schema=@{schema}")
    assert octavo("generate", "x", "--target", target, *flags).returncode == 0
    (request,) = peer.requests
    sampling = request.sampling_params
    assert (sampling.min_tokens, sampling.presence_penalty, sampling.repetition_penalty) == (2, 0.5, 1.5)
    assert sampling.json_schema == '{"type": "object"}'
    unreadable = octavo("generate", "x", "--grammar", f"@{tmp_path}")
    assert unreadable.returncode == 2
    assert f"--grammar: cannot read {tmp_path}: " in unreadable.stderr


def test_a_refusal_is_one_line(peer: Peer, target: str) -> None:
    async def refuse(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        message = "top_p: is 0, must be in (0, 1]"
        await fail(context, grpc.StatusCode.INVALID_ARGUMENT, message, bad_request("top_p", message))
        yield response()

    peer.script = refuse
    done = octavo("generate", "x", "--target", target, "--top-p=0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "octavo generate: INVALID_ARGUMENT: top_p: is 0, must be in (0, 1]\n"


def test_chat_keeps_the_history_of_a_piped_conversation(peer: Peer, target: str) -> None:
    peer.script = answer
    done = octavo("chat", "--target", target, "--system", "short", stdin="Hello\n\nAgain\n/exit\nnever\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Paris\nParis\n", "")
    roles = [[turn.role for turn in request.chat.messages] for request in peer.requests]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"]]
    assert [turn.content for turn in peer.requests[1].chat.messages] == ["short", "Hello", "Paris", "Again"]
    assert peer.requests[0].sampling_params.max_tokens == 512


def test_ctrl_c_stops_an_answer_and_not_the_chat(peer: Peer, target: str) -> None:
    async def endless(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        yield response("and", (1,))
        await asyncio.Event().wait()

    peer.script = endless
    command = [*COMMAND, "chat", "--target", target]
    with subprocess.Popen(
        command, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=0
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("Hello\n")
        assert chat.stdout.read(3) == "and"
        chat.send_signal(signal.SIGINT)
        assert peer.cancelled.wait(WAIT_CAP_S)
        peer.script = answer
        output, _ = chat.communicate("Again\n", timeout=WAIT_CAP_S)
    assert (chat.returncode, output) == (0, "\nParis\n")
    assert [turn.content for turn in peer.requests[1].chat.messages] == ["Hello", "and", "Again"]


def test_tokenize_shows_ids_and_bytes(peer: Peer, target: str) -> None:
    shown = octavo("tokenize", "Pé", "--target", target)
    assert (shown.returncode, shown.stdout) == (0, "       1 'P'\n       2 b'\\xc3'\n")
    counted = octavo("tokenize", "-", "--chat", "--count", "--target", target, stdin="Pé")
    assert counted.stdout == "2\n"
    assert peer.requests[0].text == peer.requests[1].chat.messages[0].content == "Pé"


def test_health_is_an_exit_code(peer: Peer, target: str) -> None:
    assert (octavo("health", "--target", target).stdout, peer.health) == ("SERVING\n", 1)
    peer.health = health_pb2.HealthCheckResponse.NOT_SERVING
    done = octavo("health", "--target", target)
    assert (done.returncode, done.stdout) == (1, "NOT_SERVING\n")


def test_nobody_answers() -> None:
    done = octavo("health", "--target", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("octavo health: UNAVAILABLE: ")
    assert "is a server running at 127.0.0.1:1?" in done.stderr


def test_a_server_that_refuses_is_running(peer: Peer, target: str) -> None:
    async def refuse(request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        await fail(context, grpc.StatusCode.UNAVAILABLE, "not now", error_details_pb2.ErrorInfo(reason="DRAINING"))
        yield response()

    peer.script = refuse
    done = octavo("generate", "--raw", "hi", "--target", target)
    assert (done.returncode, done.stderr) == (1, "octavo generate: UNAVAILABLE: not now\n")
    assert done.stderr.count("\n") == 1


def test_somebody_accepts_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        done = octavo("health", "--target", target, "--timeout=0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"octavo health: no server answers at {target} within 0.5 s\n"


def test_info_shows_the_model_and_the_figures(peer: Peer, target: str) -> None:
    peer.model_info = generation_pb2.GetModelInfoResponse(served_model_name="m", eos_token_ids=[2, 3])
    peer.stats.blocks.total = 64
    shown = octavo("info", "--target", target).stdout
    assert re.search(r"^  served_model_name +m$", shown, re.MULTILINE)
    assert re.search(r"^  eos_token_ids +2 3$", shown, re.MULTILINE)
    assert re.search(r"^blocks\n(  .*\n)*  total +64$", shown, re.MULTILINE)


def test_serve_finds_its_port_in_use_before_it_starts_anything(tmp_path: Path) -> None:
    file, other = tmp_path / "octavo.yaml", tmp_path / "other.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(f"worker:\n  port: {port}\n")
        other.write_text("worker:\n  port: 0\n")
        for arguments in (
            [f"--port={port}"],
            ["--port=0", f"--worker-port={port}"],
            ["--port=0", f"--config={file}"],
            ["--port=0", f"--config={other}", f"--worker-port={port}"],
        ):
            done = octavo("serve", "--model=x", *arguments)
            assert (done.returncode, done.stderr) == (
                1,
                f"octavo serve: cannot listen on 127.0.0.1:{port}: Address already in use; stop what uses it or choose "
                "another port\n",
            )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--host=192.0.2.1"], "cannot listen on 192.0.2.1:50051: not an address of this machine"),
        (["--host=nosuch..host"], "cannot listen on nosuch..host:50051: no such host"),
        (["--port=70000"], "cannot listen on 127.0.0.1:70000: a port must be in [0, 65535]"),
    ],
)
def test_serve_says_why_an_address_cannot_be_had(arguments: list[str], reason: str) -> None:
    done = octavo("serve", "--model=x", *arguments)
    assert (done.returncode, done.stderr) == (1, f"octavo serve: {reason}\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("scheduler:\n  port: '1'\n", "port must be int, is '1'"),
        ("worker:\n  host: 1\n", "host must be str, is 1"),
        ("scheduler: [\n", "while parsing a flow node"),
    ],
)
def test_serve_says_why_a_file_has_no_address(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(content)
    done = octavo("serve", f"--config={file}", "--port=0")
    assert done.returncode == 1
    assert done.stderr.startswith(f"octavo serve: --config {file}: {reason}")
    assert done.stderr.count("\n") == 1


def test_serve_says_how_to_get_torch() -> None:
    block = "import sys; sys.modules['torch'] = None; from clients.cli import main"
    done = python("-c", f"{block}; sys.exit(main(['serve', '--model=x']))")
    assert done.returncode == 1
    assert done.stderr == (
        "octavo serve: the worker needs torch, which is not installed: pip install '.[worker]' in Octavo's checkout\n"
    )


def test_serve_needs_a_model() -> None:
    done = octavo("serve")
    assert done.returncode == 1
    assert done.stderr.startswith("octavo serve: --model is missing")


@pytest.mark.parametrize(
    ("service", "known"),
    [("scheduler", flags.SHARED + flags.SCHEDULER), ("worker", flags.SHARED + flags.WORKER)],
)
def test_serve_knows_every_flag_of_the_services(service: str, known: tuple[flags.Flag, ...]) -> None:
    shown = python("-m", service, "--help").stdout
    of_service = set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE))
    of_service |= set(re.findall(r"(--no-[a-z-]+)", shown))
    serves_own = {"--model", "--host", "--port", "--worker", "--metrics-port"}
    assert {flag.name for flag in known} == of_service - serves_own
