"""The old place of `train.acts.act`, for modifiers of other packages."""

from onnxsparse.train.act import TimedAct as Act

__all__ = ["Act"]
