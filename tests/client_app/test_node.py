from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import small
from flwr.common import Context, RecordDict

from client_app.node import (
    NODE_KEYS,
    NodeConfig,
    _partition_name,
    open_client,
    open_store,
)
from client_app.personal_state import FileStore, MemoryStore
from common.protocol import Request
from common.schema import SettingsError


def context(**node_config: Any) -> Context:
    config = {key.replace("_", "-"): value for key, value in node_config.items()}
    return Context(
        run_id=5,
        node_id=1,
        node_config=config,
        state=RecordDict(),
        run_config={},
    )


PART = {"partition_id": 1, "num_partitions": 3}


def test_every_documented_key_is_understood() -> None:
    values = {key: 0 if "partition" in key else "x" for key in NODE_KEYS}
    values["num-partitions"] = 1
    node = NodeConfig.parse(values)
    assert (node.client_name, node.state_dir, node.num_partitions) == ("x", "x", 1)


def test_all_problems_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        NodeConfig.parse({"clientname": "a", "partition-id": "1", "device": 0})
    assert len(caught.value.problems) == 3
    with pytest.raises(SettingsError, match="partition-id counts from 0"):
        NodeConfig.parse({"partition-id": 3, "num-partitions": 3})


def test_names() -> None:
    run = small.settings("xfed")
    assert open_client(run, context(**PART)).name == "client-1"
    many = NodeConfig(partition_id=1, num_partitions=11)
    assert _partition_name(many) == "client-01"
    assert open_client(run, context(**PART, client_name="site")).name == "site"


def test_a_node_may_choose_its_private_network_only() -> None:
    run = small.settings("pfedes", model="cnn-1")
    assert open_client(run, context(**PART, model="cnn-5")).model == "cnn-5"
    with pytest.raises(SettingsError, match="averages networks"):
        open_client(small.settings("xfed"), context(**PART, model="resnet18"))
    assert open_client(small.settings("pfedes"), context(**PART)).model == "cnn-2"


def test_an_impossible_device_is_named() -> None:
    for device in ("tpu0", "cuda:99"):
        with pytest.raises(SettingsError, match=f"device = '{device}' cannot be used"):
            open_client(small.settings("xfed"), context(**PART, device=device))


def test_where_the_state_is_kept(tmp_path: Any) -> None:
    run = small.settings("xfed")
    request = Request(experiment="trial", run="1f", server_round=1, shared={})
    assert isinstance(open_store(run, context(**PART), request, "a"), MemoryStore)
    own = context(state_dir=str(tmp_path))
    store = open_store(run, own, request, "a")
    assert isinstance(store, FileStore)
    assert store.where == str(tmp_path / "trial" / "client-a")
    unnamed = replace(request, experiment="")
    assert open_store(run, own, unnamed, "a").where == str(tmp_path / "run-5/client-a")
    simulated = small.settings("xfed", state_dir="there")
    assert (
        open_store(simulated, context(), request, "a").where == "there/trial/client-a"
    )
    assert open_store(simulated, own, request, "a").where == store.where
