from __future__ import annotations

from pathlib import Path

from server_app.simulate import plan


def test_personal_states_go_to_the_runs_own_folder(tmp_path: Path) -> None:
    configs = plan(["xfed", "fedper@digits-early-exit"], ["seed=1"], 10, tmp_path)
    assert [config["experiment"] for config in configs] == [
        "xfed",
        "fedper-digits-early-exit",
    ]
    for config in configs:
        assert config["output-dir"] == str(tmp_path)
        state = tmp_path / str(config["experiment"]) / "state"
        assert config["state-dir"] == str(state)


def test_states_elsewhere_or_in_memory_only(tmp_path: Path) -> None:
    for wanted in ("/data/states", ""):
        (config,) = plan(["xfed"], [f"state-dir={wanted}"], 10, tmp_path)
        assert config["state-dir"] == wanted
