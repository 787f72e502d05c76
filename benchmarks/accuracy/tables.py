"""The list of all tables."""

from __future__ import annotations

from typing import Final

from benchmarks.accuracy.data_tables import AGNEWS, MODELS
from benchmarks.accuracy.pfedes_tables import COST, PFEDES, SWEEP
from benchmarks.accuracy.table import Table
from benchmarks.accuracy.xfed_tables import (
    ABLATION,
    DEFAULTS,
    FEDERATION_TABLE,
    LAMBDA,
    LEARNING_RATE,
    MU,
    REGIME,
    SCHEDULES,
    VARIANTS,
)

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        FEDERATION_TABLE,
        REGIME,
        DEFAULTS,
        ABLATION,
        SCHEDULES,
        MU,
        LAMBDA,
        VARIANTS,
        LEARNING_RATE,
        PFEDES,
        SWEEP,
        COST,
        MODELS,
        AGNEWS,
    )
}
"""All tables by name, in the order of the report."""
