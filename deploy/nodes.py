"""What a SuperNode is told about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.flower_cli import Scalar, format_config


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One SuperNode.

    Raises
    ------
    ValueError
        If the name is not fit for a file name or the configuration cannot be given to
        Flower.
    """

    name: str
    """Name of the node's folder and log."""
    config: Mapping[str, Scalar] = field(default_factory=dict)
    """Node configuration, ``context.node_config`` of the ClientApp. Relative paths
    count from the node's own folder."""
    superlink: str = ""
    """Address ``host:port`` under which the node reaches SuperLink, e.g. that of a
    proxy; empty: SuperLink's own."""
    root_certificates: Path | None = None
    """Authority that the node trusts; None: the federation's own."""
    prefix: tuple[str, ...] = ()
    """Command that starts the SuperNode's, e.g. ``("nice", "-n", "10")``."""

    def __post_init__(self) -> None:
        """Check name and configuration."""
        if self.name == "superlink" or not re.fullmatch(r"[\w-][\w.-]*", self.name):
            raise ValueError(
                f"node name {self.name!r}: use letters, digits, '-', '_' and '.', and "
                "not 'superlink'"
            )
        format_config(self.config)


def numbered_nodes(count: int, workdir: Path) -> list[NodeSpec]:
    """Return nodes that share one data set, each with a part and a state of its own.

    Parameters
    ----------
    count
        Number of nodes and of parts.
    workdir
        Working folder of the federation; the nodes keep their states in it.
    """
    return [
        NodeSpec(
            name,
            {
                "client-name": name,
                "partition-id": number,
                "num-partitions": count,
                "state-dir": str(workdir.resolve() / "nodes" / name / "state"),
            },
        )
        for number in range(count)
        for name in [f"client-{number}"]
    ]
