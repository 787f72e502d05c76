"""The commands from end to end, simulations replaced by made-up results."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_runs import write_run

from benchmarks.accuracy import collect, runner
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.cells import DataSets, same_settings
from benchmarks.accuracy.tables import TABLES
from benchmarks.paper.__main__ import main as paper
from benchmarks.paper.tables import tables as paper_tables
from common.settings import is_experiment_name, parse_settings


class Simulations:
    """Takes the place of ``simulate``: writes results and remembers what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[dict[str, Any]] = []
        self.break_down: list[str] = []
        monkeypatch.setattr(runner, "simulate", self.simulate)

    def simulate(self, config: dict[str, Any], **resources: Any) -> None:
        self.asked.append(config)
        assert resources["num_supernodes"] == config["min-available-nodes"]
        settings = parse_settings(config)
        folder = Path(settings.run.output_dir) / settings.run.experiment
        assert config["resume"] == (folder / "settings.json").exists()
        accuracy = {"standalone": 0.5, "fedavg": 0.2}.get(settings.method, 0.6)
        accuracy += settings.seed / 100
        exits = 1 if "cnn" in settings.model or settings.model[0] == "h" else 3
        rounds = settings.run.num_server_rounds
        failing = self.break_down and self.break_down.pop(0)
        results = [[[accuracy] * exits, [accuracy / 2] * exits]] * rounds
        write_run(
            folder,
            settings.to_config(),
            results[:1] if failing else results,
            ended=failing or "finished",
            macs=(10, 20, 30),
        )
        if failing:
            raise subprocess.CalledProcessError(1, "flower-simulation")

    def names(self) -> list[str]:
        return [config["experiment"] for config in self.asked]


@pytest.fixture
def simulations(monkeypatch: pytest.MonkeyPatch) -> Simulations:
    monkeypatch.setattr(collect, "plot", lambda *_: False)  # takes seconds
    return Simulations(monkeypatch)


def entries(folder: Path, stem: str = "accuracy") -> dict[str, dict[str, Any]]:
    found = json.loads((folder / f"{stem}.json").read_text())
    return {entry["name"]: entry for entry in found}


@pytest.fixture
def run(tmp_path: Path, simulations: Simulations) -> Any:
    def run(*words: str, status: int = 0) -> dict[str, dict[str, Any]]:
        folders = ["--runs", str(tmp_path / "runs"), "--output", str(tmp_path)]
        assert main([*words, *folders, "--data", ""]) == status
        return entries(tmp_path)

    return run


def test_a_table(run: Any, simulations: Simulations, tmp_path: Path) -> None:
    found = run("pfedes", "--seeds", "0", "1")
    # Seed by seed, so that the first comparison comes early.
    assert simulations.names() == [
        f"{method}-seed{seed}" for seed in (0, 1) for method in ("standalone", "pfedes")
    ]
    assert found["pfedes/pfedes/averaged"]["value"] == pytest.approx(0.75 * 60.5)
    assert found["pfedes/pfedes/averaged"]["std_clients"] == pytest.approx(0.25 * 60.5)
    gain = found["pfedes/bars/pFedES over Standalone"]
    assert gain["value"] == pytest.approx(7.5)
    assert (gain["target"], gain["met"]) == (0.0, True)
    assert gain["standard_error"] == pytest.approx(0)
    keys = {"name", "value", "unit", "target", "met", "command", "date", "hardware"}
    assert all(keys <= set(entry) for entry in found.values())
    assert {e["command"] for e in found.values()} == {
        "python -m benchmarks.accuracy pfedes"
    }
    text = (tmp_path / "accuracy.md").read_text()
    assert "| pFedES     |    45.38 |" in text
    assert "+7.50 ± 0.00" in text
    assert "not reached" in text


def test_finished_runs_are_kept(run: Any, simulations: Simulations) -> None:
    run("pfedes", "--seeds", "0")
    found = run("pfedes", "--seeds", "0", "1")
    assert len(simulations.asked) == 4
    assert found["pfedes/pfedes/averaged"]["seeds"] == [0, 1]


def test_a_run_that_fails_is_tried_again_and_resumed(
    run: Any, simulations: Simulations, capsys: pytest.CaptureFixture[str]
) -> None:
    simulations.break_down = ["QuorumMissed: nobody"] * 2
    found = run("pfedes", "--seeds", "0", status=1)
    assert [c["resume"] for c in simulations.asked] == [False, True, False]
    assert "pfedes/standalone/averaged" not in found
    assert "pfedes/pfedes/averaged" in found
    assert "standalone-seed0 is not finished" in capsys.readouterr().out
    run("pfedes", "--seeds", "0")
    assert simulations.names()[3:] == ["standalone-seed0"]
    assert simulations.asked[3]["resume"]


