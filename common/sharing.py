"""What a method shares of which module, declared once for server and client."""

from __future__ import annotations

from torch import nn

from common.data import DataSpec, data_spec
from common.models import build_extractor, build_network, shared_keys
from common.settings import Settings
from common.state import State, read_state


def shared_module(settings: Settings, spec: DataSpec) -> nn.Module:
    """Build the module that holds the shared parameters, with its initial weights.

    For scope ``extractor`` that is pFedES's extractor G, else the network itself.
    """
    if settings.shares == "extractor":
        return build_extractor(spec, seed=settings.seed)
    return build_network(settings.model, spec, seed=settings.seed)


def keys_to_share(module: nn.Module, settings: Settings) -> tuple[str, ...]:
    """Return the names of the module's ``state_dict`` entries that are shared."""
    return shared_keys(module, settings.shares, settings.training.batch_norm)


def initial_shared(settings: Settings) -> State:
    """Return the shared parameters of round 1."""
    if settings.shares == "none":
        return {}
    module = shared_module(settings, data_spec(settings.data))
    return read_state(module, keys_to_share(module, settings))
