from __future__ import annotations

from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from deploy.flower_cli import EXECUTABLES, Scalar, flower_environment, format_config
from deploy.nodes import NodeSpec, numbered_nodes


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"partition-id": 0, "num-partitions": 10, "seed": -1},
        {"learning-rate": 1e-05, "decay": 0.99, "momentum": 1.0},
        {"yes": True, "no": False},
        {"data-path": "/data/my files/a=b c=d", "empty": "", "file": "x.toml"},
        {
            "name": "it's",
            "quoted": 'say "hi"',
            "windows": r"C:\new",
            "umlaut": "Zürich",
        },
        {"xfed.mu": 0.5, "xfed.schedule": "linear"},
    ],
)
def test_flower_reads_what_was_meant(config: dict[str, Scalar]) -> None:
    parsed = parse_config_args([format_config(config)])
    assert parsed == config
    assert [type(value) for value in parsed.values()] == [
        type(value) for value in config.values()
    ]


@pytest.mark.parametrize(
    "value", ['it\'s "both"', "it's\\n", "two\nlines", "tab\tstop"]
)
def test_what_flower_cannot_read_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"name = .* cannot be given to Flower"):
        format_config({"name": value})


@pytest.mark.parametrize("key", ["two words", "a=b", "", "quo'te"])
def test_a_wrong_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="use letters"):
        format_config({key: 1})


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/somewhere/else")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = flower_environment(tmp_path)
    assert environment["PATH"].split(":") == [str(EXECUTABLES), "/somewhere/else"]
    assert environment["FLWR_HOME"] == str(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("name", ["", "a/b", "..", "superlink", "a b"])
def test_a_node_name_must_fit_a_file(name: str) -> None:
    with pytest.raises(ValueError, match="node name"):
        NodeSpec(name)


def test_a_node_config_is_checked_at_once() -> None:
    with pytest.raises(ValueError, match="cannot be given to Flower"):
        NodeSpec("client-0", {"data-path": "a\nb"})


def test_numbered_nodes(tmp_path: Path) -> None:
    first, second = numbered_nodes(2, tmp_path)
    assert (first.name, second.name) == ("client-0", "client-1")
    assert second.config == {
        "client-name": "client-1",
        "partition-id": 1,
        "num-partitions": 2,
        "state-dir": str(tmp_path / "nodes" / "client-1" / "state"),
    }
