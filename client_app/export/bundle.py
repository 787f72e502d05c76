"""What an export consists of: the files of a personal network and its manifest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

import client_app
from client_app.assemble import Assembled
from client_app.export.card import model_card
from client_app.export.segments import write_onnx, write_program
from common.data import ClientData, DataSpec, Split, to_model_input
from common.data.inputs import class_names
from common.data.text import FILE as TOKENIZER
from common.models import early_exit_macs
from common.settings import DataSettings
from common.versions import versions

FORMATS: Final = ("safetensors", "torch-export", "onnx")
_CALIBRATION: Final = 256
"""Samples of the training data that int8 ranges are taken from, at most."""


def export(
    assembled: Assembled,
    folder: Path,
    formats: Collection[str] = FORMATS,
    *,
    int8: bool = False,
    data: ClientData | None = None,
    recorded: dict[str, Any] | None = None,
    tokenizer: Path | None = None,
) -> dict[str, Any]:
    """Write a personal network in several forms, with ``README.md`` and a manifest.

    Parameters
    ----------
    assembled
        The network with what is known of it.
    folder
        Where to write; new or empty.
    formats
        Of :data:`FORMATS`: ``model.safetensors``, ``model.pt2``, and ``segment_*.onnx``
        with ``onnx_runner.py``. ``README.md`` and ``manifest.json`` are always written.
    int8
        Quantize the ONNX segments too; needs `data`.
    data
        The client's own data: int8 ranges come from its training part, and on its test
        part the accuracy of the ONNX segments is measured.
    recorded
        Accuracy of the run's last evaluation, as :func:`recorded_accuracy` returns it.
    tokenizer
        Of a network that reads text; a copy goes along.

    Returns
    -------
    The manifest.

    Raises
    ------
    ValueError
        The folder holds something, int8 lacks ONNX or data, or the network cannot be
        exported.
    ModuleNotFoundError
        ONNX is asked for and a package of the extra ``export`` is missing.
    """
    if int8 and ("onnx" not in formats or data is None):
        raise ValueError(
            "int8 quantizes the ONNX segments by the client's own data: it needs the "
            "format onnx and the client's data"
        )
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose another folder for the export")
    folder.mkdir(parents=True, exist_ok=True)
    network, spec = assembled.network, assembled.spec
    manifest = _describe(assembled)
    if recorded:
        manifest["accuracy"]["run"] = recorded
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / TOKENIZER)
    if "safetensors" in formats:
        state = {key: value.contiguous() for key, value in network.state_dict().items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    if "torch-export" in formats:
        write_program(network, spec, folder / "model.pt2")
    if "onnx" in formats:
        files = write_onnx(network, spec, folder)
        manifest["segments"]["float32"] = files
        runner = Path(client_app.__file__).with_name("onnx_runner.py")
        shutil.copyfile(runner, folder / runner.name)
        if int8:
            assert data is not None
            manifest["segments"]["int8"] = _quantize(assembled, folder, files, data)
        _write_manifest(folder, manifest)
        for precision in manifest["segments"] if data else ():
            assert data is not None
            measured = measure(folder, precision, data.test)
            manifest["accuracy"][precision] = measured
    _write_manifest(folder, manifest)
    (folder / "README.md").write_text(model_card(manifest, sorted(_files(folder))))
    return manifest


def measure(folder: Path, precision: str, test: Split) -> dict[str, Any]:
    """Measure the exported segments on test data, at the manifest's threshold.

    Returns
    -------
    ``samples``; ``exits``, each exit's accuracy; ``early_exit``, the accuracy where
    samples leave; ``macs``, mean MACs per sample then. Accuracies are fractions.
    """
    from client_app.onnx_runner import EarlyExitRunner

    runner = EarlyExitRunner(folder, precision=precision)
    inputs = test.inputs.numpy()
    if inputs.ndim == 4:
        inputs = inputs.transpose(0, 2, 3, 1)
    targets = test.targets.numpy()
    result = runner.predict(inputs)
    labels = [logits.argmax(axis=1) for logits in runner.logits(inputs)]
    return {
        "samples": len(targets),
        "exits": [float((label == targets).mean()) for label in labels],
        "early_exit": float((result.labels == targets).mean()),
        "macs": float(result.macs.mean()),
    }


def _describe(assembled: Assembled) -> dict[str, Any]:
    settings, spec = assembled.settings, assembled.spec
    network = assembled.network
    return {
        "schema": 1,
        "client": assembled.client,
        "method": settings.method,
        "model": assembled.model,
        "dataset": settings.data.dataset,
        "rounds": settings.run.num_server_rounds,
        "rounds_trained": assembled.rounds_trained,
        "parameters": sum(value.numel() for value in network.parameters()),
        "input": _input(spec, settings.data),
        "num_classes": spec.num_classes,
        "class_names": list(class_names(settings.data)),
        "confidence_threshold": settings.training.confidence_threshold,
        "macs": list(early_exit_macs(network, spec)),
        "segments": {},
        "accuracy": {},
        "versions": versions(),
    }


def _input(spec: DataSpec, settings: DataSettings) -> dict[str, Any]:
    """Say how stored samples become the network's input."""
    described: dict[str, Any] = {"kind": spec.kind, "shape": list(spec.shape)}
    if spec.kind == "text":
        return {**described, "vocabulary": spec.vocabulary}
    ends = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    black, white = to_model_input(ends.expand(-1, spec.shape[0], 1, 1), spec, settings)
    scale = (white - black).double().flatten() / 255
    return {
        **described,
        "normalization": settings.normalization,
        "scale": scale.tolist(),
        "offset": black.double().flatten().tolist(),
    }


def _quantize(
    assembled: Assembled, folder: Path, files: list[str], data: ClientData
) -> list[str]:
    from client_app.export.quantization import quantize_dynamic, quantize_static

    spec, train = assembled.spec, data.train
    if spec.kind == "text":
        return quantize_dynamic(folder, files)
    generator = torch.Generator().manual_seed(assembled.settings.seed)
    rows = torch.randperm(len(train), generator=generator)[:_CALIBRATION]
    images = to_model_input(train.inputs[rows], spec, assembled.settings.data)
    return quantize_static(folder, files, images.numpy())


def _files(folder: Path) -> set[str]:
    return {"README.md", *(path.name for path in folder.iterdir())}


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
