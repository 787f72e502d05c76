"""Versions that a result depends on."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

_PACKAGES = ("flower-personalized", "flwr", "torch", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of Python, this app and the libraries it computes with."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


@cache
def version_line() -> str:
    """Return all versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in versions().items())
