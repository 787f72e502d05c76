"""Where the tokenizer of a run lies."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common.data.cache import cache_root
from common.data.decoded import open_download, open_parts
from common.data.files import find_parts
from common.data.text import FILE
from common.settings import DataSettings


def find_tokenizer(settings: DataSettings, near: Iterable[Path]) -> Path:
    """Return the tokenizer that a run's texts were read with.

    It lies in one of the folders `near` or in one above, beside the run's data, or, if
    it was trained from them, in the cache of decoded data.

    Raises
    ------
    ValueError
        It is in none of these places.
    """
    data = [Path(settings.data_path).expanduser()] if settings.data_path else []
    places = [place for folder in (*near, *data) for place in (folder, folder.parent)]
    for place in places:
        if (place / FILE).is_file():
            return place / FILE
    decoded = None
    if not settings.data_path:
        decoded = open_download(settings)
    elif data[0].is_dir() and (parts := find_parts(data[0])):
        decoded = open_parts(parts, settings, own_text=False)
    if decoded is not None:
        return cache_root(settings) / "decoded" / decoded.key / FILE
    raise ValueError(
        f"there is no {FILE} in {', '.join(map(str, dict.fromkeys(places)))}: name the "
        "run's by --tokenizer"
    )
