"""Modifiers: what happens when in a run. Options and behaviour of each stand in one file, by family."""
