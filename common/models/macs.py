"""Cost of inference in multiply-accumulates (MACs) per sample.

The convention is that of the tool ``thop``, which gives the papers' figures for ConvNet
and ResNet-18: a convolution, linear layer or matrix product counts its multiplications,
biases are free; a BatchNorm costs 4 operations per output value (LayerNorm, which the
tool treats alike, too); an adaptive average pool costs k + 1 per output value, where k
is the number of inputs it averages; activations, max-pools, softmax, embeddings and
additions are free.

Of the Transformer X-FED states 811.57 M MACs; counting every product once gives
416.56 M for the same network. With T tokens, d = d_model, a
feed-forward of f units and c classes, n blocks and one exit cost
n·(4·T·d² + 2·T²·d + 2·T·d·f + 8·T·d) + d·c.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from common.data.spec import DataSpec
from common.models.base import GlobalAveragePool, Network

_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
)


def count_macs(network: nn.Module, spec: DataSpec) -> tuple[int, ...]:
    """Return what each exit costs where it is the network's only one.

    Parameters
    ----------
    network
        A :class:`~common.models.base.Network`, or a module with one exit.
    spec
        Data that the network reads.

    Returns
    -------
    tuple
        Per exit j the MACs per sample of blocks 1..j and exit j.
    """
    costs = _costs(network, spec)
    blocks = itertools.accumulate(block for block, _ in costs)
    return tuple(path + exit_ for path, (_, exit_) in zip(blocks, costs, strict=True))


def early_exit_macs(network: nn.Module, spec: DataSpec) -> tuple[int, ...]:
    """Return what each exit costs in early-exit inference.

    A sample that leaves at exit j has also been through the exits before it, none of
    which was confident enough.

    Parameters
    ----------
    network
        A :class:`~common.models.base.Network`, or a module with one exit.
    spec
        Data that the network reads.

    Returns
    -------
    tuple
        Per exit j the MACs per sample of blocks 1..j and exits 1..j.
    """
    return tuple(itertools.accumulate(map(sum, _costs(network, spec))))


def _costs(network: nn.Module, spec: DataSpec) -> list[tuple[int, int]]:
    """Return the MACs of each block and of its exit."""
    try:
        return _costs_on(network, spec, "meta")
    except RuntimeError:
        # An operator's module may hold or make tensors outside its buffers; those
        # cannot meet tensors without data.
        return _costs_on(network, spec, "cpu")


def _costs_on(network: nn.Module, spec: DataSpec, device: str) -> list[tuple[int, int]]:
    # Encoder layers with parameters to train do not take PyTorch's fused inference
    # kernel, and the MATH back end of attention consists of plain matrix products: in
    # the fused kernels of the CPU the operations of attention would not be seen.
    network = copy.deepcopy(network).to(device).eval().requires_grad_(True)
    dtype = torch.float32 if spec.kind == "image" else torch.int64
    x = torch.zeros((1, *spec.shape), dtype=dtype, device=device)
    if not isinstance(network, Network):
        return [(_run(network, x)[1], 0)]
    costs = []
    hidden = x
    for block, exit_ in zip(network.blocks, network.exits, strict=True):
        hidden, block_cost = _run(block, hidden)
        features, pool_cost = _run(network.pool, hidden)
        costs.append((block_cost, pool_cost + _run(exit_, features)[1]))
    return costs


def _run(module: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    """Run a module on one sample; return its output and its MACs."""
    # Imported late: takes a second or more, which a client that counts nothing saves.
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    layers = 0

    def count(cost: Callable[[Tensor, Tensor], int]) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            nonlocal layers
            layers += cost(inputs[0], output)

        return hook

    handles = []
    for layer in module.modules():
        if isinstance(layer, _NORMS):
            handles.append(layer.register_forward_hook(count(_norm_cost)))
        elif isinstance(layer, nn.AdaptiveAvgPool2d | GlobalAveragePool):
            handles.append(layer.register_forward_hook(count(_pool_cost)))
    counter = FlopCounterMode(display=False)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        output = module(x)
    for handle in handles:
        handle.remove()
    return output, counter.get_total_flops() // 2 + layers


def _norm_cost(_: Tensor, output: Tensor) -> int:
    return 4 * output.numel()


def _pool_cost(input_: Tensor, output: Tensor) -> int:
    return (input_.numel() // output.numel() + 1) * output.numel()
