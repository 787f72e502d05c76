"""Figures of runs, costs and comparisons, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from fake_runs import write_run

from benchmarks.accuracy.compare import bar, bar_against, paired
from benchmarks.accuracy.cost import training_macs
from benchmarks.accuracy.runs import Measured, figures, is_finished
from benchmarks.accuracy.store import Origin, Store
from common.settings import Settings, parse_settings

ORIGIN = Origin(command="run it", date="2026-01-02", hardware="a machine")


def settings(method: str = "fedper", **changes: object) -> Settings:
    return parse_settings({"method": method, **changes})


def test_figures_by_hand(tmp_path: Path) -> None:
    rounds = [[[0.0, 0.2], [0.2, 0.4]], [[0.5, 0.7], [0.1, 0.5]]]
    write_run(tmp_path, {}, rounds)
    found = figures(tmp_path, settings())
    averaged = found["averaged"]
    # Clients 0.6 and 0.3; standard deviation over the two 0.15.
    assert averaged.value == pytest.approx(45)
    assert averaged.std_clients == pytest.approx(15)
    assert averaged.curve == [[1, pytest.approx(20)], [2, pytest.approx(45)]]
    assert averaged.clients == [pytest.approx(60), pytest.approx(30)]
    assert found["exit-1"].value == pytest.approx(30)
    assert found["exit-2"].value == pytest.approx(60)
    assert found["early"].value == pytest.approx(60)
    assert found["early-macs"].value == 150
    assert found["down-bytes"].value == 1000
    assert found["up-bytes"].value == 500
    assert found["round-seconds"].value == 1.5
    assert "rounds-to-40" not in found


def test_one_exit_has_no_exits_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path, {}, [[[0.5], [0.7]]])
    assert set(figures(tmp_path, settings())) == {
        "averaged",
        "down-bytes",
        "up-bytes",
        "round-seconds",
    }


def test_cost_of_a_target_by_hand(tmp_path: Path) -> None:
    accuracies = [[[a], [a]] for a in (0.1, 0.5, 0.4, 0.6)]
    write_run(tmp_path, {}, accuracies, macs=[100])
    run = settings("fedavg", **{"local-epochs": 2})
    found = figures(tmp_path, run, targets=(50, 80))
    # Reached after round 2: client 0 trained twice, client 1 once; 1,500 bytes a time,
    # and 3 passes * 2 epochs * 100 MACs per sample, 10 and 11 samples: mean of the two.
    assert found["rounds-to-50"].value == 2
    assert found["bytes-to-50"].value == 3 * 1500 / 2
    assert found["macs-to-50"].value == 600 * (2 * 10 + 11) / 2
    assert found["rounds-to-80"].value is None
    assert found["macs-to-80"].value is None


def test_a_run_without_a_last_evaluation_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, {}, [[[0.5], [0.7]]])
    record = json.loads((tmp_path / "rounds.jsonl").read_text())
    del record["evaluate"]["accuracy-mean"]
    (tmp_path / "rounds.jsonl").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="no client was evaluated"):
        figures(tmp_path, settings())


def test_finished_or_not(tmp_path: Path) -> None:
    assert not is_finished(tmp_path, 1)
    write_run(tmp_path, {}, [[[0.5], [0.7]]])
    assert is_finished(tmp_path, 1)
    assert not is_finished(tmp_path, 2)
    write_run(tmp_path, {}, [[[0.5], [0.7]]], ended="KeyboardInterrupt: ")
    assert not is_finished(tmp_path, 1)


@pytest.mark.parametrize("method", ["standalone", "fedavg", "fedper"])
def test_training_passes(method: str) -> None:
    assert training_macs(settings(method, **{"local-epochs": 5}), 7) == 3 * 5 * 7


def test_training_of_pfedes_by_hand() -> None:
    # G on 3x32x32: two convolutions of 3x3, 3 -> 8 -> 3 channels, at 1,024 places.
    extractor = 1024 * (9 * 3 * 8) * 2
    run = settings(
        "pfedes",
        dataset="cifar10",
        **{"local-epochs": 2, "pfedes.extractor-epochs": 3},
    )
    expected = 2 * (extractor + 6 * 1000) + 3 * (3 * extractor + 2 * 1000)
    assert training_macs(run, 1000) == expected


def test_unknown_training_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="'xfed' is not known"):
        training_macs(settings("xfed"), 1)


# ---- seeds of several machines add up ----


def add(
    store: Store, seed: int, value: float | None, clients: list[float], lr: float = 0.1
) -> None:
    store.add(
        "table/cell",
        seed,
        {
            "averaged": Measured(
                value=value, std_clients=2.0 * seed, curve=[[1, 0.0]], clients=clients
            ),
            "rounds-to-80": Measured(value=None if seed else 5),
        },
        settings={
            "num-server-rounds": 1,
            "learning-rate": lr,
            "precision": "float32",
        },
        data="digits",
        origin=ORIGIN,
    )


def test_seeds_add_up(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.json")
    add(store, 1, 50.0, [49.0, 51.0])
    store.save()
    store = Store(tmp_path / "a.json")
    add(store, 3, 53.0, [52.0, 54.0])
    entry = store.entries["table/cell/averaged"]
    assert entry["value"] == pytest.approx(51.5)
    assert entry["std_seeds"] == pytest.approx(3 / math.sqrt(2))
    assert entry["std_clients"] == pytest.approx(4)
    assert entry["seeds"] == [1, 3]
    assert entry["unit"] == "%"
    assert entry["target"] is None
    assert (entry["command"], entry["date"]) == ("run it", "2026-01-02")
    assert entry["hardware"] == "a machine"
    assert entry["per_seed"]["3"]["clients"] == [52.0, 54.0]
    store.save()
    assert json.loads((tmp_path / "a.json").read_text()) == [
        store.entries["table/cell/averaged"],
        store.entries["table/cell/rounds-to-80"],
    ]


def test_other_settings_start_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.json")
    add(store, 0, 50.0, [])
    add(store, 1, 60.0, [], lr=0.2)
    assert store.entries["table/cell/averaged"]["seeds"] == [1]


def test_a_setting_that_came_later_counts_with_its_default(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.json")
    add(store, 0, 50.0, [])
    del store.entries["table/cell/averaged"]["settings"]["precision"]
    add(store, 1, 60.0, [])
    assert store.entries["table/cell/averaged"]["seeds"] == [0, 1]


def test_a_value_that_one_seed_lacks_does_not_exist(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.json")
    add(store, 0, 50.0, [])
    assert store.entries["table/cell/rounds-to-80"]["value"] == 5
    add(store, 1, 50.0, [])
    assert store.entries["table/cell/rounds-to-80"]["value"] is None
    assert store.entries["table/cell/rounds-to-80"]["unit"] == "rounds"


def test_a_saved_store_is_in_the_order_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    store = Store(path)
    store.replace("table/bars", [{"name": f"table/bars/{name}"} for name in "ba"])
    store.save()
    assert list(store.entries) == ["table/bars/a", "table/bars/b"]
    assert list(store.entries) == list(Store(path).entries)


# ---- comparisons ----


def entry(values: dict[int, float | None], clients: dict[int, list[float]]) -> dict:
    return {
        "value": 50.0,
        "std_seeds": 3.0,
        "seeds": list(values),
        "command": "",
        "date": "",
        "hardware": "",
        "rounds": 1,
        "data": "",
        "per_seed": {
            str(seed): {"value": value, "clients": clients.get(seed, [])}
            for seed, value in values.items()
        },
    }


def test_paired_difference_by_hand() -> None:
    a = entry({0: 50, 1: 54, 2: 40}, {0: [40, 60], 1: [50, 58]})
    b = entry({0: 49, 1: 50, 5: 1}, {0: [40, 58], 1: [46, 54]})
    difference = paired(a, b)
    assert difference is not None
    assert difference.seeds == (0, 1)
    assert difference.mean == 2.5
    # Differences 1 and 4: standard deviation 3/sqrt(2), over sqrt(2).
    assert difference.error == pytest.approx(1.5)
    # Clients: (0 + 4) / 2 = 2 and (2 + 4) / 2 = 3: 1/sqrt(2) over sqrt(2).
    assert difference.error_clients == pytest.approx(0.5)


def test_nothing_to_pair() -> None:
    assert paired(entry({0: 1}, {}), entry({1: 1}, {})) is None
    assert paired(entry({0: None}, {}), entry({0: 1}, {})) is None
    single = paired(entry({0: 3}, {}), entry({0: 1}, {}))
    assert single is not None
    assert single.error is None
    assert single.error_clients is None


@pytest.mark.parametrize("other", [{"rounds": 2}, {"data": "cifar10"}])
def test_runs_of_other_length_or_data_are_no_pair(other: dict) -> None:
    a, b = entry({0: 3}, {}), entry({0: 1}, {})
    assert paired(a, b) is not None
    assert paired(a, {**b, **other}) is None


def test_bars() -> None:
    entries = {"a": entry({0: 50}, {}), "b": entry({0: 50.5}, {})}
    (missed,) = bar("t/bars/x", entries, "a", "b", target=0.0)
    assert (missed["value"], missed["met"], missed["target"]) == (-0.5, False, 0.0)
    (met,) = bar("t/bars/x", entries, "a", "b", target=-0.5)
    assert met["met"] is True
    (told,) = bar("t/bars/x", entries, "a", "b")
    assert told["met"] is None
    assert bar("t/bars/x", entries, "a", "c") == []
    (against,) = bar_against("t/bars/y", entries, "a", 44.9, 8.0)
    assert against["value"] == pytest.approx(5.1)
    assert against["met"] is False
    assert against["standard_error"] == pytest.approx(3.0)


def test_a_figure_of_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra 'dev'")
    from benchmarks.accuracy.plots import mean_curve, plot
    from benchmarks.accuracy.tables import TABLES

    curves = {"0": [[5, 10.0], [10, 20.0]], "1": [[10, 40.0], [15, 50.0]]}
    seeds = {seed: {"curve": curve} for seed, curve in curves.items()}
    assert mean_curve({"per_seed": seeds}) == {10: 30.0}
    name = "pfedes/pfedes/averaged"
    path = tmp_path / "figure.svg"
    assert not plot(TABLES["pfedes"], {name: {"per_seed": seeds}}, path)
    one = {"per_seed": {"0": seeds["0"]}}
    assert plot(TABLES["pfedes"], {name: one}, path)
    assert "<svg" in path.read_text()
