from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from common import presets
from common.schema import SettingsError, documentation
from common.settings import PFedESSettings, XFedSettings, keys, parse_settings

ROOT = Path(__file__).resolve().parents[2]


def problems(**config: object) -> list[str]:
    flat = {key.replace("__", ".").replace("_", "-"): v for key, v in config.items()}
    with pytest.raises(SettingsError) as caught:
        parse_settings(flat)
    return caught.value.problems


def test_pyproject_declares_the_same_keys_and_defaults() -> None:
    table = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    declared = presets._flatten(table["config"])
    expected = {key.name: key.default for key in keys()}
    assert declared == expected
    for name, value in expected.items():
        assert type(declared[name]) is type(value), name


def test_readme_documents_every_key() -> None:
    # Regenerate the table with `python -m common.settings`.
    assert documentation(keys()) in (ROOT / "README.md").read_text()


def test_round_trip() -> None:
    config = {"method": "pfedes", "model": "heterogeneous", "pfedes.mu": 0.2, "seed": 4}
    settings = parse_settings(config)
    assert settings.of(PFedESSettings).mu == 0.2
    assert parse_settings(settings.to_config()) == settings


def test_whole_numbers_pass_as_floats_but_not_the_other_way() -> None:
    assert parse_settings({"learning-rate": 1}).training.learning_rate == 1.0
    assert len(problems(local_epochs=1.5)) == 1
    assert len(problems(local_epochs=True)) == 1


def test_all_problems_are_reported_at_once() -> None:
    found = problems(method="fedprox", xfed__mu=0, nonsense=1, fraction_train=1.5)
    assert len(found) == 4
    text = "\n".join(found)
    assert "standalone, fedavg, fedper, pfedes, xfed" in text
    assert "xfed.mu = 0: must be a number above 0" in text
    assert "unknown setting 'nonsense'" in text
    assert "fraction-train = 1.5: must be a number above 0 and at most 1" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_must_be_finite(value: float) -> None:
    assert str(value) in problems(learning_rate=value)[0]
    assert str(value) in problems(round_timeout=value)[0]


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"method": "xfed", "model": "cnn-1"}, "early-exit"),
        ({"method": "fedavg", "model": "heterogeneous"}, "averages networks"),
        ({"method": "fedper", "model": "mine:build"}, "averages networks"),
        ({"dataset": "agnews"}, "transformer"),
        ({"model": "transformer"}, "does not fit"),
        ({"model": "vgg"}, "must be one of"),
        ({"xfed__last_exit": "own", "xfed__teacher": "live"}, "aggregated"),
        ({"dataset": "custom", "num_classes": 3, "channels": 3}, "image-size = 0"),
        ({"channels": 2}, "must be 1 or 3"),
        ({"num_classes": 1}, "at least 2"),
        ({"experiment": "../x"}, "letters, digits"),
        ({"num_classes": 3, "class_names": "a,b"}, "2 names"),
    ],
)
def test_contradictions(config: dict[str, object], word: str) -> None:
    found = problems(**config)
    assert len(found) == 1
    assert word in found[0]


def test_pfedes_has_no_extractor_for_text() -> None:
    found = problems(method="pfedes", dataset="agnews", model="transformer")
    assert len(found) == 1


@pytest.mark.parametrize("name", presets.names())
def test_presets_are_valid(name: str) -> None:
    config = presets.merge(name, [])
    assert config["method"] == name.split("-")[0] or name.startswith("digits")


def test_presets_of_the_papers() -> None:
    names = set(presets.names())
    for data in ("cifar10", "cifar100", "tinyimagenet"):
        assert {f"xfed-{data}-dir0.3", f"xfed-{data}-dir0.1"} <= names
    for data in ("cifar10", "cifar100"):
        assert {f"pfedes-{data}-n{n}" for n in (10, 50, 100)} <= names
    assert "xfed-agnews-dir0.3" in names
    for name in names:
        if name.startswith("xfed-"):
            xfed = parse_settings(presets.merge(name, [])).of(XFedSettings)
            assert xfed.schedule == "linear"
            assert xfed.lambda_ == (0.2 if "agnews" in name else 1.0)


def test_overrides_win_over_the_preset() -> None:
    config = presets.merge(
        "xfed-cifar10-dir0.3", ["seed=3", "xfed.mu=0.7", "model=resnet18"]
    )
    settings = parse_settings(config)
    assert (settings.seed, settings.model) == (3, "resnet18")
    assert settings.of(XFedSettings).mu == 0.7
    assert settings.run.num_server_rounds == 300


def test_run_config_text_is_read_back_by_flower() -> None:
    from flwr.common.config import parse_config_args

    config = presets.merge("xfed-cifar10-dir0.3", ['data-path=/a "b" c\\d', "seed=3"])
    assert parse_config_args([presets.to_run_config(config)]) == config


def test_unknown_presets_and_pairs_are_named() -> None:
    with pytest.raises(SettingsError, match="no preset 'nope'"):
        presets.merge("nope", [])
    with pytest.raises(SettingsError, match="'seed' is not of the form"):
        presets.merge(None, ["seed"])


def test_text_that_flower_cannot_read_is_refused() -> None:
    config = parse_settings({"data-path": "it's"}).to_config()
    assert '"it\'s"' in presets.to_run_config(config)
    with pytest.raises(SettingsError, match="TOML file"):
        presets.to_run_config({"data-path": 'it\'s "x"'})
