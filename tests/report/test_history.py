"""The history of a run."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from onnxsparse.errors import OptionError
from onnxsparse.files import write_text
from onnxsparse.report.history import History, Moment
from tests.messages import refusing


def run() -> History:
    history = History({"model": "a.onnx", "seed": 3})
    history.add(Moment(0.5, 10, loss=0.1 + 0.2, sparsity=0.5, rate=1e-3, samples_per_second=812.5))
    history.add(Moment(1.0, 20, loss=float("nan"), probe=0.25, metrics={"accuracy": 0.75, "a,b": 1.0}))
    history.add(Moment(1.5, 30, loss=float("inf"), metrics={"top-5": 1.0, "accuracy": 0.75}))
    return history


def test_it_is_written_as_json_and_as_a_table(tmp_path: Path) -> None:
    paths = run().write(str(tmp_path / "sparse.onnx"), lambda path, text: write_text(path, text, True))
    assert paths == (str(tmp_path / "history.json"), str(tmp_path / "history.csv"))
    content = json.loads(Path(paths[0]).read_text())
    assert (content["version"], content["about"]["seed"]) == (1, 3)
    assert content["rows"][0]["loss"] == 0.1 + 0.2
    assert content["rows"][1]["loss"] is None
    table = list(csv.DictReader(io.StringIO(Path(paths[1]).read_text())))
    assert [float(row["loss"]) for row in table][:1] == [0.1 + 0.2]
    assert [row["eval_accuracy"] for row in table] == ["", "0.75", "0.75"]
    assert list(table[0])[-3:] == ["eval_accuracy", "eval_a,b", "eval_top-5"]
    assert len(os.listdir(tmp_path)) == 2


def test_no_two_columns_have_one_name() -> None:
    history = History()
    history.add(Moment(1.0, 10, loss=0.5, metrics={"loss": 0.25}))
    table = list(csv.DictReader(io.StringIO(history.to_csv())))
    assert (table[0]["loss"], table[0]["eval_loss"]) == ("0.5", "0.25")
    header = history.to_csv().splitlines()[0].split(",")
    assert len(header) == len(set(header))


def test_it_goes_on_where_a_run_was_resumed() -> None:
    history = History.from_facts(json.loads(json.dumps(run().to_facts())))
    assert history.rows[0] == run().rows[0]
    assert history.about == run().about
    history.until(20)
    assert [row.step for row in history.rows] == [10, 20]
    assert History().to_csv().count("\n") == 1


def test_the_best_is_the_first_of_equals_and_never_nan() -> None:
    best = run().best("accuracy")
    assert best is not None
    assert best.step == 20
    lowest = run().best("loss", higher=False)
    assert lowest is not None
    assert lowest.step == 10
    assert run().best("nothing") is None


@pytest.mark.parametrize("facts", [{}, {"version": 2}, {"version": 1, "about": {}, "rows": [{"day": 3}]}])
def test_a_history_of_something_else(facts) -> None:
    with refusing(OptionError):
        History.from_facts(facts)
