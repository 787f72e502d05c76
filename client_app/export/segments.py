"""A network as ``torch.export`` program and as ONNX segments between its exits.

Only calls that PyTorch 2.5 and later have in common are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from common.data import DataSpec
from common.models import Network

_OPSET: Final = 18
"""Lowest version that the exporter writes without conversion; TensorRT 10 reads it."""


class Segment(nn.Module):
    """Block j and exit j: from what block j - 1 returns to (hidden, logits).

    The last segment returns its logits alone: nobody reads its hidden values.
    """

    def __init__(self, network: Network, index: int) -> None:
        super().__init__()
        self.block = network.blocks[index]
        self.pool = network.pool
        self.exit = network.exits[index]
        self.last = index == network.num_exits - 1

    def forward(self, hidden: Any) -> Any:
        """Run the block and its exit."""
        hidden = self.block(hidden)
        logits: Tensor = self.exit(self.pool(hidden))
        return logits if self.last else (hidden, logits)


def segments(network: nn.Module) -> list[nn.Module]:
    """Return the segments in order; a module with one exit is one segment."""
    if not isinstance(network, Network):
        return [network]
    return [Segment(network, i).eval() for i in range(network.num_exits)]


def example_input(spec: DataSpec, samples: int = 2) -> Tensor:
    """Return zeros as the network reads them, with `samples` rows."""
    dtype = torch.float32 if spec.kind == "image" else torch.int64
    return torch.zeros((samples, *spec.shape), dtype=dtype)


def write_program(network: nn.Module, spec: DataSpec, path: Path) -> None:
    """Write the whole network as a ``torch.export`` program with a free batch size.

    Parameters
    ----------
    network
        In evaluation mode, on the CPU. It maps samples to the logits of its exit, or to
        a list of logits per exit.

    Raises
    ------
    ValueError
        PyTorch cannot trace the network.
    """
    x = example_input(spec)
    with _exporting("a torch.export program"):
        program = torch.export.export(
            network, (x,), dynamic_shapes=(_free_batch(x),), strict=False
        )
        torch.export.save(program, path)


def write_onnx(network: nn.Module, spec: DataSpec, folder: Path) -> list[str]:
    """Write ``segment_1.onnx``, ``segment_2.onnx``, ... with a free batch size.

    The first segment reads ``input``. Segment j returns ``logits_j`` and, unless it is
    the last, ``hidden_j`` (the Transformer also ``padding_j``), which segment j + 1
    reads under the same names.

    Parameters
    ----------
    network
        In evaluation mode, on the CPU.

    Returns
    -------
    The files' names in order.

    Raises
    ------
    ValueError
        PyTorch cannot turn the network into ONNX.
    """
    value: Any = example_input(spec)
    inputs, files = ["input"], []
    parts = segments(network)
    for number, segment in enumerate(parts, start=1):
        with torch.no_grad():
            returned = segment(value)
        last = number == len(parts)
        following = None if last else returned[0]
        handed_on = [] if last else [f"{n}_{number}" for n in _names(following)]
        with _exporting("ONNX"):
            program = torch.onnx.export(
                segment,
                (value,),
                dynamo=True,
                dynamic_shapes=(_free_batch(value),),
                input_names=inputs,
                output_names=[*handed_on, f"logits_{number}"],
                opset_version=_OPSET,
                verbose=False,
            )
            assert program is not None
            files.append(f"segment_{number}.onnx")
            program.save(folder / files[-1], external_data=False)
        value, inputs = following, handed_on
    return files


def _names(hidden: Any) -> list[str]:
    """Return the names of what a block returns: a tensor or a named tuple of them."""
    return list(getattr(hidden, "_fields", ["hidden"]))


def _free_batch(value: Any) -> Any:
    """Mark the first dimension of every tensor as the batch, of any size."""
    batch = torch.export.Dim("batch", max=2**30)  # PyTorch 2.5 wants an upper bound
    return pytree.tree_map(lambda _: {0: batch}, value)


@contextmanager
def _exporting(form: str) -> Iterator[None]:
    """Trace encoder layers operation by operation, and name failures."""
    # The fused kernel of encoder layers without gradients has no counterpart in ONNX.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.|onnxscript\.")
            yield
    except ImportError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"the network cannot be exported as {form} ({reason[0]}): its forward must "
            "work for any batch size and hold no Python code that depends on values of "
            "tensors; --format safetensors always works"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
