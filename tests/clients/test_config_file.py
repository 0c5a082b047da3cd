"""The YAML file that `octavo serve` hands to both services: they read it by the same rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import scheduler.config
import scheduler.flags
import worker.config
import worker.flags

Service = tuple[Callable[[Sequence[str]], Any], type[Exception]]
SERVICES: dict[str, Service] = {
    "scheduler": (scheduler.flags.parse, scheduler.config.ConfigError),
    "worker": (worker.flags.parse, worker.config.ConfigError),
}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Service:
    return SERVICES[str(request.param)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "octavo.yaml"


def refusal(service: Service, file: Path) -> str:
    """What a service says of the file; one line that names it."""
    parse, error = service
    with pytest.raises(error) as caught:
        parse(["--model", "m", "--config", str(file)])
    message = str(caught.value)
    assert message.startswith(f"--config {file}: ")
    assert "\n" not in message
    return message.removeprefix(f"--config {file}: ")


def test_one_file_serves_both(file: Path) -> None:
    file.write_text(
        "model: m\nrevision: r\nmax_model_len: 8\nmax-num-seqs: 70\nlog-level: debug\nlog-format: json\n"
        "scheduler:\n  port: 1\n  max-num-waiting: 2\n"
        "worker:\n  port: 3\n  block-size: 4\n  max-num-seqs: 80\n"
    )
    of_scheduler, of_worker = (parse(["--config", str(file)]) for parse, _ in SERVICES.values())
    for config in (of_scheduler, of_worker):
        assert (config.model, config.revision, config.max_model_len) == ("m", "r", 8)
        assert (config.log_level, config.log_format) == ("debug", "json")
    assert (of_scheduler.port, of_scheduler.max_num_waiting, of_scheduler.max_num_seqs) == (1, 2, 70)
    assert (of_worker.port, of_worker.block_size, of_worker.max_num_seqs) == (3, 4, 80)


@pytest.mark.parametrize("content", ["", "# nothing\n", "worker:\nscheduler:\n"])
def test_a_file_may_be_empty(service: Service, file: Path, content: str) -> None:
    file.write_text(content)
    parse, _ = service
    assert parse(["--model", "m", "--config", str(file)]) == parse(["--model", "m"])


def test_flags_of_one_service_belong_under_its_section(file: Path) -> None:
    elsewhere = "; flags of one service belong under scheduler: or worker:"
    file.write_text("max-num-waiting: 8\n")
    assert refusal(SERVICES["scheduler"], file) == "max-num-waiting belongs under scheduler:"
    assert refusal(SERVICES["worker"], file) == "unknown flag max-num-waiting" + elsewhere
    file.write_text("block_size: 8\n")
    assert refusal(SERVICES["scheduler"], file) == "unknown flag block-size" + elsewhere
    assert refusal(SERVICES["worker"], file) == "block-size belongs under worker:"
    file.write_text("port: 8\n")
    for name, service in SERVICES.items():
        assert refusal(service, file) == f"port belongs under {name}:"
    for name, service in SERVICES.items():
        file.write_text(f"{name}:\n  prot: 8\n")
        assert refusal(service, file) == f"unknown flag prot under {name}:"


REFUSED = {
    "- model\n": "the file must be a mapping of flags to values",
    "worker: 3\n": "worker must be a mapping of flags to values",
    "scheduler: [port]\n": "scheduler must be a mapping of flags to values",
    "log-level: loud\nlog_level: info\n": "line 2, column 1: log-level is given twice",
    "worker:\n  port: 1\n  port: 1\n": "line 3, column 3: port is given twice",
    "model: [\n": "line 2, column 1: while parsing a flow node, expected the node content, but found '<stream end>'",
    "model: m\n---\nmodel: n\n": "line 2, column 1: expected a single document in the stream, but found",
    "model: \0\n": "unacceptable character #x0000: special characters are not allowed in",
    "model: 2024-13-45\n": "month must be in 1..12",
    "revision: 1.5\n": "revision must be str | None, is 1.5",
}


@pytest.mark.parametrize(("content", "message"), REFUSED.items(), ids=REFUSED.values())
def test_a_broken_file_is_refused_in_one_line(service: Service, file: Path, content: str, message: str) -> None:
    file.write_text(content)
    assert refusal(service, file).startswith(message)


def test_a_file_that_cannot_be_read_is_refused_in_one_line(service: Service, file: Path, tmp_path: Path) -> None:
    assert "No such file" in refusal(service, file)
    assert "Is a directory" in refusal(service, tmp_path)
    file.write_bytes(b"\xff\xfe")
    assert "can't decode byte 0xff" in refusal(service, file)


def test_a_choice_is_checked(service: Service, file: Path) -> None:
    file.write_text("log-level: loud\n")
    parse, error = service
    with pytest.raises(error, match="--log-level must be one of debug, info, warning, error, is 'loud'"):
        parse(["--model", "m", "--config", str(file)])
