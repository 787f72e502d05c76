from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from deploy.health import main


def test_tells_whether_a_process_answers(capsys: pytest.CaptureFixture[str]) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    assert main([address]) == 0
    server.stop(None).wait()
    assert main([address]) == 1
    assert f"Nothing answers at {address}." in capsys.readouterr().err
