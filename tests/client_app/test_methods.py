"""The five methods with real clients: what they send, keep and change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small
import torch

from client_app.personal_state import MemoryStore, PersonalState
from common.protocol import TELEMETRY, from_record

METHODS = ("standalone", "fedavg", "fedper", "pfedes", "xfed")


def states(grid: Any) -> dict[str, PersonalState]:
    found = {}
    for node, context in grid.contexts.items():
        state = MemoryStore(context.state).load(0)
        assert state is not None
        found[grid.labels[node]] = state
    return found


# ---- what leaves a client ----

LAST_EXIT = {"exits.2.weight", "exits.2.bias"}


@pytest.mark.parametrize("method", METHODS)
def test_nothing_more_than_needed_is_sent(method: str) -> None:
    _, grid, _ = small.federation(small.settings(method), rounds=1)
    for _, request, reply in small.uploads(grid):
        sent = {name: set(state) for name, state in reply.groups.items()}
        assert sent == ({"exit": LAST_EXIT} if method == "xfed" else {})
        parameters = sum(v.size for v in (reply.shared or {}).values())
        received = sum(v.size for v in request.shared.values())
        # ConvNet on grey 8x8 digits; each exit is 128 * 10 + 10.
        convnet = (9 * 128 + 128) + 2 * (9 * 128 * 128 + 128)
        expected = {
            "standalone": 0,
            "fedavg": convnet + 3 * 1290,
            "fedper": convnet,
            "xfed": convnet,
            "pfedes": (9 * 8 + 8) + (9 * 8 + 1),
        }[method]
        assert parameters == received == expected
        told = set(reply.metrics) - set(TELEMETRY)
        assert told == {"num-examples", "train-loss", "state-round"}


# ---- seeds ----


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits(method: str) -> None:
    runs = [
        small.federation(small.settings(method), order=order)
        for order in ("sent", "random")
    ]
    (_, first, result), (_, second, again) = runs
    assert small.equal(from_record(result.arrays), from_record(again.arrays))
    a, b = states(first), states(second)
    assert a.keys() == b.keys()
    for client in a:
        assert small.equal(a[client].arrays, b[client].arrays)
    assert result.evaluate_metrics_clientapp == again.evaluate_metrics_clientapp
    _, third, _ = small.federation(small.settings(method, seed=1))
    assert not small.equal(a["client-0"].arrays, states(third)["client-0"].arrays)


# ---- precision ----


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_trains_alike_and_sends_float32(method: str) -> None:
    _, _, result = small.federation(small.settings(method))
    _, grid, rounded = small.federation(small.settings(method, precision="bfloat16"))
    exact, close = from_record(result.arrays), from_record(rounded.arrays)
    assert {v.dtype for v in close.values()} == {v.dtype for v in exact.values()}
    for state in states(grid).values():
        assert {v.dtype.name for v in state.arrays.values()} <= {"float32", "int64"}
    last = max(result.train_metrics_clientapp)
    losses = [r.train_metrics_clientapp[last]["train-loss"] for r in (result, rounded)]
    assert losses[1] != losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


# ---- optimizer state ----


def test_kept_momentum_goes_on_as_one_uninterrupted_run() -> None:
    """Two rounds of one epoch equal one loop of SGD over the same batches."""
    from client_app.batches import LocalData
    from common.data import load_client_data, to_model_input
    from common.models import build_network, logits_per_exit
    from common.seeding import derive_seed
    from common.state import write_state

    run = small.settings("standalone", learning_rate_decay=1.0, weight_decay=0.01)
    _, grid, _ = small.federation(run, rounds=2)
    data = load_client_data(run.data, seed=0, partition_id=0, num_partitions=3)
    network = build_network("convnet", data.spec, seed=0)
    network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01
    )
    local = LocalData(data.train, data.spec, run.data, torch.device("cpu"))
    for t in (1, 2):
        seed = derive_seed(0, "network", "client-0", t)
        generator = torch.Generator().manual_seed(seed)
        for batch in local.shuffled(16, generator):
            pixels = to_model_input(
                data.train.inputs[batch.rows], data.spec, run.data
            ).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            targets = data.train.targets[batch.rows]
            losses = [
                torch.nn.functional.cross_entropy(z, targets)
                for z in logits_per_exit(network, pixels)
            ]
            (sum(losses) / 3).backward()
            optimizer.step()
    trained = build_network("convnet", data.spec, seed=0)
    write_state(trained, states(grid)["client-0"].part("model"))
    for (name, expected), value in zip(
        network.named_parameters(), trained.parameters(), strict=True
    ):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_fresh_momentum_differs_and_is_not_kept() -> None:
    _, personal, _ = small.federation(small.settings("fedper"))
    _, fresh, _ = small.federation(small.settings("fedper", optimizer_state="fresh"))
    kept, dropped = states(personal)["client-0"], states(fresh)["client-0"]
    assert kept.part("momentum.network")
    assert not dropped.part("momentum")
    assert not small.equal(kept.part("model"), dropped.part("model"))


def test_momentum_is_never_shared_between_clients() -> None:
    _, grid, _ = small.federation(small.settings("fedavg"), rounds=1)
    a, b = (states(grid)[f"client-{i}"].part("momentum.network") for i in (0, 1))
    assert not small.equal(a, b)


# ---- pFedES ----


def test_pfedes_freezes_the_other_module_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from client_app.methods import PFedES
    from common.state import read_state

    seen: list[tuple[str, bool]] = []
    fit = PFedES.fit

    def watched(self: PFedES, module: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        variables = {
            c: v.cell_contents
            for c, v in zip(loss.__code__.co_freevars, loss.__closure__, strict=True)
        }
        other = variables["private" if "purpose" in kwargs else "extractor"]
        before = read_state(other, other.state_dict())
        own = read_state(module, module.state_dict())
        result = fit(self, module, loss, *args, **kwargs)
        seen.append(
            (
                kwargs.get("purpose", "network"),
                small.equal(before, read_state(other, other.state_dict()))
                and all(p.grad is None for p in other.parameters())
                and not small.equal(own, read_state(module, module.state_dict())),
            )
        )
        return result

    monkeypatch.setattr(PFedES, "fit", watched)
    small.federation(small.settings("pfedes", model="own_models:batch_norm_net"))
    assert seen == [("network", True), ("extractor", True)] * 6


@pytest.mark.parametrize("model", ["cnn-5", "own_models:without_dropout"])
def test_pfedes_first_step_by_hand(model: str) -> None:
    """One full-batch step of F_k equals SGD on (1-μ)·CE(F(x)) + μ·CE(F(G(x)))."""
    from common.data import load_client_data, to_model_input
    from common.models import build_extractor, build_network, logits_per_exit

    run = small.settings(
        "pfedes", model=model, batch_size=512, momentum=0.0, pfedes__mu=0.3
    )
    _, grid, _ = small.federation(run, rounds=1)
    data = load_client_data(run.data, seed=0, partition_id=0, num_partitions=3)
    network = build_network(model, data.spec, seed=0)
    extractor = build_extractor(data.spec, seed=0)
    pixels = to_model_input(data.train.inputs, data.spec, run.data)
    cross_entropy = torch.nn.functional.cross_entropy
    (plain,) = logits_per_exit(network, pixels)
    (enhanced,) = logits_per_exit(network, extractor(pixels).detach())
    loss = 0.7 * cross_entropy(plain, data.train.targets)
    loss = loss + 0.3 * cross_entropy(enhanced, data.train.targets)
    loss.backward()
    kept = states(grid)["client-0"].part("model")
    for name, parameter in network.named_parameters():
        expected = parameter - 0.05 * (parameter.grad + 1e-4 * parameter)  # type: ignore
        torch.testing.assert_close(
            torch.tensor(kept[name]), expected.detach(), rtol=1e-4, atol=1e-6
        )


def test_pfedes_gives_each_client_its_own_architecture() -> None:
    strategy, grid, _ = small.federation(small.settings("pfedes"))
    models = [client.identity.model for client in strategy.roster.online]
    assert models == ["cnn-1", "cnn-2", "cnn-3"]
    sizes = [
        sum(v.size for v in s.part("model").values()) for s in states(grid).values()
    ]
    assert len(set(sizes)) == 3
    run = small.settings("pfedes", model="cnn-1")
    nodes: dict[str, dict[str, Any]] = {
        "a": {"partition-id": 0, "num-partitions": 3},
        "b": {"partition-id": 1, "num-partitions": 3, "model": "cnn-5"},
        "c": {
            "partition-id": 2,
            "num-partitions": 3,
            "model": "own_models:batch_norm_net",
        },
    }
    strategy, _, _ = small.federation(run, nodes=nodes)
    models = [client.identity.model for client in strategy.roster.online]
    assert models == ["cnn-1", "cnn-5", "own_models:batch_norm_net"]


# ---- BatchNorm and tiny clients ----


@pytest.mark.parametrize("method", ["fedavg", "fedper", "xfed"])
def test_batch_norm_travels_but_its_counters_do_not(method: str) -> None:
    run = small.settings(method, model="resnet18")
    _, grid, result = small.federation(run, rounds=1)
    shared = from_record(result.arrays)
    means = [key for key in shared if key.endswith("running_mean")]
    assert len(means) == 20
    assert not [key for key in shared if "num_batches_tracked" in key]
    assert all(value.dtype == np.float32 for value in shared.values())
    weights = [r.metrics["num-examples"] for _, _, r in small.uploads(grid)]
    sent = [r.shared for _, _, r in small.uploads(grid)]
    expected = np.average([s[means[3]] for s in sent], axis=0, weights=weights)  # type: ignore
    np.testing.assert_allclose(shared[means[3]], expected, rtol=1e-5)
    assert np.abs(expected).sum() > 0


def test_local_batch_norm_stays() -> None:
    run = small.settings("fedavg", model="resnet18", batch_norm="local")
    _, grid, result = small.federation(run, rounds=1)
    shared = from_record(result.arrays)
    assert not [key for key in shared if "running" in key]
    kept = {c: s.part("model") for c, s in states(grid).items()}
    means = [k for k in kept["client-0"] if k.endswith("running_mean")]
    assert len(means) == 20
    assert not np.array_equal(kept["client-0"][means[0]], kept["client-1"][means[0]])


@pytest.mark.parametrize("samples", [1, 2, 17])
def test_tiny_clients_and_single_left_overs(tmp_path: Any, samples: int) -> None:
    # 17 samples in batches of 16 leave one; ResNet-18 ends in 1x1 maps on 8x8 images.
    rng = np.random.default_rng(0)
    for split, count in (("train", samples), ("test", 3)):
        np.savez(
            tmp_path / f"{split}.npz",
            images=rng.integers(0, 256, (count, 8, 8), dtype=np.uint8),
            labels=rng.integers(0, 10, count),
        )
    nodes = {"tiny": {"client-name": "tiny", "data-path": str(tmp_path)}}
    run = small.settings("xfed", model="resnet18", min_available_nodes=1)
    _, grid, _ = small.federation(run, nodes=nodes)
    assert all(
        np.isfinite(value).all()
        for _, _, reply in small.uploads(grid)
        for value in (reply.shared or {}).values()
    )


def test_unequal_batches_weigh_every_sample_once() -> None:
    from client_app.batches import _portions

    portions = _portions(torch.arange(33), 16)
    assert [len(p) for p in portions] == [16, 17]
    assert torch.cat(portions).tolist() == list(range(33))
    assert [len(p) for p in _portions(torch.arange(1), 16)] == [1]


# ---- states that must not be used ----


def test_a_diverged_round_keeps_the_last_good_state() -> None:
    nodes = {"a": {"partition-id": 0, "num-partitions": 3}}
    run = small.settings("xfed", min_available_nodes=1, max_failed_rounds=9)
    _, grid, _ = small.federation(run, rounds=1, nodes=nodes)
    good = states(grid)["a"]
    wild = small.settings("xfed", learning_rate=1e30, momentum=0.0)
    (context,) = grid.contexts.values()
    context.run_config = wild.to_config()
    _, message, _ = next(m for m in grid.log if m[1].metadata.message_type == "train")
    with pytest.raises(ValueError, match="diverged"):
        small.answer(message, context)
    kept = states(grid)["a"]
    assert small.equal(kept.arrays, good.arrays)


@pytest.mark.parametrize("model", ["convnet", "resnet18"])
def test_state_on_disk_equals_state_in_memory(tmp_path: Any, model: str) -> None:
    run = small.settings("fedper", model=model)
    _, memory, _ = small.federation(run, rounds=2)
    nodes = {
        f"client-{i}": {
            "partition-id": i,
            "num-partitions": 3,
            "state-dir": str(tmp_path),
        }
        for i in range(3)
    }
    _, disk, _ = small.federation(run, rounds=2, nodes=nodes)
    for (_, _, a), (_, _, b) in zip(
        small.uploads(memory), small.uploads(disk), strict=True
    ):
        assert small.equal(a.shared or {}, b.shared or {})
    assert len(list(tmp_path.rglob("*.safetensors"))) == 6  # two rounds


def test_incomplete_parameters_are_refused() -> None:
    from client_app.node import open_client
    from client_app.trainer import Trainer
    from common.protocol import Request

    run = small.settings("fedper")
    _, grid, _ = small.federation(run, rounds=1)
    trainer = Trainer(run, open_client(run, next(iter(grid.contexts.values()))))
    _, request, _ = small.uploads(grid)[0]
    state = states(grid)["client-0"]
    trainer.network(request, state)
    half = Request(
        experiment="",
        run="",
        server_round=1,
        shared={"blocks.0.0.bias": request.shared["blocks.0.0.bias"]},
    )
    lacking = r"shared parameters lack \['blocks\.0\.0\.weight'"
    with pytest.raises(ValueError, match=lacking):
        trainer.network(half, state)
    empty = replace(state, arrays={})
    with pytest.raises(ValueError, match="stored state lack"):
        trainer.network(request, empty)


def test_pfedes_evaluation_needs_nothing_from_the_server() -> None:
    _, grid, _ = small.federation(small.settings("pfedes"), rounds=1)
    assert all(not r.shared for _, r, _ in small.uploads(grid, "evaluate"))
    assert all(r.shared for _, r, _ in small.uploads(grid))
