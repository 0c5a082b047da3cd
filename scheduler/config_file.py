"""Reads one service's flags from the YAML file that both services may share.

Flags that both services have in common stand at the top level, all others under `scheduler:` and `worker:`; a section
wins over the top level. The other service reads the file by the same rules, with a module like this one: neither may
import the other.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from scheduler.config import ConfigError

_COMMON = (
    "model",
    "revision",
    "max-model-len",
    "max-num-batched-tokens",
    "max-num-seqs",
    "log-level",
    "log-format",
)
_SECTIONS = ("scheduler", "worker")


def read_flags(path: str, section: str, known: Collection[str]) -> dict[str, Any]:
    """What the file gives for a service, by flag, as in max-model-len. known: the flags that the service has.

    Raises ConfigError, one line that names the file and the flag or the place.
    """
    try:
        content = _mapping(_load(Path(path)), "the file")
        sections = {name: _mapping(content.pop(name, None), name) for name in _SECTIONS}
        for flag in content:
            if flag in known and flag not in _COMMON:
                raise ValueError(f"{flag} belongs under {section}:")
            if flag not in known:
                raise ValueError(f"unknown flag {flag}; flags of one service belong under scheduler: or worker:")
        for flag in sections[section]:
            if flag not in known:
                raise ValueError(f"unknown flag {flag} under {section}:")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    return content | sections[section]


class _Loader(yaml.SafeLoader):
    """Refuses a flag that is given twice, as max_model_len and max-model-len or alike: PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if (flag := _flag(key.value)) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{flag} is given twice", key.start_mark)
            seen.add(flag)
        return super().construct_mapping(node, deep)


def _load(path: Path) -> object:
    """The file's content. PyYAML's messages take several lines; here they are one."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(where + ", ".join(filter(None, (error.context, error.problem)))) from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _mapping(value: object, what: str) -> dict[str, Any]:
    if value is None:  # nothing but comments
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a mapping of flags to values")
    return {_flag(key): item for key, item in value.items()}


def _flag(key: object) -> str:
    return str(key).replace("_", "-")
