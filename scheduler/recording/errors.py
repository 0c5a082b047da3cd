"""What can be wrong with a recording."""

from __future__ import annotations


class RecordingError(Exception):
    """A recording cannot be written or read; the message names the file and says why."""
