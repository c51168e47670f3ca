"""A training by a configuration goes on from its own checkpoints alone, and what it delivers is verified."""

from __future__ import annotations

import re
import shutil

import numpy as np
import onnx
import pytest

from onnxsparse.dialects.msbench.runner import SparseRunner
from onnxsparse.errors import OptionError
from tests import warm
from tests.dialects.nets import onnx_model, random
from tests.dialects.test_msbench_runner import AMBA, ROOT, desk, trains
from tests.messages import refusing


def amba(**more):
    return {**AMBA, "scheduler": {**AMBA["scheduler"], "kwargs": {**AMBA["scheduler"]["kwargs"], **more}}}


def script(path, *words):
    return warm.python([str(ROOT / "tools" / "train_sparse.py"), "--config", path, *words], cwd=ROOT)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training that is done."""
    folder = tmp_path_factory.mktemp("trained")
    SparseRunner(desk(folder), quiet=True).run()
    return folder


@pytest.fixture
def done(trained, tmp_path):
    folder = tmp_path / "desk"
    shutil.copytree(trained, folder)
    return folder


@trains
@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"sparsity": amba(sparsity_table=[30, 50])}, "sparsity differs"),
        ({"sparsity": amba(prun_hw_aware="cv22")}, "sparsity differs"),
        ({"sparsity": amba(no_prune_layer="/wide/Conv")}, "sparsity differs"),
        ({"trainer": {"optimizer": {"type": "SGD", "kwargs": {"lr": 0.5}}}}, "trainer differs"),
        ({"trainer": {"max_epoch": 4, "lr_scheduler": {"type": "ConstantLR"}}}, "trainer differs"),
        ({"loss": {"hardness": 0.5}}, "loss differs"),
        ({"data": {"batch_size": 4}}, "data, trainer differ"),
        ({"runtime": {"random_seed": 4}}, "runtime differs"),
    ],
)
def test_another_configuration_does_not_go_on(done, sections, named):
    before = (done / "saved" / "sparse.onnx").read_bytes()
    with pytest.raises(OptionError, match=f"saved holds checkpoints of another run: {named}; pass the same"):
        SparseRunner(desk(done, **sections), quiet=True).run()
    assert (done / "saved" / "sparse.onnx").read_bytes() == before


@trains
def test_other_data_and_another_model_do_not_go_on(done):
    model = onnx.load(done / "net.onnx")
    model.graph.initializer.reverse()  # another export of the same network
    for one in model.graph.node:
        one.name = f"other{one.name}"
    onnx.save(model, done / "other.onnx")
    found = script(desk(done, saver={"pretrain_model": str(done / "other.onnx")}))
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "saved holds checkpoints of another run: model differs" in found.stderr
    x = random(2, 32, 3, 12, 12)
    np.savez(done / "data.npz", x=x, labels=np.arange(32) % 8)
    path = desk(done)
    with refusing(OptionError):
        SparseRunner(path, quiet=True).run()
    SparseRunner(path, evaluate=True, quiet=True).run()  # of which other data changes nothing


@trains
def test_other_numbers_to_start_with_do_not_go_on(tmp_path):
    state = tmp_path / "state.npz"
    path = desk(tmp_path, model=str(tmp_path / "net.onnx"), saver={"pretrain_model": str(state)})
    np.savez(state, **{"stem.weight": random(5, 16, 3, 3, 3)})
    first = SparseRunner(path, quiet=True).run()
    assert SparseRunner(path, quiet=True).run() == first
    np.savez(state, **{"stem.weight": random(6, 16, 3, 3, 3)})
    with refusing(OptionError):
        SparseRunner(path, quiet=True).run()
    state.unlink()  # what is not there any more is not asked for
    assert SparseRunner(path, quiet=True).run() == first


@trains
def test_what_decides_nothing_may_change(done):
    folders = {"output_dir": str(done / "out"), "do_sparse_analysis": False, "verbosity": 0}
    trainer = {"test_freq": 3}
    shutil.move(done / "saved", done / "moved")
    path = desk(done, amba(sparsity_table=[30.0, 60], **folders), trainer=trainer, saver={
        "save_dir": str(done / "moved"), "save_freq": 5
    })  # fmt: skip
    before = onnx.load(done / "moved" / "sparse.onnx")
    SparseRunner(path, quiet=True).run()
    assert onnx.load(done / "moved" / "sparse.onnx").graph == before.graph


@trains
def test_the_model_of_a_start_is_that_of_a_run_that_goes_on(tmp_path):
    other = onnx_model()
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(random(9, 16, 3, 3, 3), "stem.weight"))
    onnx.save(other, tmp_path / "start.onnx")
    sections = {"model": str(tmp_path / "net.onnx"), "saver": {"pretrain_model": str(tmp_path / "start.onnx")}}
    runners = [SparseRunner(desk(tmp_path, **sections), quiet=True) for _ in range(2)]
    for runner in runners:
        runner.run()
    assert runners[0].source == runners[1].source == str(tmp_path / "start.onnx")


@trains
def test_a_file_that_does_not_hold_is_said(tmp_path):
    path = desk(tmp_path, amba(sparsity_table=[10, 30]))
    model = onnx.load(tmp_path / "net.onnx")
    for one in model.graph.initializer:  # more zeros than the levels ask for
        array = np.array(onnx.numpy_helper.to_array(one))
        array.reshape(-1)[: array.size * 3 // 5] = 0
        one.CopyFrom(onnx.numpy_helper.from_array(array, one.name))
    onnx.save(model, tmp_path / "net.onnx")
    found = script(path, "-q")
    assert found.returncode == 1
    line = next(line for line in found.stderr.splitlines() if "DOES NOT HOLD" in line)
    assert "sparse.onnx DOES NOT HOLD: network sparsity" in line
    assert "level 30 %" in line


@trains
def test_a_file_that_holds_is_no_error(done):
    found = script(desk(done))
    assert found.returncode == 0, found.stderr
    assert "HOLD" not in found.stderr


@trains
@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("declared", [True, False])
def test_labels_outside_the_classes_are_said_before_the_training(tmp_path, part, declared):
    path = desk(tmp_path)
    if not declared:
        pytest.importorskip("onnxruntime")
        model = onnx.load(tmp_path / "net.onnx")
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "classes"
        onnx.save(model, tmp_path / "net.onnx")
    x = random(1, 32, 3, 12, 12)
    np.savez(tmp_path / "wrong.npz", x=x, labels=np.arange(32))
    path = desk(tmp_path, data={part: str(tmp_path / "wrong.npz")})
    with refusing(OptionError):
        SparseRunner(path, quiet=True).run()
    assert not (tmp_path / "saved").exists()


def test_a_batch_is_no_larger_than_the_data(tmp_path):
    path = desk(tmp_path, data={"batch_size": 33})
    with refusing(OptionError):
        SparseRunner(path, quiet=True).run()


@pytest.mark.parametrize(
    ("trainer", "kwargs", "said"),
    [
        ({"max_epoch": None}, {}, "nothing says how long to train .*: 10000 iterations, the default of total_iters"),
        ({"max_epoch": None}, {"total_iters": 7}, ""),
        ({}, {"total_iters": 8}, ""),
        ({}, {"total_iters": 70}, "total_iters is 8, by the trainer, and not the 70 beside the scheduler"),
    ],
)
def test_who_says_how_long_is_said(tmp_path, capsys, trainer, kwargs, said):
    runner = SparseRunner(desk(tmp_path, amba(**kwargs), trainer=trainer))
    runner.build_model()
    found = capsys.readouterr().out
    assert re.search(said, found) if said else "note" not in found
