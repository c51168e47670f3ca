"""States of a run, saved so that a killed run goes on where the newest whole one was written."""

from __future__ import annotations

from onnxsparse.checkpoints.folder import claim, clean, newest, save
from onnxsparse.checkpoints.reading import Checkpoint

__all__ = ["Checkpoint", "claim", "clean", "newest", "save"]
