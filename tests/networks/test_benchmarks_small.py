"""Benchmarks of detectors and of ResNet-18: how bars are judged, and what is counted in files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from tools.bench import bench_classification, bench_detection
from tools.bench.bench_detection import DENSE, NETWORKS, Book, Case, held, lines

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("pycocotools")

RETINA, SEEDS = NETWORKS[0], (0, 1, 2)


@pytest.fixture
def book(tmp_path):
    """Three seeds of a network that holds its bars just so."""
    rows = []
    for seed, dense in enumerate((0.70, 0.66, 0.60)):
        rows.append({"seed": seed, "row": DENSE, "mAP50": dense, "mAP": 0.4, "seconds": 600.0})
        one = {"seed": seed, "mAP": 0.4, "seconds": 200.0}
        rows.append({**one, "row": "2:4, one-shot", "mAP50": 0.4, "estimated_mAP50": dense - 0.04})
        rows.append({**one, "row": "2:4, labels", "mAP50": dense - 0.02})
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps({"network": RETINA.name, **row}) + "\n" for row in rows))
    return Book(path)


def test_bars_hold_for_the_median_of_the_seeds(book):
    assert held(book, RETINA, DENSE, SEEDS)[0]
    assert not held(book, RETINA, DENSE, (1, 2))[0]


@pytest.mark.parametrize(("key", "value"), [("mAP50", 0.63), ("seconds", 241.0)])
def test_a_sparse_network_that_misses_a_bar_is_seen(book, key, value):
    assert held(book, RETINA, "2:4, labels", SEEDS)[0]
    for seed in (0, 1):
        book.results[RETINA.name, seed, "2:4, labels"][key] = value
    assert not held(book, RETINA, "2:4, labels", SEEDS)[0]


def test_training_has_to_gain_over_new_statistics_alone(book):
    for seed in SEEDS:
        book.results[RETINA.name, seed, "2:4, one-shot"]["estimated_mAP50"] += 0.021
    assert not held(book, RETINA, "2:4, labels", SEEDS)[0]


def test_rows_that_were_not_run_are_named(book):
    run = (DENSE, "2:4, one-shot", "2:4, labels")
    missing = [text for text, _ in lines(book, RETINA, SEEDS) if "not run" in text]
    assert missing == [f"| {row} | | not run | | | | | |" for row in bench_detection.ROWS if row not in run]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("row", bench_detection.ROWS)
def test_every_row_reads_a_configuration_that_is_there(network, row, tmp_path):
    from onnxsparse.dialects.msbench import configuration
    from onnxsparse.dialects.msbench.network_job import read_network_job
    from onnxsparse.dialects.msbench.overrides import overridden

    case = Case(network, 1, tmp_path)
    path = case.config(row)
    job = read_network_job(path, overridden(configuration.load(path), case.opts(row)))
    assert job.iterations == (network.steps if row == DENSE else network.steps // 4)
    assert (job.sparsity is None) == row.startswith("dense")
    assert (job.distills, job.seed) == (row.endswith("no labels"), 1)
    assert job.pretrained == ("" if row == DENSE else case.dense)


def test_layers_of_a_file_are_counted_by_the_rule_of_asp(tmp_path):
    from tools.bench.measure_detection import two_of_four

    sparse = np.tile(np.float32([1, 0, 0, 2]), 32 * 4).reshape(32, 16)
    weights = {"conv": sparse[:, :, None, None], "dense": sparse + 1, "narrow": sparse[:9]}
    nodes = [
        helper.make_node("Conv", ["x", "conv"], ["a"]),
        helper.make_node("Conv", ["x", "conv"], ["b"]),
        helper.make_node("Gemm", ["y", "dense"], ["c"], transB=1),
        helper.make_node("Gemm", ["y", "narrow"], ["d"], transB=1),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xyabcd"]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    save(helper.make_model(helper.make_graph(nodes, "g", values[:2], values[2:], tensors)), tmp_path / "g.onnx")
    assert two_of_four([str(tmp_path / "g.onnx")]) == (2, 1)


def test_a_weight_of_two_layers_is_counted_once():
    from tools.bench.measure_detection import share_of_zeros

    first, last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
    with torch.no_grad():
        first.weight.fill_(1.0)
        last.weight.zero_()
    again = torch.nn.Linear(4, 4)
    again.weight = first.weight
    assert share_of_zeros(torch.nn.Sequential(first, again, last)) == 8 / 24


def test_levels_of_resnet_may_lose_noise_down_to_70_and_fall_from_there():
    top1 = {"dense": 90.0, "70": 89.7, "80": 89.0, "90": 89.2, "2:4": 89.0}
    zeros = {"dense": 0.0, "70": 71.6, "80": 80.0, "90": 90.0, "2:4": 50.0}
    found = dict(bench_classification.judged(top1, zeros, 0.5))
    assert found == {"dense": True, "70": False, "80": True, "90": True, "2:4": False}
    assert dict(bench_classification.judged({**top1, "90": 89.6}, {**zeros, "70": 70.0}, 0.5)) == {
        "dense": True, "70": True, "80": True, "90": False, "2:4": False,
    }  # fmt: skip
