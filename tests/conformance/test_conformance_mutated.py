"""Models damaged at random: every command copes or refuses, writes nothing half, and is done in time."""

from __future__ import annotations

import contextlib
import io
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from graphs import broken
from graphs.builders import CASES
from graphs.expectations import EVERYTHING
from graphs.mutated import mutated_models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

cli: Any = pytest.importorskip("onnxsparse.cli")

SEEDS = [
    broken.valid(),
    *[
        CASES[name].build().model
        for name in (
            "everything_at_once",
            "function_in_function",
            "qlinear_conv_uint8_per_channel",
            "mask_uint8_cast",
            "lstm_bidirectional",
            "einsum_two_k_labels",
            "loop_with_initializer",
            "function_weight_is_an_attribute_of_the_call",
            "qdq_in_blocks",
        )
    ],
]


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        pytest.fail(f"more than {seconds} seconds", pytrace=False)

    before = signal.signal(signal.SIGPROF, stop)  # of this process's own work: a busy machine is slow, not wrong
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(content: bytes, command: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "m.onnx", Path(folder) / "o.onnx"
        path.write_bytes(content)
        rule = [] if command in ("inspect", "fold") else ["--pattern", "2:4"]
        rule += ["--allow", ",".join(EVERYTHING)] if command in ("prune", "mask") else []
        target = ["-o", str(out)] if command in ("prune", "mask", "fold") else []
        out_text, err_text = io.StringIO(), io.StringIO()
        with limit(10), contextlib.redirect_stdout(out_text), contextlib.redirect_stderr(err_text):
            code = cli.main([command, str(path), *rule, *target])
        assert code in (0, 1, 2)
        assert "Traceback" not in err_text.getvalue()
        assert "internal error" not in err_text.getvalue(), err_text.getvalue()
        assert path.read_bytes() == content
        left = sorted(one.name for one in Path(folder).iterdir())
        assert left == (["m.onnx", "o.onnx"] if target and code == 0 else ["m.onnx"])
        if target and code == 0:
            onnx.ModelProto.FromString(out.read_bytes())


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=250, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(st.sampled_from(SEEDS).flatmap(mutated_models), st.sampled_from(["inspect", "prune", "verify", "mask", "fold"]))
def test_mutated_models(content: bytes, command: str) -> None:
    attempt(content, command)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=QUIET)
@given(st.sampled_from(SEEDS).flatmap(mutated_models), st.sampled_from(["inspect", "prune", "verify", "mask", "fold"]))
def test_many_mutated_models(content: bytes, command: str) -> None:
    attempt(content, command)
