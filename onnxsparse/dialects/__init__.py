"""Interfaces of other pruning tools (MSBench, SparseML), by their names and their order of calls."""
