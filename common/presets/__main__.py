"""Print a merged run configuration: ``python -m common.presets NAME key=value ...``."""

from __future__ import annotations

import argparse

from common.presets import merge, names, to_run_config


def main() -> None:
    """Print the configuration that ``--run-config`` takes."""
    parser = argparse.ArgumentParser(prog="python -m common.presets")
    parser.add_argument("preset", help=f"a .toml file or one of {', '.join(names())}")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    try:
        print(to_run_config(merge(arguments.preset, arguments.overrides)))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
