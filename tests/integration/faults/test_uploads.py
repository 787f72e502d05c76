"""A client sends what must not count: it alone is left out, for that round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sabotage import BadRound
from safetensors.numpy import load_file

from common.protocol import Reply

Report = Callable[[str, str, float | None], None]


def shared(change: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Reply], Reply]:
    """Change the first of the shared parameters."""

    def apply(reply: Reply) -> Reply:
        assert reply.shared is not None
        name = next(iter(reply.shared))
        value = change(np.array(reply.shared[name]))
        return replace(reply, shared={**reply.shared, name: value})

    return apply


def filled(value: float) -> Callable[[Reply], Reply]:
    def one(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        array.flat[-1] = value
        return array

    return shared(one)


def claims(count: Any) -> Callable[[Reply], Reply]:
    return lambda reply: replace(
        reply, metrics={**reply.metrics, "num-examples": count}
    )


def without_a_key(reply: Reply) -> Reply:
    return replace(reply, shared=dict(list((reply.shared or {}).items())[1:]))


def with_a_private_key(reply: Reply) -> Reply:
    extra = {"exits.0.weight": np.zeros(3, np.float32)}
    return replace(reply, shared={**(reply.shared or {}), **extra})


@pytest.mark.parametrize(
    ("fault", "change", "reason"),
    [
        ("NaN in an upload", filled(float("nan")), "holds NaN or infinite values"),
        ("Inf in an upload", filled(float("inf")), "holds NaN or infinite values"),
        ("key missing in an upload", without_a_key, "missing"),
        ("private key in an upload", with_a_private_key, "unexpected exits.0.weight"),
        ("wrong shape in an upload", shared(lambda a: a[:1]), "has shape"),
        (
            "wrong dtype in an upload",
            shared(lambda a: a.astype(np.float64)),
            "has dtype float64, expected float32",
        ),
        ("n_k zero", claims(0), "num-examples = 0"),
        ("n_k negative", claims(-5), "num-examples = -5"),
        ("n_k absurd", claims(10**15), "num-examples = 1000000000000000"),
        ("n_k no whole number", claims(2.5), "num-examples = 2.5"),
    ],
)
def test_bad_upload(
    fault: str,
    change: Callable[[Reply], Reply],
    reason: str,
    tmp_path: Path,
    report: Report,
) -> None:
    trial = BadRound(tmp_path, change)
    trial.run()
    told = trial.check()
    assert reason in told
    final = load_file(trial.folder / "shared.safetensors")
    assert all(np.isfinite(value).all() for value in final.values())
    report(fault, f"refused, round counts without it: {told}", trial.seconds)


def test_bad_exit_of_xfed(tmp_path: Path, report: Report) -> None:
    def wild(reply: Reply) -> Reply:
        group = {
            key: np.full_like(value, np.nan)
            for key, value in reply.groups["exit"].items()
        }
        return replace(reply, groups={"exit": group})

    trial = BadRound(tmp_path, wild, method="xfed")
    strategy = trial.run()
    told = trial.check()
    assert "holds NaN or infinite values" in told
    for state in strategy.state().values():
        assert all(np.isfinite(value).all() for value in state.values())
    report("NaN in X-FED's last exit", f"refused, none kept: {told}", trial.seconds)
