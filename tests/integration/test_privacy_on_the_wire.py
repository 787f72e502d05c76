"""What leaves a client of a real federation, from the bytes of its TLS connection."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import grpc_stream
import pytest
import small
from flwr.common import Message, RecordDict
from flwr.common.inflatable_utils import inflate_object_from_contents
from flwr.proto.message_pb2 import PushObjectRequest
from google.protobuf.message import DecodeError
from leaks import wire
from privacy import NOISE, Sent, leaked, undeclared, write_data
from safetensors.numpy import load_file
from tls_recorder import TlsRecorder

from deploy.federation import LocalFederation, NodeSpec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("skewed"))


@pytest.mark.integration
def test_a_recorded_federation_sends_what_is_declared_and_nothing_private(
    data: Path, tmp_path: Path
) -> None:
    run = small.settings(
        "xfed",
        **NOISE,
        min_available_nodes=1,
        num_server_rounds=2,
        evaluate_every=2,
        checkpoint_every=9,  # clients keep their states since the last checkpoint
        output_dir=str(tmp_path / "runs"),
        experiment="recorded",
    )
    workdir = tmp_path / "federation"
    keys = workdir / "flower" / "keys"
    shown = (keys / "server.pem", keys / "server.key", keys / "ca.pem")
    with (
        LocalFederation(ROOT, [], workdir) as federation,
        TlsRecorder(federation.fleet_address, *shown) as recorder,
    ):
        host, port = recorder.address
        node = {
            "client-name": "client-0",
            "data-path": str(data / "client-0"),
            "state-dir": str(tmp_path / "state"),
            "device": "cpu",
        }
        federation.add_nodes([NodeSpec("node", node, superlink=f"{host}:{port}")])
        result = federation.run(run.to_config(), timeout=900, echo=False)
        assert result.succeeded, result.log
    conversations = [grpc_stream.read(part) for part in recorder.sent()]
    messages = [message for one in conversations for message in one.messages]
    frames = [frame for one in conversations for frame in one.other]
    objects = dict(filter(None, map(pushed_object, messages)))
    states = [
        load_file(path) for path in sorted((tmp_path / "state").rglob("*.safetensors"))
    ]
    assert len(states) == 2
    sent = []
    for key, content in objects.items():
        if content.startswith(b"Message "):
            reply = inflate(key, dict(objects))
            sent.append(
                Sent(
                    client="client-0",
                    kind=reply.metadata.message_type,
                    server_round=int(reply.metadata.group_id or 0),
                    request=RecordDict(),
                    content=reply.content,
                    parts=wire(reply),
                    private={},
                )
            )
    kinds = Counter(one.kind for one in sent)
    assert kinds == {"query": 1, "train": 2, "evaluate": 1}
    assert [text for one in sent for text in undeclared("xfed", run, one)] == []
    # Every object that was sent belongs to one of these messages, and what else was
    # sent is too short for anything but ids, times and signatures.
    assert set(objects.values()) == {part for one in sent for part in one.parts}
    assert max(len(m) for m in messages if pushed_object(m) is None) < 6_000
    assert max(map(len, frames)) < 2_000
    # Nothing private in all the bytes together.
    everything = replace(sent[0], parts=messages + frames)
    sent = [replace(everything, private=state) for state in states]
    assert list(leaked("xfed", run, "client-0", sent)) == []


def pushed_object(message: bytes) -> tuple[str, bytes] | None:
    """Return id and content of the object in a gRPC message, if that is what it is."""
    try:
        request = PushObjectRequest.FromString(message)
    except DecodeError:
        return None
    digest = hashlib.sha256(request.object_content).hexdigest()
    if not request.object_content or digest != request.object_id:
        return None
    return request.object_id, request.object_content


def inflate(key: str, objects: dict[str, bytes]) -> Message:
    message = inflate_object_from_contents(key, objects)
    assert isinstance(message, Message)
    return message
