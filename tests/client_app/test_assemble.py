"""Networks put together from a finished run equal what the clients evaluated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from torch import nn

from client_app.assemble import assemble
from client_app.trainer import Trainer
from common.models import Network, build_network

METHODS = ("standalone", "fedavg", "fedper", "pfedes", "xfed")


def same(a: nn.Module, b: nn.Module) -> bool:
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[key], y[key]) for key in x)


@pytest.mark.parametrize("method", METHODS)
def test_is_what_the_client_evaluated_last(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: dict[str, nn.Module] = {}
    original = Trainer.evaluation

    def spy(self: Trainer, network: nn.Module, request: Any) -> Any:
        evaluated[self.client.name] = network
        return original(self, network, request)

    monkeypatch.setattr(Trainer, "evaluation", spy)
    run = small.finished(tmp_path, method)
    for client, network in evaluated.items():
        found = assemble(run, client)
        assert same(found.network, network)
        assert not found.network.training
        assert (found.server_round, found.rounds_trained) == (2, 2)
    assert len(evaluated) == 3
    if method == "pfedes":
        assert assemble(run, "client-1").model == "cnn-2"


def test_on_a_device_with_a_copy_of_two_files(tmp_path: Path) -> None:
    run = small.finished(tmp_path / "server", "fedper")
    copy = tmp_path / "device" / "model"
    copy.mkdir(parents=True)
    for name in ("settings.json", "shared.safetensors"):
        shutil.copy(run / name, copy)
    states = (run / "state").rename(tmp_path / "device" / "state")
    assert same(assemble(copy, "client-0", states).network, at_home(run, states))


def at_home(run: Path, states: Path) -> nn.Module:
    return assemble(run, "client-0", states).network


def test_a_round_lost_with_the_server_does_not_count(tmp_path: Path) -> None:
    run = small.finished(tmp_path, "fedper")
    assert assemble(run, "client-0").server_round == 2
    (run / "checkpoints" / "starts.json").write_text("[0, 1]")  # resumed after round 1
    assert assemble(run, "client-0").server_round == 1


def test_a_client_never_sampled_has_initial_exits(tmp_path: Path) -> None:
    run = small.finished(tmp_path, "fedper", fraction_train=0.3)
    found = {f"client-{i}": assemble(run, f"client-{i}") for i in range(3)}
    unseen = [name for name, it in found.items() if it.rounds_trained == 0]
    assert unseen
    network = found[unseen[0]].network
    initial = build_network("convnet", found[unseen[0]].spec, seed=0)
    assert isinstance(network, Network)
    assert isinstance(initial, Network)
    assert same(network.exits, initial.exits)
    assert not same(network.blocks, initial.blocks)


def test_a_private_network_never_trained_is_refused(tmp_path: Path) -> None:
    run = small.finished(tmp_path, "pfedes", fraction_train=0.3)
    lines = (run / "rounds.jsonl").read_text().splitlines()
    sampled = {name for line in lines for name in json.loads(line)["train"]["clients"]}
    unseen = min({"client-0", "client-1", "client-2"} - sampled)
    with pytest.raises(ValueError, match=f"{unseen!r} was never sampled"):
        assemble(run, unseen)


@pytest.fixture(scope="module")
def fedper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.finished(tmp_path_factory.mktemp("runs"), "fedper")


def test_no_such_client(fedper: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'ward-7' took no part .* client-0, client-1"
    ):
        assemble(fedper, "ward-7")


@pytest.mark.parametrize("name", ["settings.json", "shared.safetensors"])
def test_a_missing_file_is_named(fedper: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(fedper, tmp_path / "trial"))
    (run / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        assemble(run, "client-0")


def test_states_kept_elsewhere_must_be_named(fedper: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(fedper, tmp_path / "trial"))
    with pytest.raises(ValueError, match="no personal state of client 'client-0'"):
        assemble(run, "client-0", tmp_path / "empty")
    shutil.rmtree(run / "state" / "trial" / "client-client-0")
    with pytest.raises(ValueError, match="those of client-1, client-2"):
        assemble(run, "client-0")


def test_the_state_of_another_run_is_refused(fedper: Path, tmp_path: Path) -> None:
    other = small.finished(tmp_path, "fedper", seed=1)
    with pytest.raises(ValueError, match="belongs to run"):
        assemble(other, "client-0", fedper / "state")


def test_a_damaged_shared_file_is_named(fedper: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(fedper, tmp_path / "trial"))
    shared = run / "shared.safetensors"
    shared.write_bytes(shared.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"shared\.safetensors is damaged"):
        assemble(run, "client-0")
