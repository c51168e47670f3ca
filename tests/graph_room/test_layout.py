"""The algebra of layouts against numpy, on random chains of Transpose and Reshape."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse.graph.elementwise import owners_of, unview, view_of
from onnxsparse.graph.layout import Layout

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4).map(tuple)


def cut(data: st.DataObject, size: int) -> tuple[int, ...]:
    dims: list[int] = []
    while size > 1 and len(dims) < 4:
        dims.append(data.draw(st.sampled_from([dim for dim in range(1, size + 1) if size % dim == 0])))
        size //= dims[-1]
    return (*dims, size)


@given(SHAPES, st.data())
def test_a_layout_follows_what_numpy_does(shape: tuple[int, ...], data: st.DataObject) -> None:
    flat = np.arange(math.prod(shape))
    value, layout = flat.reshape(shape), Layout.stored(shape)
    for turn in data.draw(st.lists(st.booleans(), max_size=5)):
        if turn:
            perm = data.draw(st.permutations(range(value.ndim)))
            value, layout = value.transpose(perm), layout.transpose(perm)
            continue
        wanted = cut(data, value.size)
        reshaped = layout.reshape(wanted)
        if reshaped is None:
            break
        value, layout = value.reshape(wanted), reshaped
    assert layout.shape == value.shape
    assert (view_of(flat, layout) == value).all()
    assert (unview(value, layout) == flat).all()


@given(SHAPES)
def test_a_reshape_to_the_flat_form_and_back_is_always_followed(shape: tuple[int, ...]) -> None:
    flat = Layout.stored(shape).reshape((math.prod(shape),))
    assert flat is not None
    assert flat.reshape(shape) is not None


def test_an_axis_that_ends_inside_an_atom_without_dividing_it_is_refused() -> None:
    assert Layout.stored((4, 6)).transpose([1, 0]).reshape((4, 6)) is None
    assert Layout.stored((4, 6)).reshape((5, 5)) is None
    assert Layout.stored((0, 6)).reshape((6, 0)) is None


def test_owners_pair_split_axes_with_what_they_were_split_from() -> None:
    assert owners_of((2, 3, 4, 5), (6, 4, 5)) == [0, 0, 1, 2]
    assert owners_of((7,), (7,)) == [0]
