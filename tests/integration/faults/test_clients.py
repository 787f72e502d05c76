"""Clients of a real federation fail in the middle of a run, and come back.

One run with TLS, node keys and gRPC goes on through all of it.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from relay import Relay
from watched_run import NO_REPLY, WatchedRun, federation, node

from deploy.diagnosis import explain

pytestmark = [pytest.mark.integration, pytest.mark.faults]

Report = Callable[[str, str, float | None], None]


@pytest.fixture(scope="module")
def link() -> dict[str, Relay]:
    """The link of client-3, once there is one."""
    return {}


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, link: dict[str, Relay]
) -> Iterator[WatchedRun]:
    workdir = tmp_path_factory.mktemp("federation")
    with federation(workdir, 3) as running, Relay(running.fleet_address) as relay:
        address = "{}:{}".format(*relay.address)
        running.add_nodes([node(workdir, 3, superlink=address)])
        link["client-3"] = relay
        yield WatchedRun(
            running,
            experiment="clients",
            num_server_rounds=100,
            min_available_nodes=4,
            evaluate_every=100,
        )


@pytest.fixture(scope="module")
def bad(run: WatchedRun, link: dict[str, Relay]) -> dict[str, Any]:
    """A round in which one client raises, one is killed and one is cut off."""
    run.wait_for(lambda record: record["train"]["counts"])
    run.order("client-1", "raise")
    run.order("client-2", "die")
    run.wait_for_training("client-3")
    link["client-3"].cut()
    record = run.wait_for_failure("client-3")
    start = time.monotonic()
    link["client-3"].restore()
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
    log = run.federation.workdir / "logs" / "nodes" / "client-2.log"
    assert any("ClientApp was killed" in line for line in explain(log.read_text()))
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


def test_client_joins(run: WatchedRun, bad: dict[str, Any], report: Report) -> None:
    start = time.monotonic()
    run.federation.add_nodes([node(run.federation.workdir, 4)])
    joined = run.wait_for_reply("client-4")
    seconds = time.monotonic() - start
    assert "client-4" not in run.records()[0]["train"]["clients"]
    text = f"trained from round {joined['round']} on, evaluated with the others"
    report("new client joins in mid-run", text, seconds)


def test_all_is_told_in_the_end(run: WatchedRun, bad: dict[str, Any]) -> None:
    run.wait_for_reply("client-4")
    result = run.finish()
    assert result.succeeded, result.log
    summary = run.summary
    assert summary["ended"] == "finished"
    assert summary["rounds"] == run.last_round
    failures = [r["train"]["failures"] for r in run.records()]
    assert summary["failures"] == sum(len(f) for f in failures)
    skipped = sum(not record["train"]["counts"] for record in run.records())
    assert summary["skipped_rounds"] == skipped
    for client in ("client-1", "client-2", "client-3"):
        assert any(client in names for names in failures)
    with (run.folder / "clients.csv").open() as file:
        evaluated = {row["client"] for row in csv.DictReader(file)}
    assert evaluated == {f"client-{i}" for i in range(5)}
