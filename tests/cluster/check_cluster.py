"""The docker-compose cluster, really run: ``make test-cluster``.

The checks build on one another, in their order.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from engine import (
    REPOSITORY,
    Missing,
    build_settings,
    choose_base,
    find_docker,
    running_engine,
)

CLIENTS = ("client-0", "client-1", "client-2")
IMAGES = ("flower-personalized/superlink:test", "flower-personalized/supernode:test")
DATA = (
    "dataset='custom' num-classes=3 image-size=8 channels=1 batch-size=16 "
    "min-available-nodes=3 round-timeout=75.0 evaluate-every=9"
)
# Not the mere words, which every program that reads keys holds.
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}")


class Cluster:
    """One cluster, by way of ``docker/cluster``."""

    def __init__(self, docker: str, folder: Path, name: str, **settings: str) -> None:
        self.project = f"test{os.getpid()}-{name}"
        self.results = folder / f"results-{name}"
        self._docker = docker
        self._env = {
            **os.environ,
            **settings,
            "DOCKER": docker,
            "PROJECT": self.project,
            "RESULTS": str(self.results),
        }

    def start(self, *command: str, **settings: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(REPOSITORY / "docker/cluster"), *command],
            env={**self._env, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *command: str, fails: bool = False, **settings: str) -> str:
        process = self.start(*command, **settings)
        said, _ = process.communicate(timeout=1500)
        print(said)
        assert (process.returncode != 0) == fails, said[-6000:]
        return said

    def docker(self, *command: str) -> str:
        result = subprocess.run(
            [self._docker, *command], capture_output=True, check=False, text=True
        )
        assert result.returncode == 0, f"docker {command}\n{result.stderr}"
        return result.stdout

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return what the engine knows about the container of every service."""
        label = f"label=com.docker.compose.project={self.project}"
        ids = self.docker("ps", "--all", "--quiet", "--filter", label).split()
        found = json.loads(self.docker("inspect", *ids)) if ids else []
        return {c["Config"]["Labels"]["com.docker.compose.service"]: c for c in found}

    def on(self, service: str, *command: str) -> str:
        return self.docker("exec", self.containers()[service]["Id"], *command)

    def nodes(self) -> dict[str, dict[str, str]]:
        answer: dict[str, dict[str, str]] = json.loads(
            self.on("superlink", "control", "nodes")
        )
        return answer

    def rounds(self, experiment: str) -> list[dict[str, Any]]:
        """Return the records of the rounds so far, from SuperLink's volume."""
        path = f"/var/lib/flower/runs/{experiment}/rounds.jsonl"
        text = self.on("superlink", "sh", "-c", f"cat {path} 2>/dev/null || true")
        return [json.loads(line) for line in text.splitlines()]

    def fetched_rounds(self, experiment: str) -> list[dict[str, Any]]:
        path = self.results / experiment / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for(true: Callable[[], Any], timeout: float = 240) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.5)


