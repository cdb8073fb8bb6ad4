# SPDX-License-Identifier: Apache-2.0
"""Curves: points, gaps, legend, scale and description."""

import numpy as np
import pytest
from matplotlib.text import Text

from transformer.errors import InputError
from transformer.inspection.figures import plot_curves, to_svg

LABELS = {"x_label": "step", "y_label": "loss"}


def line(figure, name):
    """The line of this name."""
    [match] = [one for ax in figure.axes for one in ax.lines if one.get_gid() == name]
    return match


def key(figure):
    """The legend, from the top."""
    return [text.get_text() for text in figure.content.findobj(Text) if text.get_text()]


def test_a_curve_has_its_points_and_is_described_and_a_level_has_its_height():
    curves, levels = {"a": ([1, 2, 9], [4, 1, 3])}, {"least": 0.5}
    figure = plot_curves(curves, **LABELS, levels=levels, title="A loss")
    np.testing.assert_array_equal(line(figure, "curve a").get_xydata(), [[1, 4], [2, 1], [9, 3]])
    assert set(line(figure, "level least").get_ydata()) == {0.5}
    assert figure.description == (
        "A loss: loss over step. a: from 4 at 1 to 3 at 9, lowest 1 at 2, highest 4 at 1; "
        "a line at 0.5: least."
    )


def test_the_legend_is_in_the_order_of_the_ends_of_the_lines():
    """Which are distinguishable without colors."""
    curves = {"low": ([0, 1], [9, 1]), "high": ([0, 1], [0, 5]), "top": ([0, 1], [1, 6])}
    figure = plot_curves(curves, **LABELS, levels={"middle": 3})
    assert key(figure) == ["top", "high", "middle", "low"]
    assert len({line(figure, f"curve {name}").get_linestyle() for name in curves}) == 3


def test_values_that_are_not_finite_are_gaps_and_points_between_gaps_have_markers():
    figure = plot_curves({"a": (range(6), [1, np.nan, 3, np.inf, 2, 5])}, **LABELS)
    curve = line(figure, "curve a")
    assert curve.get_markevery() == [0, 2]
    assert "a: from 1 at 0 to 5 at 5, lowest 1 at 0, highest 5 at 5" in figure.description


def test_many_points_make_a_small_file_that_keeps_the_peak():
    ys = np.sin(np.arange(100_000) / 1000)
    ys[50_123] = 30.0
    figure = plot_curves({"a": (range(100_000), ys)}, **LABELS)
    assert len(to_svg(figure)) < 300_000
    assert "highest 30 at 50123" in figure.description


def test_values_of_any_size_and_constant_lines_have_ticks():
    for scale in (1e-12, 1.0, 1e12):
        for ys in ([2.0, 2.0], [0.0, 0.0], [-3.0, 4.0]):
            figure = plot_curves({"a": ([0, 1], np.array(ys) * scale)}, **LABELS)
            [ax] = [ax for ax in figure.axes if ax.get_label() == "curves"]
            assert len(ax.get_yticks()) >= 2, (scale, ys)


def test_invalid_curves_are_rejected():
    for curves, words in (
        ({}, "curves is empty"),
        ({"a": ([0, 1], [1])}, "y of curve 'a' has shape"),
        ({"a": ([], [])}, "nothing to draw"),
        ({"a": ([0, 1], [np.nan, np.inf])}, "curve 'a' has no finite y"),
        ({"a": ([0, np.nan], [1, 2])}, r"x of curve 'a'\[1\] is nan"),
        ({"a": ([0, 3, 2], [1, 2, 3])}, "x of curve 'a' falls from 3 to 2"),
    ):
        with pytest.raises(InputError, match=words):
            plot_curves(curves, **LABELS)
