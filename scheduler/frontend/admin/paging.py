"""Pages of lists. A page token is the key of the entry that the next page begins with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from scheduler.frontend.errors import InvalidRequestError, Violation

MAX_PAGE_SIZE: Final = 1000
_DEFAULT_PAGE_SIZE: Final = 100

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[_T]):
    """next_token: empty on the last page."""

    items: Sequence[_T]
    next_token: str


def limit(field: str, value: int, *, default: int, most: int) -> int:
    """The value of a field that limits a list. Raises InvalidRequestError if it is above `most`."""
    if value > most:
        _refuse(field, f"is {value}, must be in [1, {most}], or 0 for {default}")
    return value or default


def page(items: Sequence[_T], key: Callable[[_T], int], page_size: int, page_token: str) -> Page[_T]:
    """The page of `items`, whose keys ascend, that the token points to.

    Raises InvalidRequestError for a size above MAX_PAGE_SIZE and for a token that no answer gave.
    """
    size = limit("page_size", page_size, default=_DEFAULT_PAGE_SIZE, most=MAX_PAGE_SIZE)
    if page_token and not (page_token.isascii() and page_token.isdigit() and len(page_token) < 20):
        _refuse("page_token", f"is {page_token[:64]!r}, must be a next_page_token of the page before")
    first = int(page_token or 0)
    rest = [item for item in items if key(item) >= first]
    return Page(items=rest[:size], next_token=str(key(rest[size])) if len(rest) > size else "")


def _refuse(field: str, description: str) -> None:
    raise InvalidRequestError((Violation(field=field, description=description),))
