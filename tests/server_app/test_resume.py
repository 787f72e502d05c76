"""A run that dies anywhere and is resumed ends with the bits of one that did not."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
from flwr.common import Context, Message, RecordDict
from local_grid import LocalGrid
from safetensors.numpy import load_file

from common.protocol import to_record
from common.sharing import initial_shared
from server_app.checkpoint import CheckpointError, CheckpointStore
from server_app.matching import flatten
from server_app.methods import XFed
from server_app.results import Results

ROUNDS = 5


class Death(BaseException):
    """What a kill is to the code: nothing catches it."""


def settings(method: str, folder: Path, **changes: Any) -> Any:
    ordinary = {
        "output_dir": str(folder),
        "experiment": "trial",
        "state_dir": str(folder / "state"),
        "fraction_train": 0.7,
    }
    return small.settings(method, **{**ordinary, **changes})


def play(run: Any, **options: Any) -> None:
    small.federation(run, rounds=ROUNDS, results=Results.open(run), **options)


def dies_in(kind: str, server_round: int) -> Any:
    """Return clients of which the second to act in that round brings all down."""
    acted = []

    def handle(message: Message, context: Context) -> Message:
        answer = small.answer(message, context)
        config = message.content.config_records.get("config", {})
        if (message.metadata.message_type, config.get("server-round")) == (
            kind,
            server_round,
        ):
            acted.append(1)
            if len(acted) == 2:
                raise Death
        return answer

    return handle


def outcome(folder: Path) -> tuple[Any, ...]:
    def bits(path: Path) -> dict[str, bytes]:
        return {key: value.tobytes() for key, value in load_file(path).items()}

    states = {
        str(path.relative_to(folder)): bits(path)
        for path in sorted((folder / "state").rglob("round-*.safetensors"))
    }
    rounds = []
    for line in (folder / "trial" / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        for part in (record, record["train"], record.get("evaluate", {})):
            for measured in ("seconds", "telemetry", "latency-median", "latency-p95"):
                part.pop(measured, None)
        rounds.append(record)
    return (
        bits(folder / "trial" / "shared.safetensors"),
        (folder / "trial" / "clients.csv").read_text(),
        rounds,
        states,
    )


@pytest.mark.parametrize("method", ["xfed", "pfedes", "fedavg"])
def test_resumed_run_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    play(settings(method, tmp_path / "whole"))
    expected = outcome(tmp_path / "whole")
    assert len(expected[2]) == ROUNDS
    for kind, server_round in (("train", 1), ("train", 3), ("evaluate", 3)):
        folder = tmp_path / f"{kind}-{server_round}"
        with pytest.raises(Death):
            play(settings(method, folder), handler=dies_in(kind, server_round))
        play(settings(method, folder, resume=True))
        assert outcome(folder) == expected


def test_dies_twice_with_rare_checkpoints(tmp_path: Path) -> None:
    every = {"checkpoint_every": 3}
    play(settings("xfed", tmp_path / "whole", **every))
    folder = tmp_path / "twice"
    with pytest.raises(Death):
        play(settings("xfed", folder, **every), handler=dies_in("train", 3))
    again = settings("xfed", folder, resume=True, **every)
    with pytest.raises(Death):
        play(again, handler=dies_in("evaluate", 5))
    play(again)
    whole, twice = outcome(tmp_path / "whole"), outcome(folder)
    assert twice[:3] == whole[:3]


def test_a_death_while_writing_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(settings("xfed", tmp_path / "whole"))
    save = CheckpointStore.save

    def cut(self: CheckpointStore, checkpoint: Any) -> None:
        if checkpoint.server_round == 4:
            raise Death
        save(self, checkpoint)

    monkeypatch.setattr(CheckpointStore, "save", cut)
    with pytest.raises(Death):
        play(settings("xfed", tmp_path / "cut"))
    monkeypatch.undo()
    # A line cut in the middle, as a power failure leaves it.
    for name in ("rounds.jsonl", "clients.csv"):
        path = tmp_path / "cut" / "trial" / name
        path.write_text(path.read_text()[:-20])
    play(settings("xfed", tmp_path / "cut", resume=True))
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_a_finished_run_can_go_further(tmp_path: Path) -> None:
    run = settings("fedper", tmp_path)
    small.federation(run, rounds=2, results=Results.open(run))
    again = settings("fedper", tmp_path, resume=True)
    small.federation(again, rounds=3, results=Results.open(again))
    with (tmp_path / "trial" / "clients.csv").open() as file:
        assert {row["round"] for row in csv.DictReader(file)} == {"1", "2", "3"}


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    run = settings("fedper", tmp_path)
    small.federation(run, rounds=1, results=Results.open(run))
    with pytest.raises(ValueError, match="resume=true"):
        Results.open(run)
    with pytest.raises(ValueError, match=r"seed = 1, was 0"):
        Results.open(settings("fedper", tmp_path, resume=True, seed=1))
    Results.open(settings("fedper", tmp_path, resume=True, round_timeout=1.0))
    # A run of before there was the setting.
    path = tmp_path / "trial" / "settings.json"
    stored = json.loads(path.read_text())
    del stored["settings"]["precision"]
    path.write_text(json.dumps(stored))
    Results.open(settings("fedper", tmp_path, resume=True))
    with pytest.raises(ValueError, match=r"precision = 'bfloat16', was 'float32'"):
        Results.open(settings("fedper", tmp_path, resume=True, precision="bfloat16"))


def test_states_of_an_abandoned_run_are_neither_used_nor_lost(tmp_path: Path) -> None:
    run = settings("fedper", tmp_path)
    small.federation(run, rounds=1, results=Results.open(run))
    (tmp_path / "trial").rename(tmp_path / "old")
    files = sorted((tmp_path / "state").rglob("round-*.safetensors"))
    before = [path.read_bytes() for path in files]
    small.federation(run, rounds=3, results=Results.open(run))
    failures: dict[str, str] = {}
    for line in (tmp_path / "trial" / "rounds.jsonl").read_text().splitlines():
        failures |= json.loads(line)["train"]["failures"]
    # Two of three clients had trained; only the third takes part in the new run.
    assert sorted(failures) == [path.parent.name[len("client-") :] for path in files]
    assert len(failures) == 2
    assert all("starts anew: choose another" in reason for reason in failures.values())
    assert [path.read_bytes() for path in files] == before


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "trial" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def absent_in_round_3(folder: Path, client: str, *, dies: bool) -> None:
    """Play while a client is away in round 3, where `dies` after a first try with it.

    That first try dies after two clients have trained.
    """
    run = settings("xfed", folder, min_available_nodes=2)
    if dies:
        with pytest.raises(Death):
            play(run, handler=dies_in("train", 3))
        run = settings("xfed", folder, min_available_nodes=2, resume=True)

    def handle(message: Message, context: Context) -> Message:
        config = message.content.config_records.get("config", {})
        now = (message.metadata.message_type, config.get("server-round"))
        if now == ("evaluate", 2):
            grid.offline.add(grid.node(client))
        elif now == ("evaluate", 3):
            grid.offline.clear()
        return small.answer(message, context)

    nodes = {f"client-{i}": {"partition-id": i, "num-partitions": 3} for i in range(3)}
    grid = LocalGrid(nodes, handle, run.to_config())
    if dies:
        grid.offline.add(grid.node(client))
    strategy = XFed.create(run, Results.open(run))
    strategy.start(grid, to_record(initial_shared(run)), num_rounds=ROUNDS, timeout=60)


def test_training_that_was_lost_with_the_server_leaves_no_trace(
    tmp_path: Path,
) -> None:
    """Round 3 is repeated without a client that had trained in it before."""
    play(settings("xfed", tmp_path / "first"))
    client = records(tmp_path / "first")[2]["train"]["replied"][0]
    absent_in_round_3(tmp_path / "whole", client, dies=False)
    absent_in_round_3(tmp_path / "killed", client, dies=True)
    whole, killed = outcome(tmp_path / "whole"), outcome(tmp_path / "killed")
    assert client not in records(tmp_path / "whole")[2]["train"]["clients"]
    assert killed[:3] == whole[:3]


@pytest.mark.parametrize("method", ["xfed", "pfedes"])
def test_a_lost_state_is_named_and_its_client_starts_afresh(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = settings(method, tmp_path, fraction_train=1.0)
    small.federation(run, rounds=2, results=Results.open(run))
    shutil.rmtree(tmp_path / "state" / "trial" / "client-client-1")
    run = settings(method, tmp_path, fraction_train=1.0, resume=True)
    small.federation(run, rounds=4, results=Results.open(run))
    found = [record["train"]["lost_states"] for record in records(tmp_path)]
    assert found == [{}, {}, {"client-1": 2}, {}]
    assert all(not r["train"]["failures"] for r in records(tmp_path))
    assert "round 3: client-1 started afresh: its personal state of round 2" in (
        caplog.text
    )
    summary = json.loads((tmp_path / "trial" / "summary.json").read_text())
    assert summary["lost_states"] == 1


def test_states_in_memory_do_not_survive_and_that_is_said(tmp_path: Path) -> None:
    run = settings("xfed", tmp_path, state_dir="")
    with pytest.raises(Death):
        play(run, handler=dies_in("train", 3))
    play(settings("xfed", tmp_path, state_dir="", resume=True))
    rounds = records(tmp_path)
    trained = {c for r in rounds[:2] for c in r["train"]["replied"]}
    later = [c for r in rounds[2:] for c in r["train"]["lost_states"]]
    assert sorted(later) == sorted(trained)
    assert all(set(r["train"]["lost_states"]) <= trained for r in rounds)
    # A client that was not sampled yet is evaluated without its exits, and named.
    missing = trained - set(rounds[2]["train"]["replied"])
    assert set(rounds[2]["evaluate"]["lost_states"]) == missing


def test_the_update_of_a_lost_last_exit_starts_from_the_initial_one() -> None:
    def forgets(message: Message, context: Context) -> Message:
        config = message.content.config_records.get("config", {})
        forget = config.get("server-round") == 2 and message.metadata.message_type
        if forget == "train" and context.node_config["partition-id"] == 1:
            context.state = RecordDict()
        return small.answer(message, context)

    strategy, grid, _ = small.federation(small.settings("xfed"), handler=forgets)
    assert isinstance(strategy, XFed)
    sent: dict[str, list[Any]] = {}
    for client, _, reply in small.uploads(grid):
        sent.setdefault(client, []).append(flatten(reply.groups["exit"]))
    initial = flatten(strategy.initial_exit)
    for client, (first, second) in sent.items():
        start = initial if client == "client-1" else first
        np.testing.assert_array_equal(strategy.updates[client], second - start)


def test_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
    play(settings("xfed", tmp_path / "whole"))
    folder = tmp_path / "damaged"
    with pytest.raises(Death):
        play(settings("xfed", folder), handler=dies_in("train", 5))
    last = folder / "trial" / "checkpoints" / "round-000004.safetensors"
    last.write_bytes(last.read_bytes()[:-9])
    again = settings("xfed", folder, resume=True)
    with pytest.raises(CheckpointError, match="remove it to go on from the one before"):
        play(again)
    last.unlink()
    play(again)
    assert outcome(folder)[:3] == outcome(tmp_path / "whole")[:3]
