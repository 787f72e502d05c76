"""Early-exit inference on exported ONNX segments, with NumPy and ONNX Runtime alone.

``python -m client_app.export`` puts a copy of this file beside the segments, so that a
device needs neither PyTorch nor this package::

    from onnx_runner import EarlyExitRunner

    runner = EarlyExitRunner("exported")
    result = runner.predict(images)  # uint8 (N, height, width, channels)
    print(result.labels, result.confidences, result.exits)

As a command it prints one line per sample: ``python onnx_runner.py samples.npz``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """What early-exit inference says of N samples."""

    labels: npt.NDArray[np.int64]
    """Class indices, shape (N,)."""
    confidences: npt.NDArray[np.float32]
    """Max softmax at the exit taken, shape (N,)."""
    exits: npt.NDArray[np.int64]
    """Exit taken, counted from 1, shape (N,)."""
    macs: npt.NDArray[np.int64]
    """Multiply-accumulates spent, earlier exits included, shape (N,)."""


class EarlyExitRunner:
    """Runs the segments one after another, each on the samples that still go on.

    Segment j is block j and exit j. It reads what segment j - 1 hands on and returns
    ``logits_j`` and, but for the last one, what segment j + 1 reads.

    Parameters
    ----------
    folder
        Holds ``manifest.json`` and the segments it names.
    precision
        ``"float32"``, or ``"int8"`` where the segments were quantized too.
    providers
        Execution providers of ONNX Runtime in order of preference, e.g.
        ``("CUDAExecutionProvider", "CPUExecutionProvider")``.
    threads
        Threads on the CPU; 0 takes all cores.

    Raises
    ------
    ValueError
        The manifest is of another version, or names no such segments.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        precision: str = "float32",
        providers: Sequence[str] = ("CPUExecutionProvider",),
        threads: int = 0,
    ) -> None:
        folder = Path(folder)
        self.manifest: dict[str, Any] = json.loads(
            (folder / "manifest.json").read_text()
        )
        if self.manifest["schema"] != 1:
            raise ValueError(
                f"{folder / 'manifest.json'} has schema {self.manifest['schema']!r}, "
                "this runner reads 1: use the onnx_runner.py that lies beside it"
            )
        segments = self.manifest["segments"]
        if precision not in segments:
            raise ValueError(
                f"{folder} holds no {precision} segments, only "
                f"{', '.join(segments) or 'none'}: export them with --format onnx"
                + (" --int8" if precision == "int8" else "")
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._sessions = [
            onnxruntime.InferenceSession(
                str(folder / name), options, providers=list(providers)
            )
            for name in segments[precision]
        ]

    @property
    def num_exits(self) -> int:
        """Number of exits."""
        return len(self._sessions)

    def prepare(self, samples: Array) -> Array:
        """Turn samples as they are stored into the network's input.

        Parameters
        ----------
        samples
            Images uint8 (N, height, width, channels), or (N, height, width) if grey; or
            token ids of whole numbers (N, tokens). Input that is prepared already,
            float32 images (N, channels, height, width), is returned as it is.

        Returns
        -------
        float32 images (N, channels, height, width), or int64 tokens (N, tokens).

        Raises
        ------
        ValueError
            Shape or type do not fit the network.
        """
        expected = self.manifest["input"]
        shape = tuple(expected["shape"])
        if expected["kind"] == "text":
            if samples.shape[1:] != shape or samples.dtype.kind not in "iu":
                raise _unfit(samples, f"token ids of whole numbers (N, {shape[0]})")
            return samples.astype(np.int64)
        if samples.dtype == np.float32 and samples.shape[1:] == shape:
            return samples
        channels, height, width = shape
        if samples.ndim == 3:
            samples = samples[..., None]
        if samples.shape[1:] != (height, width, channels) or samples.dtype != np.uint8:
            raise _unfit(samples, f"uint8 images (N, {height}, {width}, {channels})")
        scale = np.asarray(expected["scale"], np.float32)
        offset = np.asarray(expected["offset"], np.float32)
        pixels = samples.astype(np.float32) * scale + offset
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))

    def predict(
        self, samples: Array, threshold: float | None = None, batch_size: int = 64
    ) -> Predictions:
        """Classify samples, each as far into the network as it needs.

        A sample leaves at the first exit whose max softmax is at least the threshold,
        at the latest at the last exit; later segments run on the others alone.

        Parameters
        ----------
        samples
            See :meth:`prepare`.
        threshold
            Confidence ε in [0, 1]; None takes that of the manifest.
        batch_size
            Samples that enter the network at a time.

        Raises
        ------
        ValueError
            The samples do not fit the network.
        """
        if threshold is None:
            threshold = self.manifest["confidence_threshold"]
        inputs = self.prepare(samples)
        n = len(inputs)
        labels, exits = np.zeros(n, np.int64), np.zeros(n, np.int64)
        confidences = np.zeros(n, np.float32)
        for start in range(0, n, batch_size):
            rows = np.arange(start, min(start + batch_size, n))
            values = {"input": inputs[rows]}
            for exit_ in range(1, self.num_exits + 1):
                values = self._run(exit_, values)
                probability = softmax(values.pop(f"logits_{exit_}"))
                confidence = probability.max(axis=1)
                last = exit_ == self.num_exits
                leaves = (confidence >= threshold) | last
                gone = rows[leaves]
                labels[gone] = probability[leaves].argmax(axis=1)
                confidences[gone] = confidence[leaves]
                exits[gone] = exit_
                rows = rows[~leaves]
                if not len(rows):
                    break
                if leaves.any():
                    values = {name: value[~leaves] for name, value in values.items()}
        macs = np.asarray(self.manifest["macs"], np.int64)[exits - 1]
        return Predictions(labels, confidences, exits, macs)

    def logits(self, samples: Array) -> list[Array]:
        """Return the logits (N, classes) of every exit, without leaving early."""
        values = {"input": self.prepare(samples)}
        outputs = []
        for exit_ in range(1, self.num_exits + 1):
            values = self._run(exit_, values)
            outputs.append(values.pop(f"logits_{exit_}"))
        return outputs

    def _run(self, exit_: int, values: dict[str, Array]) -> dict[str, Array]:
        session = self._sessions[exit_ - 1]
        names = [output.name for output in session.get_outputs()]
        needed = {i.name: values[i.name] for i in session.get_inputs()}
        return dict(zip(names, session.run(names, needed), strict=True))


