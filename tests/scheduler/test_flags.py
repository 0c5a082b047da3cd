"""Flags, the YAML file, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from scheduler.config import ConfigError, SchedulerConfig
from scheduler.flags import parse, parser


def test_every_field_has_a_flag_with_its_default_in_the_help() -> None:
    text = " ".join(parser().format_help().split())
    for field in fields(SchedulerConfig):
        assert f"--{field.name.replace('_', '-')}" in text
        if field.name != "model":
            shown = "none" if field.default is None else field.default
            assert f"(default: {shown})" in text


def test_command_line_wins_over_file_and_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(
        "model: m\nmax-num-seqs: 5\nscheduler:\n  port: 1234\n  enable-prefix-caching: false\n"
        "worker:\n  block-size: 32\n"
    )
    config = parse(["--config", str(file), "--max-num-seqs", "7"])
    assert (config.model, config.max_num_seqs, config.port, config.enable_prefix_caching) == ("m", 7, 1234, False)
    assert config.worker_grace == 60.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: m\nmax-num-seq: 5\n", "unknown flag max-num-seq"),
        ("model: m\nmax-num-seqs: five\n", "max-num-seqs must be int, is 'five'"),
        ("model: m\nport: true\n", "port must be int, is True"),
        ("- model\n", "must be a mapping"),
        ("model: [\n", "octavo.yaml"),
        ("scheduler: 3\n", "scheduler must be a mapping"),
    ],
)
def test_a_bad_file_is_refused_with_the_flag_and_the_value(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match="--config") as error:
        parse(["--config", str(file)])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model is required"),
        (["--model", "m", "--max-num-seqs", "0"], "--max-num-seqs must be at least 1, is 0"),
        (["--model", "m", "--max-num-batched-tokens", "8"], "--max-num-batched-tokens must be at least 64"),
        (["--model", "m", "--max-plans-in-flight", "3"], "--max-plans-in-flight must be 1 or 2, is 3"),
        (["--model", "m", "--worker-grace", "-1"], "--worker-grace must be at least 0, is -1"),
        (["--model", "m", "--worker-grace", "nan"], "--worker-grace must be at least 0, is nan"),
        (["--model", "m", "--port", "70000"], "--port must be in [0, 65535], is 70000"),
        (["--config", "/nowhere/octavo.yaml"], "/nowhere/octavo.yaml"),
    ],
)
def test_a_bad_value_is_refused_with_flag_value_and_limit(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(arguments)
    assert message in str(error.value)
