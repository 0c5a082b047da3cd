"""Flags from the command line and from a file, and the messages for what cannot be."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from worker.config import ConfigError, WorkerConfig
from worker.flags import parse, parser


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(
        "model: from-file\nlog_level: debug\nmax-model-len: 9\n"
        "scheduler:\n  max-num-seqs: 3\n"
        "worker:\n  block-size: 32\n  port: 2\n  max-model-len: 7\n  exact: true\n"
        "  gpu-memory-utilization: 1\n  swap-space: 0.5GiB\n"
    )
    config = parse(["--config", str(file), "--block-size", "8"])
    assert config == WorkerConfig(
        model="from-file",
        log_level="debug",
        max_model_len=7,
        port=2,
        block_size=8,
        exact=True,
        gpu_memory_utilization=1,
        swap_space=1 << 29,
    )


SIZES = {"0": 0, "4096": 4096, "3KiB": 3072, "1 MiB": 1 << 20, "4GiB": 4 << 30, "1.5GiB": 3 << 29, "2TiB": 2 << 40}


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_sizes_are_bytes_or_carry_a_unit(tmp_path: Path, text: str, size: int) -> None:
    assert parse(["--model", "m", "--swap-space", text]).swap_space == size
    file = tmp_path / "octavo.yaml"
    file.write_text(f"model: m\nworker:\n  swap-space: {text}\n")
    assert parse(["--config", str(file)]).swap_space == size


@pytest.mark.parametrize("text", ["4GB", "4G", "1.5", "-1", "-1GiB", "GiB", "", "4gib", "1e9"])
def test_what_is_no_size_is_refused_by_name(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--model", "m", f"--swap-space={text}"])
    assert caught.value.code == 2
    message = f"argument --swap-space: must be a number of bytes, or a number and KiB, MiB, GiB or TiB, is {text!r}"
    assert message in capsys.readouterr().err


def test_every_field_has_a_flag_with_its_default_in_the_help() -> None:
    text = " ".join(parser().format_help().split())
    for field in fields(WorkerConfig):
        assert f"--{field.name.replace('_', '-')} " in text
        if field.name != "model":
            assert f"(default: {'none' if field.default is None else field.default})" in text


FILES = {
    "port: eighty": "port must be int, is 'eighty'",
    "port: true": "port must be int, is True",
    "exact: 1": "exact must be bool, is 1",
    "swap-space: 4GB": "swap-space must be a number of bytes, or a number and KiB, MiB, GiB or TiB, is '4GB'",
    "swap-space: 1.5": "swap-space must be int | None, is 1.5",
}


@pytest.mark.parametrize(("flag", "message"), FILES.items(), ids=FILES)
def test_a_bad_value_in_a_file_is_refused_by_name(tmp_path: Path, flag: str, message: str) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(f"model: m\nworker:\n  {flag}\n")
    with pytest.raises(ConfigError) as caught:
        parse(["--config", str(file)])
    assert str(caught.value) == f"--config {file}: {message}"


BAD = {
    "--model is required": [],
    "--port must be in [0, 65535], is 65536": ["--port", "65536"],
    "--gpu-memory-utilization must be in (0, 1], is 0.0": ["--gpu-memory-utilization", "0"],
    "--block-size must be at least 1, is 0": ["--block-size", "0"],
    "--threads must be at least 1, is -1": ["--threads", "-1"],
    "--dtype must be auto or float32, is bfloat16": ["--exact", "--dtype", "bfloat16"],
    "--device must be auto or cpu, is cuda": ["--exact", "--device", "cuda"],
    "--backend must be auto or cpu, is torch": ["--exact", "--backend", "torch"],
    "--exact needs the native kernels; --backend must be auto or cpu, is triton": ["--exact", "--backend", "triton"],
    "--kv-cache-dtype must be auto, is fp8_e4m3": ["--exact", "--kv-cache-dtype", "fp8_e4m3"],
    "--max-num-batched-tokens must be at least 1, is 0": ["--max-num-batched-tokens", "0"],
    "--max-num-seqs must be at least 1, is 0": ["--max-num-seqs", "0"],
    "--quantization must be none, is int8": ["--exact", "--quantization", "int8"],
    "--quantization int8 needs the native kernels; --backend must be auto or cpu, is torch": [
        "--quantization",
        "int8",
        "--backend",
        "torch",
    ],
    "--quantization int8 is for CPUs; --device must be auto or cpu, is cuda": [
        "--quantization",
        "int8",
        "--device",
        "cuda",
    ],
    "--backend cpu needs --device auto or cpu, is cuda": ["--backend", "cpu", "--device", "cuda"],
}


@pytest.mark.parametrize(("message", "arguments"), BAD.items(), ids=BAD)
def test_a_bad_value_is_refused_by_name(message: str, arguments: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--model", "m", *arguments] if arguments else [])
    assert message in str(caught.value)


def test_a_choice_from_a_file_is_checked_like_one_from_the_command_line() -> None:
    with pytest.raises(ConfigError, match="--dtype must be one of auto, float32, bfloat16, is 'float16'"):
        WorkerConfig(model="m", dtype="float16")


def test_a_quantization_from_a_file_is_checked_too(tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text("model: m\nworker:\n  quantization: int8\n")
    assert parse(["--config", str(file)]).quantization == "int8"
    file.write_text("model: m\nworker:\n  quantization: int4\n")
    with pytest.raises(ConfigError, match="--quantization must be one of none, int8, is 'int4'"):
        parse(["--config", str(file)])


def test_a_size_from_a_file_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="--swap-space must be at least 0, is -1"):
        WorkerConfig(model="m", swap_space=-1)
