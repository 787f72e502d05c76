"""Time saved by leaving early, beside the multiply-accumulates saved.

Measures a client's personal network at the threshold ε of its run, one thread, beside
the same network without early exits::

    python -m benchmarks.inference --run runs/xfed --client client-03 \
        client-03/test.parquet

and writes the figures to ``benchmarks/results/inference.json``. Run it on a machine
that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.records import RESULTS, Figure, figures_table, write_figures
from client_app.assemble import Assembled, assemble
from client_app.inference import EarlyExit
from client_app.memory import keep_heap
from client_app.timing import Savings, latencies, savings
from common.data import DataSpec, to_model_input
from common.data.inputs import decode_batches, find_inputs

_BATCH_SIZES = (1, 64)
_TOLERANCE = 0.2
_LARGEST = 1024  # samples read


def figures(found: Savings) -> list[Figure]:
    """Return what was measured at one batch size, as fractions and seconds."""
    name = f"batch size {found.batch_size}"
    ratio = found.time_saved / found.macs_saved
    return [
        Figure(name=f"MACs saved, {name}", value=found.macs_saved, unit="fraction"),
        Figure(name=f"time saved, {name}", value=found.time_saved, unit="fraction"),
        Figure(
            name=f"time saved / MACs saved, {name}",
            value=ratio,
            unit="",
            target="0.8 to 1.2",
            met=abs(ratio - 1) <= _TOLERANCE,
        ),
        Figure(name=f"time per sample, {name}", value=1000 * found.seconds, unit="ms"),
        Figure(
            name=f"time per sample without early exits, {name}",
            value=1000 * found.full_seconds,
            unit="ms",
        ),
    ]


def at_both_sizes(
    network: nn.Module,
    spec: DataSpec,
    threshold: float,
    inputs: torch.Tensor,
    repeats: int = 15,
) -> list[Figure]:
    """Measure one by one and in batches of 64, on one core."""
    torch.set_num_threads(1)
    keep_heap()
    return [
        figure
        for size in _BATCH_SIZES
        for figure in figures(
            savings(network, spec, threshold, inputs, batch_size=size, repeats=repeats)
        )
    ]


def samples(assembled: Assembled, paths: Sequence[Path]) -> torch.Tensor:
    """Read images as the network takes them, at most 1024."""
    spec, settings = assembled.spec, assembled.settings.data
    if spec.kind != "image":
        raise ValueError(f"{assembled.model} reads text: name a run on images")
    inputs = find_inputs(paths, spec, settings)
    stored = next(decode_batches(inputs, spec, settings, _LARGEST))
    return to_model_input(stored, spec, settings)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT")
    parser.add_argument("--run", required=True, type=Path)
    parser.add_argument("--client", required=True)
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--threshold", type=float, help="default: the run's")
    options = parser.parse_args()
    assembled = assemble(options.run, options.client, options.state_dir)
    threshold = options.threshold
    if threshold is None:
        threshold = assembled.settings.training.confidence_threshold
    inputs = samples(assembled, options.inputs)
    network, spec = assembled.network, assembled.spec
    found = at_both_sizes(network, spec, threshold, inputs)
    singles = torch.split(inputs, 1)
    seconds = latencies(EarlyExit(network, threshold), singles)
    found += [
        Figure(name=f"latency, {name}", value=1000 * float(value), unit="ms")
        for name, value in zip(
            ("median", "95th percentile"), np.percentile(seconds, [50, 95]), strict=True
        )
    ]
    path = RESULTS / "inference.json"
    write_figures(
        found, path, f"python -m benchmarks.inference {' '.join(sys.argv[1:])}"
    )
    print(figures_table(path))


if __name__ == "__main__":
    main()
