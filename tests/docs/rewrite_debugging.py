"""Writes the outputs in docs/debugging.md anew: `python -m tests.docs.rewrite_debugging MODEL FOLDER_WITH_GRPCURL`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.docs.console import commands
from tests.docs.scene import scene

_PAGE = Path("docs/debugging.md")


def main(model: str, tools: str) -> None:
    """Runs every command against real services and puts what it prints below it."""
    page = _PAGE.read_text()
    args = ("--dtype", "float32")
    with (
        tempfile.TemporaryDirectory() as folder,
        scene(Path(model), Path(folder), tools=Path(tools), worker_args=args) as stage,
        stage.crowd({"report": 1200, "bulk": 2000, "urgent": 2000}, max_tokens=2700),
    ):
        outputs = [(command, stage.run(command)) for command in commands(page)]
        for command, done in reversed(outputs):
            begin, end = command.span
            output = stage.shown(done.stdout + done.stderr).rstrip()
            page = page[:begin] + output + ("\n" if begin == end else "") + page[end:]
    _PAGE.write_text(page)


if __name__ == "__main__":
    main(*sys.argv[1:])
