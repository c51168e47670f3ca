"""The scripts of tools/: they work, they return the exit codes of the command line, and they stand alone."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from models.digits import accuracy, training_half
from onnxsparse import cli
from onnxsparse.engines.ort import library
from tests import warm

ROOT = Path(__file__).resolve().parent.parent
TRAINS = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SCRIPTS = ("fold_masks", "insert_masks", "sparsify", "verify")


def script(name: str) -> ModuleType:
    return importlib.import_module(f"tools.{name}")


def bytes_of(command: list[str], out: Path) -> bytes:
    assert cli.main([*command, "-o", str(out), "-q"]) == 0
    return out.read_bytes()


def test_sparsify_does_what_prune_does(digits_cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = ["--pattern", "unstructured", "--sparsity", "80%", "--allocation", "erk", "--exclude", "head"]
    assert script("sparsify").main([str(digits_cnn), "-o", str(tmp_path / "script.onnx"), *rule]) == 0
    assert "head.weight: dense, excluded by --exclude head" in capsys.readouterr().out
    assert (tmp_path / "script.onnx").read_bytes() == bytes_of(["prune", str(digits_cnn), *rule], tmp_path / "cli.onnx")


def test_masks_go_in_and_out(digits_cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    masked, folded, dense = (str(tmp_path / name) for name in ("masked.onnx", "folded.onnx", "dense.onnx"))
    assert script("insert_masks").main([str(digits_cnn), "-o", masked, "--target", "ampere", "--form", "bool"]) == 0
    assert sum(node.op_type == "Mul" for node in onnx.load(masked).graph.node) == 4
    assert script("fold_masks").main([masked, "-o", folded, "--target", "ampere"]) == 0
    assert "masks of 4 of 5 weights, written to" in capsys.readouterr().out
    assert script("verify").main([folded, "--target", "ampere"]) == 0
    assert script("fold_masks").main([masked, "-o", dense, "--discard"]) == 0
    assert Path(dense).read_bytes() == digits_cnn.read_bytes()


def test_masks_of_a_schedule(digits_cnn: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "mask_generator: {type: NormalMaskGenerator}\nfake_sparse: {type: FakeSparse}\n"
        "scheduler: {type: BaseScheduler}\n"
    )
    (tmp_path / "r.yaml").write_text(
        "modifiers:\n  - !GMPruningModifier {params: __ALL_PRUNABLE__, init_sparsity: 0.1, final_sparsity: 0.8, "
        "start_epoch: 0, end_epoch: 4, update_frequency: 1}\n"
    )
    for words in (
        ["--config", str(tmp_path / "c.yaml"), "--level", "50"],
        ["--recipe", str(tmp_path / "r.yaml"), "--epoch", "1.5", "--steps-per-epoch", "2"],
    ):
        out, wanted = tmp_path / "script.onnx", tmp_path / f"{words[0]}.onnx"
        assert script("insert_masks").main([str(digits_cnn), "-o", str(out), "--overwrite", *words]) == 0
        assert out.read_bytes() == bytes_of(["mask", str(digits_cnn), *words], wanted)
    with pytest.raises(SystemExit) as stop:
        script("insert_masks").main([str(digits_cnn), "-o", str(tmp_path / "x.onnx"), "--dim", "N"])
    assert stop.value.code == 2


def test_masks_of_ones_own(digits_cnn: Path, tmp_path: Path) -> None:
    mask = np.zeros((10, 64), bool)
    mask[:, ::2] = True
    np.savez(tmp_path / "masks.npz", **{"head.weight": mask})
    masked = str(tmp_path / "masked.onnx")
    assert script("insert_masks").main([str(digits_cnn), "-o", masked, "--masks", str(tmp_path / "masks.npz")]) == 0
    assert script("fold_masks").main([masked, "-o", str(tmp_path / "folded.onnx")]) == 0
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(str(tmp_path / "folded.onnx")).graph.initializer}
    assert np.array_equal(arrays["head.weight"] != 0, mask)


def test_a_mask_that_cannot_be_folded_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("fold_masks").main([_half_masked(tmp_path), "-o", str(tmp_path / "out.onnx")]) == 0
    assert "w: left" in capsys.readouterr().out


def _half_masked(folder: Path) -> str:
    """Two nodes read one weight, and only one of them through a mask."""
    weight = onnx.numpy_helper.from_array(np.arange(1, 17, dtype=np.float32).reshape(4, 4), "w")
    mask = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "m")
    nodes = [
        onnx.helper.make_node("Mul", ["w", "m"], ["wm"]),
        onnx.helper.make_node("MatMul", ["x", "wm"], ["y"]),
        onnx.helper.make_node("MatMul", ["x", "w"], ["z"]),
    ]
    entry = onnx.helper.make_tensor_value_info
    x, y, z = (entry(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xyz")
    graph = onnx.helper.make_graph(nodes, "half", [x], [y, z], [weight, mask])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), str(folder / "half.onnx")
    )
    return str(folder / "half.onnx")


def test_verify_is_a_gate(digits_cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify, sparse = script("verify"), str(tmp_path / "sparse.onnx")
    bytes_of(["prune", str(digits_cnn), "--target", "ampere"], Path(sparse))
    assert verify.main([sparse]) == 0
    assert verify.main([sparse, "--target", "ampere", "--strict"]) == 1
    assert verify.main([sparse, "--target", "ampere", "--strict", "--exclude", "stem"]) == 0
    assert verify.main([str(digits_cnn), "--pattern", "2:4"]) == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out
    assert verify.main([str(digits_cnn)]) == 2


def test_strict_and_mistakes(digits_cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.onnx"
    for name in ("sparsify", "insert_masks"):
        assert script(name).main([str(digits_cnn), "-o", str(out), "--target", "ampere", "--strict"]) == 1
        assert script(name).main([str(digits_cnn), "-o", str(out), "--target", "amper"]) == 2
        assert script(name).main([str(tmp_path / "none.onnx"), "-o", str(out), "--target", "ampere"]) == 2
    assert not out.exists()
    assert len(capsys.readouterr().err.splitlines()) == 6


@pytest.mark.parametrize("name", [*SCRIPTS, "model_quantize_qat_export", "train_with_artifacts", "graph_passes"])
def test_a_script_runs_from_anywhere_and_explains_itself(name: str, repository: Path, tmp_path: Path) -> None:
    words = [str(repository / "tools" / f"{name}.py"), "--help"]
    done = warm.python(words, cwd=tmp_path, env={"PYTHONPATH": str(repository)})
    assert done.returncode == 0
    assert "usage:" in done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_shares_nothing_but_the_public_names(name: str, repository: Path) -> None:
    tree = ast.parse((repository / "tools" / f"{name}.py").read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert plain <= {"argparse", "sys", "onnxsparse"}
    assert parts <= {"__future__", "collections.abc"}


@pytest.mark.parametrize(
    "name", [*SCRIPTS, "model_quantize_qat_export", "train_sparse", "train_with_artifacts", "graph_passes"]
)
def test_a_script_is_about_a_page(name: str, repository: Path) -> None:
    assert len((repository / "tools" / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 100


# -- what trains


def digits(folder: Path) -> str:
    """The training half as a file."""
    images, labels = training_half()
    np.savez(folder / "train.npz", x=images, labels=labels)
    return str(folder / "train.npz")


def ran(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.python([str(ROOT / "tools" / f"{name}.py"), *words], env=TRAINS)


def numbers(path: Path) -> dict[str, np.ndarray]:
    return {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(str(path)).graph.initializer}


@pytest.mark.skipif(not library.available(), reason="onnxruntime-training is not installed")
@pytest.mark.parametrize("form", ["mul", "bool", "uint8", "where"])
def test_a_strangers_trainer_keeps_the_masks(form: str, digits_cnn: Path, tmp_path: Path) -> None:
    """Plain onnxruntime-training, a file of a newer onnx than it knows, and nothing left of metadata and names."""
    masked, trained, sparse = (tmp_path / f"{name}.onnx" for name in ("masked", "trained", "sparse"))
    bytes_of(["prune", str(digits_cnn), "--target", "ampere"], tmp_path / "pruned.onnx")
    wanted = numbers(tmp_path / "pruned.onnx")
    bytes_of(["mask", str(digits_cnn), "--target", "ampere", "--form", form], masked)
    model = onnx.load(str(masked))
    model.ir_version = 13
    onnx.save(model, str(masked))
    done = ran("train_with_artifacts", str(masked), "-o", str(trained), "--data", digits(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "epoch 3: loss" in done.stdout
    stripped = onnx.load(str(trained))
    assert stripped.ir_version <= 10
    del stripped.metadata_props[:]
    for node in stripped.graph.node:
        node.name = ""
    onnx.save(stripped, str(trained))
    assert cli.main(["fold", str(trained), "-o", str(tmp_path / "sparser.onnx"), "--pattern", "1:4", "-q"]) == 1
    assert cli.main(["fold", str(trained), "-o", str(sparse), "--target", "ampere", "-q"]) == 0
    assert cli.main(["verify", str(sparse), "--target", "ampere", "-q"]) == 0
    assert not [node for node in onnx.load(str(sparse)).graph.node if node.op_type in ("Mul", "Where", "Cast")]
    found, dense = numbers(sparse), numbers(digits_cnn)
    for name in ("wide.weight", "residual.weight", "deep.weight", "head.weight"):
        assert np.array_equal(found[name] == 0, wanted[name] == 0)
        assert not np.array_equal(found[name], wanted[name])
        assert not np.array_equal(numbers(trained)[name], dense[name])
    assert accuracy(str(sparse)) > 0.96


@pytest.mark.skipif(not library.available(), reason="onnxruntime-training is not installed")
def test_mistakes_of_a_trainer(digits_cnn: Path, tmp_path: Path) -> None:
    data, out = digits(tmp_path), str(tmp_path / "out.onnx")
    images, _ = training_half()
    np.savez(tmp_path / "raw.npz", x=images)
    assert ran("train_with_artifacts", str(tmp_path / "none.onnx"), "-o", out, "--data", data).returncode == 2
    assert ran("train_with_artifacts", str(digits_cnn), "-o", out, "--data", str(tmp_path / "raw.npz")).returncode == 2
    assert ran("train_with_artifacts", str(digits_cnn), "-o", data, "--data", data).returncode == 2
    assert not Path(out).exists()


@pytest.mark.skipif(not library.available(), reason="onnxruntime-training is not installed")
@pytest.mark.parametrize("labelled", [True, False])
def test_passes_in_a_row_with_a_training_among_them(labelled: bool, digits_cnn: Path, tmp_path: Path) -> None:
    """Without labels the model that was read teaches."""
    data, out = digits(tmp_path), tmp_path / "out.onnx"
    if not labelled:
        np.savez(data, x=training_half()[0])
    words = ["mask=2:4", f"train={data}", "fold", "verify=ampere"]
    done = ran("graph_passes", str(digits_cnn), "-o", str(out), *words, "--json", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"]
    assert [one["pass"] for one in report["passes"]] == ["mask=2:4", "fold", "verify=ampere"]
    assert cli.main(["verify", str(out), "--target", "ampere", "-q"]) == 0
    assert accuracy(str(out)) > 0.96


@pytest.mark.skipif(not library.available(), reason="onnxruntime-training is not installed")
def test_a_training_takes_the_batch_that_the_model_fixes(digits_cnn: Path, tmp_path: Path) -> None:
    """100 samples at a time of 899: the rest is left out, by the dense model that teaches as by the training."""
    model, out = onnx.load(str(digits_cnn)), tmp_path / "out.onnx"
    for one in (model.graph.input[0], model.graph.output[0]):
        one.type.tensor_type.shape.dim[0].dim_value = 100
    onnx.save(model, str(tmp_path / "fixed.onnx"))
    start = [str(tmp_path / "fixed.onnx"), "-o", str(out)]
    images = training_half()[0]
    np.savez(tmp_path / "raw.npz", x=images)
    np.savez(tmp_path / "few.npz", x=images[:20])
    np.savez(tmp_path / "bad.npz", x=images[:, :, :4])
    np.savez(tmp_path / "other.npz", y=images)
    for name, words in (
        ("few", "Expected: 100"),
        ("bad", "invalid dimensions"),
        ("other", "an array for each input"),
    ):
        done = ran("graph_passes", *start, "mask=2:4", f"train={tmp_path / name}.npz", "fold")
        assert done.returncode == 2
        assert words in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    assert not out.exists()
    done = ran("graph_passes", *start, "mask=2:4", f"train={tmp_path / 'raw.npz'}", "fold", "verify=ampere")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "epoch 3: loss" in done.stdout


def test_passes_in_a_row(digits_cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passes, out = script("graph_passes"), tmp_path / "out.onnx"
    start = [str(digits_cnn), "-o", str(out)]
    assert passes.main([*start, "mask=ampere", "fold=1:4", "--json", str(tmp_path / "r.json")]) == 1
    said = capsys.readouterr().out
    assert "wide.weight: 2592 groups hold more than 1 non-zeros, first at [0, 0, 0, 0]" in said
    assert json.loads((tmp_path / "r.json").read_text())["ok"] is False
    assert passes.main([*start, "verify=ampere"]) == 1
    assert passes.main([*start, "mask=2:5x", "fold"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    for words in (["mask=2:4", "melt"], []):
        with pytest.raises(SystemExit) as stop:
            passes.main([*start, *words])
        assert stop.value.code == 2
    assert not out.exists()
    assert passes.main([*start, "mask=ampere", "fold=ampere", "verify"]) == 0
    assert out.read_bytes() == bytes_of(["prune", str(digits_cnn), "--target", "ampere"], tmp_path / "pruned.onnx")
    assert passes.main([*start, "--overwrite", "prune=unstructured,0.8", "verify"]) == 0
    assert cli.main(["verify", str(out), "--pattern", "unstructured", "--sparsity", "0.8", "-q"]) == 0


def test_passes_on_what_is_no_model_or_no_data_end_in_one_line(
    digits_cnn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passes, out = script("graph_passes"), tmp_path / "out.onnx"
    (tmp_path / "junk.onnx").write_bytes(b"\x00\x01garbage" * 50)
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "shape.npz", x=np.zeros((8, 3), np.float32))
    assert passes.main([str(tmp_path / "junk.onnx"), "-o", str(out), "fold"]) == 2
    for data in ("array.npy", "shape.npz"):
        assert passes.main([str(digits_cnn), "-o", str(out), "mask=2:4", f"train={tmp_path / data}"]) == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["graph_passes"] * 3
    for report in (tmp_path / "none" / "r.json", tmp_path, out):
        with pytest.raises(SystemExit) as stop:
            passes.main([str(digits_cnn), "-o", str(out), "prune=2:4", "--json", str(report)])
        assert stop.value.code == 2
    assert not out.exists()


def test_the_demo_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where nothing trains, the rest is shown all the same."""
    demo = script("demo")
    for engine in (demo.library, demo.torch_library):
        monkeypatch.setattr(engine, "available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["demo.py", str(tmp_path)])
    demo.main()
    said = " ".join(capfd.readouterr().out.split())
    assert "Fine-tuning needs the extra `ort` (Python 3.9 to 3.12) or `torch`: left out." in said
    assert "29,696 of 59,608" in said
    assert said.endswith("None was trained.")
    assert {file.name for file in tmp_path.iterdir()} == {"digits_2to4.onnx", "digits_80.onnx", "digits_95.onnx"}
