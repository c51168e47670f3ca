"""Numpy-only foundations: parameters, their stored values, and top-k selection."""
