"""Wherever a training starts, it learns from the dense model; and a checkpoint that is of another form is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxsparse.dialects.msbench.runner import STEPS, SparseRunner
from onnxsparse.dialects.msbench.start_state import demand_place
from onnxsparse.errors import ModelError, OptionError, PlanError
from onnxsparse.graph.model import Model
from tests.dialects.nets import numbers, onnx_model, random
from tests.dialects.test_msbench_runner import desk, trains
from tests.messages import refusing

NORM = {"bn.weight": (16,), "bn.bias": (16,), "bn.running_mean": (16,), "bn.running_var": (16,)}


def saver(folder, **more):
    return {"save_dir": str(folder / "again"), "pretrain_model": str(folder / "net.onnx"), **more}


@pytest.fixture(autouse=True)
def data(tmp_path):
    desk(tmp_path)


def first_loss(path, start=""):
    """The loss of what a training begins with."""
    runner = SparseRunner(path, start, quiet=True)
    for step in STEPS[:-1]:
        getattr(runner, step)()
    runner.model.use({})
    runner.model.begin_with(runner.samples.take(runner.order.rows(0)))
    return runner.evaluate()["loss"]


@trains
def test_a_sparse_model_learns_from_the_dense_one(tmp_path):
    loss = {"type": "cross_entropy", "hardness": 0.7}
    model = onnx_model()
    model.graph.initializer.append(onnx.numpy_helper.from_array(random(7, 8), "head.bias"))  # it trains along
    model.graph.node[-1].input.append("head.bias")
    onnx.save(model, tmp_path / "net.onnx")
    path = desk(tmp_path, loss=loss)
    SparseRunner(path, quiet=True).run()
    last = SparseRunner(path, evaluate=True, quiet=True).run()
    sparse = str(tmp_path / "saved" / "sparse.onnx")
    again = SparseRunner(desk(tmp_path, loss=loss), sparse, evaluate=True, quiet=True).run()
    assert again == pytest.approx(last)
    for more, start in (
        ({"saver": saver(tmp_path, resume_model=sparse)}, ""),
        ({"saver": saver(tmp_path)}, sparse),
        ({"saver": saver(tmp_path, pretrain_model=""), "model": str(tmp_path / "net.onnx")}, sparse),
    ):
        assert first_loss(desk(tmp_path, loss=loss, **more), start) == pytest.approx(last["loss"])
    own = first_loss(desk(tmp_path, loss={"hardness": 1.0}, saver=saver(tmp_path, resume_model=sparse)))
    assert own > 0.01
    assert first_loss(desk(tmp_path, loss={"hardness": 1.0}, saver=saver(tmp_path))) == pytest.approx(0, abs=1e-6)


@trains
def test_a_training_that_starts_with_a_sparse_model_is_delivered_and_goes_on(tmp_path):
    SparseRunner(desk(tmp_path), quiet=True).run()
    sparse = str(tmp_path / "saved" / "sparse.onnx")
    path = desk(tmp_path, loss={"hardness": 0.7}, saver=saver(tmp_path, resume_model=sparse))
    first = SparseRunner(path, quiet=True)
    figures = first.run()
    assert first.holds
    assert first.source == str(tmp_path / "net.onnx")
    assert SparseRunner(path, quiet=True).run() == figures


@trains
def test_numbers_of_the_dense_model_are_the_teacher_s(tmp_path):
    np.savez(tmp_path / "dense.npz", **{name: 2 * array for name, array in numbers().items()})
    sections = {"model": str(tmp_path / "net.onnx"), "loss": {"hardness": 1.0}}
    dense = saver(tmp_path, pretrain_model=str(tmp_path / "dense.npz"))
    assert first_loss(desk(tmp_path, saver=dense, **sections)) == pytest.approx(0, abs=1e-6)
    np.savez(tmp_path / "sparse.npz", **numbers())
    assert first_loss(desk(tmp_path, saver=dense, **sections), str(tmp_path / "sparse.npz")) > 0.01
    path = desk(tmp_path, saver=dense, **sections)
    SparseRunner(path, quiet=True).run()
    (tmp_path / "dense.npz").unlink()
    with refusing(OptionError):
        SparseRunner(path, quiet=True).run()


@trains
def test_another_network_learns_from_itself_and_that_is_said(tmp_path, capsys):
    other = onnx_model()
    other.graph.node[1].op_type = "Sigmoid"
    onnx.save(other, tmp_path / "other.onnx")
    path = desk(tmp_path, loss={"hardness": 1.0}, saver=saver(tmp_path, resume_model=str(tmp_path / "other.onnx")))
    runner = SparseRunner(path)
    runner.build_model()
    runner.load_ckpt()
    assert runner.source == str(tmp_path / "other.onnx")
    assert "other.onnx is another network than" in capsys.readouterr().out


@trains
@pytest.mark.parametrize(
    ("renamed", "more", "said"),
    [
        (["stem.weight"], NORM, "4 of 9 tensors of the checkpoint and of 5 of the model .*the export folded"),
        (
            ["stem.weight", "wide.weight", "point.weight"],
            {},
            "2 of 5 tensors of the checkpoint .*other names or shapes",
        ),
    ],
)
def test_a_checkpoint_of_another_form_is_refused(tmp_path, renamed, more, said):
    path = desk(tmp_path, model=str(tmp_path / "net.onnx"), saver={"pretrain_model": str(tmp_path / "dense.npz")})
    np.savez(tmp_path / "dense.npz", **numbers(), **{name: random(3, *shape) for name, shape in more.items()})
    model = onnx_model()
    for place, name in enumerate(renamed):
        for node in model.graph.node:
            node.input[:] = [f"onnx::Conv_{place}" if one == name else one for one in node.input]
        next(one for one in model.graph.initializer if one.name == name).name = f"onnx::Conv_{place}"
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=said) as error:
        SparseRunner(path, quiet=True).run()
    assert "\n" not in str(error.value)
    assert "training=PRESERVE" in str(error.value)


@trains
def test_a_dense_model_that_is_not_there_is_named_and_the_run_goes_on(tmp_path, capsys):
    """Published files have a placeholder in its place."""
    model = {"model": str(tmp_path / "net.onnx")}
    wanted = SparseRunner(desk(tmp_path, saver=saver(tmp_path, pretrain_model=""), **model), quiet=True).run()
    placeholder = {"save_dir": str(tmp_path / "other"), "pretrain_model": "pretrain_path"}
    path = desk(tmp_path, saver=placeholder, **model)
    capsys.readouterr()
    first = SparseRunner(path)
    assert first.run() == wanted
    assert any("saver.pretrain_model pretrain_path does not exist: the run goes on" in note for note in first.notes)
    assert "pretrain_path does not exist" in capsys.readouterr().out
    assert SparseRunner(path, quiet=True).run() == wanted, "from its newest checkpoint"
    assert "pretrain_path does not exist" in capsys.readouterr().err, "what is wrong is said, however quiet"
    assert SparseRunner(path, evaluate=True, quiet=True).run() == wanted
    given = str(tmp_path / "other" / "sparse.onnx")
    for sections, start in (
        ({"saver": {**placeholder, "save_dir": str(tmp_path / "third"), "resume_model": given}}, ""),
        ({"saver": {**placeholder, "save_dir": str(tmp_path / "fourth")}}, given),
    ):
        runner = SparseRunner(desk(tmp_path, **sections, model=None), start, quiet=True)
        runner.build_model()
        runner.load_ckpt()
        assert runner.source == given


@pytest.mark.parametrize("name", ["pretrain_path", "dense.pth", "dense.onnx"])
def test_a_dense_model_that_is_not_there_ends_a_run_that_has_nothing_else(tmp_path, name):
    path = desk(tmp_path, saver=saver(tmp_path, pretrain_model=name))
    with pytest.raises(OptionError, match=f"saver.pretrain_model {name} does not exist, and nothing else says which"):
        SparseRunner(path, quiet=True).run()
    assert not (tmp_path / "again").exists()


def merged_model():
    """As an exporter writes a net that was not trained: what is equal is stored once, and named by Identity."""
    model = onnx_model()
    first = next(one for one in model.graph.initializer if one.name == "stem.weight")
    twin = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(first)[:1, :1, :1, :1].reshape(-1), "scale")
    model.graph.initializer.append(twin)
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["scale"], ["other.scale"]))
    return model


@pytest.mark.parametrize("equal", [True, False])
def test_tensors_that_the_exporter_merged_are_the_reason(tmp_path, equal):
    path = str(tmp_path / "net.onnx")
    onnx.save(merged_model(), path)
    given = {**numbers(), "scale": np.float32([1]), "other.scale": np.float32([1 if equal else 2])}
    if equal:
        demand_place("dense.npz", given, Model.open(path))
        return
    with refusing(ModelError) as told:
        demand_place("dense.npz", given, Model.open(path))
    assert "PRESERVE" not in str(told.value)
    assert "folding" not in str(told.value)


def checkpoint(path, beside):
    """As MSBench saves a module: its layers hold more than weights."""
    torch = pytest.importorskip("torch")
    state = {f"module.{name}": torch.from_numpy(2 * array) for name, array in numbers().items()}
    state.update({f"module.{name}_fake_sparse.{one}": torch.ones(1) for name in numbers() for one in beside})
    torch.save({"model": state, "epoch": 3}, path)


@trains
@pytest.mark.parametrize("key", ["pretrain_model", "resume_model", "given"])
def test_a_checkpoint_of_msbench_s_modules_is_a_start_state(tmp_path, key):
    checkpoint(tmp_path / "theirs.pth", ["fake_sparse_enabled", "scores", "mask_generator.tau"])
    theirs = str(tmp_path / "theirs.pth")
    named = {} if key == "given" else {key: theirs}
    path = desk(tmp_path, model=str(tmp_path / "net.onnx"), saver=saver(tmp_path, **{"pretrain_model": "", **named}))
    runner = SparseRunner(path, theirs if key == "given" else "", quiet=True)
    for step in STEPS[:-1]:
        getattr(runner, step)()
    for tag, name in runner.model.names().items():
        np.testing.assert_array_equal(runner.model.weight(tag), 2 * numbers()[name])
    assert sum("weight_fake_sparse" in note for note in runner.notes) == 1


class More:
    """Something else than numbers, in a checkpoint."""


def test_what_is_no_file_of_numbers_is_one_line(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"model": {}, "more": More()}, tmp_path / "more.pth")
    for name in ("text.pth", "text.npz"):
        (tmp_path / name).write_text("no numbers")
    (tmp_path / "none.npz").write_bytes(b"")
    for name, said in [("more.pth", "it holds a .*More"), ("text.pth", "torch.save did not"), ("text.npz", "no .npz"),
                       ("none.npz", "no .npz")]:  # fmt: skip
        path = desk(tmp_path, model=str(tmp_path / "net.onnx"), saver={"pretrain_model": str(tmp_path / name)})
        with pytest.raises((ModelError, PlanError), match=said) as told:
            SparseRunner(path, quiet=True).run()
        assert "\n" not in str(told.value)
