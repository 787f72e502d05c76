"""Entry of the server: settings, strategy, run."""

from __future__ import annotations

from logging import INFO

from flwr.common import Context, log
from flwr.server import Grid
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run configuration describes."""
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
    log(INFO, "Results go to %s", results.folder.resolve())
    try:
        strategy.start(
            grid,
            to_record(initial_shared(settings)),
            num_rounds=settings.run.num_server_rounds,
            timeout=settings.run.round_timeout,
        )
    except RuntimeError as error:
        raise RunError(f"{type(error).__name__}: {error}") from error
    log(INFO, "Finished:\n%s", table([results.folder]))
