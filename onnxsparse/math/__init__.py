"""Arithmetic on arrays that the families share: stored values, exact ranks."""
