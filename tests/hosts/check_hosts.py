"""The playbooks, applied to a server and three clients: ``make test-hosts``.

The hosts have systemd, sshd and addresses of their own, see ``machines.py``. The checks
build on one another, in their order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from machines import Machines, missing
from prepare import (
    REPOSITORY,
    VENV,
    build_wheel,
    build_wheelhouse,
    prepare_environment,
)

CLIENTS = ("client-0", "client-1", "client-2")
STATE = "/var/lib/flower-personalized"
CONTROL = "runuser -u flower -- /opt/flower-personalized/bin/control"
DOCTOR = "runuser -u flower -- /opt/flower-personalized/bin/doctor"

RUN = (
    "method='xfed' dataset='custom' num-classes=3 image-size=32 channels=3 "
    "num-server-rounds=4 min-available-nodes=3 batch-size=16 round-timeout=240.0 "
    "experiment='trial'"
)

PLAYBOOK = os.environ.get("ANSIBLE_PLAYBOOK", "ansible-playbook")


class Federation:
    """The hosts and the playbooks for them."""

    def __init__(self, machines: Machines, folder: Path, wheel: Path) -> None:
        self.machines = machines
        self.folder = folder
        hosts = {
            name: {"ansible_host": address}
            for name, address in machines.addresses.items()
        }
        # One client goes by address, the others by name.
        hosts["client-1"]["flower_server_address"] = machines.addresses["server"]
        inventory = {
            "all": {
                "vars": {
                    "ansible_user": "root",
                    "ansible_ssh_common_args": " ".join(machines.ssh_options),
                    "ansible_python_interpreter": "/usr/bin/python3",
                    "flower_wheel": str(wheel),
                    "flower_torch": ["torch", "torchvision"],
                    "flower_server_address": "server",
                    "flower_memory_max": "4G",
                }
            },
            "superlink": {"hosts": {"server": hosts["server"]}},
            "supernodes": {"hosts": {name: hosts[name] for name in CLIENTS}},
        }
        # JSON is YAML.
        (folder / "inventory.yml").write_text(json.dumps(inventory), encoding="utf-8")

    def command(self, playbook: str, *arguments: str) -> list[str]:
        where = str(self.folder / "inventory.yml")
        return [PLAYBOOK, "-i", where, f"{playbook}.yml", *arguments]

    def play(self, playbook: str, *arguments: str, fails: bool = False) -> str:
        """Run a playbook and return what it said."""
        result = self.machines.on_hub(
            *self.command(playbook, *arguments),
            check=False,
            cwd=REPOSITORY / "deploy/ansible",
            env={**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"},
        )
        print(result.stdout)
        assert (result.returncode != 0) == fails, result.stdout[-6000:]
        return result.stdout

    def on(self, host: str, command: str) -> str:
        """Run a command on a host and return its output."""
        result = self.machines.ssh(host, command, check=False)
        assert result.returncode == 0, f"{host}: {command}\n{result.stdout}"
        return result.stdout

    def nodes(self) -> dict[str, str]:
        """Return the status of every node as SuperLink sees it."""
        answer = json.loads(self.on("server", f"{CONTROL} nodes"))
        return {name: node["status"] for name, node in answer.items()}

    def wait_until_online(self, *names: str) -> None:
        wait_for(
            lambda: [self.nodes().get(n) for n in names] == ["online"] * len(names)
        )


def wait_for(true: Callable[[], Any], timeout: float = 180) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(1)


def write_data(folder: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for part, count in (("train", 48), ("test", 24)):
        labels = np.arange(count) % 3
        noise = generator.integers(0, 100, (count, 32, 32, 3))
        images = (noise + 70 * labels[:, None, None, None]).astype(np.uint8)
        np.savez(folder / f"{part}.npz", images=images, labels=labels)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    if reason := missing():
        pytest.skip(reason)
    if not shutil.which(PLAYBOOK):
        pytest.skip(f"{PLAYBOOK} is not installed: pip install ansible-core")
    folder = tmp_path_factory.mktemp("controller")
    wheel = build_wheel(folder)
    shared = {prepare_environment(wheel): VENV}
    with Machines(["server", *CLIENTS], shared) as machines:
        for seed, name in enumerate(CLIENTS):
            data = machines.folder / name / "root/srv/flower-data"
            data.mkdir(parents=True)
            write_data(data, seed)
        yield Federation(machines, folder, wheel)


def test_site_sets_everything_up(federation: Federation) -> None:
    federation.play("site")
    federation.wait_until_online(*CLIENTS)
    for host in ("server", *CLIENTS):
        federation.on(host, "systemd-analyze verify /etc/systemd/system/flower-*")


def test_site_changes_nothing_when_repeated(federation: Federation) -> None:
    said = federation.play("site")
    assert re.findall(r"changed=(\d+)", said) == ["0"] * 4


def test_private_keys_never_leave_their_host(federation: Federation) -> None:
    keys = {}
    for name in CLIENTS:
        path = "/etc/flower-personalized/node.key"
        assert federation.on(name, f"stat -c '%a %U %G' {path}") == "640 root flower\n"
        # The eighth line holds most of the secret number.
        keys[name] = federation.on(name, f"cat {path}").splitlines()[7]
    assert len(set(keys.values())) == 3
    for key in keys.values():
        search = f"grep -rF '{key}' /etc/flower-personalized {STATE} /var/log /tmp"
        assert federation.machines.ssh("server", search, check=False).returncode == 1
        held = subprocess.run(["grep", "-rF", key, federation.folder], check=False)
        assert held.returncode == 1
    # Packages of the system's own Python may bring authorities of that name for tests.
    elsewhere = "-path '*/site-packages' -prune"
    search = f"find / -xdev {elsewhere} -o -name ca.key -print"
    authority = federation.machines.ssh("server", search)
    assert authority.stdout == ""


def test_only_the_encrypted_port_is_open(federation: Federation) -> None:
    for port, open_ in ((9092, True), (9091, False), (9093, False)):
        probe = f"bash -c 'exec 3<>/dev/tcp/server/{port}'"
        answer = federation.machines.ssh("client-0", probe, check=False)
        assert (answer.returncode == 0) == open_, port


def test_services_run_without_privileges(federation: Federation) -> None:
    for host, name in (("server", "superlink"), ("client-0", "supernode")):
        main = f"$(systemctl show -P MainPID flower-{name})"
        status = federation.on(host, f"cat /proc/{main}/status")
        assert re.search(r"CapEff:\s+0+\n", status)
        assert re.search(r"NoNewPrivs:\s+1\n", status)
        assert federation.on(host, f"ps -o user= -p {main}") == "flower\n"


def test_doctor_names_the_problem_and_the_remedy(federation: Federation) -> None:
    federation.play("doctor")
    federation.on("client-1", "mv /srv/flower-data/train.npz /srv/train.npz")
    said = federation.play("doctor", "--limit", "client-1", fails=True)
    assert "holds no training data: put there" in said
    federation.on("client-1", "mv /srv/train.npz /srv/flower-data/train.npz")
    findings = json.loads(federation.on("client-1", f"{DOCTOR} --json"))
    assert {f["check"]: f["message"] for f in findings}["registration"] == (
        "registered, and online"
    )


def test_run_outlives_a_cut_link(federation: Federation) -> None:
    machines = federation.machines
    rounds = f"cat {STATE}/runs/trial/rounds.jsonl 2>/dev/null | wc -l"
    run = subprocess.Popen(
        [
            *("ip", "netns", "exec", machines.hub),
            *federation.command("run", "-e", json.dumps({"run_config": RUN})),
        ],
        cwd=REPOSITORY / "deploy/ansible",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: run.poll() or int(federation.on("server", rounds)) >= 1, 400)
    machines.cut("client-1")
    # While it is cut, neither a restart nor another playbook gets in the way.
    assert "Runs are in progress" in federation.play("stop", fails=True)
    time.sleep(30)
    machines.mend("client-1")
    said, _ = run.communicate(timeout=900)
    print(said)
    assert run.returncode == 0
    results = federation.folder / "results/trial"
    lines = (results / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [json.loads(line) for line in lines]
    assert [r["round"] for r in rounds] == [1, 2, 3, 4]
    # A message that SuperLink hands to a dying connection is lost, and with it at most
    # that client's part in that round.
    assert all({"client-0", "client-2"} <= set(r["train"]["replied"]) for r in rounds)
    assert rounds[-1]["train"]["replied"] == list(CLIENTS)
    assert not (results / "checkpoints").exists()


def test_killed_node_comes_back_by_itself(federation: Federation) -> None:
    welcomes = "grep -c 'SuperNode ID:' /var/log/flower-personalized/supernode.log"
    before = int(federation.on("client-2", welcomes))
    federation.on(
        "client-2", "systemctl kill --kill-whom=main --signal=KILL flower-supernode"
    )
    # SuperLink refuses it until its last heartbeat is overdue.
    wait_for(lambda: int(federation.on("client-2", welcomes)) > before)


def test_logs_are_rotated_while_services_write(federation: Federation) -> None:
    federation.on("server", "logrotate --force /etc/logrotate.d/flower-personalized")
    log = "/var/log/flower-personalized/superlink.log"
    federation.on("server", f"test -s {log}.1")
    federation.on("server", f"{CONTROL} nodes")
    wait_for(lambda: int(federation.on("server", f"stat -c %s {log}")) > 0, 30)
    assert "Fleet.PullMessages" in federation.play("logs", "--limit", "server")


def test_certificate_is_renewed_by_the_same_authority(federation: Federation) -> None:
    show = "openssl x509 -noout -serial -in /etc/flower-personalized/"
    before = federation.on("server", f"{show}server.pem")
    authority = federation.on("client-0", f"{show}ca.pem")
    federation.play("renew_certificate", "-e", "flower_renew_days=10000")
    assert federation.on("server", f"{show}server.pem") != before
    assert federation.on("server", f"{show}ca.pem") == authority
    federation.play("doctor")


def test_revoked_key_is_refused(federation: Federation) -> None:
    federation.on("client-2", "cp -a /etc/flower-personalized/node.key /tmp/old.key")
    federation.play("revoke", "-e", "node=client-2")
    assert set(federation.nodes()) == {"client-0", "client-1"}
    federation.on("client-2", "cp -a /tmp/old.key /etc/flower-personalized/node.key")
    said = federation.machines.ssh("client-2", DOCTOR, check=False)
    assert said.returncode == 1
    assert re.search("failed +registration .*is not registered.*revoked", said.stdout)
    federation.on("client-2", "rm /etc/flower-personalized/node.key")


def test_stopped_federation_starts_again(federation: Federation) -> None:
    federation.play("site", "--limit", "client-2")  # lets it in again, with a new key
    federation.play("stop")
    federation.play("start")
    federation.wait_until_online(*CLIENTS)
    assert "client-2" in federation.play("status")


def test_upgrade_from_a_wheelhouse(federation: Federation) -> None:
    wheel = build_wheelhouse(federation.folder, "999.0", "safetensors")
    federation.on("client-1", f"{VENV}/bin/pip uninstall --yes safetensors")
    said = federation.play(
        "upgrade", "-e", f"flower_wheel={wheel} flower_wheelhouse={wheel.parent}"
    )
    assert re.search(r"client-1 .*failed=0", said)
    for host in ("server", *CLIENTS):
        packages = federation.on(host, f"{VENV}/bin/pip list --format=freeze")
        assert "flower-personalized==999.0\n" in packages
        assert "safetensors==" in packages
    federation.wait_until_online(*CLIENTS)
    federation.play("doctor")
