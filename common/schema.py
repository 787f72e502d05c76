"""How a setting is declared, checked and documented."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

Scalar = bool | int | float | str


class SettingsError(ValueError):
    """One or more settings are wrong; the message lists every problem."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        lines = "\n".join(f"  - {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count} in the settings:\n{lines}")


def setting(
    default: Scalar,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> Any:
    """Declare one setting: its default, its meaning and the values it may take.

    Parameters
    ----------
    default
        Value used where the user gives none; its type is the setting's type.
    help
        One sentence for the settings table of the README.
    choices
        The allowed strings.
    minimum, maximum
        Inclusive bounds.
    above
        Exclusive lower bound.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "help": help,
            "choices": choices,
            "minimum": minimum,
            "maximum": maximum,
            "above": above,
        },
    )


@dataclass(frozen=True, slots=True)
class Key:
    """One documented key of the run configuration."""

    name: str
    section: type[Any]
    field: dataclasses.Field[Any]

    @property
    def default(self) -> Scalar:
        """Value used where the user gives none."""
        return cast(Scalar, self.field.default)

    @property
    def help(self) -> str:
        """Meaning of the setting."""
        return str(self.field.metadata["help"])

    def allowed(self) -> str:
        """Describe the allowed values in words."""
        meta = self.field.metadata
        if meta["choices"]:
            return "one of " + ", ".join(meta["choices"])
        kind = {bool: "true or false", int: "a whole number", float: "a number"}.get(
            type(self.default), "text"
        )
        bounds = [
            f"{word} {meta[name]:g}"
            for name, word in (
                ("above", "above"),
                ("minimum", "at least"),
                ("maximum", "at most"),
            )
            if meta[name] is not None
        ]
        return " ".join([kind, " and ".join(bounds)]).strip()

    def check(self, value: object) -> Scalar | None:
        """Return `value` in the setting's type, or None where it is not allowed."""
        kind = type(self.default)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            return None
        meta = self.field.metadata
        if meta["choices"]:
            return cast(Scalar, value) if value in meta["choices"] else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            ok = (
                math.isfinite(value)
                and (meta["minimum"] is None or value >= meta["minimum"])
                and (meta["maximum"] is None or value <= meta["maximum"])
                and (meta["above"] is None or value > meta["above"])
            )
            return value if ok else None
        return cast(Scalar, value)


def documentation(keys: Iterable[Key]) -> str:
    """Return a Markdown table of settings: key, default, allowed values, meaning."""
    rows = [
        f"| `{key.name}` | `{key.default!r}` | {key.allowed()} | {key.help} |"
        for key in keys
    ]
    header = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    return "\n".join([*header, *rows])
