"""One run of a real federation goes on through faults of clients, links and processes.

TLS, node keys and gRPC. client-3 is connected through a relay that can cut its link.
"""

from __future__ import annotations

import csv
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

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

from deploy.diagnosis import explain
from deploy.federation import LocalFederation

pytestmark = [pytest.mark.integration, pytest.mark.faults]

Report = Callable[[str, str, float | None], None]

UPLOAD = 1_190_000
"""Bytes of X-FED's upload here; the client is cut off after a third."""


@pytest.fixture(scope="module")
def relays() -> list[Relay]:
    """The link of client-3, once there is one."""
    return []


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, relays: list[Relay]
) -> Iterator[LocalFederation]:
    workdir = tmp_path_factory.mktemp("federation")
    with federation(workdir, 3) as running, Relay(running.fleet_address) as relay:
        relays.append(relay)
        address = "{}:{}".format(*relay.address)
        running.add_nodes([node(workdir, 3, superlink=address)])
        yield running


@pytest.fixture(scope="module")
def run(running: LocalFederation) -> WatchedRun:
    run = WatchedRun(
        running,
        experiment="trial",
        num_server_rounds=200,
        min_available_nodes=4,
        evaluate_every=200,
    )
    run.wait_for(lambda record: record["train"]["counts"])
    return run


@pytest.fixture(scope="module")
def bad(run: WatchedRun, relays: list[Relay]) -> dict[str, Any]:
    """A round in which one client raises, one is killed and one is cut off."""
    run.order("client-1", "raise")
    run.order("client-2", "die")
    run.wait_for_training("client-3")
    relays[0].cut()
    record = run.wait_for_failure("client-3")
    start = time.monotonic()
    relays[0].restore()
    return {"start": start, "round": record["round"]}


def back(run: WatchedRun, bad: dict[str, Any], client: str) -> float:
    """Return the seconds from the end of the bad round to the client's next reply."""
    run.wait_for_reply(client, after=bad["round"])
    return time.monotonic() - float(bad["start"])


def failure(run: WatchedRun, client: str) -> str:
    record = run.wait_for_failure(client)
    assert record["train"]["counts"], record
    assert "client-0" in record["train"]["replied"]
    return str(record["train"]["failures"][client])


def log_of(run: WatchedRun, client: str) -> str:
    return (run.federation.workdir / "logs" / "nodes" / f"{client}.log").read_text()


def test_client_raises(run: WatchedRun, bad: dict[str, Any], report: Report) -> None:
    reason = failure(run, "client-1")
    assert reason == "RuntimeError: CUDA out of memory"
    seconds = back(run, bad, "client-1")
    report("client raises in training", f"left out of one round: {reason}", seconds)


def test_client_killed_in_training(
    run: WatchedRun, bad: dict[str, Any], report: Report
) -> None:
    reason = failure(run, "client-2")
    # SuperNode notices, but its report is lost: the deadline has to tell.
    assert reason in NO_REPLY
    told = explain(log_of(run, "client-2"))
    assert any("ClientApp was killed" in line for line in told)
    seconds = back(run, bad, "client-2")
    report("client killed in training", f"left out of one round: {reason}", seconds)


def test_link_of_a_client_cut(
    run: WatchedRun, bad: dict[str, Any], report: Report
) -> None:
    reason = failure(run, "client-3")
    # Which of the two comes first depends on when the node last gave a sign of life.
    assert reason in NO_REPLY or "not reachable" in reason
    seconds = back(run, bad, "client-3")
    # The reply that was held up arrived after its round and counted in none.
    later = [r for r in run.records() if r["round"] > bad["round"]]
    assert all(r["train"]["replied"].count("client-3") <= 1 for r in later)
    report("link of a client cut, and back", f"left out meanwhile: {reason}", seconds)


@pytest.fixture(scope="module")
def worse(run: WatchedRun, bad: dict[str, Any]) -> dict[str, Any]:
    """A client hangs, and while it does, another one's SuperNode is killed."""
    after = run.wait_for(lambda record: True, run.last_round)["round"]
    run.order("client-1", "hang")
    run.wait_for_training("client-2")
    run.federation.stop_node("client-2", signal.SIGKILL)
    killed = time.monotonic()
    run.federation.start_node("client-2", timeout=240)
    return {"round": after, "killed": killed}


def test_supernode_killed_and_restarted(
    run: WatchedRun, worse: dict[str, Any], report: Report
) -> None:
    bad = run.wait_for_failure("client-2", worse["round"])
    back = run.wait_for_reply("client-2", after=bad["round"])
    seconds = time.monotonic() - worse["killed"]
    assert back["train"]["lost_states"] == {}
    reason = bad["train"]["failures"]["client-2"]
    text = f"left out meanwhile: {reason}; personal state kept"
    report("SuperNode killed and restarted", text, seconds)


