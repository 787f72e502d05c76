"""Prediction from a finished run, from the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
from PIL import Image

from client_app.predict import main


@pytest.fixture(scope="module")
def xfed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return small.finished(folder, "xfed", confidence_threshold=0.2)


def call(capsys: pytest.CaptureFixture[str], run: Path, *more: Any) -> tuple[str, str]:
    main(["--run", str(run), "--client", "client-0", *map(str, more)])
    captured = capsys.readouterr()
    return captured.out, captured.err


def report(capsys: pytest.CaptureFixture[str], run: Path, *more: Any) -> dict[str, Any]:
    out, _ = call(capsys, run, "--output", "json", *more)
    return json.loads(out)  # type: ignore[no-any-return]


def early_row(run: Path, client: str = "client-0") -> dict[str, str]:
    with (run / "clients.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["client"] == client]
    return [row for row in rows if row["exit"] == "early"][-1]


TEST_DATA = "client-0/test.npz"


def test_agrees_with_the_federations_own_evaluation(
    xfed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, xfed, small.data() / TEST_DATA)
    row = early_row(xfed)
    summary = found["summary"]
    assert summary["threshold"] == 0.2
    assert summary["accuracy"] == pytest.approx(float(row["accuracy"]))
    assert summary["mean_macs"] == pytest.approx(float(row["macs"]))
    assert summary["samples"] == len(found["samples"]) == int(row["examples"])
    assert sum(summary["per_exit"]) == summary["samples"]
    assert len(summary["per_exit"]) == 3
    assert 0 < summary["latency_median"] <= summary["latency_p95"]
    macs = np.mean([sample["macs"] for sample in found["samples"]])
    assert macs == pytest.approx(summary["mean_macs"])


def test_single_exit_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small.finished(tmp_path, "pfedes")
    summary = report(capsys, run, small.data() / TEST_DATA)["summary"]
    assert summary["model"] == "cnn-1"
    assert summary["per_exit"] == [10]
    assert summary["mean_macs"] == summary["full_macs"]
    assert summary["accuracy"] == pytest.approx(float(early_row(run)["accuracy"]))


def test_folder_of_images_as_csv(
    xfed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(small.data() / TEST_DATA) as archive:
        images, labels = archive["images"], archive["labels"]
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / str(label)
        folder.mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / f"{index}.png")
    out, err = call(capsys, xfed, tmp_path, "--batch-size", 1)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["input", "label", "confidence", "exit", "macs"]
    right = np.mean([Path(row["input"]).parent.name == row["label"] for row in rows])
    assert right == pytest.approx(float(early_row(xfed)["accuracy"]))
    assert f"10 samples, accuracy {100 * right:.2f} %" in err
    assert "per batch of 1" in err


def test_threshold_by_target(xfed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = small.data() / TEST_DATA
    validation = ["--validation", test]  # so that the outcome is known exactly

    def chosen(*target: Any) -> dict[str, Any]:
        return report(capsys, xfed, test, *target, *validation)["summary"]  # type: ignore

    anything = chosen("--target-accuracy-loss", 1.0)
    assert anything["per_exit"] == [10, 0, 0]
    full = report(capsys, xfed, test, "--threshold", 1.01)["summary"]
    assert full["per_exit"] == [0, 0, 10]
    budget = anything["mean_macs"]
    assert chosen("--mac-budget", budget)["mean_macs"] == budget
    entropy = chosen("--target-accuracy-loss", 1.0, "--policy", "entropy")
    assert entropy["policy"] == "entropy"
    assert entropy["per_exit"] == [10, 0, 0]
    assert chosen("--latency-budget", 1000.0)["samples"] == 10


def test_wrong_use_says_what_to_do(
    xfed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = small.data() / TEST_DATA
    np.savez(tmp_path / "bare.npz", images=np.zeros((2, 8, 8), np.uint8))
    Image.new("L", (9, 9)).save(tmp_path / "x.png")
    (tmp_path / "y.png").write_text("no image")
    target = ["--target-accuracy-loss", "0.01"]
    for more, reason in (
        ([test, *target], "a target needs --validation"),
        ([test, *target, "--validation", tmp_path / "bare.npz"], "a label for every"),
        ([test, "--mac-budget", "1", "--validation", test], "budget of 1 per sample"),
        ([test, "--policy", "patience"], "'patience' needs --threshold"),
        ([tmp_path / "y.png"], "y.png cannot be decoded"),
        ([test, "--batch-size", "0"], "must be at least 1"),
        ([test, "--device", "tpu"], "--device tpu cannot be used"),
        ([test, "--client", "nobody"], "client 'nobody' took no part"),
    ):
        with pytest.raises(SystemExit) as caught:
            call(capsys, xfed, *more)
        assert caught.value.code == 2
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["entropy", "patience"])
def test_other_policies(
    policy: str, xfed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = small.data() / TEST_DATA
    summary = report(capsys, xfed, test, "--policy", policy, "--threshold", 1)[
        "summary"
    ]
    assert summary["policy"] == policy
    assert summary["samples"] == 10
