"""Files of United Perception as they are: a classifier beside `model` and `data`, and what is not training at all."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
import yaml

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.dialects.msbench.configuration import read
from onnxsparse.dialects.msbench.job import read_job
from onnxsparse.dialects.msbench.runner import SparseRunner
from onnxsparse.errors import OptionError
from tests.dialects.nets import onnx_model, random
from tests.dialects.test_msbench_runner import AMBA, AMPERE, ROOT, Killed, killed_at, prepared, trains

CLASSIFIER = """
num_classes: &classes 8
crop: &crop
  {{type: torch_center_crop, kwargs: {{size: 12}}}}
dataset:
  train: {{dataset: {{type: cls, kwargs: {{meta_file: train.txt, transformer: [*crop]}}}}}}
model: {folder}/net.onnx
data: {{train: {folder}/data.npz, test: {folder}/data.npz, batch_size: 8}}
trainer:
  max_epoch: {epochs}
  test_freq: 1
  save_freq: 1
  only_save_latest: true
  optimizer: {{type: SGD, kwargs: {{lr: 0.02, nesterov: true, momentum: 0.9, weight_decay: 0.0001}}}}
  lr_scheduler:
    {warmup}
    warmup_type: linear
    warmup_register_type: no_scale_lr
    warmup_ratio: 0
    {rate}
saver:
  save_dir: {folder}/saved
  results_dir: {folder}/results
  pretrain_model: pretrain_path
  auto_resume: true
hooks:
- type: auto_save_best
net:
- name: backbone
  type: resnet18
  kwargs: {{out_layers: [4], normalize: {{type: solo_bn}}}}
- name: post_process
  type: base_cls_postprocess
  kwargs:
    cls_loss: {{type: label_smooth_ce, kwargs: {{smooth_ratio: 0.1, num_classes: *classes}}}}
runtime:
  runner: {{type: sparse}}
  task_names: sparse_cls
  rank_init: true
sparsity:
"""
COSINE = "{type: CosineAnnealingLR, kwargs: {T_max: 2, eta_min: 0.0, warmup_iter: 2}}"


def published(folder, sparsity, rate=COSINE, warmup="warmup_iter: 2", epochs=4):
    onnx.save(onnx_model(), folder / "net.onnx")
    x = random(1, 32, 3, 12, 12)
    np.savez(folder / "data.npz", x=x, labels=np.abs(x).sum((1, 2, 3)).astype(np.int64) % 8)
    rate = rate.strip("{}").replace(", kwargs", "\n    kwargs") + "}"
    text = CLASSIFIER.format(folder=folder, rate=rate, warmup=warmup, epochs=epochs)
    path = folder / "config.yaml"
    path.write_text(text + "\n".join(f"  {line}" for line in yaml.dump(sparsity).splitlines()) + "\n")
    return str(path)


def script(path, *more):
    command = ["sh", str(ROOT / "tools" / "train_sparse.sh"), path, *more]
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


@trains
@pytest.mark.parametrize("sparsity", [AMBA, AMPERE], ids=["amba", "ampere"])
def test_a_classifier_trains_and_goes_on_after_it_was_killed(tmp_path, monkeypatch, sparsity):
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    paths = [published(folder, sparsity) for folder in folders]
    found = script(paths[0])
    assert found.returncode == 0, found.stderr
    assert "the loss is cross-entropy:smoothing=0.1" in found.stdout
    assert "saver.pretrain_model pretrain_path does not exist" in found.stdout
    with monkeypatch.context() as patch:
        killed_at(patch, 9)
        with pytest.raises(Killed):
            SparseRunner(paths[1], quiet=True).run()
    runner = SparseRunner(paths[1], quiet=True)
    figures = runner.run()
    assert runner.holds
    assert runner.total == 16
    assert (
        f"zeros {figures['zeros']:.4f}, loss {figures['loss']:.4f}, accuracy {figures['accuracy']:.4f}" in found.stdout
    )
    assert len({(folder / "saved" / "sparse.onnx").read_bytes() for folder in folders}) == 1
    assert osp.verify(folders[0] / "saved" / "sparse.onnx").report.ok


def rates_of(path):
    """The learning rate of every iteration, and the loss."""
    runner = prepared(SparseRunner(path, quiet=True))
    runner.build_trainer()
    model, found = runner.model, []
    runner.scheduler.set_lr_scheduler(runner.job.options["lr_schedule"])
    for step in range(runner.total):
        if step % 8 == 0:
            model.restart(8)  # as at a level's first iteration
        found.append(model.pace.rate)
        model.steps += 1
    return found


STEPPED = "{type: MultiStepLR, kwargs: {milestones: [1, 1.5], gamma: 0.1}}"


@trains
@pytest.mark.parametrize("warmup", ["warmup_iter: 2", "warmup_epochs: 0.5"])
def test_rates_begin_again_with_every_level(tmp_path, warmup):
    """Two levels of two epochs, of four iterations each; milestones count from a level's first iteration."""
    level = [0.02 / 3, 0.04 / 3, 0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002]
    assert rates_of(published(tmp_path, AMBA, STEPPED, warmup)) == pytest.approx(2 * level)
    cosine = [0.02 / 3, 0.04 / 3, *(0.01 * (1 + np.cos(np.pi * step / 6)) for step in range(6))]
    plain = "{type: CosineAnnealingLR, kwargs: {T_max: 2}}"
    assert rates_of(published(tmp_path, AMBA, plain, warmup)) == pytest.approx(2 * cosine)