def test_other_settings_run_again_and_the_old_run_is_put_aside(
    run: Any, simulations: Simulations, tmp_path: Path
) -> None:
    run("pfedes", "--seeds", "0", "--cells", "pfedes")
    words = ("--rounds", "3", "--set", "batch-size=16")
    found = run("pfedes", "--seeds", "0", "--cells", "pfedes", *words)
    assert [c["batch-size"] for c in simulations.asked] == [64, 16]
    assert found["pfedes/pfedes/averaged"]["rounds"] == 3
    assert found["pfedes/pfedes/averaged"]["command"].endswith(" ".join(words))
    assert len(list((tmp_path / "runs" / "replaced").rglob("settings.json"))) == 1
    # It serves again when it is asked for again.
    found = run("pfedes", "--seeds", "0", "--cells", "pfedes")
    assert len(simulations.asked) == 2
    assert found["pfedes/pfedes/averaged"]["rounds"] == 60


def test_the_same_run_serves_several_tables(run: Any, simulations: Simulations) -> None:
    run("schedules", "--seeds", "0", "--cells", "linear")
    found = run("variants", "--seeds", "0", "--cells", "own", "live")
    teachers = [c["xfed.teacher"] for c in simulations.asked]
    assert teachers == ["frozen", "live"]
    assert found["variants/own/averaged"]["value"] == pytest.approx(45)


def test_runs_from_elsewhere(
    run: Any, simulations: Simulations, tmp_path: Path
) -> None:
    cell = TABLES["federation"].cells[0]
    config = cell.config(0, DataSets(None), {})
    del config["evaluation-noise"]  # a setting that came later
    config["output-dir"] = "/elsewhere"
    write_run(tmp_path / "old" / "a", config, [[[0.4] * 3] * 2] * 40)
    words = ("--seeds", "0", "--cells", cell.name, "--reuse", str(tmp_path / "old"))
    found = run("federation", *words, "--no-run")
    assert simulations.asked == []
    assert found["federation/standalone/averaged"]["value"] == pytest.approx(40)


def test_only_what_changes_results_counts() -> None:
    config = parse_settings({"data-path": "/a/data"}).to_config()
    assert same_settings({**config, "data-path": "/b/data", "resume": True}, config)
    assert not same_settings({**config, "data-path": "/a/other"}, config)
    assert not same_settings({**config, "xfed.mu": 0.5}, config)
    older = {k: v for k, v in config.items() if k != "xfed.selection"}
    assert same_settings(older, config)
    assert not same_settings(older, {**config, "xfed.selection": "random"})


def test_the_benchmark_federation_or_one_like_it(tmp_path: Path) -> None:
    cell = TABLES["federation"].cells[0]
    dealt = cell.config(0, DataSets(tmp_path), {})
    assert (dealt["data-path"], dealt["num-samples"]) == ("", 12_000)
    (tmp_path / "cifar10_20c").mkdir()
    given = cell.config(0, DataSets(tmp_path), {})
    assert given["data-path"] == str(tmp_path / "cifar10_20c")
    assert given["num-samples"] == 0


@pytest.mark.parametrize(
    "table",
    [*TABLES.values(), *paper_tables().values(), *paper_tables(20).values()],
    ids=lambda table: table.name,
)
def test_every_cell_is_a_valid_run(table: Any) -> None:
    names = [cell.name for cell in table.cells]
    assert len(set(names)) == len(names)
    assert not table.reference or table.reference in names
    for cell in table.cells:
        cell.config(0, DataSets(None), {})
        assert cell.table == table.name
        assert is_experiment_name(f"{cell.name}-seed0")


def test_paper_figures(tmp_path: Path, simulations: Simulations) -> None:
    words = ["xfed-cifar10-dir0.3", "--data", "", "--output", str(tmp_path)]
    words += ["--runs", str(tmp_path / "runs"), "--cells", "xfed"]
    assert paper(words) == 0
    (asked,) = simulations.asked
    assert (asked["num-server-rounds"], asked["min-available-nodes"]) == (300, 100)
    assert (asked["local-epochs"], asked["fraction-train"]) == (5, 0.1)
    found = entries(tmp_path, "paper")
    beside = found["xfed-cifar10-dir0.3/bars/X-FED over the paper's 72.67"]
    assert beside["value"] == pytest.approx(45 - 72.67)
    assert beside["met"] is False
    assert paper([*words, "--shrink", "20"]) == 0
    small = simulations.asked[-1]
    assert (small["num-server-rounds"], small["min-available-nodes"]) == (15, 5)
    assert (small["num-samples"], small["fraction-train"]) == (3_000, 0.4)
    assert not [name for name in entries(tmp_path, "paper-trial") if "/bars/" in name]
    assert set(entries(tmp_path, "paper")) == set(found)
