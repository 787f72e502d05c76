from __future__ import annotations

import numpy as np
import pytest
from flwr.common import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.protocol import Identity, ProtocolError, Reply, Request
from common.state import State

STATE: State = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(2.5),
    "half": np.ones(3, np.float16),
}


def same(a: State, b: State) -> None:
    assert list(a) == list(b)
    for key in a:
        assert a[key].dtype == b[key].dtype
        assert a[key].shape == b[key].shape
        np.testing.assert_array_equal(a[key], b[key])


def test_request_survives_the_way() -> None:
    request = Request(
        experiment="trial",
        server_round=3,
        shared=STATE,
        groups={"teacher": {"b": np.ones(2)}},
        values={"students": [1, 3]},
    )
    back = Request.from_records(request.to_records())
    assert (back.experiment, back.server_round) == ("trial", 3)
    assert back.values == {"students": [1, 3]}
    same(back.shared, STATE)
    same(back.groups["teacher"], {"b": np.ones(2)})


def test_reply_survives_the_way() -> None:
    reply = Reply(metrics={"num-examples": 7, "loss": [0.5]}, shared={}, groups={})
    back = Reply.from_records(reply.to_records())
    assert back.metrics == {"num-examples": 7, "loss": [0.5]}
    assert back.shared == {}
    evaluation = Reply(metrics={"num-examples": 7}).to_records()
    assert Reply.from_records(evaluation).shared is None


def test_identity_survives_the_way() -> None:
    identity = Identity(
        client="a",
        num_train=3,
        num_test=0,
        model="m",
        macs=[1, 2],
        device="cpu",
        versions="v",
    )
    assert Identity.from_records(identity.to_records()) == identity


def test_understands_a_plain_flower_strategy() -> None:
    # What flwr.serverapp.strategy.FedAvg sends.
    records = RecordDict(
        {
            "arrays": ArrayRecord([np.ones(2)]),
            "config": ConfigRecord({"server-round": 2}),
        }
    )
    request = Request.from_records(records)
    assert request.server_round == 2
    assert request.experiment == ""


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"config": ConfigRecord({"server-round": "2"})}),
        RecordDict({"config": ConfigRecord({"server-round": 2})}),
        RecordDict({"config": MetricRecord({"server-round": 2})}),
    ],
)
def test_incomplete_requests_are_named(records: RecordDict) -> None:
    with pytest.raises(ProtocolError):
        Request.from_records(records)


def test_incomplete_replies_are_named() -> None:
    with pytest.raises(ProtocolError, match="metrics"):
        Reply.from_records(RecordDict())
    with pytest.raises(ProtocolError, match="identity"):
        Identity.from_records(RecordDict({"identity": ConfigRecord({"client": 3})}))


def test_unreadable_arrays_are_named() -> None:
    record = ArrayRecord([np.ones(2)])
    record["0"].data = b"garbage"
    records = RecordDict({"metrics": MetricRecord({"n": 1}), "arrays": record})
    with pytest.raises(ProtocolError, match="arrays"):
        Reply.from_records(records)
