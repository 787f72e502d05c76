"""Run configurations of the papers' experiments, as TOML files.

Flower takes either a file or ``key=value`` pairs. To change a preset, let this module
merge them::

    flower-simulation --app . --num-supernodes 100 \
        --run-config "$(python -m common.presets xfed-cifar10-dir0.3 seed=1)"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import tomli

from common.schema import Scalar, SettingsError
from common.settings import parse_settings

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def merge(preset: str | None, overrides: Iterable[str]) -> dict[str, Scalar]:
    """Merge a preset and ``key=value`` pairs into one flat, checked run configuration.

    Parameters
    ----------
    preset
        Name of a preset or path of a TOML file; None starts from the defaults.
    overrides
        Pairs as for Flower's ``--run-config``; bare words count as text.

    Raises
    ------
    SettingsError
        The preset is unknown, a pair is no pair, or a setting is wrong.
    """
    config: dict[str, Scalar] = {}
    if preset is not None:
        path = Path(preset) if preset.endswith(".toml") else FOLDER / f"{preset}.toml"
        if not path.is_file():
            raise SettingsError(
                [f"no preset {preset!r}: must be a .toml file or one of {names()}"]
            )
        config.update(_flatten(tomli.loads(path.read_text())))
    config.update(parse_pairs(overrides))
    parse_settings(config)
    return config


def parse_pairs(pairs: Iterable[str]) -> dict[str, Scalar]:
    """Parse ``key=value`` pairs as for Flower's ``--run-config``.

    Bare words count as text. Raises :class:`SettingsError` where a pair is no pair.
    """
    config: dict[str, Scalar] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise SettingsError([f"{pair!r} is not of the form key=value"])
        config[key.strip()] = _value(text.strip())
    return config


def to_run_config(config: Mapping[str, Scalar]) -> str:
    """Write a flat configuration as Flower's ``--run-config`` takes it."""
    return " ".join(f"{key}={_literal(value)}" for key, value in config.items())


def _flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value  # type: ignore[assignment]
    return flat


def _value(text: str) -> Scalar:
    try:
        value = tomli.loads(f"value = {text}")["value"]
    except tomli.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _literal(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if "'" not in value:
        return f"'{value}'"
    if '"' not in value and "\\" not in value:
        return f'"{value}"'
    raise SettingsError(
        [f"{value!r} cannot be written as key=value: use a TOML file for it"]
    )
