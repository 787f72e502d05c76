"""Processes of a real federation hang, restart and go, in the middle of a run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from relay import Relay
from watched_run import (
    NO_REPLY,
    ROUND_TIMEOUT,
    WatchedRun,
    federation,
    node,
    wait_until,
)

from deploy.federation import LocalFederation

pytestmark = [pytest.mark.integration, pytest.mark.faults]

Report = Callable[[str, str, float | None], None]

UPLOAD = 1_190_000
"""Bytes of X-FED's upload here; the client is cut off after a third."""


@pytest.fixture(scope="module")
def relay() -> list[Relay]:
    """The link of client-2, once there is one."""
    return []


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, relay: list[Relay]
) -> Iterator[LocalFederation]:
    workdir = tmp_path_factory.mktemp("federation")
    with federation(workdir, 2) as running, Relay(running.fleet_address) as link:
        relay.append(link)
        address = "{}:{}".format(*link.address)
        running.add_nodes([node(workdir, 2, superlink=address)])
        yield running


@pytest.fixture(scope="module")
def run(running: LocalFederation) -> WatchedRun:
    run = WatchedRun(
        running,
        experiment="processes",
        num_server_rounds=200,
        evaluate_every=200,
    )
    run.wait_for(lambda record: record["train"]["counts"])
    return run


def test_all_clients_fail(run: WatchedRun, report: Report) -> None:
    for client in ("client-0", "client-1", "client-2"):
        run.order(client, "raise")
    bad = run.wait_for(lambda record: len(record["train"]["failures"]) == 3)
    start = time.monotonic()
    assert not bad["train"]["counts"]
    run.wait_for(lambda record: record["train"]["counts"], after=bad["round"])
    seconds = time.monotonic() - start
    report("all clients fail", "round skipped, model kept, next round counts", seconds)


def test_client_hangs(run: WatchedRun, report: Report) -> None:
    after = run.last_round
    run.order("client-1", "hang")
    bad = run.wait_for_failure("client-1", after)
    start = time.monotonic()
    reason = bad["train"]["failures"]["client-1"]
    assert reason in NO_REPLY
    assert bad["train"]["counts"]
    # It ends itself, since nobody waits for it any more, and its node is free again.
    run.wait_for_reply("client-1", after=bad["round"])
    seconds = time.monotonic() - start
    log = run.federation.workdir / "logs" / "nodes" / "client-1.log"
    assert "Timeout (0:0" in log.read_text()
    assert "faulty_model.py" in log.read_text()
    report("client hangs past the deadline", f"left out: {reason}", seconds)


def test_supernode_killed_and_restarted(run: WatchedRun, report: Report) -> None:
    after = run.last_round
    run.wait_for_training("client-1")
    run.federation.stop_node("client-1", signal.SIGKILL)
    start = time.monotonic()
    run.federation.start_node("client-1", timeout=240)
    bad = run.wait_for_failure("client-1", after)
    back = run.wait_for_reply("client-1", after=bad["round"])
    seconds = time.monotonic() - start
    assert back["train"]["lost_states"] == {}
    reason = bad["train"]["failures"]["client-1"]
    text = f"left out meanwhile: {reason}; personal state kept"
    report("SuperNode killed and restarted", text, seconds)


def test_superlink_killed_and_restarted(run: WatchedRun, report: Report) -> None:
    before = run.last_round
    run.wait_for_training("client-1")
    start = time.monotonic()
    run.federation.restart_superlink(signal.SIGKILL)
    for name, alive in run.federation.alive().items():
        if not alive:
            run.federation.start_node(name, timeout=240)
    last = run.last_round
    run.resume()
    first = run.wait_for(lambda record: True, after=last)
    seconds = time.monotonic() - start
    assert last >= before
    rounds = [record["round"] for record in run.records()]
    assert rounds == list(range(1, max(rounds) + 1))
    whole = run.wait_for(lambda r: len(r["train"]["replied"]) == 3, first["round"] - 1)
    assert whole["train"]["lost_states"] == {}
    text = "run resumed after the last finished round, no round and no state lost"
    report("SuperLink killed and restarted", text, seconds)


def test_client_leaves_for_good(run: WatchedRun, report: Report) -> None:
    start = time.monotonic()
    run.federation.stop_node("client-0")
    gone = run.wait_for(
        lambda record: "client-0" not in record["train"]["clients"], run.last_round
    )
    seconds = time.monotonic() - start
    assert gone["train"]["counts"]
    again = run.wait_for(lambda record: record["train"]["counts"], gone["round"])
    assert again["train"]["clients"] == ["client-1", "client-2"]
    report("client leaves for good", "rounds go on with the others", seconds)


def test_all_is_told_in_the_end(run: WatchedRun) -> None:
    result = run.finish(min_available_nodes=2)
    assert result.succeeded, result.log
    records = run.records()
    summary = run.summary
    assert summary["ended"] == "finished"
    assert summary["rounds"] == len(records)
    assert summary["failures"] == sum(
        len(part.get("failures", ()))
        for record in records
        for part in (record["train"], record.get("evaluate", {}))
    )
    assert summary["skipped_rounds"] == sum(not r["train"]["counts"] for r in records)


def test_link_cut_in_the_middle_of_an_upload(
    running: LocalFederation, relay: list[Relay], report: Report
) -> None:
    [link] = relay
    run = WatchedRun(
        running,
        "xfed",
        experiment="upload",
        num_server_rounds=3,
        min_available_nodes=2,
        evaluate_every=3,
    )
    before = link.bytes_up
    wait_until(lambda: link.bytes_up - before > UPLOAD / 3, "client-2 sends nothing")
    link.cut()
    bad = run.wait_for_failure("client-2")
    start = time.monotonic()
    link.restore()
    assert bad["round"] == 1
    assert bad["train"]["counts"]
    assert "client-1" in bad["train"]["replied"]
    reason = bad["train"]["failures"]["client-2"]
    assert reason == f"its reply was not complete within {ROUND_TIMEOUT:g} s"
    run.wait_for_reply("client-2", after=1)
    seconds = time.monotonic() - start
    assert run.wait().succeeded
    report("link cut in the middle of an upload", f"left out: {reason}", seconds)


def test_too_few_nodes(running: LocalFederation, report: Report) -> None:
    run = WatchedRun(
        running, experiment="few", min_available_nodes=9, wait_timeout=20.0
    )
    result = run.wait()
    assert result.status == "finished:failed"
    assert "TooFewClients: too few clients after" in result.log
    assert "of 9 are ready" in result.log
    assert "too few clients" in run.summary["ended"]
    text = "the run ends with a clear error after wait-timeout (20 s)"
    report("fewer nodes than min-available-nodes", text, result.seconds)
