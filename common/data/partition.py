"""Deal one data set out to the clients, with the partitioners of flwr-datasets."""

from __future__ import annotations

import logging
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from common.data.extras import needs_extra
from common.seeding import derive_seed
from common.settings import DataSettings

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Rows = npt.NDArray[np.int64]

DRAWS: Final = 10
"""A Dirichlet draw with a client that is too small is repeated up to this number."""

logger = logging.getLogger(__name__)


def partition_rows(
    targets: Rows, settings: DataSettings, *, num_partitions: int, seed: int
) -> list[Rows]:
    """Deal the rows of a data set out to the clients; no row goes to two of them.

    Parameters
    ----------
    targets
        Class indices, (N,).
    settings
        ``partition`` and what belongs to it, ``num-samples``, ``min-partition-size``.
    num_partitions
        Number of clients.
    seed
        Fixes the result.

    Returns
    -------
    Ascending rows of every client, int64.

    Raises
    ------
    ValueError
        If the data are too few for so many clients or classes; names the numbers.
    """
    rng = np.random.default_rng(derive_seed(seed, "partition"))
    rows = rng.permutation(len(targets))
    if settings.num_samples > len(rows):
        raise ValueError(
            f"num-samples = {settings.num_samples}, but the data set has {len(rows)}"
        )
    if settings.num_samples:
        rows = rows[: settings.num_samples]
    minimum = settings.min_partition_size
    if len(rows) < num_partitions * minimum:
        raise ValueError(
            f"{len(rows)} samples are too few for {num_partitions} clients with "
            f"min-partition-size = {minimum} each ({num_partitions * minimum}): lower "
            "it, the number of clients, or raise num-samples"
        )
    labels = np.asarray(targets[rows])
    if settings.partition == "dirichlet":
        parts = _dirichlet(
            labels, settings.dirichlet_alpha, num_partitions, minimum, rng
        )
    elif settings.partition == "pathological":
        parts = _pathological(labels, settings.classes_per_client, num_partitions, rng)
    else:
        parts = _iid(labels, num_partitions)
    smallest = min(len(part) for part in parts)
    if smallest < minimum:
        raise ValueError(
            f"partition = {settings.partition!r} leaves a client with {smallest} of "
            f"{len(rows)} samples, fewer than min-partition-size = {minimum}: lower it "
            "or the number of clients"
        )
    return [np.sort(rows[part]) for part in parts]


def partitioner_version() -> str:
    """Return the versions that a partition depends on.

    Raises
    ------
    ModuleNotFoundError
        If flwr-datasets is not installed; says how to install it.
    """
    with needs_extra("dealing one data set out to clients"):
        version = metadata.version("flwr-datasets")
    return f"flwr-datasets {version}, numpy {np.__version__}"


def _run(partitioner: Partitioner, labels: Rows) -> list[Rows]:
    """Return the positions in `labels` of every partition."""
    from datasets import Dataset

    positions = np.arange(len(labels))
    partitioner.dataset = Dataset.from_dict({"label": labels, "position": positions})
    return [
        np.asarray(partitioner.load_partition(i)["position"][:], dtype=np.int64)
        for i in range(partitioner.num_partitions)
    ]


def _iid(labels: Rows, num_partitions: int) -> list[Rows]:
    from flwr_datasets.partitioner import IidPartitioner

    return _run(IidPartitioner(num_partitions), labels)


def _dirichlet(
    labels: Rows,
    alpha: float,
    num_partitions: int,
    minimum: int,
    rng: np.random.Generator,
) -> list[Rows]:
    """Draw until every client has `minimum` samples, then repair the best draw."""
    from flwr_datasets.partitioner import DirichletPartitioner

    best: list[Rows] = []
    fewest_missing = np.inf
    for _ in range(DRAWS):
        partitioner = DirichletPartitioner(
            num_partitions,
            partition_by="label",
            alpha=alpha,
            min_partition_size=0,
            self_balancing=False,
            shuffle=False,
            seed=int(rng.integers(2**31)),
        )
        parts = _run(partitioner, labels)
        missing = sum(max(0, minimum - len(part)) for part in parts)
        if missing < fewest_missing:
            best, fewest_missing = parts, missing
        if missing == 0:
            return best
    logger.warning(
        "Dirichlet(%g) left clients with fewer than %d samples in %d draws: moved %d "
        "samples from the largest clients to the smallest",
        alpha,
        minimum,
        DRAWS,
        fewest_missing,
    )
    return repair(best, minimum, rng)


def repair(parts: list[Rows], minimum: int, rng: np.random.Generator) -> list[Rows]:
    """Move random samples from the largest partition until each has `minimum`."""
    lists = [part.tolist() for part in parts]
    assert sum(map(len, lists)) >= minimum * len(lists)
    for small in lists:
        while len(small) < minimum:
            largest = max(lists, key=len)
            small.append(largest.pop(int(rng.integers(len(largest)))))
    return [np.asarray(part, dtype=np.int64) for part in lists]


def deal_classes(
    num_classes: int,
    classes_per_client: int,
    num_partitions: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Deal classes out at random so that each is used equally often, up to one.

    Every client in turn gets the classes that were used least so far.

    Returns
    -------
    (``num_partitions``, ``classes_per_client``) indices of classes, distinct in a row.
    """
    used = np.zeros(num_classes, dtype=np.int64)
    dealt = np.empty((num_partitions, classes_per_client), dtype=np.int64)
    for client in range(num_partitions):
        order = rng.permutation(num_classes)
        dealt[client] = order[np.argsort(used[order], kind="stable")][
            :classes_per_client
        ]
        used[dealt[client]] += 1
    return dealt


def _pathological(
    labels: Rows, classes_per_client: int, num_partitions: int, rng: np.random.Generator
) -> list[Rows]:
    """Give every client exactly so many classes, and use every class.

    No mode of the partitioner alone uses every class where clients are few (10 clients
    with 10 of 100 classes). So it cuts the classes into one share for every pair of a
    client and a class: in its mode "deterministic" with one class per partition,
    partition s holds a share of class s mod C.
    """
    from flwr_datasets.partitioner import PathologicalPartitioner

    classes, labels = np.unique(labels, return_inverse=True)
    num_shares = num_partitions * classes_per_client
    if not classes_per_client <= len(classes) <= num_shares:
        raise ValueError(
            f"{num_partitions} clients with classes-per-client = {classes_per_client} "
            f"cannot share out {len(classes)} classes: classes-per-client must be at "
            f"most {len(classes)} and at least "
            f"{-(-len(classes) // num_partitions)} for all classes to be used"
        )
    dealt = deal_classes(len(classes), classes_per_client, num_partitions, rng)
    uses = np.bincount(dealt.ravel())
    scarce = np.flatnonzero(np.bincount(labels) < uses)
    if len(scarce):
        label = scarce[0]
        raise ValueError(
            f"class {classes[label]} has {np.sum(labels == label)} samples for "
            f"{uses[label]} clients: lower the number of clients or classes-per-client"
        )
    # Classes that have one share more come first, as they do among the partitions.
    rank = np.argsort(np.argsort(-uses, kind="stable"))
    partitioner = PathologicalPartitioner(
        num_shares,
        partition_by="label",
        num_classes_per_partition=1,
        class_assignment_mode="deterministic",
        shuffle=False,
    )
    shares: Any = _run(partitioner, rank[labels])
    next_share = rank.copy()
    parts = []
    for client_classes in dealt:
        parts.append(np.concatenate([shares[s] for s in next_share[client_classes]]))
        next_share[client_classes] += len(classes)
    return parts
