"""The methods, client half: one file each."""

from __future__ import annotations

from typing import Final

from client_app.methods.fedavg import FedAvg
from client_app.methods.fedper import FedPer
from client_app.methods.pfedes import PFedES
from client_app.methods.standalone import Standalone
from client_app.methods.xfed import XFed
from client_app.trainer import Trainer

TRAINERS: Final[dict[str, type[Trainer]]] = {
    "standalone": Standalone,
    "fedavg": FedAvg,
    "fedper": FedPer,
    "pfedes": PFedES,
    "xfed": XFed,
}
"""Registry of the methods: name to trainer."""

__all__ = ["TRAINERS", "FedAvg", "FedPer", "PFedES", "Standalone", "XFed"]
