"""Flags, the YAML file, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from scheduler.assembly import check_recording
from scheduler.config import ConfigError, SchedulerConfig
from scheduler.flags import parse, parser


def test_every_field_has_a_flag_with_its_default_in_the_help() -> None:
    text = " ".join(parser().format_help().split())
    for field in fields(SchedulerConfig):
        assert f"--{field.name.replace('_', '-')}" in text
        if field.name != "model":
            shown = "none" if field.default is None else field.default
            shown = " ".join(shown) if isinstance(shown, tuple) else shown
            assert f"(default: {shown})" in text


def test_command_line_wins_over_file_and_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(
        "model: m\nmax_model_len: 9\nscheduler:\n  max-model-len: 7\n  max-num-seqs: 5\n  port: 1234\n"
        "  enable-prefix-caching: false\n"
        "worker:\n  block-size: 32\n"
    )
    config = parse(["--config", str(file), "--max-num-seqs", "7"])
    assert (config.model, config.max_num_seqs, config.port, config.enable_prefix_caching) == ("m", 7, 1234, False)
    assert (config.max_model_len, config.worker_grace) == (7, 60.0)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("max-num-seqs: five", "max-num-seqs must be int, is 'five'"),
        ("port: true", "port must be int, is True"),
        ("worker: [1]", "worker must be a str or a list of them, is [1]"),
    ],
)
def test_a_bad_value_in_a_file_is_refused_by_name(tmp_path: Path, flag: str, message: str) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(f"model: m\nscheduler:\n  {flag}\n")
    with pytest.raises(ConfigError) as error:
        parse(["--config", str(file)])
    assert str(error.value) == f"--config {file}: {message}"


@pytest.mark.parametrize("flag", ["log_level", "log_format", "scheduling_policy", "preemption_mode"])
def test_a_choice_from_a_file_is_checked_like_one_from_the_command_line(flag: str) -> None:
    values: dict[str, Any] = {"model": "m", flag: "loud"}
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} must be one of .*, is 'loud'"):
        SchedulerConfig(**values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model is required"),
        (["--model", "m", "--max-num-seqs", "0"], "--max-num-seqs must be at least 1, is 0"),
        (["--model", "m", "--max-num-batched-tokens", "8"], "--max-num-batched-tokens must be at least 64"),
        (["--model", "m", "--max-plans-in-flight", "3"], "--max-plans-in-flight must be 1, 2 or 4, is 3"),
        (["--model", "m", "--worker-grace", "-1"], "--worker-grace must be in [0, 31536000] seconds, is -1"),
        (["--model", "m", "--worker-grace", "nan"], "--worker-grace must be in [0, 31536000] seconds, is nan"),
        (["--model", "m", "--worker-grace", "inf"], "--worker-grace must be in [0, 31536000] seconds, is inf"),
        (["--model", "m", "--drain-grace", "inf"], "--drain-grace must be in [0, 31536000] seconds, is inf"),
        (["--model", "m", "--step-timeout", "0"], "--step-timeout must be in (0, 31536000] seconds, is 0.0"),
        (
            ["--model", "m", "--step-timeout-per-token", "-1"],
            "--step-timeout-per-token must be in [0, 31536000] seconds",
        ),
        (["--model", "m", "--worker", ""], "--worker must be HOST:PORT, is empty"),
        (["--model", "m", "--worker", "nocolon"], "--worker must be HOST:PORT, is 'nocolon', without a port"),
        (["--model", "m", "--port", "70000"], "--port must be in [0, 65535], is 70000"),
        (["--config", "/nowhere/octavo.yaml"], "/nowhere/octavo.yaml"),
    ],
)
def test_a_bad_value_is_refused_with_flag_value_and_limit(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(arguments)
    assert message in str(error.value)


def test_workers_are_given_several_times_or_as_a_list(tmp_path: Path) -> None:
    assert parse(["--model", "m", "--worker", "a:1", "--worker", "b:2"]).worker == ("a:1", "b:2")
    file = tmp_path / "octavo.yaml"
    for content, expected in (("a:1", ("a:1",)), ("[a:1, b:2]", ("a:1", "b:2"))):
        file.write_text(f"model: m\nscheduler:\n  worker: {content}\n")
        assert parse(["--config", str(file)]).worker == expected
        assert parse(["--config", str(file), "--worker", "c:3"]).worker == ("c:3",)


def test_a_recording_needs_its_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--record must name a file in a directory that is there, .*nowhere is none"):
        check_recording(SchedulerConfig(model="x", record=str(tmp_path / "nowhere" / "run.rec")))
    check_recording(SchedulerConfig(model="x", record=str(tmp_path / "run.rec")))
