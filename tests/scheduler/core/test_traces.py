"""The core decides as the traces in tests/traces say, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scheduler.core.trace import rewrite, traces


@pytest.mark.parametrize("path", traces(), ids=lambda path: path.stem)
def test_trace(path: Path) -> None:
    text = path.read_text()
    assert rewrite(text) == text, "if the new decisions are right: make traces, and read the diff"


def test_there_are_traces() -> None:
    assert traces()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("schedule\n", "line 1, 'schedule': config must come first"),
        ("config num_blocks=2\nfly\n", "line 2, 'fly': no such verb: fly"),
        ("config num_blocks=2\nadd 1 prompt=1 max_tokens=1 colour=3\n", "line 2, .*colour"),
    ],
)
def test_an_input_that_makes_no_sense_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        rewrite(text)