def test_sections_that_nothing_takes_are_named_in_one_line(tmp_path):
    notes = read_job(published(tmp_path, AMBA)).notes
    (line,) = (note for note in notes if "sections" in note)
    assert all(f"'{name}'" in line for name in ("num_classes", "crop", "dataset", "hooks", "net"))
    assert "nothing here takes runtime.rank_init" in notes
    assert not any("multiplies it with the batch" in note for note in notes)


@pytest.mark.parametrize(("loss", "said"), [("mse", "not used, the loss is mse"), ("kl", "not used, the loss is kl")])
def test_label_smoothing_of_a_network_is_said_where_it_is_not_used(tmp_path, loss, said):
    path = published(tmp_path, AMBA)
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"loss: {{type: {loss}}}\n")
    np.savez(tmp_path / "data.npz", x=random(1, 32, 3, 12, 12), labels=random(2, 32, 8))
    runner = SparseRunner(path, quiet=True)
    runner.build_model()
    assert any(note.startswith("section 'net', label_smooth_ce, smooth_ratio 0.1: " + said) for note in runner.notes)


def test_a_loss_of_its_own_wins_over_that_of_the_network(tmp_path):
    path = published(tmp_path, AMBA)
    with open(path, "a", encoding="utf-8") as file:
        file.write("loss: {type: cross_entropy, label_smooth: 0.3}\n")
    runner = SparseRunner(path, quiet=True)
    runner.build_model()
    assert runner.job.options["loss"] == "cross-entropy:smoothing=0.3"
    assert any("not used, the loss is cross-entropy:smoothing=0.3" in note for note in runner.notes)


def test_rates_that_the_published_runner_multiplies_are_said(tmp_path):
    path = published(tmp_path, AMBA)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("no_scale_lr", "base"))
    assert any("multiplies it with the batch" in note for note in read_job(path).notes)


PARTS = {name: AMBA[name] for name in ("mask_generator", "fake_sparse")}
RECONSTRUCTED = {**PARTS, "scheduler": {"type": "BaseScheduler"}, "cali_batchsize": 2, "reconstruction": {"pattern": 1}}


@pytest.mark.parametrize(
    ("found", "called"),
    [(RECONSTRUCTED, "the configuration"), ({"sparse": RECONSTRUCTED}, "section `sparse`"),
     ({"sparsity": RECONSTRUCTED}, "section `sparsity`")],
)  # fmt: skip
def test_post_training_reconstruction_is_named_as_that(found, called):
    with pytest.raises(OptionError) as told:
        build_sparse_scheduler(found)
    line = f"{called} is one of post-training reconstruction (reconstruction, cali_batchsize): "
    assert str(told.value).startswith(line)
    assert "\n" not in str(told.value)


