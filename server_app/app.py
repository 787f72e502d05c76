"""Entry of the server: settings, strategy, run."""

from __future__ import annotations

from collections.abc import Callable
from logging import INFO
from typing import TYPE_CHECKING

from flwr.common import Context, log
from flwr.server import Grid
from flwr.serverapp import ServerApp

if TYPE_CHECKING:
    from server_app.strategy import PersonalizedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run configuration describes."""
    run(grid, context)


def run(
    grid: Grid,
    context: Context,
    adapt: Callable[[PersonalizedStrategy], None] | None = None,
) -> None:
    """Run the experiment that the run configuration describes.

    Parameters
    ----------
    adapt
        Changes the strategy before it starts, e.g. to aggregate robustly.
    """
    from common.locks import one_writer
    from common.protocol import to_record
    from common.settings import parse_settings
    from common.sharing import initial_shared
    from server_app.errors import RunError
    from server_app.methods import STRATEGIES
    from server_app.results import Results
    from server_app.summary import table

    settings = parse_settings(context.run_config)
    results = Results.open(settings)
    strategy = STRATEGIES[settings.method].create(settings, results)
    if adapt is not None:
        adapt(strategy)
    log(INFO, "Results go to %s", results.folder.resolve())
    remedy = "wait for its end or end it, or choose another experiment name"
    try:
        with one_writer(results.folder, f"run {context.run_id}", remedy, patience=0):
            strategy.start(
                grid,
                to_record(initial_shared(settings)),
                num_rounds=settings.run.num_server_rounds,
                timeout=settings.run.round_timeout,
            )
    except RuntimeError as error:
        raise RunError(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise RunError(
            f"{error}. If the disk of {results.folder.resolve()} is full or read-only, "
            "mend that and go on with resume=true: the last checkpoint is kept"
        ) from error
    log(INFO, "Finished:\n%s", table([results.folder]))