def softmax(logits: Array) -> Array:
    """Return the softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probability: Array = powers / powers.sum(axis=-1, keepdims=True)
    return probability


def _unfit(samples: Array, expected: str) -> ValueError:
    return ValueError(
        f"samples are {samples.dtype} of shape {samples.shape}, but this network reads "
        f"{expected}: resize or convert them first"
    )


def _load(path: Path) -> tuple[Array, Array | None]:
    """Read samples, and labels where there are any, from ``.npy`` or ``.npz``."""
    content = np.load(path)
    if isinstance(content, np.ndarray):
        return content, None
    name = next((n for n in ("images", "tokens") if n in content), None)
    if name is None:
        raise ValueError(
            f"{path} holds {', '.join(content)}: expected images or tokens, and labels"
        )
    return content[name], content.get("labels")


def main(arguments: Sequence[str] | None = None) -> None:
    """Classify the samples of a file; print one line each and a summary."""
    parser = argparse.ArgumentParser(
        description="Early-exit inference with ONNX Runtime.",
        epilog="Lines: sample, class index, class name, confidence, exit, MACs.",
    )
    parser.add_argument(
        "samples",
        type=Path,
        help=".npy, or .npz with images (N, height, width, channels) uint8 or tokens "
        "(N, tokens), and optionally labels (N,)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=Path(__file__).parent,
        help="folder with manifest.json; default: that of this file",
    )
    parser.add_argument("--int8", action="store_true", help="use the int8 segments")
    parser.add_argument("--threshold", type=float, help="confidence that is enough")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--providers", nargs="+", default=["CPUExecutionProvider"])
    options = parser.parse_args(arguments)
    try:
        runner = EarlyExitRunner(
            options.model,
            precision="int8" if options.int8 else "float32",
            providers=options.providers,
            threads=options.threads,
        )
        samples, labels = _load(options.samples)
        runner.prepare(samples[:1])
    except (ValueError, OSError) as error:
        parser.error(str(error))
    names = runner.manifest["class_names"]
    right, macs, seconds = 0, 0, []
    for start in range(0, len(samples), options.batch_size):
        batch = samples[start : start + options.batch_size]
        began = time.perf_counter()
        result = runner.predict(batch, options.threshold, options.batch_size)
        seconds.append(time.perf_counter() - began)
        macs += int(result.macs.sum())
        for i, label in enumerate(result.labels):
            print(
                start + i,
                label,
                names[label] if names else label,
                f"{result.confidences[i]:.4f}",
                result.exits[i],
                result.macs[i],
                sep="\t",
            )
            right += labels is not None and int(labels[start + i]) == label
    if not seconds:
        return
    accuracy = "" if labels is None else f"accuracy {right / len(samples):.4f}, "
    median, late = 1000 * np.percentile(seconds, [50, 95])
    print(
        f"{len(samples)} samples, {accuracy}{macs / len(samples):,.0f} MACs each, "
        f"{median:.2f} ms per batch of {options.batch_size} (95th percentile "
        f"{late:.2f} ms)",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
