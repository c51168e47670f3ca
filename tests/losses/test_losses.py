"""The definitions of the losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import losses
from onnxsparse.errors import OptionError
from onnxsparse.losses import CrossEntropy, Distill
from tests.messages import refusing

NAMES = {"cross-entropy", "mse", "l1", "bce", "distill", "kl"}
SHAPES = [(3, 4), (2, 5, 3), (2, 3, 2, 2)]


def tensors(seed, shape, name):
    generator = np.random.Generator(np.random.Philox(key=seed))
    student = generator.standard_normal(shape) * 3
    if name == "cross-entropy":
        labels = generator.integers(0, shape[1], shape[:1] + shape[2:])
        labels[generator.random(labels.shape) < 0.3] = -100
        return student, labels
    return student, generator.random(shape) if name == "bce" else generator.standard_normal(shape)


def slope(loss, student, target, eps=1e-5):
    """Central differences, element by element."""
    gradient = np.zeros_like(student)
    for place in np.ndindex(student.shape):
        ends = []
        for sign in (1, -1):
            moved = student.copy()
            moved[place] += sign * eps
            ends.append(loss.value([moved], [target]))
        gradient[place] = (ends[0] - ends[1]) / (2 * eps)
    return gradient


TEXTS = (*sorted(NAMES), "cross-entropy:smoothing=0.1", "kl:temperature=0.5,axis=1", "kl:temperature=7,axis=0")


@settings(deadline=None, max_examples=60)
@given(text=st.sampled_from(TEXTS), shape=st.sampled_from(SHAPES), seed=st.integers(0, 500))
def test_the_gradient_is_the_slope(text, shape, seed):
    loss = losses.parse(text)
    loss = loss.bind([2.5]) if isinstance(loss, Distill) else loss
    student, target = tensors(seed, shape, loss.name)
    found = loss.gradient([student], [target])[0]
    assert found.shape == shape
    np.testing.assert_allclose(found, slope(loss, student, target), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("text", TEXTS)
def test_several_outputs_count_by_their_mean(text):
    loss = losses.parse(text)
    one, two = tensors(1, (3, 4), loss.name), tensors(2, (2, 3, 2, 2), loss.name)
    alone = [loss.value([student], [target]) for student, target in (one, two)]
    assert loss.value([one[0], two[0]], [one[1], two[1]]) == pytest.approx(sum(alone) / 2)
    both = loss.gradient([one[0], two[0]], [one[1], two[1]])
    np.testing.assert_allclose(both[1], loss.gradient([two[0]], [two[1]])[0] / 2)


def test_known_values():
    def value(text, student, target):
        return losses.parse(text).value([np.array(student, float)], [np.array(target)])

    assert value("mse", [1, 2], [0.0, 4.0]) == 2.5
    assert value("l1", [1, 2], [0.0, 4.0]) == 1.5
    assert value("bce", [0.0], [0.3]) == pytest.approx(math.log(2))
    assert value("cross-entropy", [[0, 0, 0, 0]], [2]) == pytest.approx(math.log(4))
    assert value("cross-entropy", [[0, 0], [9, 0]], [1, -100]) == pytest.approx(math.log(2))
    assert value("kl:temperature=1", [[0, 0]], [[math.log(3), 0.0]]) == pytest.approx(
        0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_all_labels_ignored_is_no_loss(smoothing):
    logits, labels, loss = np.ones((2, 3)), np.full(2, -100), CrossEntropy(smoothing=smoothing)
    assert loss.value([logits], [labels]) == 0
    assert not loss.gradient([logits], [labels])[0].any()


def test_smoothed_labels_are_a_mixture_with_all_classes_alike():
    logits, labels = np.array([[2.0, 0.0, -1.0]]), np.array([0])
    logs = logits - np.log(np.exp(logits).sum())
    wanted = -(0.9 * logs[0, 0] + 0.1 * logs.mean())
    assert CrossEntropy(smoothing=0.1).value([logits], [labels]) == pytest.approx(wanted)


@pytest.mark.parametrize("smoothing", ["-0.1", "1", "1.5", "nan"])
def test_smoothing_is_a_share(smoothing):
    with pytest.raises(OptionError, match="from 0 to below 1"):
        losses.parse(f"cross-entropy:smoothing={smoothing}")


@pytest.mark.parametrize("text", ["bce", "cross-entropy", "kl"])
def test_large_logits_stay_finite(text):
    logits = np.array([[-1e30, 1e30], [300.0, -300.0], [0.0, -1e4]])
    targets = {"cross-entropy": np.array([0, 1, 1]), "bce": np.array([[0, 1], [0, 1], [1, 0.0]])}
    target = targets.get(text, logits[::-1])
    assert math.isfinite(losses.parse(text).value([logits], [target]))
    assert np.isfinite(losses.parse(text).gradient([logits], [target])[0]).all()


def test_nothing_is_lost_where_student_and_target_agree():
    student, _ = tensors(3, (4, 5), "mse")
    for text in ("mse", "l1", "distill", "kl"):
        assert losses.parse(text).value([student], [student]) == 0
        assert not losses.parse(text).gradient([student], [student])[0].any()


def test_distillation_does_not_depend_on_the_units_of_a_tensor():
    generator = np.random.Generator(np.random.Philox(key=4))
    dense, student = generator.standard_normal((2, 16, 6))
    plain = Distill().bind([losses.scale_of(dense)]).value([student], [dense])
    small = Distill().bind([losses.scale_of(dense * 1e-4)]).value([student * 1e-4], [dense * 1e-4])
    assert small == pytest.approx(plain)
    assert Distill().bind([losses.scale_of(dense)]).value([0 * dense + dense.mean()], [dense]) == pytest.approx(1, 0.01)


def test_the_scale_of_tensors_that_do_not_vary():
    assert losses.scale_of(np.array([1.0, 3.0])) == 1 + 1e-4 * 5
    assert losses.scale_of(np.full(8, 3.0)) == pytest.approx(9e-4)
    assert losses.scale_of(np.zeros((8, 2))) == losses.scale_of(np.zeros((8, 0))) == 1
    with refusing(OptionError):
        losses.scale_of(np.array([1.0, np.nan]))


def test_a_mix():
    assert losses.mixed(2.0, 10.0, 0.25) == 4.0


@pytest.mark.parametrize(
    ("text", "student", "target", "words"),
    [
        ("mse", np.ones((3, 1)), np.ones(3), r"\(3, 1\)"),
        ("kl", np.ones(()), np.ones(()), "no such axis"),
        ("bce", np.ones(2), np.array([0.5, 1.5]), "0 to 1"),
        ("bce", np.ones(2), np.array([0.5, np.nan]), "0 to 1"),
        ("cross-entropy", np.ones(3), np.zeros(3, int), "class axis"),
        ("cross-entropy", np.ones((3, 2)), np.zeros((3, 2), int), r"shape \(3,\)"),
        ("cross-entropy", np.ones((3, 2)), np.zeros(3), "whole numbers"),
        ("cross-entropy", np.ones((3, 2)), np.array([0, 2, 1]), "label 2 is none of the 2"),
        ("cross-entropy", np.ones((3, 2)), np.array([0, -1, 1]), "label -1"),
    ],
)
def test_targets_that_do_not_fit_are_refused(text, student, target, words):
    with pytest.raises(OptionError, match=words):
        losses.parse(text).value([student], [target])


def test_an_output_without_target_is_refused():
    with refusing(OptionError):
        losses.parse("mse").value([np.ones(2)], [])


@pytest.mark.parametrize("text", ["kl:temperature=0", "kl:temperature=nan", "kl:axis=a", "distill:scales=1", "hinge"])
def test_a_wrong_text_is_one_clear_line(text):
    with refusing(OptionError):
        losses.parse(text)


def test_they_are_listed_and_their_text_makes_them_again():
    entries = losses.available()
    assert {entry.syntax for entry in entries} == NAMES
    assert all(entry.description.endswith(".") for entry in entries)
    for text in TEXTS:
        assert losses.parse(losses.parse(text).text) == losses.parse(text)
        assert losses.parse(text).target in ("classes", "numbers", "dense")
