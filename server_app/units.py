"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_DECIMAL: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
PERCENT: Final = 100.0


def scale(largest: float) -> tuple[float, str]:
    """Return the divisor and SI prefix with which `largest` has few digits."""
    for divisor, prefix in _DECIMAL:
        if largest >= divisor:
            return divisor, prefix
    return 1.0, ""


def quantity(value: float | None, unit: str) -> str:
    """Write a value with an SI prefix, e.g. ``26.92 MB`` or ``26.92 M MACs``."""
    if value is None:
        return "–"
    divisor, prefix = scale(abs(value))
    digits = 0 if divisor == 1 and value == int(value) else 2
    space = " " if len(unit) > 1 and prefix else ""
    return f"{value / divisor:,.{digits}f} {prefix}{space}{unit}"


def percent(value: float | None, spread: float | None = None) -> str:
    """Write a fraction in percent, with its standard deviation where there is one."""
    if value is None:
        return "–"
    text = f"{PERCENT * value:.2f}"
    return text if spread is None else f"{text} ± {PERCENT * spread:.2f}"


def percents(values: Sequence[float]) -> list[float]:
    """Return fractions in percent."""
    return [PERCENT * value for value in values]


def duration(seconds: float) -> str:
    """Write a duration in the two largest fitting units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def roughly(seconds: float) -> str:
    """Write a duration in one unit."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6_000:
        return f"{seconds / 60:.0f} min"
    return (
        f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86400:.0f} d"
    )
