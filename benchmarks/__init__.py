"""Measurements and figures: what the README reports, and how to make it again."""
