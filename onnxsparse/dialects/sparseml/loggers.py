"""SparseML's loggers: what a manager tells goes to Python's logging, to TensorBoard or to a function.

    manager.modify(model, optimizer, steps, loggers=[PythonLogger(), TensorBoardLogger(log_path="runs")])

Each has `log_scalar(tag, value, step, wall_time)`, `log_scalars`, `log_string` and `log_hyperparams`; all of them
return whether they logged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from onnxsparse.errors import OptionError

DEFAULT = logging.INFO + 5
Function = Callable[..., Any]


class LambdaLogger:
    """Calls `lambda_func(tag, value, values, step, wall_time, level)`, where a value or several are told."""

    def __init__(self, lambda_func: Function, name: str = "lambda", enabled: bool = True) -> None:
        if not callable(lambda_func):
            raise OptionError(f"lambda_func is called with what is logged; a {type(lambda_func).__name__} cannot be")
        self.name, self.enabled, self.lambda_func = name, enabled, lambda_func

    def log_hyperparams(self, params: Mapping[str, float], level: int | None = None) -> bool:
        return self._told(None, None, dict(params), None, None, level)

    def log_scalar(
        self,
        tag: str,
        value: float,
        step: float | None = None,
        wall_time: float | None = None,
        level: int | None = None,
    ) -> bool:
        return self._told(tag, value, None, step, wall_time, level)

    def log_scalars(
        self,
        tag: str,
        values: Mapping[str, float],
        step: float | None = None,
        wall_time: float | None = None,
        level: int | None = None,
    ) -> bool:
        return self._told(tag, None, dict(values), step, wall_time, level)

    def log_string(
        self, tag: str, string: str, step: float | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        """Texts go to Python's logging only."""
        return False

    def save(self, file_path: str, **kwargs: Any) -> bool:
        return False

    def _told(self, *said: Any) -> bool:
        return bool(self.enabled) and bool(self.lambda_func(*said))


class PythonLogger(LambdaLogger):
    """To `logger` of Python's logging, or to `sparseml` there."""

    def __init__(
        self, logger: Any = None, log_level: int | None = None, name: str = "python", enabled: bool = True
    ) -> None:
        self.logger = logger or logging.getLogger("sparseml")
        self._level = DEFAULT if log_level is None else log_level
        super().__init__(self._write, name, enabled)

    def log_string(
        self, tag: str, string: str, step: float | None = None, wall_time: float | None = None, level: int | None = None
    ) -> bool:
        self.logger.log(level or self._level, "%s", string if tag is None else f"{tag} {string}")
        return True

    def _write(self, tag: Any, value: Any, values: Any, step: Any, wall_time: Any, level: Any) -> bool:
        place = "" if step is None else f" step {step:g}"
        self.logger.log(
            level or self._level, "%s%s: %s", tag or "hyperparams", place, value if values is None else values
        )
        return True


class TensorBoardLogger(LambdaLogger):
    """To a SummaryWriter of torch, whose package tensorboard has to be installed."""

    def __init__(
        self, log_path: Any = None, writer: Any = None, name: str = "tensorboard", enabled: bool = True
    ) -> None:
        self.writer = writer if writer is not None else _writer(log_path or os.path.join(".", "tensorboard"))
        super().__init__(self._write, name, enabled)

    def _write(self, tag: Any, value: Any, values: Any, step: Any, wall_time: Any, level: Any) -> bool:
        if value is not None:
            self.writer.add_scalar(tag, value, step, wall_time)
        elif tag is not None:
            self.writer.add_scalars(tag, values, step, wall_time)
        else:
            self.writer.add_hparams(values, {})
        return True


def _writer(folder: Any) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise OptionError("TensorBoardLogger needs the package tensorboard, or writer= that has add_scalar") from None
    return SummaryWriter(os.fspath(folder))


class LoggerManager:
    """Several loggers as one; `log_frequency` is kept, and what a modifier tells is told when it is due."""

    def __init__(
        self, loggers: Iterable[Any] | None = None, log_frequency: float | None = 0.1, name: str = "manager"
    ) -> None:
        self.loggers, self.log_frequency, self.name = list(loggers or ()), log_frequency, name

    def __len__(self) -> int:
        return len(self.loggers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loggers)

    def add_logger(self, logger: Any) -> None:
        if not callable(getattr(logger, "log_scalar", None)):
            raise OptionError(f"a logger has log_scalar, and a {type(logger).__name__} does not")
        self.loggers.append(logger)

    def log_ready(self, epoch: float | None, last_log_epoch: float | None) -> bool:
        """Whether `log_frequency` epochs have passed."""
        if self.log_frequency is None or epoch is None or last_log_epoch is None:
            return self.log_frequency is not None
        return epoch == last_log_epoch or epoch >= last_log_epoch + self.log_frequency

    @staticmethod
    def epoch_to_step(epoch: float, steps_per_epoch: float) -> int:
        return round(epoch if steps_per_epoch <= 0 else epoch * steps_per_epoch)

    def log_scalar(self, tag: str, value: float, step: float | None = None, **more: Any) -> None:
        self._tell("log_scalar", tag=tag, value=value, step=step, **more)

    def log_scalars(self, tag: str, values: Mapping[str, float], step: float | None = None, **more: Any) -> None:
        self._tell("log_scalars", tag=tag, values=values, step=step, **more)

    def log_string(self, tag: str, string: str, step: float | None = None, **more: Any) -> None:
        self._tell("log_string", tag=tag, string=string, step=step, **more)

    def log_hyperparams(self, params: Mapping[str, float], **more: Any) -> None:
        self._tell("log_hyperparams", params=params, **more)

    def save(self, file_path: str, **more: Any) -> None:
        self._tell("save", file_path=file_path, **more)

    def _tell(self, what: str, **said: Any) -> None:
        named = said.pop("log_types", None)
        for one in self.loggers:
            if named in (None, "__ALL__") or one.name in ([named] if isinstance(named, str) else named):
                getattr(one, what)(**said)
