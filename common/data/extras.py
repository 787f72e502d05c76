"""Packages that a device with data of its own does not need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(purpose: str) -> Iterator[None]:
    """Guard an import from the extra ``datasets``.

    Raises
    ------
    ModuleNotFoundError
        In place of the import's own; says what the package is for and how to install
        it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{purpose} needs the package {error.name}, which is not installed: pip "
            "install 'flower-personalized[datasets]'",
            name=error.name,
        ) from error
