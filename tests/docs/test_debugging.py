"""The commands of docs/debugging.md work, and answer with what the page shows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docs.console import Command, commands, field_names, json_values
from tests.docs.grpcurl import UNKNOWN_TO_BUF
from tests.docs.scene import Scene, scene
from tests.integration.conftest import uniform, uniform_model
from tests.integration.processes import REPOSITORY

__all__ = ["uniform", "uniform_model"]  # fixtures

PAGE = (REPOSITORY / "docs" / "debugging.md").read_text()
COMMANDS = commands(PAGE)
NEEDS_A_WORKER = ("WatchSteps", "localhost:50052", "localhost:9091")


@pytest.fixture(scope="module")
def answers(uniform_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The output of every command, errors included. Most are asked while the worker stands still, so that the requests
    are not over before the last one."""
    with scene(uniform_model, tmp_path_factory.mktemp("debugging")) as stage:
        given: dict[str, subprocess.CompletedProcess[str]] = {}

        def ask(live: bool) -> None:
            chosen = [one for one in COMMANDS if any(word in one.text for word in NEEDS_A_WORKER) == live]
            with ThreadPoolExecutor(4) as threads:
                answered = threads.map(stage.run, chosen)
            given.update((command.text, done) for command, done in zip(chosen, answered, strict=True))

        with stage.crowd({"report": 1200, "bulk": 2000, "urgent": 2000}, max_tokens=1800):
            with stage.services.frozen_worker():
                ask(live=False)
            ask(live=True)
        yield {text: outcome(stage, done) for text, done in given.items()}


def outcome(stage: Scene, done: subprocess.CompletedProcess[str]) -> str:
    return "unknown to buf" if done.returncode == UNKNOWN_TO_BUF else stage.shown(done.stdout + done.stderr)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.text.splitlines()[-1].split()[-1])
def test_the_command_answers_as_documented(answers: dict[str, str], command: Command) -> None:
    answer, documented = answers[command.text], json_values(command.output)
    if answer == "unknown to buf":
        pytest.skip("grpcurl is not installed, and buf curl cannot describe")
    if documented:
        given = json_values(answer)
        assert given, answer
        assert field_names(documented[0]) == field_names(given[0])
    elif "Code:" in command.output:  # grpcurl and buf lay out errors differently
        message = command.output.split("Message: ")[1].splitlines()[0].split(":")[0]
        assert message in answer
    else:
        assert [line.split()[0] for line in answer.splitlines()] == [
            line.split()[0] for line in command.output.splitlines()
        ] or "model_name" in command.output  # of metrics the labels differ
        assert answer


def test_the_page_shows_what_it_says(answers: dict[str, str]) -> None:
    (explained,) = (answer for text, answer in answers.items() if '"bulk"' in text)
    (listed,) = (answer for text, answer in answers.items() if "ListRequests" in text)
    for shown in (explained, next(c.output for c in COMMANDS if '"bulk"' in c.text)):
        assert "needs" in shown and "free" in shown
        assert "preempted" in shown.lower()
    states = {one.get("requestId", one.get("request_id")): one["state"] for one in json_values(listed)[0]["sequences"]}
    assert states == {
        "report": "SEQUENCE_STATE_RUNNING",
        "urgent": "SEQUENCE_STATE_RUNNING",
        "bulk": "SEQUENCE_STATE_WAITING",
    }
