"""Puts together what makes the text of a request: one `SequenceOutput` per sequence, as the request asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.core.sequence import SequenceSpec
from scheduler.frontend.parsing.choice import ParserChoice
from scheduler.frontend.sequence_output import SequenceOutput, WatchedOutput
from scheduler.frontend.stop_strings import StopScanner, compile_stop_strings
from scheduler.frontend.tokenizer import Tokenizer
from scheduler.frontend.validation import ValidatedRequest


def make_outputs(
    request: ValidatedRequest, specs: tuple[SequenceSpec, ...], tokenizer: Tokenizer, parsers: ParserChoice
) -> tuple[SequenceOutput, ...]:
    """One per spec, in their order."""
    detokenizer = tokenizer.detokenizer(
        skip_special_tokens=request.skip_special_tokens,
        spaces_between_special_tokens=request.spaces_between_special_tokens,
        begins_text=request.echo,
        shown=parsers.marker_ids(tokenizer),
    )
    # Once for all: a prompt may be long.
    echo = detokenizer.feed(request.prompt) if request.echo else ""
    make = _maker(request)
    return tuple(
        make(index=index, spec=spec, detokenizer=detokenizer.fork(), echo=echo, parser=parsers.make())
        for index, spec in enumerate(specs)
    )


def _maker(request: ValidatedRequest) -> Callable[..., SequenceOutput]:
    if not request.stop:
        return SequenceOutput
    stops = compile_stop_strings(request.stop, count_from_start=request.min_tokens == 0)

    def make(**fields: Any) -> SequenceOutput:
        scanner = StopScanner(stops, include=request.include_stop_in_output)
        return WatchedOutput(scanner=scanner, min_tokens=request.min_tokens, **fields)

    return make
