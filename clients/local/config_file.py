"""The addresses in the YAML file that `octavo serve` hands on to both services.

They check the file; here only what keeps the addresses from being found is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from clients.local.errors import LocalError

_TYPES = {"host": str, "port": int}


def read_listen_flags(path: str, section: str) -> dict[str, Any]:
    """`host` and `port` as far as the file gives them under a service's section.

    Raises LocalError, one line that names the file and the flag.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LocalError(f"--config {path}: {' '.join(str(error).split())}") from None
    flags = content.get(section) if isinstance(content, dict) else None
    if not isinstance(flags, dict):
        return {}
    given = {flag: flags[flag] for flag in _TYPES if flag in flags}
    for flag, value in given.items():
        if type(value) is not _TYPES[flag]:
            raise LocalError(f"--config {path}: {flag} must be {_TYPES[flag].__name__}, is {value!r}")
    return given
