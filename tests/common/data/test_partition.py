from __future__ import annotations

import numpy as np
import pytest
from extras import needs_datasets

from common.data import partition
from common.data.partition import deal_classes, partition_rows, repair

pytestmark = needs_datasets

TARGETS = np.random.default_rng(1).permutation(np.arange(1000) % 10)


def deal(settings, targets=TARGETS, clients=10, seed=0, **values):
    given = settings(**{"min_partition_size": 2, **values})
    return partition_rows(targets, given, num_partitions=clients, seed=seed)


def classes(parts, targets=TARGETS):
    return [set(targets[part].tolist()) for part in parts]


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "iid"])
def test_every_row_goes_to_exactly_one_client(settings, kind):
    parts = deal(settings, partition=kind)
    assert len(parts) == 10
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "iid"])
def test_seed_fixes_the_rows(settings, kind):
    first, same, other = (
        [p.tolist() for p in deal(settings, partition=kind, seed=s)] for s in (3, 3, 4)
    )
    assert first == same
    assert first != other


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "iid"])
def test_part_of_the_data_set(settings, kind):
    parts = deal(settings, partition=kind, num_samples=300, clients=5)
    rows = np.concatenate(parts)
    assert len(set(rows.tolist())) == len(rows) == 300
    # A random part, not the first rows: expected mean 499.5, standard error 14.
    assert abs(rows.mean() - 499.5) < 70


def test_iid_clients_are_alike(settings):
    parts = deal(settings, partition="iid", clients=4)
    assert [len(part) for part in parts] == [250] * 4
    assert all(found == set(range(10)) for found in classes(parts))


def test_smaller_alpha_is_more_uneven(settings):
    def largest_share(alpha):
        parts = deal(settings, dirichlet_alpha=alpha)
        shares = [np.bincount(TARGETS[p], minlength=10) / len(p) for p in parts]
        return np.mean([share.max() for share in shares])

    # With even classes alone a client's largest share would be near 0.1.
    assert largest_share(0.1) > 0.45
    assert largest_share(1000.0) < 0.2


def test_dirichlet_draw_is_repeated_up_to_the_bound_then_repaired(
    settings, monkeypatch, caplog
):
    draws = []
    original = partition._run

    def count(*arguments):
        draws.append(original(*arguments))
        return draws[-1]

    monkeypatch.setattr(partition, "_run", count)
    # 20 x 50 = 1000: the minimum leaves no freedom, so no draw can satisfy it.
    parts = deal(settings, clients=20, dirichlet_alpha=0.05, min_partition_size=50)
    assert len(draws) == partition.DRAWS
    assert [len(part) for part in parts] == [50] * 20
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    missing = min(sum(max(0, 50 - len(p)) for p in draw) for draw in draws)
    assert f"moved {missing} samples" in caplog.text


def test_dirichlet_draw_that_is_large_enough_stays(settings, monkeypatch):
    monkeypatch.setattr(partition, "repair", None)
    parts = deal(settings, clients=5, dirichlet_alpha=100.0, min_partition_size=10)
    assert min(map(len, parts)) >= 10


def test_repair_takes_from_the_largest():
    parts = [np.arange(5), np.array([7]), np.arange(10, 14), np.array([], np.int64)]
    rng = np.random.default_rng(0)
    repaired = repair(parts, 2, rng)
    # 1 sample from the first (5 to 4); of two with 4, the first again; then the third.
    assert [len(part) for part in repaired] == [3, 2, 3, 2]
    assert sorted(np.concatenate(repaired).tolist()) == [
        0,
        1,
        2,
        3,
        4,
        7,
        *range(10, 14),
    ]
    assert repaired[1][0] == 7


@pytest.mark.parametrize(
    ("num_classes", "per_client", "clients"),
    [(10, 2, 10), (10, 2, 5), (100, 10, 10), (10, 3, 7), (4, 4, 3), (10, 2, 37)],
)
def test_classes_are_dealt_evenly(num_classes, per_client, clients):
    rng = np.random.default_rng(0)
    dealt = deal_classes(num_classes, per_client, clients, rng)
    assert dealt.shape == (clients, per_client)
    assert all(len(set(row)) == per_client for row in dealt.tolist())
    uses = np.bincount(dealt.ravel(), minlength=num_classes)
    assert uses.min() >= 1
    assert uses.max() - uses.min() <= 1


def test_dealt_classes_are_no_fixed_pairs():
    dealt = deal_classes(10, 2, 50, np.random.default_rng(0))
    assert len({frozenset(pair) for pair in dealt.tolist()}) > 10


@pytest.mark.parametrize(
    ("per_client", "clients"), [(2, 10), (2, 5), (3, 7), (10, 4), (2, 37)]
)
def test_pathological_gives_exactly_so_many_classes(settings, per_client, clients):
    parts = deal(
        settings,
        partition="pathological",
        classes_per_client=per_client,
        clients=clients,
    )
    found = classes(parts)
    assert all(len(one) == per_client for one in found)
    assert set.union(*found) == set(range(10))
    # A class's 100 samples are shared evenly by those that have it.
    for label in range(10):
        counts = [np.sum(TARGETS[part] == label) for part in parts]
        shares = [count for count in counts if count]
        assert sum(shares) == 100
        assert max(shares) - min(shares) <= 1


def test_pathological_with_a_class_that_is_absent(settings):
    targets = TARGETS[TARGETS != 4]
    parts = deal(settings, targets, partition="pathological", clients=9)
    found = classes(parts, targets)
    assert all(len(one) == 2 for one in found)
    assert set.union(*found) == set(range(10)) - {4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_samples": 1001}, "num-samples = 1001, but the data set has 1000"),
        ({"min_partition_size": 101}, r"1000 samples are too few for 10 .*\(1010\)"),
        (
            {"partition": "pathological", "classes_per_client": 11},
            "10 clients with classes-per-client = 11 .*at most 10 and at least 1",
        ),
        (
            {"partition": "pathological", "clients": 4},
            "4 clients with classes-per-client = 2 cannot share out 10 .*at least 3",
        ),
    ],
)
def test_impossible_partitions_name_the_numbers(settings, values, message):
    with pytest.raises(ValueError, match=message):
        deal(settings, **values)


def test_class_with_fewer_samples_than_clients_is_named(settings):
    targets = np.array([0] * 50 + [1] * 3)
    with pytest.raises(ValueError, match="class 1 has 3 samples for 5 clients"):
        deal(settings, targets, partition="pathological", clients=5)


def test_pathological_client_that_is_too_small_is_refused(settings):
    values = {"partition": "pathological", "classes_per_client": 1, "clients": 2}
    targets = np.array([0] * 90 + [1] * 10)
    with pytest.raises(ValueError, match=r"with 10 of 100 .* min-partition-size = 20"):
        deal(settings, targets, min_partition_size=20, **values)
