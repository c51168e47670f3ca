"""Sparsers in the engine: what the network sees and the gradients are those of the definition in numpy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxsparse import patterns, sparsers
from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.sparsers import write
from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import Writer
from onnxsparse.scores import Magnitude
from onnxsparse.sparsers import Choice, Moment, renew
from tests.messages import refusing

needs_engine = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

SHAPES = {"conv": (6, 8, 3, 3), "linear": (12, 8)}
MASKS = ("mask", "mask:storage=uint8", "mask:storage=bool")
OTHERS = (
    "soft-threshold:start=-2", "soft-threshold:start=-200", "hard-threshold:start=-2", "straight-through",
    "probabilistic", "probabilistic:anneal=true,start=0.5",
)  # fmt: skip


class Trained:
    """One weight in the engine: the loss is sum(effective * x), so that x is the gradient of what the network sees."""

    def __init__(self, text, weight, folder, monkeypatch, mask=None):
        self.sparser, self.mask = sparsers.parse(text), np.ones(weight.shape, bool) if mask is None else mask
        model, self.written = self._model(weight)
        training = library.training()
        monkeypatch.setattr(onnx, "IR_VERSION", 10)
        with library.quiet():
            training.artifacts.generate_artifacts(
                model,
                requires_grad=["layer.weight", *self.written.trained.values()],
                frozen_params=[*self.written.frozen.values()],
                artifact_directory=str(folder),
                additional_output_names=[self.written.effective],
            )
            self.state = training.api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
            self.module = training.api.Module(
                str(folder / "training_model.onnx"), self.state, session_options=library.options()
            )

    def _model(self, weight):
        x = helper.make_tensor_value_info("x", 1, weight.shape)
        loss = helper.make_tensor_value_info("loss", 1, [])
        stored = numpy_helper.from_array(weight, "layer.weight")
        model = helper.make_model(
            helper.make_graph([], "g", [x], [loss], [stored]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        writer = Writer(model.graph, 17)
        written = write(writer, self.sparser, "layer.weight", weight, self.mask)
        model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in written.domains)
        product = writer.node("Reshape", writer.node("Mul", written.effective, "x"), writer.constant([-1]))
        writer.node("ReduceSum", product, writer.constant([0]), keepdims=0, to="loss")
        model.graph.node.extend(writer.nodes)
        return model, written

    def data(self, name):
        return self.state.parameters[name].data

    @property
    def weight(self):
        return self.data("layer.weight")

    @property
    def trained(self):
        return {role: self.data(name) for role, name in self.written.trained.items()}

    def step(self, x, moment):
        """Feed, run, and return what was seen and the gradients: the engine's and those of the definition."""
        fed = self.sparser.feed(self.weight, self.trained, self.mask, moment)
        for role, array in fed.items():
            view = self.data(self.written.frozen[role])
            assert (view.shape, view.dtype) == (array.shape, array.dtype)
            view[...] = array
        seen = np.array(self.module(x)[1])
        names = {"weight": "layer.weight", **self.written.trained}
        found = {role: np.array(self.state.parameters[name].grad) for role, name in names.items()}
        self.module.lazy_reset_grad()
        moved, extras = self.sparser.gradient(self.weight, self.trained, fed, x)
        return seen, self.sparser.effective(self.weight, self.trained, fed), found, {"weight": moved, **extras}


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def mask_of(weight, text):
    layers = {
        2: lambda flat: flat.reshape(1, *weight.shape, 1),
        4: lambda flat: flat.reshape(1, *weight.shape[:2], -1),
    }
    pattern, matrix = patterns.parse(text), layers[weight.ndim]
    drop = pattern.drop_count(matrix(weight).shape, 0.5 if pattern.takes_sparsity else None)
    return Choice(pattern, Magnitude(), drop, matrix, lambda kept: kept.reshape(-1))


def assert_close(found, wanted, exact):
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if exact:
        assert np.array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-6 * max(1, float(np.abs(wanted).max())))


