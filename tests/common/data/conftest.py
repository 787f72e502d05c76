from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from common.settings import DataSettings


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., DataSettings]:
    """Settings with a cache of the test's own."""

    def make(**values: Any) -> DataSettings:
        return DataSettings(**{"cache_dir": str(tmp_path / "cache"), **values})

    return make


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """Encode an array (H, W) or (H, W, C) as PNG."""

    def png(array: np.ndarray, **options: Any) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, "PNG", **options)
        return buffer.getvalue()

    return png


@pytest.fixture
def write_parquet() -> Callable[..., Path]:
    """Write columns to a Parquet file, folders included."""

    def write(file: Path, **columns: Any) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), file)
        return file

    return write


@pytest.fixture
def write_images(
    encode: Callable[..., bytes], write_parquet: Callable[..., Path]
) -> Callable[..., np.ndarray]:
    """Write random images as Hugging Face does and return them, (N, H, W, 3)."""

    def write(
        file: Path, labels: list[Any], size: tuple[int, int] = (32, 32), seed: int = 0
    ) -> np.ndarray:
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (len(labels), *size, 3), dtype=np.uint8)
        rows = [{"bytes": encode(image), "path": None} for image in images]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        write_parquet(file, img=pa.array(rows, kind), label=labels)
        return images

    return write


@pytest.fixture
def shared_data() -> Path:
    """The folder with the real data sets."""
    beside = Path(__file__).parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("FL_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; set FL_SHARED_DATA")
    return folder
