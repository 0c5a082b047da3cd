"""Logging of both services, as processes whose standard error takes nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.integration.processes import WAIT_CAP_S, child_environment

SETUP = {
    "scheduler": "from scheduler.logs import configure as configure",
    "worker": "from worker.logs import configure_logs as configure",
}
PROGRAM = """
import structlog
{setup}
configure("info", "{log_format}")
log = structlog.get_logger()
for level in (log.debug, log.info, log.warning, log.error, log.critical):
    level("said", number=1)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("said", text="\\udc80")
print("alive")
"""


def run(service: str, log_format: str, redirection: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(setup=SETUP[service], log_format=log_format)
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, program],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_CAP_S,
        check=False,
    )


@pytest.mark.parametrize("service", SETUP)
@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"], ids=["full", "closed"])
def test_lines_that_cannot_be_written_are_dropped(service: str, log_format: str, redirection: str) -> None:
    done = run(service, log_format, redirection)
    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize("service", SETUP)
def test_lines_that_can_be_written_are(service: str) -> None:
    lines = [json.loads(line) for line in run(service, "json", "").stderr.splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "error", "critical", "error"]
    assert all((line["event"], line["service"]) == ("said", service) for line in lines)
    assert "ZeroDivisionError" in lines[-1]["exception"]
