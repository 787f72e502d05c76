"""The papers' tables at full scale, cell by cell: ``python -m benchmarks.paper``."""
