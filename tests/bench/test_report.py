"""The tables say what the lines say."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.report import read, render

_HEAD = {
    "kind": "start",
    "date": "2026-01-01",
    "octavo_commit": "abc",
    "cpu": "a CPU",
    "cores": 2,
    "instruction_sets": ["avx2"],
    "rounds": 2,
}


def _lines(run: str, **itl_ms: list[float]) -> list[dict[str, Any]]:
    """A run of W2 by the contenders that are named, a result per figure."""
    lines: list[dict[str, Any]] = [_HEAD]
    lines += [
        {"kind": "contender", "contender": name, "versions": {name: "1"}, "settings": {"threads": 2}} for name in itl_ms
    ]
    for name, values in itl_ms.items():
        for number, value in enumerate(values, 1):
            figures = {"seconds": 1.0, "tok_s": 1.0, "itl_ms": value, "ttft_ms": 50.0}
            result = {"contender": name, "case": "W2", "round": number, "figures": figures, "others_cpu_share": 0.0}
            lines.append({"kind": "result", "cpu_s": [{}]} | result)
    return [{"run": run} | line for line in lines]


def _row(table: str, figure: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith("| W2") and figure in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_medians_and_bests_stand_beside_the_best_peer() -> None:
    text = render(_lines("r", octavo=[4, 6, 9], fast=[12, 10, 11], slow=[30, 20, 40]))
    assert _row(text, "ms between tokens")[2:] == [
        "6.0 (4.0)",
        "11.0 (10.0)",
        "30.0 (20.0)",
        "3/3/3",
        "fast",
        "0.55",
        "at most 0.65",
        "yes",
    ]


def test_a_target_that_is_missed_says_no() -> None:
    assert _row(render(_lines("r", octavo=[9], peer=[10])), "ms between tokens")[-1] == "no"


def test_a_peer_that_cannot_run_is_named_with_its_reason_and_has_no_column() -> None:
    refusal = {"kind": "contender", "contender": "vllm", "versions": {"vllm": "1"}, "refused": "it needs AVX-512"}
    text = render([*_lines("r", octavo=[5], peer=[10]), {"run": "r"} | refusal])
    assert "vllm (vllm 1) does not run on this machine: it needs AVX-512" in text
    assert "vllm |" not in text


def test_a_failure_is_told() -> None:
    failure = {"run": "r", "kind": "failure", "contender": "peer", "case": "W1", "why": "it ended\nand more"}
    assert "- peer FAILED at W1: it ended\n" in render([*_lines("r", octavo=[5]), failure]) + "\n"


def test_what_the_services_cost_is_told_with_the_client_and_without_it() -> None:
    through = {"tok_s": 80.0, "rate_tokens": 800, "rate_s": 10.0, "cpu_s_client": 2.0, "cpu_s_scheduler": 0.4}
    alone = {"tok_s": 100.0, "rate_tokens": 800, "rate_s": 8.0, "cpu_s_worker": 16.0}
    lines: list[dict[str, Any]] = [_HEAD]
    streamed = through | {"tok_s": 60.0, "cpu_s_worker": 17.6}
    contenders = {"octavo": through | {"cpu_s_worker": 16.8}, "octavo-streamed": streamed, "worker-alone": alone}
    for name, figures in contenders.items():
        lines.append({"kind": "contender", "contender": name, "versions": {}, "settings": {}})
        lines.append({"kind": "result", "contender": name, "case": "W4@8", "figures": figures, "others_cpu_share": 0.0})
    cells = {}
    for row in render(lines).splitlines():
        name, *rest = (cell.strip() for cell in row.strip("|").split("|"))
        cells[name] = rest
    # Half of the client's two seconds, on two cores: 800 tokens in 9 seconds.
    assert cells["W4@8"][2:] == ["80%", "89%", "90%", "20000", "21000", "500", "2500"]
    assert cells["W4@8, streamed"] == ["60.0 (60.0)", "100 (100)", "60%", "89%", "90%", "20000", "22000", "500", "2500"]


def test_the_newest_run_is_read_unless_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for run in ("one", "two") for line in _lines(run, octavo=[5])))
    assert {line["run"] for line in read(path)} == {"two"}
    assert {line["run"] for line in read(path, "one")} == {"one"}
    with pytest.raises(ValueError, match="has no run three"):
        read(path, "three")
    with pytest.raises(ValueError, match="has no runs"):
        read(tmp_path / "none.jsonl")
