"""Calibration: what samples say of the values inside a model, in statistics that add up."""
