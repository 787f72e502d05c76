"""What a run's folder tells of one client: its accuracy and which data are its own."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from client_app.assemble import Assembled
from common.data import ClientData, load_client_data


def recorded_accuracy(run: Path, client: str) -> dict[str, Any] | None:
    """Return a client's figures of the run's last evaluation.

    Returns
    -------
    ``samples``, ``exits`` (accuracies), ``early_exit`` (accuracy) and ``macs`` (mean),
    as :func:`client_app.export.bundle.measure` does; None where the run's folder has
    none.
    """
    path = run / "clients.csv"
    if not path.is_file():
        return None
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["client"] == client]
    by_exit = {row["exit"]: row for row in rows if row["round"] == rows[-1]["round"]}
    if "early" not in by_exit:
        return None
    early = by_exit.pop("early")
    exits = sorted(int(j) for j in by_exit if j.isdecimal())
    return {
        "samples": int(early["examples"]),
        "exits": [float(by_exit[str(j)]["accuracy"]) for j in exits],
        "early_exit": float(early["accuracy"]),
        "macs": float(early["macs"]),
    }


def client_data(
    assembled: Assembled,
    run: Path,
    *,
    data_path: Path | None = None,
    partition_id: int | None = None,
    num_partitions: int | None = None,
) -> ClientData | None:
    """Load the data that a client trained with.

    Parameters
    ----------
    data_path, partition_id, num_partitions
        As in the client's node configuration. Without any of them a simulated client's
        data are found by its name and the run's roster.

    Returns
    -------
    The data; None where nothing is given and nothing is found.

    Raises
    ------
    ValueError
        The data cannot be read, or they are others than the client had in the run.
    """
    settings, client = assembled.settings, assembled.client
    roster = _roster(run)
    if data_path is None and partition_id is None:
        data_path, partition_id, num_partitions = _simulated(assembled, list(roster))
        if data_path is None and partition_id is None:
            return None
    data = load_client_data(
        settings.data,
        seed=settings.seed,
        own_path=data_path,
        partition_id=partition_id,
        num_partitions=num_partitions,
    )
    had = roster.get(client)
    if had and (had["num_train"], had["num_test"]) != (len(data.train), len(data.test)):
        raise ValueError(
            f"{client} had {had['num_train']} training and {had['num_test']} test "
            f"samples in {run}, but the data found have {len(data.train)} and "
            f"{len(data.test)}: name its data as its node configuration does"
        )
    return data


def _simulated(
    assembled: Assembled, clients: list[str]
) -> tuple[Path | None, int | None, int | None]:
    """Return the client's folder, or which partition of how many is its own."""
    client, path = assembled.client, assembled.settings.data.data_path
    if path and (Path(path) / client).is_dir():
        return Path(path) / client, None, None
    width = len(str(len(clients) - 1))
    names = [f"client-{index:0{width}d}" for index in range(len(clients))]
    if client in names and sorted(clients) == names:
        return None, names.index(client), len(names)
    return None, None, None


def _roster(run: Path) -> dict[str, Any]:
    path = run / "roster.json"
    roster: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return roster
