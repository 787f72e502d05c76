"""What inference says of samples, and how it is written down."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is said of one sample."""

    input: str
    label: str
    """Name of the predicted class, its index where classes have no names."""
    confidence: float
    """Largest softmax value at the exit taken."""
    exit: int
    """Exit taken, from 1."""
    macs: int
    """Multiply-accumulates up to there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is said of all samples together."""

    client: str
    model: str
    policy: str
    threshold: float | None
    """ε; None where every sample goes to the last exit."""
    samples: int
    accuracy: float | None
    """Fraction of right labels at the exit taken; None where labels are not known."""
    per_exit: list[int]
    """Samples that left at each exit."""
    mean_macs: float
    full_macs: int
    """Multiply-accumulates of the whole network, all exits included."""
    batch_size: int
    latency_median: float
    """Median of the seconds that a batch took; reading it is not counted."""
    latency_p95: float


def write(
    predictions: Sequence[Prediction], summary: Summary, form: str, out: TextIO
) -> None:
    """Write predictions as ``csv``, or with the summary as ``json``."""
    if form == "json":
        samples = [asdict(prediction) for prediction in predictions]
        json.dump({"summary": asdict(summary), "samples": samples}, out, indent=1)
        out.write("\n")
        return
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["input", "label", "confidence", "exit", "macs"])
    for it in predictions:
        sure = f"{it.confidence:.4f}"
        writer.writerow([it.input, it.label, sure, it.exit, it.macs])


def describe(summary: Summary) -> str:
    """Return the summary in two lines."""
    accuracy = summary.accuracy
    right = "" if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
    sure = "never early" if summary.threshold is None else f"ε = {summary.threshold:g}"
    saved = 100 * (1 - summary.mean_macs / summary.full_macs)
    per_exit = " / ".join(map(str, summary.per_exit))
    return (
        f"{summary.client}, {summary.model}: {summary.samples} samples{right}, left at "
        f"exits {per_exit} ({summary.policy}, {sure})\n"
        f"{summary.mean_macs:,.0f} MACs per sample, {saved:.1f} % saved; "
        f"{1000 * summary.latency_median:.2f} ms per batch of {summary.batch_size} "
        f"(95th percentile {1000 * summary.latency_p95:.2f} ms)"
    )
