"""The data of one client: its own, or its part of one data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.data.cache import build_once, cache_root, digest, read_array
from common.data.decoded import Decoded, open_download, open_parts
from common.data.files import LAYOUT, client_folders, find_parts
from common.data.partition import partition_rows, partitioner_version
from common.data.spec import DataSpec, data_spec
from common.seeding import derive_seed
from common.settings import DataSettings

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Examples with their classes, in memory.

    Parameters
    ----------
    inputs
        Images (N, channels, height, width) uint8, or tokens (N, L) int32.
    targets
        Class indices, (N,) int64.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.targets)


@dataclass(frozen=True, slots=True)
class ClientData:
    """What one client trains and is tested on; neither part is empty.

    Parameters
    ----------
    name
        Of the client's folder, where ``data-path`` holds one folder per client.
    """

    spec: DataSpec
    train: Split
    test: Split
    name: str | None


def load_client_data(
    settings: DataSettings,
    *,
    seed: int,
    own_path: Path | None = None,
    partition_id: int | None = None,
    num_partitions: int | None = None,
) -> ClientData:
    """Load the data of one client.

    They come from the first of these that is given: the client's own folder; in
    ``data-path`` the client's folder among one folder per client; the client's part of
    the data set in ``data-path``; its part of the data set as downloaded. A client's
    own data are split by ``test-fraction`` where there is no test part. One data set
    for all is merged (training and test), dealt out, and split inside each client.

    Parameters
    ----------
    settings
        Of the run.
    seed
        Fixes who gets what and the splits.
    own_path
        The node's ``data-path``: a folder with data that are this client's alone.
    partition_id
        Number of the client, from 0; needed without `own_path`.
    num_partitions
        Number of clients; needed where one data set is dealt out.

    Raises
    ------
    ValueError
        If the data are missing, not readable, or do not fit the settings.
    ConnectionError
        If a download fails.
    ModuleNotFoundError
        If a package of the extra ``datasets`` is needed and missing.
    """
    if own_path is not None:
        return _own_data(own_path, settings, seed, name=None)
    if partition_id is None:
        raise ValueError(
            "this client has no data: its node configuration needs data-path (a folder "
            "of its own) or partition-id and num-partitions (a part of the run's data)"
        )
    if not settings.data_path:
        shared = open_download(settings)
    elif parts := find_parts(Path(settings.data_path)):
        shared = open_parts(parts, settings, own_text=False)
    else:
        folder = _client_folder(
            Path(settings.data_path), partition_id, num_partitions or 0
        )
        return _own_data(folder, settings, seed, name=folder.name)
    if num_partitions is None or not 0 <= partition_id < num_partitions:
        raise ValueError(
            f"partition-id = {partition_id} and num-partitions = {num_partitions}: the "
            "id counts from 0 and lies below the number of partitions"
        )
    rows = _partition(shared, settings, seed, partition_id, num_partitions)
    return _split_data(shared, rows, settings, seed, f"partition-{partition_id}", None)


def _own_data(
    folder: Path, settings: DataSettings, seed: int, name: str | None
) -> ClientData:
    parts = find_parts(folder)
    if not parts:
        raise ValueError(f"there are no data in {folder}: expected {LAYOUT}")
    own = open_parts(parts, settings, own_text=True)
    rows = np.arange(len(own.targets))
    if own.num_train == len(rows):
        return _split_data(own, rows, settings, seed, folder.name, name)
    train, test = np.split(rows, [own.num_train])
    return ClientData(data_spec(settings), _take(own, train), _take(own, test), name)


def _client_folder(root: Path, partition_id: int, num_partitions: int) -> Path:
    folders = client_folders(root)
    if not folders:
        raise ValueError(
            f"there are no data in {root}: expected {LAYOUT}, or one folder per client "
            "that holds these"
        )
    needed = max(num_partitions, partition_id + 1)
    if len(folders) < needed:
        raise ValueError(
            f"{root} has {len(folders)} client folders ({folders[0].name} to "
            f"{folders[-1].name}) for {needed} clients: lower the number of clients to "
            f"{len(folders)}"
        )
    return folders[partition_id]


def _partition(
    shared: Decoded,
    settings: DataSettings,
    seed: int,
    partition_id: int,
    num_partitions: int,
) -> Rows:
    """Return one client's rows; those of all clients are drawn once and kept."""
    key = digest(
        shared.key,
        partitioner_version(),
        settings.partition,
        settings.dirichlet_alpha,
        settings.classes_per_client,
        settings.min_partition_size,
        settings.num_samples,
        num_partitions,
        seed,
    )
    entry = cache_root(settings) / "partitions" / key

    def build(folder: Path) -> None:
        parts = partition_rows(
            shared.targets, settings, num_partitions=num_partitions, seed=seed
        )
        np.save(folder / "rows.npy", np.concatenate(parts))
        np.save(folder / "ends.npy", np.cumsum([len(part) for part in parts]))

    build_once(entry, build)
    ends = read_array(entry, "ends")
    start = ends[partition_id - 1] if partition_id else 0
    return np.asarray(read_array(entry, "rows")[start : ends[partition_id]])


def _split_data(
    data: Decoded,
    rows: Rows,
    settings: DataSettings,
    seed: int,
    part: str,
    name: str | None,
) -> ClientData:
    """Split a client's rows at random into training and test, each at least one."""
    if len(rows) < 2:
        raise ValueError(
            f"{data.origin}, {part}: {len(rows)} example is too few to split into "
            "train and test"
        )
    rng = np.random.default_rng(derive_seed(seed, "split", part))
    shuffled = rng.permutation(rows)
    num_test = min(max(round(len(rows) * settings.test_fraction), 1), len(rows) - 1)
    test, train = np.split(shuffled, [num_test])
    return ClientData(
        data_spec(settings),
        _take(data, np.sort(train)),
        _take(data, np.sort(test)),
        name,
    )


def _take(data: Decoded, rows: Rows) -> Split:
    inputs = torch.from_numpy(np.asarray(data.inputs[rows]))
    return Split(inputs, torch.from_numpy(np.asarray(data.targets[rows])))
