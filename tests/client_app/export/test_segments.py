"""Exported networks say what PyTorch says: logits agree within 1e-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from client_app.export.segments import write_onnx, write_program
from common.data import DataSpec
from common.models import Network, build_network, logits_per_exit

TOLERANCE = 1e-5
SMALL = DataSpec("image", (1, 8, 8), 10)
COLOUR = DataSpec("image", (3, 8, 8), 10)
TEXT = DataSpec("text", (12,), 4, 50)


def first_exits(network: nn.Module) -> Network:
    """Return the network cut off behind its second exit: the blocks after are alike."""
    assert isinstance(network, Network)
    exits = [exit_ for exit_ in network.exits if isinstance(exit_, nn.Linear)]
    return Network(list(network.blocks)[:2], exits[:2], network.pool)


def disturbed(network: nn.Module) -> nn.Module:
    """Give BatchNorm statistics that training would: a fresh network's are trivial."""
    generator = torch.Generator().manual_seed(1)
    for name, buffer in network.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return network.eval().requires_grad_(False)


def networks() -> dict[str, tuple[nn.Module, DataSpec]]:
    def build(name: str, spec: DataSpec) -> nn.Module:
        return build_network(name, spec, seed=0)

    return {
        "convnet": (first_exits(build("convnet", SMALL)), SMALL),
        "resnet18": (first_exits(build("resnet18", COLOUR)), COLOUR),
        "transformer": (first_exits(build("transformer", TEXT)), TEXT),
        "cnn-5": (build("cnn-5", SMALL), SMALL),
    }


def samples(spec: DataSpec, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    if spec.kind == "image":
        return torch.randn(count, *spec.shape, generator=generator)
    tokens = torch.randint(
        1, spec.vocabulary, (count, *spec.shape), generator=generator
    )
    tokens[0, 5:] = 0  # padding, of a length of its own in every row
    tokens[-1, 9:] = 0
    return tokens


def close(found: Any, expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["convnet", "resnet18", "transformer", "cnn-5"])
def test_onnx_segments(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra 'export'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'export'")
    network, spec = networks()[name]
    disturbed(network)
    files = write_onnx(network, spec, tmp_path)
    exits = len(logits_per_exit(network, samples(spec, 1)))
    assert files == [f"segment_{j + 1}.onnx" for j in range(exits)]
    sessions = [onnxruntime.InferenceSession(str(tmp_path / file)) for file in files]
    for count in (1, 5):
        x = samples(spec, count)
        values = {"input": x.numpy()}
        found = []
        for number, session in enumerate(sessions, start=1):
            outputs = [output.name for output in session.get_outputs()]
            values = dict(zip(outputs, session.run(None, values), strict=True))
            found.append(values.pop(f"logits_{number}"))
        assert values == {}  # the last segment hands nothing on
        close(found, logits_per_exit(network, x))


@pytest.mark.parametrize("name", ["convnet", "resnet18", "transformer", "cnn-5"])
def test_program(name: str, tmp_path: Path) -> None:
    network, spec = networks()[name]
    disturbed(network)
    write_program(network, spec, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for count in (1, 5):
        x = samples(spec, count)
        close(program(x), logits_per_exit(network, x))


class Branching(nn.Module):
    """An operator's network that looks at the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) if float(x.sum()) > 0 else -x.flatten(1)


def test_networks_that_cannot_be_traced_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be exported .* --format safetensors"):
        write_program(Branching(), SMALL, tmp_path / "model.pt2")
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_operators_network_is_one_segment(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra 'export'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'export'")
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    assert write_onnx(network, SMALL, tmp_path) == ["segment_1.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "segment_1.onnx"))
    x = samples(SMALL, 3)
    close(session.run(["logits_1"], {"input": x.numpy()}), [network(x).detach()])
