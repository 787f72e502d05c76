r"""Export a client's personal network from a finished run.

Writes weights and model card, a torch.export program, and ONNX segments between the
exits with a runner that leaves early. Example::

    python -m client_app.export --run runs/trial --client client-3 --output exported \
        --int8
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client_app.assemble import assemble
from client_app.export.bundle import FORMATS, export
from client_app.export.records import client_data, recorded_accuracy
from common.data.tokenizer import find_tokenizer


def main(arguments: Sequence[str] | None = None) -> None:
    """Export what the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m client_app.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--client", required=True, help="name as in roster.json")
    parser.add_argument("--state-dir", type=Path, help="the client's personal states")
    parser.add_argument("--output", type=Path, required=True, help="new folder")
    parser.add_argument(
        "--format", nargs="+", choices=FORMATS, default=FORMATS, help="default: all"
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="quantize the ONNX segments too, calibrated on the client's training data",
    )
    parser.add_argument(
        "--tokenizer", type=Path, help="for text: tokenizer.json of the run"
    )
    own = parser.add_argument_group(
        "the client's data, for --int8 and to measure the ONNX segments",
        "As in its node configuration; a simulated client's are found by its name.",
    )
    own.add_argument("--data-path", type=Path, help="folder with train and test data")
    own.add_argument("--partition-id", type=int)
    own.add_argument("--num-partitions", type=int)
    options = parser.parse_args(arguments)
    try:
        assembled = assemble(options.run, options.client, options.state_dir)
        data = None
        if "onnx" in options.format:
            data = client_data(
                assembled,
                options.run,
                data_path=options.data_path,
                partition_id=options.partition_id,
                num_partitions=options.num_partitions,
            )
        tokenizer = None
        if assembled.spec.kind == "text":
            near = [options.run, *([options.data_path] if options.data_path else [])]
            settings = assembled.settings.data
            tokenizer = options.tokenizer or find_tokenizer(settings, near)
        manifest = export(
            assembled,
            options.output,
            options.format,
            int8=options.int8,
            data=data,
            recorded=recorded_accuracy(options.run, options.client),
            tokenizer=tokenizer,
        )
    except ModuleNotFoundError as error:
        parser.error(
            f"{error}: ONNX needs the extra 'export', pip install '.[export]'; or "
            "leave it out, --format safetensors torch-export"
        )
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(_report(options.output, manifest))


def _report(folder: Path, manifest: dict[str, Any]) -> str:
    lines = [f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}"]
    for name, measured in manifest["accuracy"].items():
        exits = " / ".join(f"{100 * value:.1f}" for value in measured["exits"])
        lines.append(
            f"{name}: accuracy per exit {exits} %, leaving early "
            f"{100 * measured['early_exit']:.1f} % with {measured['macs']:,.0f} MACs "
            f"({measured['samples']} test samples)"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
