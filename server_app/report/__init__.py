"""A page with figures of one or several runs: ``python -m server_app.report``."""
