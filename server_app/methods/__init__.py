"""The methods, server half: one file each."""

from __future__ import annotations

from typing import Final

from server_app.methods.fedavg import FedAvg
from server_app.methods.fedper import FedPer
from server_app.methods.pfedes import PFedES
from server_app.methods.standalone import Standalone
from server_app.methods.xfed import XFed
from server_app.strategy import PersonalizedStrategy

STRATEGIES: Final[dict[str, type[PersonalizedStrategy]]] = {
    "standalone": Standalone,
    "fedavg": FedAvg,
    "fedper": FedPer,
    "pfedes": PFedES,
    "xfed": XFed,
}
"""Registry of the methods: name to strategy."""

__all__ = ["STRATEGIES", "FedAvg", "FedPer", "PFedES", "Standalone", "XFed"]
