"""The model card of an export, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_HEADER: Final = """---
license: other
tags: [federated-learning, personalized, early-exit]
---"""

_USE: Final = (
    "This network is personal: it was fitted to the data of one client and is meant "
    "for that client's data. On other data expect less than the accuracy above. "
    "Weights can reveal what they were trained on: keep them as confidential as the "
    "data. The code that made them is under Apache-2.0; on the weights' licence their "
    "owner decides."
)

_METHODS: Final = {
    "standalone": "training alone; nothing was shared",
    "fedavg": "FedAvg; the whole network is the federation's",
    "fedper": "FedPer; the backbone is the federation's, the exits are this client's",
    "pfedes": "pFedES (arXiv 2311.06879); the whole network is this client's, the "
    "federation shared a feature extractor that inference does not need",
    "xfed": "X-FED (Federated Personalization of Early-Exit Networks, CIKM 2026); the "
    "backbone is the federation's, the exits are this client's",
}

_ROWS: Final = {
    "run": "last evaluation of the run, PyTorch",
    "float32": "these ONNX segments",
    "int8": "these ONNX segments, int8",
}

_CONTENT: Final = {
    "model.safetensors": "the weights",
    "model.pt2": "the whole network, all exits, as `torch.export` program",
    "manifest.json": "input, classes, threshold, costs and accuracy, for programs",
    "onnx_runner.py": "early-exit inference, needs NumPy and ONNX Runtime alone",
}


def model_card(manifest: dict[str, Any], files: Sequence[str]) -> str:
    """Return the card of the network that a manifest describes.

    Parameters
    ----------
    manifest
        As :func:`client_app.export.bundle.export` writes it.
    files
        Names of the files in the folder.
    """
    method = manifest["method"]
    facts = {
        "Method": _METHODS.get(method, method),
        "Architecture": f"`{manifest['model']}`, {len(manifest['macs'])} "
        f"{'exit' if len(manifest['macs']) == 1 else 'exits'}, "
        f"{manifest['parameters']:,} parameters",
        "Data set": f"`{manifest['dataset']}`, this client's part",
        "Input": _input(manifest["input"]),
        "Classes": _classes(manifest),
        "Rounds": f"{manifest['rounds']} in the run, this client trained in "
        f"{manifest['rounds_trained']}",
        "Versions": ", ".join(f"{k} {v}" for k, v in manifest["versions"].items()),
    }
    parts = [
        _HEADER,
        f"# `{manifest['model']}` of {manifest['client']}",
        "\n".join(f"- **{name}:** {text}" for name, text in facts.items()),
        "## Accuracy and cost",
        _accuracy(manifest),
        "## Files",
        "\n".join(f"- `{name}`: {_purpose(name)}" for name in files if _purpose(name)),
        "## Use",
        *_uses(manifest, files),
        "## Intended use and licence",
        _USE,
    ]
    return "\n\n".join(parts) + "\n"


def _input(described: dict[str, Any]) -> str:
    shape = described["shape"]
    if described["kind"] == "text":
        return (
            f"int64 token ids (N, {shape[0]}) below {described['vocabulary']}, cut or "
            "filled up with 0; `tokenizer.json` makes them of texts"
        )
    scale = ", ".join(f"{value:.6g}" for value in described["scale"])
    offset = ", ".join(f"{value:.6g}" for value in described["offset"])
    return (
        f"float32 images (N, {', '.join(map(str, shape))}), per channel pixel times "
        f"({scale}) plus ({offset}), pixels 0 to 255 (`{described['normalization']}`)"
    )


def _classes(manifest: dict[str, Any]) -> str:
    names = manifest["class_names"]
    count = f"{manifest['num_classes']}"
    if not names:
        return count
    listed = ", ".join(names[:20])
    return f"{count}: {listed}" + (", ... (manifest.json)" if len(names) > 20 else "")


def _accuracy(manifest: dict[str, Any]) -> str:
    exits = range(1, len(manifest["macs"]) + 1)
    header = ["", *(f"exit {j}" for j in exits)]
    header += ["leaving early", "MACs then", "samples"]
    costs = ["MACs per sample", *(f"{cost:,}" for cost in manifest["macs"]), "", "", ""]
    lines = [header, ["---"] * len(header), costs]
    for key, title in _ROWS.items():
        if key in manifest["accuracy"]:
            lines.append([title, *_figures(manifest["accuracy"][key])])
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return (
        f"{text}\n\nAccuracy in %, on this client's test data. A sample leaves at the "
        f"first exit whose softmax reaches {manifest['confidence_threshold']:g}."
    )


def _figures(measured: dict[str, Any]) -> list[str]:
    accuracies = [f"{100 * value:.2f}" for value in measured["exits"]]
    early, macs = f"{100 * measured['early_exit']:.2f}", f"{measured['macs']:,.0f}"
    return [*accuracies, early, macs, str(measured["samples"])]


def _purpose(name: str) -> str:
    if name.endswith(".int8.onnx"):
        return "the same segment in int8"
    if name.endswith(".onnx"):
        return "block and exit of this number"
    return _CONTENT.get(name, "")


def _uses(manifest: dict[str, Any], files: Sequence[str]) -> list[str]:
    text = manifest["input"]["kind"] == "text"
    shape, classes = tuple(manifest["input"]["shape"]), manifest["num_classes"]
    vocabulary = f", {manifest['input']['vocabulary']}" if text else ""
    kind = manifest["input"]["kind"]
    uses = []
    if "model.safetensors" in files:
        uses.append(
            _python(
                "from safetensors.torch import load_file",
                "from common.data import DataSpec",
                "from common.models import build_network",
                "",
                f'spec = DataSpec("{kind}", {shape}, {classes}{vocabulary})',
                f'network = build_network("{manifest["model"]}", spec, seed=0).eval()',
                'network.load_state_dict(load_file("model.safetensors"))',
            )
        )
    if "model.pt2" in files:
        uses.append(
            _python(
                "import torch",
                "",
                'network = torch.export.load("model.pt2").module()',
                "logits = network(inputs)  # one tensor per exit, or the only one",
            )
        )
    if "onnx_runner.py" in files:
        stored = f"tokens (N, {shape[0]})"
        if not text:
            stored = f"uint8 images (N, {shape[1]}, {shape[2]}, {shape[0]})"
        uses.append(
            _python(
                "from onnx_runner import EarlyExitRunner",
                "",
                'runner = EarlyExitRunner(".")',
                f"result = runner.predict(samples)  # {stored}",
                "result.labels, result.confidences, result.exits, result.macs",
            )
        )
        uses.append("As a command: `python onnx_runner.py samples.npz --batch-size 1`.")
    return uses


def _python(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])
