"""Post-training quantization of ONNX segments to int8 with ONNX Runtime.

Weights use 7 of the 8 bits: the int8 kernels of x86 processors without VNNI add pairs
of products in 16 bits, which the full range overflows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Values = dict[str, Array]

_BATCH: Final = 64
_SYMMETRIC: Final = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "QuantizeBias": False,
}
"""What TensorRT asks of a quantized ONNX file."""


def quantize_static(folder: Path, files: list[str], images: Array) -> list[str]:
    """Write an int8 copy of every segment: ``segment_1.int8.onnx``, ...

    Weights (per channel) and activations (per tensor) become int8, with symmetric
    ranges: the activations' are the extremes seen when the float32 segments read
    `images`.

    Parameters
    ----------
    folder
        Holds the segments.
    files
        Names of the float32 segments in order.
    images
        Images to calibrate on, as the network reads them, float32 (N, channels, height,
        width).

    Returns
    -------
    The new files' names in order.
    """
    from onnxruntime import InferenceSession, quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    values: Values = {"input": images}
    for name in files:
        source = str(folder / name)
        with tempfile.TemporaryDirectory() as scratch:
            prepared = str(Path(scratch, name))
            quant_pre_process(source, prepared, skip_symbolic_shape=True)
            quantization.quantize_static(
                prepared,
                str(folder / _int8_name(name)),
                _Reader(values),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=quantization.QuantType.QInt8,
                weight_type=quantization.QuantType.QInt8,
                reduce_range=True,
                extra_options=_SYMMETRIC,
            )
        session = InferenceSession(source, providers=["CPUExecutionProvider"])
        outputs = [output.name for output in session.get_outputs()]
        values = dict(zip(outputs, session.run(outputs, values), strict=True))
        values = {n: v for n, v in values.items() if not n.startswith("logits")}
    return [_int8_name(name) for name in files]


def quantize_dynamic(folder: Path, files: list[str]) -> list[str]:
    """Write an int8 copy of every segment of a network that reads text.

    Weights become int8 once, the activations of each batch with a range of its own.
    Parameters and result are those of :func:`quantize_static`.
    """
    from onnxruntime import quantization

    for name in files:
        quantization.quantize_dynamic(
            str(folder / name),
            str(folder / _int8_name(name)),
            weight_type=quantization.QuantType.QInt8,
            reduce_range=True,
        )
    return [_int8_name(name) for name in files]


class _Reader:
    """Hands a segment's inputs to the calibration, batch by batch."""

    def __init__(self, values: Values) -> None:
        (name,) = values
        parts = range(_BATCH, len(values[name]), _BATCH)
        self._batches = iter([{name: b} for b in np.split(values[name], parts)])

    def get_next(self) -> Values | None:
        return next(self._batches, None)


def _int8_name(name: str) -> str:
    return name.replace(".onnx", ".int8.onnx")
