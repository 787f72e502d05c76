"""Networks, each saying what it shares.

Built in are the early-exit networks ``convnet``, ``resnet18`` and ``transformer`` of
X-FED and the single-exit networks ``cnn-1`` to ``cnn-5`` of pFedES; all adapt to
channels, image size and number of classes. A new one is a function of a ``DataSpec``
that returns a :class:`Network`, and a line in the registry below. An operator's own
``torch.nn.Module`` needs no change here: see :mod:`common.models.own`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from common.data.spec import DataSpec
from common.models.base import (
    BATCH_NORM,
    GlobalAveragePool,
    Network,
    last_exit_keys,
    logits_per_exit,
    shared_keys,
)
from common.models.convnet import CNN_WIDTHS, cnn, convnet
from common.models.extractor import Extractor
from common.models.macs import count_macs, early_exit_macs
from common.models.own import build_own
from common.models.resnet import resnet18
from common.models.transformer import transformer
from common.settings import HETEROGENEOUS

__all__ = [
    "BATCH_NORM",
    "Extractor",
    "GlobalAveragePool",
    "Network",
    "build_extractor",
    "build_network",
    "count_macs",
    "early_exit_macs",
    "last_exit_keys",
    "logits_per_exit",
    "model_name",
    "shared_keys",
]

_IMAGE_NETWORKS: Final[dict[str, Callable[[DataSpec], Network]]] = {
    "convnet": convnet,
    "resnet18": resnet18,
    **{name: functools.partial(cnn, name) for name in CNN_WIDTHS},
}
_TEXT_NETWORKS: Final[dict[str, Callable[[DataSpec], Network]]] = {
    "transformer": transformer,
}


def build_network(name: str, spec: DataSpec, *, seed: int) -> nn.Module:
    """Build a network on the CPU, in training mode.

    Parameters
    ----------
    name
        A built-in network's name, or ``"package.module:function"``, see
        :mod:`common.models.own`. ``"heterogeneous"`` goes through :func:`model_name`
        first.
    spec
        Data that the network reads.
    seed
        Fixes the initial weights. The global random state is left as it was.

    Raises
    ------
    ValueError
        If there is no such network or it does not read this kind of data.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if ":" in name:
            return build_own(name, spec)
        return _builder(name, spec)(spec)


def build_extractor(spec: DataSpec, *, seed: int) -> Extractor:
    """Build the shared extractor G of pFedES on the CPU.

    Parameters
    ----------
    spec
        Data that it reads: images.
    seed
        Fixes the initial weights. The global random state is left as it was.

    Raises
    ------
    ValueError
        If the data are not images.
    """
    if spec.kind != "image":
        raise ValueError(
            f"kind = {spec.kind!r}: the extractor of pFedES reads images; choose an "
            "image data set or another method"
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return Extractor(spec.shape[0])


def model_name(model: str, client_index: int) -> str:
    """Return the name of one client's network.

    Parameters
    ----------
    model
        The setting ``model``. ``"heterogeneous"`` gives client i the network
        CNN-((i mod 5) + 1) (pFedES); any other name is returned as it is.
    client_index
        Index i of the client from 0.
    """
    if model == HETEROGENEOUS:
        return f"cnn-{client_index % 5 + 1}"
    return model


def _builder(name: str, spec: DataSpec) -> Callable[[DataSpec], Network]:
    networks = _IMAGE_NETWORKS if spec.kind == "image" else _TEXT_NETWORKS
    if name in networks:
        return networks[name]
    if name in _IMAGE_NETWORKS or name in _TEXT_NETWORKS:
        raise ValueError(
            f"model = {name!r} does not read {spec.kind} data; choose one of "
            f"{', '.join(networks)}"
        )
    raise ValueError(
        f"model = {name!r}: no such network; choose one of "
        f"{', '.join(_IMAGE_NETWORKS | _TEXT_NETWORKS)}, or 'package.module:function' "
        "of your own"
    )