@needs_engine
@pytest.mark.parametrize("text", [*MASKS, *OTHERS])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_engine_agrees_with_the_definition(text, kind, tmp_path, monkeypatch):
    weight = 0.3 * numbers(SHAPES[kind])
    mask = numbers(weight.shape, 1) > 0
    here = Trained(text, weight, tmp_path, monkeypatch, mask)
    for step in range(4):
        seen, wanted, found, gradients = here.step(numbers(weight.shape, 5 + step), Moment("w", step, step / 3, 1))
        exact = not text.startswith(("probabilistic", "soft", "hard"))
        assert_close(seen, wanted, exact)
        for role, gradient in gradients.items():
            assert_close(found[role], gradient, exact)
            assert np.isfinite(found[role]).all()
            here.data({"weight": "layer.weight", **here.written.trained}[role])[...] -= 0.01 * found[role]
        here.sparser.settle(here.trained)


@needs_engine
@pytest.mark.parametrize("text", MASKS)
@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "2:4:transposable", "block:2x2", "filter"])
def test_a_mask_that_is_renewed_is_what_the_next_step_sees(text, pattern, tmp_path, monkeypatch):
    weight = numbers(SHAPES["conv"])
    here = Trained(text, weight.copy(), tmp_path, monkeypatch)
    mask, x = here.data(here.written.frozen["mask"]), numbers(weight.shape, 1)
    done = renew(here.weight, mask, mask_of(weight, pattern))
    here.mask = mask
    assert 0 < done.dropped == np.count_nonzero(mask == 0)
    seen, _, found, _ = here.step(x, Moment())
    assert seen.tobytes() == np.where(mask != 0, weight, np.float32(0)).tobytes()
    assert np.array_equal(found["weight"], np.where(mask != 0, x, 0))


@needs_engine
def test_the_dense_gradient_is_that_of_a_mask_of_ones(tmp_path, monkeypatch):
    """What `exchange` grows by: weights hidden as zeros, the mask opened for one gradient."""
    weight = numbers(SHAPES["linear"])
    here = Trained("mask", weight, tmp_path, monkeypatch)
    mask, x = here.data(here.written.frozen["mask"]), numbers(weight.shape, 1)
    renew(here.weight, mask, mask_of(weight, "unstructured"))
    kept = mask.copy()
    mask[...] = 1
    seen, _, found, _ = here.step(x, Moment())
    assert np.array_equal(seen, here.weight)
    assert np.array_equal(found["weight"], x)
    assert np.count_nonzero(seen) == np.count_nonzero(kept)


@needs_engine
def test_scores_of_the_ends_train_with_finite_gradients(tmp_path, monkeypatch):
    weight = numbers(SHAPES["linear"])
    here = Trained("probabilistic:anneal=true", weight, tmp_path, monkeypatch)
    here.trained["score"][...] = np.resize([0, 1, 1e-7, 1 - 1e-7, 0.5], weight.shape)
    for step in range(5):
        seen, wanted, found, gradients = here.step(numbers(weight.shape, step), Moment("w", step, step / 4))
        np.testing.assert_allclose(seen, wanted, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(found["score"], gradients["score"], rtol=1e-3, atol=3e-4)


@needs_engine
def test_scores_out_of_their_range_count_as_the_nearer_end(tmp_path, monkeypatch):
    weight, outside = numbers(SHAPES["linear"]), np.resize(np.float32([-0.3, 1.2, 2, -1e-6]), SHAPES["linear"])
    here = Trained("probabilistic:anneal=true", weight, tmp_path, monkeypatch)
    here.trained["score"][...] = outside
    seen, wanted, found, gradients = here.step(numbers(weight.shape, 1), Moment("w", 1, 0.5))
    np.testing.assert_allclose(seen, wanted, rtol=1e-4, atol=1e-7)
    assert np.isfinite(wanted).all()
    assert not found["score"].any()
    assert not gradients["score"].any()
    here.trained["score"][...] = np.clip(outside, 0, 1)
    assert here.step(numbers(weight.shape, 1), Moment("w", 1, 0.5))[0].tobytes() == seen.tobytes()


def test_a_sparser_without_nodes_is_refused():
    model = helper.make_graph([], "g", [], [], [numpy_helper.from_array(np.ones(3, np.float32), "w")])
    foreign = type("Foreign", (type(sparsers.parse("mask")),), {"name": "foreign"})()
    with refusing(OptionError):
        write(Writer(model, 17), foreign, "w", np.ones(3, np.float32))
