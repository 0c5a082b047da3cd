"""Runs pip with a line of progress per large download, and says in one line why it failed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class StepError(Exception):
    """A step of the set-up failed; the message is one line that says what to do."""


_DOWNLOAD = re.compile(r"\s*Downloading (\S+?)(?:\.metadata)? \((\d+(?:\.\d+)?) (MB|GB)\)")
_WORTH_A_LINE_MB = 5.0
_NO_DISK = re.compile(r"No space left on device|Errno 28")
_NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ConnectionResetError|NameResolutionError|Name or service not known"
    r"|Temporary failure in name resolution|Network is unreachable|Connection refused|Read timed out|ProxyError"
)
_ERROR = re.compile(r"^\s*(?:ERROR|error|\S*Error): *(.+)$", re.MULTILINE)

_PIPS_OWN_NAME = re.compile(r"[a-z]+(-[a-z]+)+")  # for example "metadata-generation-failed", above which lies the cause


def run_pip(python: Path | str, arguments: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run `python -m pip ARGUMENTS`, all output to `log`. Raises StepError if it fails."""
    command = [str(python), "-m", "pip", *arguments, "--progress-bar", "off", "--retries", "2", "--no-input"]
    lines: list[str] = []
    try:
        with log.open("w") as file:
            pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
            with pip:
                for line in pip.stdout or ():
                    file.write(line)
                    lines.append(line)
                    _show(line)
    except OSError as error:
        raise StepError(f"{log}: {error.strerror}; free some disk space and try again") from None
    if pip.returncode != 0:
        raise StepError(explain("".join(lines), log))


def explain(output: str, log: Path) -> str:
    """One line for a failed run of pip: the cause, what to do, and where to read more."""
    if _NO_DISK.search(output):
        return f"the disk is full: free some space on this disk and on the one of $TMPDIR, then try again (log: {log})"
    errors = [cause for cause in _ERROR.findall(output) if not _PIPS_OWN_NAME.fullmatch(cause)]
    if _NO_NETWORK.search(output):
        what = "no network: pip cannot reach the package index"
        return f"{what}; connect, or set PIP_INDEX_URL to a mirror, then try again (log: {log})"
    cause = errors[-1] if errors else "pip failed"
    return f"{cause} (log: {log})"


def _show(line: str) -> None:
    if match := _DOWNLOAD.match(line):
        name, size, unit = match[1], float(match[2]), match[3]
        if unit == "GB" or size >= _WORTH_A_LINE_MB:
            print(f"  downloading {name} ({size:g} {unit})", flush=True)
    elif line.startswith("Installing collected packages:"):
        print(f"  unpacking {line.count(',') + 1} packages", flush=True)
