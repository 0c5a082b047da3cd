"""The loop that a contender's process runs: commands in, figures out. Standard library only.

A command names a case and a round; the requests are made from `workload` on this side. The answer holds one entry per
batch of the case. Whatever an engine prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.machine import process_seconds
from bench.workload import CASES, Case, Request


class RefusedError(Exception):
    """The engine cannot run on this machine; the message is one line for the table."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a batch, request by request.

    seconds: from sending the first request to the last token. token_ids: the tokens generated. token_s: when each came,
    in seconds since the start; empty where the engine was not asked for its tokens one by one. num_prompt: prompt
    tokens as the engine counts them; empty where it does not say.
    """

    seconds: float
    token_ids: list[list[int]]
    token_s: list[list[float]] = field(default_factory=list)
    num_prompt: list[int] = field(default_factory=list)


class Engine(Protocol):
    """An engine under test, ready to run. `settings` is for the table, `processes` name -> id of a process."""

    settings: Mapping[str, Any]
    processes: Mapping[str, int]

    def use(self, *, prefix_caching: bool) -> None:
        """Makes what follows run with or without a prefix cache."""

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Runs a batch to its end."""


def serve(start: Callable[[], Engine], versions: Mapping[str, str]) -> None:
    """Starts the engine and answers one JSON line per command on standard input until that ends.

    The first line tells versions and settings, or why there will be no more.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    try:
        engine = start()
    except RefusedError as refusal:
        answer(versions=versions, refused=str(refusal))
        return
    answer(versions=versions, settings=dict(engine.settings))
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(batches=_run(engine, CASES[command["case"]], command["round"]))
        except Exception as error:
            traceback.print_exc()
            answer(error=f"{type(error).__name__}: {error}")


def _run(engine: Engine, case: Case, round_number: int) -> list[dict[str, Any]]:
    batches = []
    engine.use(prefix_caching=case.prefix_caching)
    for number in range(len(case.batches)):
        requests = case.requests(number, round_number)
        before = _cpu_seconds(engine)
        outcome = engine.run(requests)
        after = _cpu_seconds(engine)
        _check(requests, outcome)
        batches.append(
            {
                "seconds": outcome.seconds,
                "ttft_s": [times[0] for times in outcome.token_s],
                "itl_s": [(times[-1] - times[0]) / (len(times) - 1) for times in outcome.token_s if len(times) > 1],
                "cpu_s": {name: round(after[name] - before[name], 3) for name in before},
                "token_ids": outcome.token_ids,
            }
        )
    return batches


def _check(requests: Sequence[Request], outcome: Outcome) -> None:
    """Raises ValueError unless every request got what it asked for, to the token."""
    wanted = [request.num_output for request in requests]
    given = [len(ids) for ids in outcome.token_ids]
    if given != wanted:
        raise ValueError(f"{wanted} tokens were asked for, {given} came")
    if outcome.token_s and [len(times) for times in outcome.token_s] != wanted:
        raise ValueError("not every token has its time")
    prompts = [len(request.prompt) for request in requests]
    if outcome.num_prompt and outcome.num_prompt != prompts:
        raise ValueError(f"prompts of {prompts} tokens were sent, {outcome.num_prompt} arrived")


def _cpu_seconds(engine: Engine) -> dict[str, float]:
    """User and system time so far, by process."""
    return {name: _process_seconds(pid) for name, pid in engine.processes.items()}


def _process_seconds(pid: int) -> float:
    return time.process_time() if pid == os.getpid() else process_seconds(pid)
