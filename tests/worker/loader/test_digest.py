"""The fingerprint of large files sees the header, the size, the end, and what is spread over the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.loader.digest import weights_digest

HEADER = 100
SIZE = 4 << 20  # larger than all samples together


def digest(path: Path, content: bytes | bytearray) -> bytes:
    path.write_bytes(content)
    return weights_digest([(path, HEADER)])


@pytest.mark.parametrize("place", [0, HEADER - 1, HEADER, SIZE - 1])
def test_a_changed_byte_changes_it(place: int, tmp_path: Path) -> None:
    content = bytearray(SIZE)
    plain = digest(tmp_path / "file", content)
    assert digest(tmp_path / "renamed", content) == plain
    content[place] = 1
    assert digest(tmp_path / "file", content) != plain


def test_a_changed_hundredth_of_the_file_changes_it(tmp_path: Path) -> None:
    plain = digest(tmp_path / "file", bytes(SIZE))
    part = SIZE // 50
    for start in range(0, SIZE - part, SIZE // 10):
        content = bytearray(SIZE)
        content[start : start + part] = b"\1" * part
        assert digest(tmp_path / "file", content) != plain


def test_small_files_are_hashed_whole(tmp_path: Path) -> None:
    content = bytearray(10_000)
    plain = digest(tmp_path / "file", content)
    for place in range(0, len(content), 997):
        content[place] = 1
        assert digest(tmp_path / "file", content) != plain
        content[place] = 0


def test_order_and_split_of_files_count(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1" * 200)
    two.write_bytes(b"2" * 200)
    assert weights_digest([(one, 8), (two, 8)]) != weights_digest([(two, 8), (one, 8)])
