"""A run that dies anywhere and is resumed ends with the bits of one that did not."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import small
from flwr.common import Context, Message
from safetensors.numpy import load_file

from server_app.checkpoint import CheckpointStore
from server_app.results import Results

ROUNDS = 5


class Death(BaseException):
    """What a kill is to the code: nothing catches it."""


def settings(method: str, folder: Path, **changes: Any) -> Any:
    return small.settings(
        method,
        output_dir=str(folder),
        experiment="trial",
        state_dir=str(folder / "state"),
        fraction_train=0.7,
        **changes,
    )


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
            part.pop("seconds", None)
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
