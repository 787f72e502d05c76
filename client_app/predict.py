"""Predict with a client's personal network, leaving early where it is sure.

From a simulation of ``server_app.simulate``, or on a device with a copy of the run's
``settings.json`` and ``shared.safetensors``::

    python -m client_app.predict --run runs/xfed --client client-3 photos/

prints label, confidence, exit and multiply-accumulates of every sample, and accuracy
where labels are known, mean cost and latency of all. The threshold ε can be chosen by a
target, from labelled data that the network was not trained on::

    ... --target-accuracy-loss 0.01 --validation held-back/ photos/
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from client_app.inference import POLICIES, EarlyExit, Predictions, scores_per_exit
from client_app.predictions import Prediction, Summary, describe, write
from client_app.thresholds import Choice, cheapest, curve, most_accurate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from client_app.assemble import Assembled
    from common.data.inputs import Inputs

_LATENCY_SAMPLES = 30


def predict(
    assembled: Assembled,
    inputs: Inputs,
    *,
    threshold: float,
    policy: str = "confidence",
    batch_size: int = 64,
    device: torch.device | None = None,
    tokenizer: Path | None = None,
) -> tuple[list[Prediction], Summary]:
    """Predict samples with a client's personal network.

    Parameters
    ----------
    threshold
        ε: a sample leaves at the first exit whose score reaches it.
    policy
        One of :data:`~client_app.inference.POLICIES`.
    device
        Where to compute; None is the CPU.
    tokenizer
        For text, the run's tokenizer.

    Raises
    ------
    ValueError
        A sample cannot be read.
    """
    import torch

    from common.data.inputs import class_names
    from common.models import early_exit_macs

    early = EarlyExit(assembled.network.to(device), threshold, policy)
    costs = early_exit_macs(assembled.network, assembled.spec)
    found: list[Predictions] = []
    seconds: list[float] = []
    for batch in _batches(assembled, inputs, batch_size, device, tokenizer):
        if not found:
            early(batch)  # the first call is slower than all others
        start = time.perf_counter()
        found.append(early(batch))
        seconds.append(time.perf_counter() - start)
    labels = torch.cat([part.labels for part in found]).numpy()
    exits = torch.cat([part.exits for part in found]).numpy()
    confidence = torch.cat([part.confidence for part in found]).tolist()
    names = class_names(assembled.settings.data)
    predictions = [
        Prediction(
            name, names[label] if names else str(label), sure, exit_ + 1, costs[exit_]
        )
        for name, label, sure, exit_ in zip(
            inputs.names, labels, confidence, exits.tolist(), strict=True
        )
    ]
    known = inputs.targets is not None
    return predictions, Summary(
        client=assembled.client,
        model=assembled.model,
        policy=policy,
        threshold=threshold if math.isfinite(threshold) else None,
        samples=len(inputs),
        accuracy=float((labels == inputs.targets).mean()) if known else None,
        per_exit=np.bincount(exits, minlength=len(costs)).tolist(),
        mean_macs=float(np.array(costs)[exits].mean()),
        full_macs=costs[-1],
        batch_size=batch_size,
        latency_median=float(np.median(seconds)),
        latency_p95=float(np.percentile(seconds, 95)),
    )


def choose(
    assembled: Assembled,
    validation: Inputs,
    *,
    accuracy_loss: float | None = None,
    mac_budget: float | None = None,
    latency_budget: float | None = None,
    policy: str = "confidence",
    device: torch.device | None = None,
    tokenizer: Path | None = None,
) -> Choice:
    """Choose ε by one of three targets, from a client's validation data.

    Parameters
    ----------
    validation
        Labelled samples that the network was neither trained nor will be tested on.
    accuracy_loss
        Fraction that accuracy may lie below the last exit's; the cheapest ε is chosen.
    mac_budget
        Largest mean of multiply-accumulates per sample; the most accurate ε is chosen.
    latency_budget
        Largest mean of seconds per sample, one at a time, as measured here and now; the
        most accurate ε is chosen.

    Raises
    ------
    ValueError
        Samples without labels, or a budget that cannot be kept.
    """
    import torch

    from client_app.timing import seconds_per_exit
    from common.models import early_exit_macs

    if validation.targets is None:
        raise ValueError(
            "the validation data need a label for every sample: folders named like the "
            "classes, or labels in the .npz or .parquet file"
        )
    network = assembled.network.to(device)
    batches = list(_batches(assembled, validation, 64, device, tokenizer))
    parts = [scores_per_exit(network, batch, policy) for batch in batches]
    scores = torch.cat([part for part, _ in parts]).numpy()
    labels = torch.cat([part for _, part in parts]).numpy()
    right = labels == validation.targets[:, None]
    if latency_budget is not None:
        costs = seconds_per_exit(network, batches[0][:_LATENCY_SAMPLES])
    else:
        macs = early_exit_macs(network, assembled.spec)
        costs = np.array(macs, dtype=np.float64)
    outcome = curve(scores, right, costs)
    if accuracy_loss is not None:
        return cheapest(outcome, accuracy_loss)
    budget = mac_budget if latency_budget is None else latency_budget
    assert budget is not None
    return most_accurate(outcome, budget)


def _batches(
    assembled: Assembled,
    inputs: Inputs,
    batch_size: int,
    device: torch.device | None,
    tokenizer: Path | None,
) -> Iterator[Tensor]:
    """Yield what the network reads, in channels-last, on the device."""
    import torch

    from common.data import to_model_input
    from common.data.inputs import decode_batches

    spec, data = assembled.spec, assembled.settings.data
    for stored in decode_batches(inputs, spec, data, batch_size, tokenizer):
        batch = to_model_input(stored.to(device), spec, data)
        if batch.dim() == 4:
            batch = batch.contiguous(memory_format=torch.channels_last)
        yield batch


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict what the command line names."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        predictions, summary = _run(options)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    write(predictions, summary, options.output, sys.stdout)
    print(describe(summary), file=sys.stderr)


def _run(options: argparse.Namespace) -> tuple[list[Prediction], Summary]:
    from client_app.assemble import assemble
    from client_app.node import usable_device
    from common.data.inputs import find_inputs
    from common.data.tokenizer import find_tokenizer

    assembled = assemble(options.run, options.client, options.state_dir)
    spec, data = assembled.spec, assembled.settings.data
    if assembled.rounds_trained == 0:
        print(
            f"{options.client} never trained: what is personal of its network has "
            "initial weights",
            file=sys.stderr,
        )
    common: dict[str, Any] = {"policy": options.policy}
    common["device"] = usable_device(options.device, f"--device {options.device}")
    inputs = find_inputs(options.inputs, spec, data)
    if spec.kind == "text":
        near = [options.run, *(path.parent for path in options.inputs)]
        common["tokenizer"] = options.tokenizer or find_tokenizer(data, near)
    targets = (options.target_accuracy_loss, options.mac_budget, options.latency_budget)
    if any(target is not None for target in targets):
        if not options.validation:
            raise ValueError(
                "a target needs --validation: labelled data that the network was not "
                "trained on, and other than what it is tested on"
            )
        validation = find_inputs(options.validation, spec, data)
        loss, macs, seconds = targets
        threshold = choose(
            assembled,
            validation,
            accuracy_loss=loss,
            mac_budget=macs,
            latency_budget=seconds,
            **common,
        ).threshold
    elif options.threshold is not None:
        threshold = options.threshold
    elif options.policy == "confidence":
        threshold = assembled.settings.training.confidence_threshold
    else:
        raise ValueError(f"policy {options.policy!r} needs --threshold or a target")
    return predict(
        assembled, inputs, threshold=threshold, batch_size=options.batch_size, **common
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m client_app.predict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, path = parser.add_argument, Path
    add(
        "inputs",
        nargs="+",
        type=path,
        metavar="INPUT",
        help="images, folders of "
        "images, .npz or .parquet; for text .txt (a text per line) or .parquet",
    )
    add(
        "--run",
        required=True,
        type=path,
        help="the run's folder, or a copy of its settings.json and shared.safetensors",
    )
    add("--client", required=True, help="name of the client")
    add(
        "--state-dir",
        type=path,
        help="folder of personal states; default: state in "
        "the run's folder, else the run's state-dir",
    )
    add(
        "--policy",
        choices=list(POLICIES),
        default="confidence",
        help="score that is "
        "compared with ε: largest softmax value, 1 - normalised entropy, or number of "
        "exits before that agree",
    )
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--threshold",
        type=float,
        metavar="ε",
        help="default: the run's confidence-threshold",
    )
    goal.add_argument(
        "--target-accuracy-loss",
        type=float,
        metavar="FRACTION",
        help="choose the cheapest ε that loses no more accuracy than this",
    )
    goal.add_argument(
        "--mac-budget",
        type=float,
        metavar="MACS",
        help="choose the most "
        "accurate ε with at most so many multiply-accumulates per sample in the mean",
    )
    goal.add_argument(
        "--latency-budget",
        type=float,
        metavar="SECONDS",
        help="choose "
        "the most accurate ε with at most so many seconds per sample in the mean",
    )
    add(
        "--validation",
        nargs="+",
        type=path,
        metavar="PATH",
        help="labelled data for that choice, neither trained nor tested on",
    )
    add("--batch-size", type=_positive, default=64, help="samples at once, default 64")
    add("--device", default="cpu", help="torch device, default cpu")
    add("--tokenizer", type=path, help="for text: tokenizer.json of the run")
    add("--output", choices=("csv", "json"), default="csv")
    return parser


if __name__ == "__main__":
    main()
