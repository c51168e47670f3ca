"""Calibration gives the same bytes for any number of threads and processes, here and in a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxsparse.calibration import workers
from onnxsparse.calibration.workers import Workers, one_thread, working
from onnxsparse.engines.ort import library
from onnxsparse.errors import MissingExtraError
from onnxsparse.solvers import jobs
from onnxsparse.solvers.least_squares import Exact
from onnxsparse.solvers.quadratic import Quadratic
from tests.calibration.calibrated_file import calibrate
from tests.calibration.nets import conv_net, samples

pytest.importorskip("onnxruntime")
HOW = "gradients" if library.available() else "measured"
SCRIPT = Path(__file__).with_name("calibrated_file.py")


def test_threads_of_blas_change_no_byte(tmp_path: Path) -> None:
    net, data = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz")
    found = set()
    for threads in ("1", "2"):
        out = tmp_path / f"{threads}.onnx"
        command = [sys.executable, str(SCRIPT), net, data, out, "0.7", f"sensitivity={HOW}", "workers=1"]
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        own = {**os.environ, **dict.fromkeys(names, threads), "PYTHONPATH": str(Path.cwd())}
        subprocess.run(command, env=own, check=True)
        found.add(out.read_bytes())
    assert len(found) == 1


def test_blas_has_one_thread_inside() -> None:
    from threadpoolctl import threadpool_info

    with one_thread():
        assert {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"} == {1}


def test_processes_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("joblib")
    monkeypatch.setattr(workers, "SMALL", 0)
    net, data = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz")
    found = {calibrate(net, data, tmp_path / "o.onnx", 0.7, sensitivity=HOW, workers=count) for count in (1, 2)}
    assert len(found) == 1


def test_small_work_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("joblib")
    asked = Workers(2)
    assert asked.width(workers.SMALL - 1) == 1
    assert asked.width(workers.SMALL) == 2
    monkeypatch.setattr(asked, "each", lambda *_: pytest.fail("a process for nothing"))
    with jobs.running(asked):
        assert jobs.each(pow, [(2, 3), (3, 2)], 1.0) == [8, 9]


def test_without_joblib_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(MissingExtraError, match=r"onnxsparse\[workers\]"):
        Workers(2)
    assert Workers().width(1e15) == Workers(1).count == 1


def test_rows_of_a_layer_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("joblib")
    monkeypatch.setattr(workers, "SMALL", 0)
    draw = np.random.default_rng(3)
    rows, inputs = 12, 20
    x, dense = draw.standard_normal((200, inputs)), draw.standard_normal((rows, inputs))
    y, still = x @ dense.T, np.zeros(inputs)
    block = Quadratic(
        np.arange(rows), x.T @ x / 200, x.T @ y / 200, np.square(y).mean(0), still, np.zeros(rows), False, 200
    )
    for kept in (0.3, 0.8):  # from the kept ones, and from those that are gone
        mask, found = draw.random(dense.shape) < kept, []
        for count in (1, 2):
            with working(count):
                found.append(Exact(block, dense, 1e-2).under(mask, dense, True))
        for own, other in zip(*found):
            np.testing.assert_array_equal(own, other)


def _prime() -> int:
    """Have this process of a cluster die of its first job, as if it was killed."""
    workers._pinned = lambda *_: os._exit(9)  # type: ignore[assignment]
    return os.getpid()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_which_one_process_dies(tmp_path: Path) -> None:
    distributed, joblib = pytest.importorskip("distributed"), pytest.importorskip("joblib")
    net, data = conv_net(tmp_path / "net.onnx"), samples(tmp_path / "x.npz")
    alone = calibrate(net, data, tmp_path / "alone.onnx", 0.7, sensitivity=HOW, workers=1)
    cluster = distributed.LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client, joblib.parallel_config(backend="dask"):
        client.wait_for_workers(2)
        first = next(iter(client.scheduler_info()["workers"]))
        primed = client.run(_prime, workers=[first])[first]
        there = calibrate(net, data, tmp_path / "there.onnx", 0.7, sensitivity=HOW)
        client.wait_for_workers(2)
        assert primed not in client.run(os.getpid).values()
    assert there == alone
