from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from common.data.spec import DataSpec
from common.models import build_network, count_macs, logits_per_exit
from common.models import own as own_module

SPEC = DataSpec("image", (3, 8, 6), 5)

MODULE = """
import torch
from torch import nn

def good(channels, height, width, num_classes):
    assert (channels, height, width, num_classes) == (3, 8, 6, 5)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.Dropout(),
                         nn.Flatten(), nn.LazyLinear(num_classes))

def frozen_norm(channels, height, width, num_classes):
    net = nn.Sequential(nn.BatchNorm2d(channels), nn.Flatten(),
                        nn.Linear(channels * height * width, num_classes))
    net[0].eval()
    return net

def no_module(channels, height, width, num_classes):
    return "net"

def other_parameters(in_channels, classes):
    return nn.Linear(1, 1)

def wrong_classes(channels, height, width, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 7))

def maps(channels, height, width, num_classes):
    return nn.Conv2d(channels, num_classes, 3)

def wrong_size(channels, height, width, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(1, num_classes))

def broken(channels, height, width, num_classes):
    raise KeyError("weights.pt")

not_callable = 3
"""


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "operators_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "operators_models"
    sys.modules.pop("operators_models", None)


def test_own_network_is_used_as_it_is(hook: str) -> None:
    network = build_network(f"{hook}:good", SPEC, seed=1)
    assert type(network) is nn.Sequential
    assert all(module.training for module in network.modules())
    (logits,) = logits_per_exit(network, torch.rand(4, *SPEC.shape))
    assert logits.shape == (4, 5)


def test_own_network_follows_the_seed_and_is_not_touched_by_the_trial(
    hook: str,
) -> None:
    rng = torch.get_rng_state()
    one, two, other = (
        build_network(f"{hook}:good", SPEC, seed=s).state_dict() for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["4.weight"], other["4.weight"])
    assert one["1.num_batches_tracked"] == 0


def test_trial_keeps_the_modes_of_the_layers(hook: str) -> None:
    network = build_network(f"{hook}:frozen_norm", SPEC, seed=1)
    assert [m.training for m in network.children()] == [False, True, True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:net", "cannot import 'no_such_module' .*PYTHONPATH"),
        (":net", "write 'package.module:function'"),
        ("operators_models:", "write 'package.module:function'"),
        ("operators_models:nothing", "has no function 'nothing'; define function"),
        ("operators_models:not_callable", "has no function 'not_callable'"),
        ("operators_models:no_module", "returned str; return a torch.nn.Module"),
        ("operators_models:other_parameters", r"cannot be called as .*\(channels, "),
        ("operators_models:wrong_classes", r"returned shape \(2, 7\) .*\(2, 5\)"),
        ("operators_models:maps", r"failed on a batch .*\(2, 5, 6, 4\).*\(2, 5\)"),
        ("operators_models:wrong_size", r"failed on a batch of shape \(2, 3, 8, 6\)"),
    ],
)
def test_bad_hook_is_refused_by_name(hook: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"model = '{name}': .*{message}"):
        build_network(name, SPEC, seed=0)


def test_errors_of_the_operators_function_pass_through(hook: str) -> None:
    with pytest.raises(KeyError, match=r"weights\.pt"):
        build_network(f"{hook}:broken", SPEC, seed=0)


def test_own_networks_do_not_read_text(hook: str) -> None:
    with pytest.raises(ValueError, match=r"not text; use model = 'transformer'"):
        build_network(f"{hook}:good", DataSpec("text", (9,), 2, 50), seed=0)


def test_documented_example_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_module.__doc__ is not None
    block = own_module.__doc__.split("::\n", 1)[1].split("\nused as")[0]
    source = "\n".join(line.removeprefix("    ") for line in block.splitlines())
    (tmp_path / "documented_models.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    network = build_network("documented_models:small_net", SPEC, seed=0)
    convolution = 8 * 6 * 3 * 32 * 9
    norm = 4 * 32 * 8 * 6
    pool = 32 * (8 * 6 + 1)
    assert count_macs(network, SPEC) == (convolution + norm + pool + 32 * 5,)
