"""The working folder of a federation on one machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from deploy.processes import FederationError


def check_places(app: Path, workdir: Path) -> None:
    """Check where the app and the working folder lie.

    Raises
    ------
    ValueError
        There is no app, or the working folder would become part of it.
    """
    if not (app / "pyproject.toml").is_file():
        raise ValueError(f"{app} has no pyproject.toml; give the folder of the app")
    if workdir.is_relative_to(app):
        raise ValueError(
            f"the working folder {workdir} lies inside the app {app}, whose .py, .toml "
            "and .md files all go to the nodes; choose a folder outside"
        )


def renew_flower_folder(folder: Path) -> Path:
    """Make the folder for keys, database and Flower's own files anew.

    Returns
    -------
    The file for the numbers of process groups.

    Raises
    ------
    FederationError
        The folder exists and is somebody else's.
    """
    pids = folder / "pids"
    if folder.exists():
        if not pids.exists():
            raise FederationError(
                f"{folder} exists and is not from a federation; choose another working "
                "folder"
            )
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    pids.touch()
    return pids