def test_client_hangs(run: WatchedRun, worse: dict[str, Any], report: Report) -> None:
    bad = run.wait_for_failure("client-1", worse["round"])
    reason = bad["train"]["failures"]["client-1"]
    assert reason in NO_REPLY
    assert bad["train"]["counts"]
    # It ends itself, since nobody waits for it any more, and its node is free again.
    back = run.wait_for_reply("client-1", after=bad["round"])
    # Both have told their tales by now: count from the records' own times.
    between = range(bad["round"] + 1, back["round"] + 1)
    seconds = sum(r["seconds"] for r in run.records() if r["round"] in between)
    assert "Timeout (0:0" in log_of(run, "client-1")
    assert "faulty_model.py" in log_of(run, "client-1")
    report("client hangs past the deadline", f"left out: {reason}", seconds)


def test_all_clients_fail(run: WatchedRun, report: Report) -> None:
    clients = [f"client-{number}" for number in range(4)]
    run.wait_for(lambda r: len(r["train"]["replied"]) == 4, run.last_round)
    for client in clients:
        run.order(client, "raise")
    bad = run.wait_for(lambda r: len(r["train"]["failures"]) == 4)
    start = time.monotonic()
    assert not bad["train"]["counts"]
    run.wait_for(lambda record: record["train"]["counts"], after=bad["round"])
    seconds = time.monotonic() - start
    report("all clients fail", "round skipped, model kept, next round counts", seconds)


def test_client_joins(run: WatchedRun, report: Report) -> None:
    start = time.monotonic()
    run.federation.add_nodes([node(run.federation.workdir, 4)])
    joined = run.wait_for_reply("client-4")
    seconds = time.monotonic() - start
    assert "client-4" not in run.records()[0]["train"]["clients"]
    text = f"trained from round {joined['round']} on, evaluated with the others"
    report("new client joins in mid-run", text, seconds)


def test_client_leaves_for_good(run: WatchedRun, report: Report) -> None:
    start = time.monotonic()
    run.federation.stop_node("client-0")
    gone = run.wait_for(
        lambda record: "client-0" not in record["train"]["clients"], run.last_round
    )
    seconds = time.monotonic() - start
    assert gone["train"]["counts"]
    again = run.wait_for(lambda record: record["train"]["counts"], gone["round"])
    assert again["train"]["clients"] == [f"client-{number}" for number in range(1, 5)]
    report("client leaves for good", "rounds go on with the others", seconds)


def test_server_app_killed(run: WatchedRun, report: Report) -> None:
    run.wait_for_training("client-1")
    start = time.monotonic()
    run.kill_server_app()
    last = run.last_round
    run.resume()
    run.wait_for(lambda record: record["train"]["counts"], after=last)
    seconds = time.monotonic() - start
    text = "run resumed after the last finished round, no round and no state lost"
    report("ServerApp killed", text, seconds)


def test_superlink_killed_and_restarted(run: WatchedRun, report: Report) -> None:
    run.wait_for_training("client-1")
    start = time.monotonic()
    run.federation.restart_superlink(signal.SIGKILL)
    for name, alive in run.federation.alive().items():
        if not alive and name != "client-0":
            run.federation.start_node(name, timeout=240)
    last = run.last_round
    run.resume(num_server_rounds=last + 2)
    run.wait_for(lambda record: True, after=last)
    seconds = time.monotonic() - start
    text = "run resumed after the last finished round, no round and no state lost"
    report("SuperLink killed and restarted", text, seconds)


def test_all_is_told_in_the_end(run: WatchedRun) -> None:
    result = run.wait()
    assert result.succeeded, result.log
    records, summary = run.records(), run.summary
    assert [record["round"] for record in records] == list(range(1, len(records) + 1))
    assert summary["ended"] == "finished"
    assert summary["rounds"] == len(records)
    assert summary["failures"] == sum(
        len(part.get("failures", ()))
        for record in records
        for part in (record["train"], record.get("evaluate", {}))
    )
    assert summary["skipped_rounds"] == sum(not r["train"]["counts"] for r in records)
    assert summary["lost_states"] == 0
    with (run.folder / "clients.csv").open() as file:
        evaluated = {row["client"] for row in csv.DictReader(file)}
    assert evaluated == set(records[-1]["evaluate"]["replied"])
    assert "client-4" in evaluated


def test_link_cut_in_the_middle_of_an_upload(
    running: LocalFederation, relays: list[Relay], report: Report
) -> None:
    [link] = relays
    run = WatchedRun(
        running,
        "xfed",
        experiment="upload",
        num_server_rounds=200,
        min_available_nodes=3,
        evaluate_every=200,
    )
    link.cut_after(UPLOAD // 3)
    wait_until(lambda: link.is_cut, "client-3 sends nothing")
    bad = run.wait_for_failure("client-3")
    start = time.monotonic()
    link.restore()
    assert bad["round"] == 1
    assert bad["train"]["counts"]
    assert "client-1" in bad["train"]["replied"]
    reason = bad["train"]["failures"]["client-3"]
    assert reason == f"its reply was not complete within {ROUND_TIMEOUT:g} s"
    run.wait_for_reply("client-3", after=1)
    seconds = time.monotonic() - start
    run.stop()
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
