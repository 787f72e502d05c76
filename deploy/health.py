"""Whether a Flower process answers: ``python -m deploy.health HOST:PORT``.

The address is the process's ``--health-server-address``. Exit code 1: no answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]


def answers(address: str, timeout: float = 10.0) -> bool:
    """Return whether the process with this health server answers.

    Parameters
    ----------
    address
        ``host:port`` of its health server.
    timeout
        Longest wait in seconds.
    """
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options) as channel:
        try:
            health = health_pb2_grpc.HealthStub(channel)
            health.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError:
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, 1 where nothing answers."""
    (address,) = sys.argv[1:] if arguments is None else arguments
    if answers(address):
        return 0
    print(f"Nothing answers at {address}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
