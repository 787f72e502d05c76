"""Accuracy of the methods, table by table: ``python -m benchmarks.accuracy TABLE``.

A table (:mod:`~benchmarks.accuracy.tables`) is a list of cells, a cell a method with
its settings. The runner simulates every cell with every seed, and after each run writes
``accuracy.json`` and the Markdown made from it anew. All methods of a seed see the same
partition, initial weights and sampled clients.
"""
