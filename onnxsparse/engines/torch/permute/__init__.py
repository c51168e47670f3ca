"""Permuting the channels of a user's own module: its graph, by export or by a trace, the moves, and their proof."""
