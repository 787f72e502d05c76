from __future__ import annotations

from pathlib import Path

import pytest
import torch

from client_app.memory import free_memory, host_memory

GIB = 2**30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Proc of a machine with 3 GiB available and no limits."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        "MemTotal:        8388608 kB\nMemFree:          100 kB\n"
        "MemAvailable:    3145728 kB\n"
    )
    (proc / "self/status").write_text("Name:\tpython\nVmSize:\t 1048576 kB\n")
    (proc / "self/cgroup").write_text("")
    address_space(proc, "unlimited")
    return proc


def address_space(proc: Path, limit: object) -> None:
    (proc / "self/limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units\n"
        f"Max address space         {limit:<20}           unlimited            bytes\n"
    )


def group(folder: Path, limit: object, usage: int, cache: int, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("max", "current") if version == 2 else ("limit_in_bytes", "usage_in_bytes")
    stat = "inactive_file" if version == 2 else "total_inactive_file"
    for name, value in zip(names, (limit, usage), strict=True):
        (folder / f"memory.{name}").write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{stat} {cache}\n")


def test_what_the_machine_has(proc: Path, tmp_path: Path) -> None:
    assert host_memory(proc, tmp_path / "none") == 3 * GIB


def test_limit_of_a_group_above(proc: Path, tmp_path: Path) -> None:
    # 2 GiB - 1.5 GiB used, of which 0.25 GiB can be dropped.
    cgroups = tmp_path / "cgroup"
    (proc / "self/cgroup").write_text("0::/machine/node/app\n")
    group(cgroups / "machine/node", 2 * GIB, 3 * GIB // 2, GIB // 4, version=2)
    group(cgroups / "machine/node/app", "max", GIB, 0, version=2)
    assert host_memory(proc, cgroups) == 3 * GIB // 4


def test_first_version_of_groups(proc: Path, tmp_path: Path) -> None:
    cgroups = tmp_path / "cgroup"
    (proc / "self/cgroup").write_text("4:cpu,cpuacct:/\n7:memory:/node\n0::/\n")
    group(cgroups / "memory", 2**63 - 4096, 5 * GIB, 0, version=1)
    group(cgroups / "memory/node", 2 * GIB, GIB, 0, version=1)
    assert host_memory(proc, cgroups) == GIB


def test_in_a_container_the_own_group_is_the_root(proc: Path, tmp_path: Path) -> None:
    cgroups = tmp_path / "cgroup"
    (proc / "self/cgroup").write_text("0::/docker/0123\n")
    group(cgroups, GIB, GIB // 4, 0, version=2)
    assert host_memory(proc, cgroups) == 3 * GIB // 4


def test_limit_of_the_address_space(proc: Path, tmp_path: Path) -> None:
    address_space(proc, 3 * GIB // 2)
    assert host_memory(proc, tmp_path / "none") == GIB // 2
    address_space(proc, GIB // 2)
    assert host_memory(proc, tmp_path / "none") == 0


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert host_memory(tmp_path, tmp_path) is None


def test_memory_of_a_cpu_is_that_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client_app.memory.host_memory", lambda: 7)
    assert free_memory(torch.device("cpu")) == 7
