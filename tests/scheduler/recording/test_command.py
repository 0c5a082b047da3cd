"""The command `octavo replay`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread
from numpy import unique

from tests.integration.processes import WAIT_CAP_S, child_environment
from tests.scheduler.recording.service import Events, arrivals, record_service


def _octavo(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clients.cli", "replay", *map(str, arguments)]
    return subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, check=False, timeout=WAIT_CAP_S
    )


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "run.rec"
    record_service(path, Events(arrivals=arrivals(count=60, gap_ns=4e6, seed=3)))
    return path


def test_plans_that_are_equal(path: Path) -> None:
    done = _octavo(path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("all plans equal\n") and " steps, " in done.stdout


def test_a_file_that_is_damaged(path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    (tmp_path / "run.rec").write_bytes(content)
    done = _octavo(tmp_path / "run.rec")
    assert done.returncode == 1
    assert done.stderr.startswith("octavo replay: ") and "damaged" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_torn_file_replays_with_a_note(path: Path, tmp_path: Path) -> None:
    (tmp_path / "run.rec").write_bytes(path.read_bytes()[:-9])
    done = _octavo(tmp_path / "run.rec")
    assert done.returncode == 0
    assert "all plans equal" in done.stdout and "torn" in done.stderr


def test_what_if_reports_the_fit_and_three_runs(path: Path) -> None:
    done = _octavo(path, "--blocks", "32", "--max-num-seqs", "4", "--plans", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "median error 0.0%" in done.stdout
    rows = {line[:30].strip(): line[30:].split() for line in done.stdout.splitlines()}
    assert rows["num_blocks"] == ["64", "64", "32"]
    assert rows["max_num_seqs"] == ["16", "16", "4"]
    assert rows["max_plans_in_flight"] == ["2", "2", "1"]
    assert rows["TTFT p50 ms"][0] == rows["TTFT p50 ms"][1] != rows["TTFT p50 ms"][2]
    assert {"output tokens per s", "preemptions", "prefix hit rate", "queue time p99 ms", "inter-token p95 ms"} < set(
        rows
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "FILE"),
        (("--blocks", "many"), "--blocks"),
        (("--policy", "magic"), "--policy"),
        (("--blocks", "0"), "num_blocks must be at least 1, is 0"),
        (("--max-num-batched-tokens", "3"), "max_num_batched_tokens (3) must be at least max_num_seqs (16)"),
    ],
)
def test_wrong_usage(path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = _octavo(*([path, *arguments] if arguments else []))
    assert done.returncode == 2
    assert message in done.stderr


def test_help_is_that_of_the_replay() -> None:
    done = _octavo("--help")
    assert done.returncode == 0
    assert "--max-num-batched-tokens" in done.stdout and done.stdout.startswith("usage: octavo replay")


def test_a_plot_is_a_picture(path: Path, tmp_path: Path) -> None:
    done = _octavo(path, "--plot", tmp_path / "runs.png")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "runs.png").open("rb") as file:
        pixels = imread(file)
    height, width, _ = pixels.shape
    assert min(height, width) > 500
    assert len(unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 3, "curves were drawn"


def test_a_plot_without_matplotlib_says_what_is_missing(path: Path, tmp_path: Path) -> None:
    program = "import sys; sys.modules['matplotlib'] = None; from scheduler.recording.__main__ import main; "
    done = subprocess.run(
        [sys.executable, "-c", program + "sys.exit(main(sys.argv[1:]))", path, "--plot", tmp_path / "runs.png"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_CAP_S,
    )
    assert done.returncode == 1
    assert done.stderr == "octavo replay: --plot needs matplotlib: pip install '.[plot]' in Octavo's checkout\n"
