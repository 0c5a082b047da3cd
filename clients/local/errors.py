"""What can go wrong with services on this machine; each message is one line that says what to do."""

from __future__ import annotations


class LocalError(Exception):
    """A service cannot be started, or one that cannot be replaced has ended."""