def write_data(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    for part, count in (("train", 48), ("test", 24)):
        labels = np.arange(count) % 3
        noise = generator.integers(0, 100, (count, 8, 8))
        images = (noise + 70 * labels[:, None, None]).astype(np.uint8)
        np.savez(folder / f"{part}.npz", images=images, labels=labels)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        try:
            docker = find_docker()
            stack.enter_context(running_engine(docker))
            base = choose_base(docker)
        except Missing as missing:
            pytest.skip(str(missing))
        folder = tmp_path_factory.mktemp("build")
        built = stack.enter_context(build_settings(folder, base))
        yield {**built, "docker": docker}


@pytest.fixture(scope="module")
def cluster(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    for seed, name in enumerate(CLIENTS):
        write_data(folder / "sites" / name, seed)
    sites = str(folder / "sites")
    made = Cluster(folder=folder, name="a", DATA=sites, CLIENTS="3", **settings)
    try:
        made.call("up")
        yield made
    finally:
        made.call("clean")


def test_every_client_comes_online_and_is_well(cluster: Cluster) -> None:
    assert {n["status"] for n in cluster.nodes().values()} == {"online"}
    assert set(cluster.nodes()) == set(CLIENTS)
    for name in CLIENTS:
        assert "failed" not in cluster.on(name, "doctor")
    wait_for(
        lambda: all(
            cluster.containers()[name]["State"]["Health"]["Status"] == "healthy"
            for name in ("superlink", *CLIENTS)
        )
    )


def test_containers_have_no_privileges(cluster: Cluster) -> None:
    for service, container in cluster.containers().items():
        host = container["HostConfig"]
        assert container["Config"]["User"] == "10001", service
        assert host["CapDrop"] == ["ALL"]
        assert not host["Privileged"]
        assert host["ReadonlyRootfs"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        # Nothing is reachable from outside the cluster.
        assert not any((container["NetworkSettings"]["Ports"] or {}).values()), service
    for service in ("superlink", *CLIENTS):
        assert cluster.on(service, "id", "-u") == "10001\n"
        assert cluster.containers()[service]["HostConfig"]["Memory"] > 0
        assert cluster.containers()[service]["HostConfig"]["NanoCpus"] > 0


def test_only_the_encrypted_port_is_open(cluster: Cluster) -> None:
    connect = "import socket; socket.create_connection(('{}', {}), 5)"
    for service, port, open_ in (
        *(("superlink", port, port == 9092) for port in (9091, 9092, 9093)),
        *(("client-1", port, False) for port in (9094, 9095)),
    ):
        probe = ["python", "-c", connect.format(service, port)]
        command = ["exec", cluster.containers()["client-0"]["Id"], *probe]
        if open_:
            cluster.docker(*command)
        else:
            with pytest.raises(AssertionError, match="refused"):
                cluster.docker(*command)


def test_private_keys_are_where_they_are_used(cluster: Cluster) -> None:
    users: dict[str, set[str]] = {}
    for service, container in cluster.containers().items():
        for mount in container["Mounts"]:
            if mount["Type"] == "volume":
                volume = mount["Name"].removeprefix(f"{cluster.project}_")
                users.setdefault(volume, set()).add(service)
    assert users["authority"] == {"certificates"}
    assert users["server"] == {"certificates", "superlink"}
    for name in CLIENTS:
        assert users[f"{name}-key"] == {name, f"{name}-key"}
        assert users[f"{name}-state"] == {name}
        mode = cluster.on(name, "stat", "-c", "%a", f"/etc/flower/node/{name}")
        assert mode == "600\n"
    for service in ("superlink", *CLIENTS):
        published = cluster.on(service, "ls", "/etc/flower/public").split()
        assert published == ["ca.pem", *(f"{name}.pub" for name in CLIENTS)]
    keys = {cluster.on(n, "cat", f"/etc/flower/node/{n}") for n in CLIENTS}
    assert len(keys) == 3


def test_images_hold_no_secret(
    cluster: Cluster, settings: dict[str, str], tmp_path: Path
) -> None:
    canary = settings["canary"].encode()
    saved = tmp_path / "images.tar"
    for image in IMAGES:
        size = json.loads(cluster.docker("inspect", image))[0]["Size"]
        print(f"{image}: {size / 1e6:.0f} MB")
        assert canary not in cluster.docker("history", "--no-trunc", image).encode()
    base = json.loads(cluster.docker("inspect", settings["BASE_IMAGE"]))[0]
    count = len(base["RootFS"]["Layers"])
    cluster.docker("save", "--output", str(saved), *IMAGES)
    with tarfile.open(saved) as files:
        manifest = json.load(_member(files, "manifest.json"))
        # Not the base image's own: Debian's GnuTLS tests itself with a key.
        layers = {layer for image in manifest for layer in image["Layers"][count:]}
        assert len(layers) > 3
        for name in layers | {image["Config"] for image in manifest}:
            holds_key, holds_canary = _search(_member(files, name), canary)
            assert not holds_key, f"a private key in {name}"
            assert not holds_canary, f"a secret of the build in {name}"
    saved.unlink()


def _member(files: tarfile.TarFile, name: str) -> IO[bytes]:
    file = files.extractfile(name)
    assert file is not None
    return file


def _search(file: IO[bytes], canary: bytes) -> tuple[bool, bool]:
    """Return whether a file of an image holds a private key, and the canary."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    if packed:
        file = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
    key = found = False
    end = b""
    while chunk := file.read(2**24):
        text = end + chunk
        key = key or PRIVATE_KEY.search(text) is not None
        found = found or canary in text
        end = text[-200:]
    return key, found


def test_pfedes_runs_and_its_results_arrive(cluster: Cluster) -> None:
    run = (
        f"{DATA} method='pfedes' model='heterogeneous' num-server-rounds=2 "
        "experiment='pfedes'"
    )
    said = cluster.call("run", RUN_CONFIG=run)
    assert "finished:completed" in said
    rounds = cluster.fetched_rounds("pfedes")
    assert [r["train"]["replied"] for r in rounds] == [list(CLIENTS)] * 2
    assert not (cluster.results / "pfedes/checkpoints").exists()
    find = ["find", "/var/lib/flower/state", "-name", "*.safetensors"]
    modes = cluster.on("client-0", *find, "-printf", "%m\n").split()
    assert set(modes) == {"600"}


def test_failed_run_fails_the_command(cluster: Cluster) -> None:
    said = cluster.call("run", RUN_CONFIG=f"{DATA} num-server-rounds=0", fails=True)
    assert "num-server-rounds" in said


def test_killed_client_comes_back_into_the_run(cluster: Cluster) -> None:
    run = cluster.start(
        "run",
        RUN_CONFIG=f"{DATA} method='xfed' num-server-rounds=10 experiment='xfed'",
    )
    wait_for(lambda: run.poll() is not None or cluster.rounds("xfed"), 300)
    client = cluster.containers()["client-1"]["Id"]

    def has_just_begun() -> bool:
        lines = cluster.docker("top", client, "-eo", "pid,etimes,args").splitlines()
        ages = [int(line.split()[1]) for line in lines if "flwr-clientapp" in line]
        return min(ages, default=60) < 3  # a message takes longer

    wait_for(has_just_begun, 120)
    cluster.docker("kill", client)
    cluster.docker("start", client)
    said, _ = run.communicate(timeout=900)
    print(said)
    assert run.returncode == 0
    rounds = cluster.fetched_rounds("xfed")
    assert [r["round"] for r in rounds] == list(range(1, 11))
    assert all({"client-0", "client-2"} <= set(r["train"]["replied"]) for r in rounds)
    # It was killed in training or evaluation, is refused for up to a minute, and then
    # back.
    phases = [r[name] for r in rounds for name in ("train", "evaluate") if name in r]
    assert any("client-1" not in phase["replied"] for phase in phases)
    assert rounds[-1]["train"]["replied"] == list(CLIENTS)


def test_run_can_be_stopped(cluster: Cluster) -> None:
    run = cluster.start(
        "run",
        RUN_CONFIG=f"{DATA} method='fedper' num-server-rounds=50 experiment='stopped'",
    )
    wait_for(lambda: run.poll() is not None or cluster.rounds("stopped"), 300)
    (run_id,) = json.loads(cluster.on("superlink", "control", "runs"))
    said = cluster.on("superlink", "control", "stop", run_id)
    assert json.loads(said) == {"changed": True}
    said, _ = run.communicate(timeout=300)
    assert run.returncode != 0
    assert "finished:stopped" in said
    assert 1 <= len(cluster.fetched_rounds("stopped")) < 50


def test_cluster_goes_on_after_down_and_up(cluster: Cluster) -> None:
    before = {name: node["node-id"] for name, node in cluster.nodes().items()}
    cluster.call("down")
    assert cluster.containers() == {}
    assert "is not up: 'make cluster' starts it" in cluster.call("run", fails=True)
    cluster.call("up")
    assert {name: node["node-id"] for name, node in cluster.nodes().items()} == before
    run = f"{DATA} method='xfed' num-server-rounds=11 experiment='xfed' resume=true"
    cluster.call("run", RUN_CONFIG=run)
    rounds = cluster.fetched_rounds("xfed")
    assert [r["round"] for r in rounds] == list(range(1, 12))
    assert rounds[-1]["train"]["replied"] == list(CLIENTS)
    # The clients went on from their own personal states.
    assert not any(r["train"].get("lost_states") for r in rounds)


def test_two_clusters_live_side_by_side(
    cluster: Cluster, settings: dict[str, str], tmp_path: Path
) -> None:
    other = Cluster(folder=tmp_path, name="b", CLIENTS="2", **settings)
    try:
        other.call("up")
        ids = [{n["node-id"] for n in c.nodes().values()} for c in (cluster, other)]
        assert [len(i) for i in ids] == [3, 2]
        assert not ids[0] & ids[1]
        # Clients without data of their own share a data set.
        run = "method='xfed' num-server-rounds=1 experiment='digits'"
        other.call("run", RUN_CONFIG=run)
        assert len(other.fetched_rounds("digits")[0]["train"]["replied"]) == 2
    finally:
        other.call("clean")
    label = f"label=com.docker.compose.project={other.project}"
    assert other.docker("volume", "ls", "--quiet", "--filter", label) == ""
    assert {n["status"] for n in cluster.nodes().values()} == {"online"}
