"""The hook for an operator's own network, as a private model of pFedES or standalone.

The setting or node configuration ``model = "package.module:function"`` names a function
that builds the network. The module must be importable on the client: installed, or in a
folder on ``PYTHONPATH``. A whole example, ``my_models.py``::

    from torch import nn

    def small_net(channels, height, width, num_classes):
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, num_classes),
        )

used as ``model = "my_models:small_net"``. The function is called with the four keywords
above, all of them integers. The module it returns reads float32 images (N, channels,
height, width) and returns logits (N, num_classes); softmax is not applied in it. It is
used as it is: nothing wraps it, nothing of it leaves the client. Initial weights are
the same for the same seed as long as they come from torch's random numbers.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from common.data.spec import DataSpec
from common.models.base import logits_per_exit

_SIGNATURE = "function(channels, height, width, num_classes)"


def build_own(name: str, spec: DataSpec) -> nn.Module:
    """Build the network that an operator's function returns, and try it once.

    Parameters
    ----------
    name
        ``"package.module:function"``.
    spec
        Data that the network reads: images.

    Raises
    ------
    ValueError
        If there is no such module or function, if it cannot be called as above, or if
        what it returns is no module, or one that does not turn two images into logits
        (2, num_classes). Errors inside the operator's function pass through.
    """
    if spec.kind != "image":
        raise ValueError(
            f"model = {name!r}: own networks read images, not {spec.kind}; use "
            "model = 'transformer'"
        )
    function = _find(name)
    channels, height, width = spec.shape
    arguments = {
        "channels": channels,
        "height": height,
        "width": width,
        "num_classes": spec.num_classes,
    }
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"model = {name!r}: cannot be called as {_SIGNATURE} ({error}); name its "
            "parameters so"
        ) from error
    network = function(**arguments)
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"model = {name!r}: returned {type(network).__name__}; return a "
            "torch.nn.Module"
        )
    _try(name, network, spec)
    return network


def _find(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ValueError(f"model = {name!r}: write 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"model = {name!r}: cannot import {module_name!r} ({error}); install it on "
            "this client, or put its folder on PYTHONPATH"
        ) from error
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(
            f"model = {name!r}: {module_name!r} has no function {function_name!r}; "
            f"define {_SIGNATURE} there"
        )
    return function


def _try(name: str, network: nn.Module, spec: DataSpec) -> None:
    """Check the network's logits for two images, without a trace on its state."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    x = torch.zeros(2, *spec.shape)
    try:
        with torch.no_grad():
            outputs: list[Tensor] = logits_per_exit(network, x)
    except Exception as error:
        raise ValueError(
            f"model = {name!r}: failed on a batch of shape {tuple(x.shape)} ({error}); "
            f"it must return logits of shape (2, {spec.num_classes})"
        ) from error
    for logits in outputs:
        if logits.shape != (2, spec.num_classes):
            raise ValueError(
                f"model = {name!r}: returned shape {tuple(logits.shape)} for 2 "
                f"samples; it must return logits of shape (2, {spec.num_classes})"
            )
    for module, training in modes:
        module.training = training
