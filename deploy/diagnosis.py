"""What Flower's messages mean for an operator, and what to do about them.

SuperLink and SuperNode report a refused connection as a gRPC status or a stack trace,
or retry without a word on the cause. As a filter this module passes a log through and
adds a line that names cause and remedy::

    flower-supernode ... 2>&1 | python -m deploy.diagnosis

SuperLink never learns why a node turned its certificate down, so such a line comes on
the node alone; :mod:`deploy.preflight` checks the certificate on either side.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator

_RULES = (
    (
        r"certificate has expired",
        "SuperLink's certificate has expired: make a new one, give it to SuperLink "
        "(--ssl-certfile, --ssl-keyfile) and start SuperLink again",
    ),
    (
        r"certificate is not yet valid",
        "SuperLink's certificate is not valid yet, so one of the two clocks is wrong: "
        "set the clock of this machine (NTP)",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED(?!: certificate (has expired|is not yet))",
        "SuperLink's certificate is not signed by the authority that this node trusts: "
        "copy the federation's ca.pem to the node and name it by --root-certificates",
    ),
    (
        r"Hostname Verification Check failed",
        "SuperLink's certificate does not name the address that this node uses: use a "
        "name that stands in the certificate, or make a certificate with this one",
    ),
    (
        r"WRONG_VERSION_NUMBER|SSL_ERROR_SSL: .*wrong version number",
        "one side speaks TLS, the other does not: start SuperLink with --ssl-certfile "
        "and the nodes with --root-certificates, neither with --insecure",
    ),
    (
        r"No SuperNode found with the given public key",
        "the key of this SuperNode is not registered with SuperLink, or was revoked: "
        "run 'flwr supernode register KEY.pub', then start the SuperNode again",
    ),
    (
        r"Invalid node ID",
        "SuperLink knows this SuperNode no more, its key was revoked ('flwr supernode "
        "unregister'): if it is to take part, run 'flwr supernode register KEY.pub' "
        "with a new key and start the SuperNode with that",
    ),
    (
        r"Missing authentication metadata|Invalid signature",
        "SuperLink could not verify the SuperNode's key: start the SuperNode with "
        "--auth-supernode-private-key and the key whose public half is registered",
    ),
    (
        r"Invalid timestamp",
        "the clocks of SuperNode and SuperLink differ by more than 5 minutes: set them "
        "(NTP)",
    ),
    (
        r"could not be activated",
        "SuperLink takes this SuperNode for online: it ended without taking its leave "
        "and may return after 60 s, so start it again then; or another SuperNode uses "
        "the same key, so give each its own",
    ),
    (
        r"RESOURCE_EXHAUSTED|larger than max",
        "a message was larger than gRPC's limit (2 GB with Flower, less where a proxy "
        "lies between): raise the proxy's limit, set state-dir on the nodes so that "
        "personal states stay out of messages, or use a smaller model",
    ),
    (
        r"Start time or end time for message ID \S+ is missing",
        "a ClientApp was killed before it had answered, perhaps for want of memory "
        "(see 'dmesg'); this SuperNode goes on with the next message, and the server "
        "waits for the lost answer until round-timeout",
    ),
    (
        r"Failed to receive message",
        "this SuperNode failed to receive a message and may wait for ever: start it "
        "again",
    ),
    (
        r"is already in use",
        "another process uses the port: end it, or choose another address",
    ),
)

_RETRIES = 3
"""Failed attempts in a row after which the connection is called out of order."""

_UNREACHABLE = (
    "SuperLink does not answer under this address, or its certificate does not name "
    "it: run 'python -m deploy.preflight node --superlink HOST:PORT "
    "--root-certificates ca.pem' on this machine to learn which"
)


def explain(log: str) -> list[str]:
    """Return what the known failures in a log mean, one sentence each with the remedy.

    Parameters
    ----------
    log
        Part of the log of a SuperLink, a SuperNode or a ``flwr`` command.
    """
    found = [meaning for pattern, meaning in _RULES if re.search(pattern, log)]
    unreachable = log.rpartition("Connection successful")[2]
    if not found and unreachable.count("Connection attempt failed") >= _RETRIES:
        found.append(_UNREACHABLE)
    return found


def annotate(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a log, with a line after each new failure that is known."""
    recent: deque[str] = deque(maxlen=100)
    said: set[str] = set()
    for line in lines:
        yield line
        if "Connection successful" in line or "SuperNode ID:" in line:
            recent.clear()
            said.clear()
        recent.append(line)
        for meaning in explain("".join(recent)):
            if meaning not in said:
                said.add(meaning)
                yield f">>> {meaning}\n"


def main() -> None:
    """Pass standard input on to standard output, explained."""
    for line in annotate(sys.stdin):
        print(line, end="", flush=True)


if __name__ == "__main__":
    main()