def test_a_generator_may_say_how_much_goes():
    config = {**PARTS, "mask_generator": {"type": "NormalMaskGenerator", "kwargs": {"sparsity": 0.9}}}
    assert read(config).target_sparsity == 0.9
    assert read(config).mask_generator.kwargs == {}
    with pytest.raises(OptionError, match="said twice"):
        read({**config, "sparsity": {"target_sparsity": 0.5}})
    with pytest.raises(OptionError, match="sparsity is a share from 0 to below 1"):
        read({**config, "mask_generator": {"type": "NormalMaskGenerator", "kwargs": {"sparsity": 90}}})


def test_leaf_modules_may_be_classes():
    class FrozenBatchNorm2d:
        pass

    assert read({**AMBA, "leaf_module": (FrozenBatchNorm2d, "head")}).leaf_module == ("FrozenBatchNorm2d", "head")


class Own(SparseRunner):
    """Steps by name, as a subclass changes them."""

    def get_leaf_module(self, names):
        self.asked = list(names)
        return [*super().get_leaf_module(names), "/wide"]

    def build_ema(self):
        super().build_ema()
        self.note_of_ema = self.ema

    def resume_model_from_fp(self):
        super().resume_model_from_fp()
        tag = next(tag for tag, name in self.model.names().items() if name == "stem.weight")
        self.model.weight(tag)[...] *= 2


@trains
def test_a_subclass_may_change_a_step(tmp_path):
    path = published(tmp_path, {**AMBA, "leaf_module": ["Space2Depth", "/head"]})
    runner = prepared(Own(path, quiet=True))
    assert runner.asked == ["Space2Depth", "/head"]
    assert runner.note_of_ema is None
    assert runner.scheduler.config.leaf_module == ("/head", "/wide")
    tag = next(tag for tag, name in runner.model.names().items() if name == "stem.weight")
    stem = next(onnx.numpy_helper.to_array(one) for one in onnx_model().graph.initializer if one.name == "stem.weight")
    np.testing.assert_array_equal(runner.model.weight(tag), 2 * stem)
    runner.build_trainer()
    runner.resume_model_from_sparse()
    assert runner.iteration == 0


@trains
def test_sizes_that_a_model_leaves_open_are_those_of_the_samples(tmp_path):
    path = published(tmp_path, AMBA)
    found = []
    for name in ("net.onnx", "open.onnx"):
        model = onnx.load(tmp_path / "net.onnx")
        if name == "open.onnx":
            for axis in (2, 3):
                model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"size{axis}"
        onnx.save(model, tmp_path / name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        other = tmp_path / f"{name}.yaml"
        other.write_text(text.replace(f"{tmp_path}/net.onnx", f"{tmp_path}/{name}"))
        runner = prepared(SparseRunner(str(other), quiet=True))
        found.append([(row["layer"], row["macs"]) for row in runner.scheduler.statistics()])
    assert found[0] == found[1]
    assert all(macs > 0 for _, macs in found[0])


@trains
def test_the_example_of_the_repository_runs(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    for name in ("train", "test"):
        images, labels = random.random((128, 1, 8, 8), np.float32), random.integers(0, 10, 128)
        np.savez(tmp_path / f"digits_{name}.npz", x=images, labels=labels)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "digits_cnn.onnx").write_bytes((ROOT / "models" / "digits_cnn.onnx").read_bytes())
    monkeypatch.chdir(tmp_path)
    runner = SparseRunner(str(ROOT / "tools" / "digits_amba_sparse.yaml"), quiet=True)
    assert runner.run()["zeros"] == pytest.approx(0.9, abs=0.015)
    assert runner.holds
    assert runner.job.options["loss"] == "cross-entropy:smoothing=0.1"
    assert runner.job.options["warm_up"] == 1
