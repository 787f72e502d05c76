from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.common import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.protocol import (
    Identity,
    ProtocolError,
    Reply,
    Request,
    from_record,
    to_record,
)
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
        run="1f",
        server_round=3,
        checkpoint=2,
        starts=[0, 2],
        shared=STATE,
        groups={"teacher": {"b": np.ones(2)}},
        values={"students": [1, 3]},
    )
    back = Request.from_records(request.to_records())
    assert (back.experiment, back.run, back.server_round) == ("trial", "1f", 3)
    assert (back.checkpoint, back.starts) == (2, [0, 2])
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


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, np.ones(2))
    return stream.getvalue()


def forged() -> bytes:
    """A header that claims far more values than follow."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f4", "fortran_order": False, "shape": (10**14,)}
    )
    return stream.getvalue() + b"few"


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"PK\x03\x04junk", npz(), forged(), pickled()]
)
def test_unreadable_arrays_are_named(content: bytes) -> None:
    record = ArrayRecord([np.ones(2)])
    record["0"].data = content
    records = RecordDict({"metrics": MetricRecord({"n": 1}), "arrays": record})
    with pytest.raises(ProtocolError, match="arrays: 0: "):
        Reply.from_records(records)


def test_arrays_are_written_as_flower_writes_them() -> None:
    state = {
        **STATE,
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "strided": np.arange(10, dtype=np.int64)[::3],
        "empty": np.zeros((0, 4), np.float32),
    }
    for value in state.values():
        written, expected = to_record({"x": value})["x"], Array(value)
        assert (written.dtype, written.shape, written.stype, written.data) == (
            expected.dtype,
            expected.shape,
            expected.stype,
            expected.data,
        )


def test_array_layouts() -> None:
    state = {
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "strided": np.arange(12.0)[::2],
        "empty": np.zeros((0, 3)),
    }
    same(from_record(to_record(state)), state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("macs", ["a"]),
        ("macs", [-1]),
        ("macs", [1.5]),
        ("client", ""),
        ("client", "a\x1b[31m"),
        ("num_train", -1),
        ("num_test", True),
    ],
)
def test_impossible_identities_are_named(name: str, value: object) -> None:
    record = ConfigRecord(
        {
            "client": "a",
            "num_train": 1,
            "num_test": 1,
            "model": "m",
            "macs": [1],
            "device": "cpu",
            "versions": "",
        }
    )
    record[name] = value  # type: ignore[assignment]
    with pytest.raises(
        ProtocolError, match=f"identity: .*{name.split('_')[0]}|negative"
    ):
        Identity.from_records(RecordDict({"identity": record}))


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "a b"])
def test_an_experiment_is_no_path(name: str) -> None:
    request = Request(experiment="x", run="", server_round=1, shared={}).to_records()
    request.config_records["config"]["experiment"] = name
    with pytest.raises(ProtocolError, match="experiment"):
        Request.from_records(request)
