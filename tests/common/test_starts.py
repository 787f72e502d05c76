from __future__ import annotations

from pathlib import Path

import pytest

from common.starts import read_starts, write_starts


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_starts(tmp_path / "none") == []
    write_starts(tmp_path / "new", [0, 3])
    assert read_starts(tmp_path / "new") == [0, 3]


@pytest.mark.parametrize("text", ["[0, 3", "7", '["a"]', "null", "[null]"])
def test_a_damaged_list_is_named(tmp_path: Path, text: str) -> None:
    write_starts(tmp_path, [0])
    [path] = tmp_path.iterdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=r"starts.json is damaged .* at first \[0\]"):
        read_starts(tmp_path)
