# SPDX-License-Identifier: Apache-2.0
"""The figure of curves: every point where it is, every line told from the others."""

import numpy as np
import pytest
from matplotlib.text import Text

from transformer.errors import InputError
from transformer.inspection.figures import describe, plot_curves

LABELS = {"x_label": "step", "y_label": "loss"}


def line(figure, name):
    """The line of this name."""
    [found] = [one for ax in figure.axes for one in ax.lines if one.get_gid() == name]
    return found


def key(figure):
    """The names beside the plane, from the top."""
    return [text.get_text() for text in figure.axes[1].findobj(Text) if text.get_text()]


def test_a_curve_has_its_points_and_a_level_its_height():
    figure = plot_curves({"a": ([0, 2, 5], [4, 1, 3])}, **LABELS, levels={"least": 0.5})
    np.testing.assert_array_equal(line(figure, "curve a").get_xydata(), [[0, 4], [2, 1], [5, 3]])
    assert set(line(figure, "level least").get_ydata()) == {0.5}


def test_the_names_stand_in_the_order_in_which_the_lines_end():
    curves = {"low": ([0, 1], [9, 1]), "high": ([0, 1], [0, 5])}
    assert key(plot_curves(curves, **LABELS, levels={"middle": 3})) == ["high", "middle", "low"]


def test_no_two_lines_look_alike_even_without_colours():
    names = "abcd"
    figure = plot_curves({name: ([0, 1], [0, 1]) for name in names}, **LABELS)
    looks = {line(figure, f"curve {name}").get_linestyle() for name in names}
    assert len(looks) == len(names)


def test_it_is_told_where_each_curve_begins_ends_and_turns():
    figure = plot_curves({"a": ([1, 2, 9], [4, 1, 3])}, **LABELS, title="A loss")
    assert describe(figure) == (
        "A loss: loss over step. a: from 4 at 1 to 3 at 9, lowest 1 at 2, highest 4 at 1."
    )


def test_a_logarithmic_scale_is_one():
    figure = plot_curves({"a": ([0, 1], [1, 100])}, **LABELS, logarithmic=True)
    assert figure.axes[0].get_yscale() == "log"


@pytest.mark.parametrize(
    ("curves", "options", "words"),
    [
        ({}, {}, "curves is empty"),
        ({"a": ([0, 1], [1])}, {}, "the heights of curve 'a' has shape"),
        ({"a": ([], [])}, {}, "nothing to draw"),
        ({"a": ([0, 1], [1, np.nan])}, {}, r"the heights of curve 'a'\[1\] is nan"),
        ({"a": ([0, 3, 2], [1, 2, 3])}, {}, "the x of curve 'a' falls from 3 to 2"),
        ({"a": ([0], [0.0])}, {"logarithmic": True}, "'a' has the height 0"),
        ({"a": ([0], [1])}, {"logarithmic": True, "levels": {"b": -1}}, "'b' has the height -1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(curves, options, words):
    with pytest.raises(InputError, match=words):
        plot_curves(curves, **LABELS, **options)
