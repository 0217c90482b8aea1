"""Faults put in on purpose: `python -m tests.faults` (or `make faults`) tries them all and prints a table.

A kind of fault is a module in `kinds/` with a `KIND`; a new file there is found by itself. `make test` runs a short
version of each (tests/test_faults.py).
"""
