"""States of a run, saved so that a killed run goes on where the newest whole one was written."""

from __future__ import annotations

from onnxsparse.checkpoints.delivered import note_delivery, was_delivered
from onnxsparse.checkpoints.folder import MARK, claim, clean, newest, save
from onnxsparse.checkpoints.reading import Checkpoint

__all__ = ["MARK", "Checkpoint", "claim", "clean", "newest", "note_delivery", "save", "was_delivered"]
