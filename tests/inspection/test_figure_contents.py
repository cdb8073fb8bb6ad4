# SPDX-License-Identifier: Apache-2.0
"""Every figure draws the data it is given."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
from drawings import TINY, drawn, framed, labels, panel, sentence, softmax, values, written
from matplotlib.colors import to_rgb

from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import style
from transformer.inspection.figures.typesetting import printable, text_width
from transformer.inspection.residual import ResidualFlow
from transformer.models import protocol
from transformer.nn.positions import sinusoids


def test_attention_draws_the_weights_and_crosses_out_masked_keys():
    s = sentence("short")
    figure = drawn("attention")
    drawn_values = values(figure)
    np.testing.assert_array_equal(drawn_values.data, s.decoder[0, 0])
    np.testing.assert_array_equal(drawn_values.mask, ~s.causal)
    [ax] = [ax for ax in figure.axes if ax.images]
    assert labels(ax.yaxis) == ["The → animal", "animal → ·didn", "·didn → ·i4", "·i4 → </s>"]
    assert labels(ax.xaxis) == ["The", "animal", "·didn", "·i4"]
    texts = [text.get_text() for text in ax.texts]
    assert texts == [f"{value:.2f}" for value in s.decoder[0, 0][s.causal]]


def test_the_grid_draws_every_layer_and_head_and_lists_the_tokens_of_a_long_sentence():
    s = sentence("short")
    figure = drawn("attention_grid")
    for layer, head in np.ndindex(3, 8):
        drawn_values = values(figure, f"layer {layer + 1} head {head + 1}")
        np.testing.assert_array_equal(drawn_values, s.cross[layer, head])
    s = sentence("long")
    figure = figures.plot_attention_grid(s.cross[:1, :2], s.rows, s.source)
    texts = " ".join(written(figure))
    assert "Keys: 1 The, 2 animal" in texts
    assert "Queries: 1 The → animal, 2" in texts


def test_zero_is_the_paper_and_colors_are_linear_in_the_value():
    """Half a weight is half way from the paper to the color of 1, in every channel."""
    full = np.array(to_rgb(style.POSITIVE))
    np.testing.assert_allclose(style.WEIGHTS(0.0)[:3], 1)
    np.testing.assert_allclose(style.WEIGHTS(1.0)[:3], full)
    np.testing.assert_allclose(style.WEIGHTS(0.5)[:3], (1 + full) / 2, atol=0.005)
    negative = np.array(to_rgb(style.NEGATIVE))
    for value, expected in ((0.0, negative), (0.5, np.ones(3)), (0.75, (1 + full) / 2)):
        np.testing.assert_allclose(style.SIGNED(value)[:3], expected, atol=0.01)
    [image] = figures.plot_patch_map([[-1.0, 0.5]], ["a", "b"]).axes[1].images
    assert image.norm(0.5) == 0.75


def test_every_map_of_a_grid_has_one_scale_which_the_legend_states():
    # 1 in 100 weights is above 0.1: the colors end there, and the legend says how many do not.
    weights = np.full((2, 2, 10, 40), 0.025)
    weights[0, 0, 0] = [1.0] + [0.0] * 39
    figure = figures.plot_attention_grid(weights, list("abcdefghij"), list("abcd" * 10))
    assert {image.get_clim() for ax in figure.axes for image in ax.images} == {(0.0, 0.1)}
    texts = written(figure)
    assert "attention weight (0.1% of them are above 0.1)" in texts
    even = figures.plot_attention_grid(np.full((1, 1, 2, 2), 0.5), ["a", "b"], ["a", "b"])
    assert panel(even, "layer 1 head 1").images[0].get_clim() == (0.0, 0.5)


def test_the_heads_of_one_token_sum_to_one_over_the_keys():
    s = sentence("short")
    figure = drawn("token_heads")
    np.testing.assert_array_equal(values(figure, "values"), s.encoder[1, :, 2].T)
    np.testing.assert_allclose(values(figure, "values").sum(0), 1)
    lines = {line.get_gid() for ax in figure.axes for line in ax.lines if line.get_gid()}
    drawn_lines = np.argwhere(s.encoder[1, :, 2] > 0.01) + 1
    assert lines == {f"head {head} key {key}" for head, key in drawn_lines}


def test_shares_between_heads_sum_to_one_over_the_heads_and_are_labeled_so():
    s = sentence("short")
    figure = drawn("head_shares")
    drawn_values = values(figure, "values")
    row = s.decoder[1, :, 2, :3]
    np.testing.assert_allclose(drawn_values[:3], (row / row.sum(0)).T)
    np.testing.assert_allclose(drawn_values[:3].sum(1), 1)
    assert drawn_values.mask[3:].all(), "no head may attend to later tokens"
    assert "shares between heads" in figure.description
    assert any("As in the Illustrated Transformer's figure" in t.get_text() for t in figure.texts)


def test_the_six_steps_of_a_hand_worked_example():
    """q.k of 112 and 96 with keys of size 64: divided by 8, the weights are .88 and .12."""
    q = np.zeros((2, 64))
    q[0, 0] = 1.0
    k = np.zeros((2, 64))
    k[:, 0] = 112, 96
    v = np.array([[1.0, 0.0], [0.0, 1.0]])
    figure = figures.plot_attention_steps(
        np.ones((2, 3)), q, k, v, 0, ["Thinking", "Machines"], z=[[0.8808, 0.1192]] * 2
    )
    texts = {*written(figure)}
    assert {"112.00", "96.00", "14.00", "12.00", "0.881", "0.119", "3\n÷ √64"} <= texts
    np.testing.assert_allclose(values(figure, "result"), [[0.8808, 0.1192]], atol=1e-4)
    np.testing.assert_allclose(values(figure, "weighted"), [[0.8808, 0], [0, 0.1192]], atol=1e-4)


@pytest.fixture(scope="module")
def trace(traced):
    """One sentence through a small model, everything captured."""
    return traced()[1]


def test_steps_matrices_and_assembly_equal_the_model_under_its_mask(trace, shallow):
    """The figures compare themselves with the model's z and output."""
    _, params = shallow
    tokens, causal = ["a", "b", "c", "d"], np.tril(np.ones((4, 4), bool))
    attention, layer, head = trace.decoder.self_attention, 1, 1
    x = trace.decoder.residual[layer]
    q, k, v, z = (
        np.asarray(part)[layer, head]
        for part in (attention.query, attention.key, attention.value, attention.z)
    )
    figure = figures.plot_attention_steps(x, q, k, v, 3, tokens, mask=causal, z=z)
    np.testing.assert_allclose(values(figure, "result")[0], z[3], atol=1e-5)
    kernels = params["decoder"][f"layer_{layer}"]["self_attention"]
    of_head = [kernels[name][:, head] for name in ("query", "key", "value")]
    figure = figures.plot_attention_matrices(x, *of_head, tokens, mask=causal, z=z)
    np.testing.assert_allclose(values(figure, "Z"), z, atol=1e-5)
    np.testing.assert_allclose(
        values(figure, "weights").data, attention.weights[layer, head], atol=1e-6
    )
    every_z, output = np.asarray(attention.z)[layer], np.asarray(attention.output)[layer]
    figure = figures.plot_head_assembly(every_z, kernels["output"], tokens, output=output)
    np.testing.assert_allclose(values(figure, "sum"), output, atol=1e-5)
    heads = [values(figure, f"head {n + 1}") for n in range(2)]
    np.testing.assert_allclose(heads, attention.head_out[layer], atol=1e-5)
    with pytest.raises(InputError, match=r"z\[3\] differs by .* the mask is the model's"):
        figures.plot_attention_steps(x, q, k, v, 3, tokens, mask=np.eye(4, dtype=bool), z=z)
    with pytest.raises(InputError, match="output differs by"):
        figures.plot_head_assembly(every_z[::-1], kernels["output"], tokens, output=output)


def test_positions_are_drawn_with_their_dot_products_by_distance():
    figure = drawn("positional_encoding", "long")
    for layout in ("interleaved", "halves"):
        table = sinusoids(30, 24, layout)
        np.testing.assert_array_equal(values(figure, f"{layout} table"), table)
        np.testing.assert_allclose(values(figure, f"{layout} products"), table @ table.T)
        line, _ = panel(figure, f"{layout} distances").lines
        np.testing.assert_allclose(line.get_ydata(), table[0] @ table.T / 12, atol=1e-12)


def test_a_decoder_row_reads_from_left_to_right_whatever_its_tokens():
    mark = "\u200e"
    rows = figures.read_predict(["<s>", "שלום", ""], ["שלום", "", "a"])
    assert rows == [f"<s> → {mark}שלום{mark}", f"{mark}שלום{mark} → (empty)", "(empty) → a"]
    assert [printable(row) for row in rows] == rows
    assert text_width(mark, 8) == 0


def test_vectors_of_different_widths_share_a_color_scale():
    narrow, wide = np.eye(2, 3), -4 * np.eye(2, 5)
    figure = figures.plot_vectors({"narrow": narrow, "wide": wide}, ["a", "b"])
    images = {ax.get_label(): ax.images[0] for ax in figure.axes if ax.images}
    np.testing.assert_array_equal(images["narrow"].get_array(), narrow)
    np.testing.assert_array_equal(images["wide"].get_array(), wide)
    assert images["narrow"].get_clim() == images["wide"].get_clim() == (-4.0, 4.0)
    with pytest.raises(InputError, match="tokens has 3 tokens"):
        figures.plot_vectors({"narrow": narrow}, ["a", "b", "c"])


def test_the_residual_flow_is_drawn_as_norms_ratios_and_cosines():
    x, added, after = sentence("short").stream
    figure = drawn("residual_flow")
    lines = {line.get_label(): line.get_xdata() for line in panel(figure, "norms").lines}
    norm = functools.partial(np.linalg.norm, axis=-1)
    expected = {"x": x, "f(x)": added, "x + f(x)": x + added, "output": after}
    assert lines.keys() == expected.keys()
    for name, vectors in expected.items():
        np.testing.assert_allclose(lines[name], norm(vectors).mean(-1))
    np.testing.assert_allclose(values(figure, "‖f(x)‖ / ‖x‖"), norm(added) / norm(x))
    cosine = (x * (x + added)).sum(-1) / norm(x) / norm(x + added)
    degrees = values(figure, "angle between x and x + f(x)")
    np.testing.assert_allclose(degrees, np.degrees(np.arccos(cosine)))


def test_the_output_distribution_before_and_after_with_its_losses():
    s = sentence("short")
    figure = drawn("output_distribution")
    for name, logits in (("before training", s.logits[0]), ("after training", s.logits[1])):
        probabilities = softmax(logits)
        np.testing.assert_allclose(values(figure, name), -np.sort(-probabilities)[:, :5])
        assert (f"{-np.log(probabilities[0, s.ids[0]]):.2f}") in written(figure)
    ranks = np.argsort(-s.logits[1], axis=-1)[:, :5]
    expected = [f"correct {t} {k}" for t, k in np.argwhere(ranks == s.ids[:, None])]
    frames = [p.get_gid() for p in panel(figure, "after training").patches if p.get_gid()]
    assert frames == expected
    kl = (s.smooth * (np.log(s.smooth) - np.log(softmax(s.logits[1])))).sum(-1)
    assert f"{kl[1]:.2f}" in written(figure)


def test_an_alignment_frames_the_gold_cells_of_the_row_that_predicts_or_reads():
    s = sentence("short")
    assert framed(drawn("alignment")) == ["gold 0 0", "gold 2 1", "gold 2 4"]
    figure = figures.plot_alignment(
        s.cross[0, 0],
        s.source,
        s.target_in,
        s.target_out,
        gold={(0, 0), (2, 1), (3, 4)},
        convention="read",
    )
    assert framed(figure) == ["gold 1 0", "gold 3 1"], "the last token is never read"
    np.testing.assert_array_equal(values(figure), s.cross[0, 0])
    assert "aligns the token that it reads" in figure.description


def test_the_film_strip_follows_a_result_through_the_search_log():
    s = sentence("short")
    figure = drawn("decoding")
    path = s.log.path()
    expected = [
        step.cross_attention[beam, -1].mean(0) for step, beam in zip(s.log.steps, path, strict=True)
    ]
    np.testing.assert_array_equal(values(figure, "attention"), expected)
    tops = [np.exp(step.top_log_probs[b]) for step, b in zip(s.log.steps, path, strict=True)]
    np.testing.assert_array_equal(values(figure, "probabilities"), tops)


def test_the_beam_tree_has_every_hypothesis_and_its_parent():
    s = sentence("short")
    figure = drawn("beam_tree")
    gids = {line.get_gid() for ax in figure.axes for line in ax.lines if line.get_gid()}
    edges = {
        f"edge {index} {beam} from {parent}"
        for index, step in enumerate(s.log.steps)
        for beam, parent in enumerate(step.parents)
    }
    assert {gid for gid in gids if gid.startswith("edge")} == edges
    finished = {f"finished {n} {f.beam}" for n, p in enumerate(s.log.steps) for f in p.finished}
    assert gids - edges == finished
    thick = {
        line.get_gid() for ax in figure.axes for line in ax.lines if line.get_linewidth() > 2.2
    }
    best = s.log.path()
    assert thick == {
        f"edge {n} {beam} from {s.log.steps[n].parents[beam]}" for n, beam in enumerate(best) if n
    }
    texts = {*written(figure)}
    assert "★ -5.50   score -1.500" in texts
    assert {f"{total:.2f}" for total in s.log.steps[2].log_probs} <= texts


def test_the_logit_lens_draws_the_best_token_of_every_layer():
    s = sentence("short")
    figure = drawn("logit_lens")
    probabilities = softmax(s.logits)
    np.testing.assert_allclose(values(figure), probabilities.max(-1).T)
    best = s.logits.argmax(-1).T
    assert framed(figure) == [f"correct {t} {n}" for t, n in np.argwhere(best == s.ids[:, None])]


def test_tables_patch_maps_and_attributions_draw_their_numbers():
    table = {"encoder": [[0.5, -1.0]], "cross": [[1.0], [0.25]]}
    figure = figures.plot_head_table(table)
    for name, expected in table.items():
        np.testing.assert_array_equal(values(figure, name), expected)
    assert "highest 0.50 at layer 1 head 1" in figure.description
    texts = {*written(figures.plot_head_table({"a": [[-0.001, -1]]}))}
    assert {"0.00", "-1.00"} <= texts and "-0.00" not in texts
    effect = np.array([[0.0, 0.25], [1.0, 0.5]])
    figure = figures.plot_patch_map(effect, ["a", "b"])
    np.testing.assert_array_equal(values(figure), effect)
    [ax] = [ax for ax in figure.axes if ax.images]
    assert labels(ax.yaxis) == ["input", "after layer 1"]
    figure = figures.plot_attribution([[1.0, -2.0, 0.5]], ["a", "b"], ["c"], ["x"])
    np.testing.assert_array_equal(values(figure, "source"), [[1.0, -2.0]])
    np.testing.assert_array_equal(values(figure, "prefix"), [[0.5]])
    assert "'x' most to source 'b' (-2.00)" in figure.description


def test_the_masks_of_all_kinds_of_attention_are_drawn():
    figure = drawn("masks")
    keys = np.array([True, True, True, False, False])
    np.testing.assert_array_equal(values(figure, "encoder").mask, np.tile(~keys, (5, 1)))
    np.testing.assert_array_equal(values(figure, "encoder-decoder").mask, np.tile(~keys, (4, 1)))
    np.testing.assert_array_equal(values(figure, "decoder").mask, ~sentence("short").causal)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"2 encoder", "3 decoder", "pre-norm"}),
        (
            {"norm": "post", "num_layers": 9, "encoder_layers": None, "positions": "learned"},
            {"9 encoder", "post-norm", "parameters"},
        ),
        ({"positions": "shaw", "norm_kind": "rms_norm", "num_kv_heads": 1}, {"The rms norm is"}),
        (
            {"shared_layers": True, "activation": "swiglu", "tied_embeddings": "none"},
            {"share their parameters", "3 tables"},
        ),
    ],
)
def test_the_architecture_describes_the_config(changes, expected):
    config = TINY.replace(**changes)
    figure = figures.plot_architecture(config)
    assert all(words in figure.description for words in expected)
    texts = " ".join(written(figure))
    assert f"× {config.depth('decoder')}" in texts
    assert "masked self-attention, 3 heads" in texts


def test_the_base_model_has_the_number_of_parameters_of_the_paper():
    figure = figures.plot_architecture(TransformerConfig())
    assert "63,045,632 parameters" in figure.description
    assert "Q, K, V 512×8×64, O 8×64×512" in written(figure)


def test_the_black_box_counts_parameters_and_sends_the_memory_to_every_decoder_layer():
    figure = figures.plot_black_box(TINY, "a sentence", "ein Satz")
    shapes = nn.unbox(protocol.parameter_metadata(protocol.build(TINY)))
    number = {side: sum(leaf.size for leaf in jax.tree.leaves(shapes[side])) for side in shapes}
    texts = {*written(figure)}
    assert {f"Transformer\n{sum(number.values()):,}", f"encoder\n{number['encoder']:,}"} <= texts
    lines = {line.get_gid() for ax in figure.axes for line in ax.lines if line.get_gid()}
    assert lines == {f"memory to decoder layer {layer}" for layer in (1, 2, 3)}


def test_vectors_flow_along_the_paths_that_the_model_computed(trace):
    tokens, stack = ["a", "b", "c", "d"], trace.decoder
    figure = figures.plot_vector_flow(stack, tokens, layer=1)
    rows = {
        "input of layer 2": stack.residual[1],
        "after self-attention": stack.sublayers[1, 0],
        "after cross-attention": stack.sublayers[1, 1],
        "after feed-forward": stack.residual[2],
    }
    for name, vectors in rows.items():
        tiles = np.ma.stack(np.split(values(figure, name), len(tokens), axis=1))
        for tile, vector in zip(tiles, vectors, strict=True):
            # Without the masked cells, which are after the last number and between tiles.
            np.testing.assert_array_equal(tile.compressed(), np.asarray(vector, float))
    mean = np.asarray(stack.self_attention.weights[1], float).mean(0)
    drawn_lines = {
        line.get_gid(): line.get_alpha()
        for ax in figure.axes
        for line in ax.lines
        if line.get_gid()
    }
    expected = {f"from {s} to {t}": mean[t, s] for t, s in np.argwhere(mean >= 0.01)}
    assert drawn_lines == pytest.approx(expected)
    assert not any(s > t for t, s in np.argwhere(mean > 0)), "the decoder reads no later token"


def test_the_recap_draws_the_matrices_of_every_head_of_the_model(trace, shallow):
    kernels = shallow[1]["encoder"]["layer_0"]["self_attention"]
    attention, x = trace.encoder.self_attention, trace.encoder.residual[0]
    tokens = ["a", "b", "c", "d", "e"]
    figure = figures.plot_multi_head(x, kernels, tokens, output=attention.output[0])
    of_trace = {"Q": attention.query, "K": attention.key, "V": attention.value, "z": attention.z}
    for name, arrays in (of_trace | {"softmax": attention.weights}).items():
        for head in range(3):
            drawn_values = values(figure, f"{name} {head + 1}")
            np.testing.assert_allclose(drawn_values, arrays[0, head], atol=1e-5)
    np.testing.assert_allclose(values(figure, "output"), attention.output[0], atol=1e-5)
    np.testing.assert_array_equal(values(figure, "W^K 3"), kernels["key"][:, 2])
    with pytest.raises(InputError, match="output differs by .* the mask is the model's"):
        figures.plot_multi_head(x, kernels, tokens, output=attention.output[0], mask=np.eye(5) > 0)


def test_residual_connection_and_layer_norm_of_a_hand_worked_example():
    """[1, 2] + [3, -2] = [4, 0], which has the mean 2 and the deviation 2: the norm is [1, -1]."""
    flow = ResidualFlow(("1 self-attention",), [[[1, 2]]], [[[3, -2]]], [[[1, -1]]])
    figure = figures.plot_residual_norm(flow, 0, ["a"])
    expected = {
        "x": [1, 2],
        "+ f(x)": [3, -2],
        "= x + f(x)": [4, 0],
        "LayerNorm(x + f(x))": [1, -1],
    }
    for name, vector in expected.items():
        np.testing.assert_array_equal(values(figure, name), [vector])
    texts = written(figure)
    assert [texts.count(number) for number in ("2.00", "0.00", "1.00")] == [2, 1, 1]
    pre_norm = ResidualFlow(("1 self-attention",), [[[1, 2]]], [[[3, -2]]], [[[4, 0]]])
    figure = figures.plot_residual_norm(pre_norm, 0, ["a"])
    assert not [ax for ax in figure.axes if "LayerNorm" in ax.get_label()]


def test_keys_and_values_of_every_decoder_layer_are_made_of_the_memory(trace, shallow):
    memory, cross = trace.encoder.residual[-1], trace.decoder.cross_attention
    figure = figures.plot_memory(memory, cross.key, cross.value, ["a", "b", "c", "d", "e"])
    np.testing.assert_array_equal(values(figure, "memory"), memory)
    for layer in range(2):
        for name in ("key", "value"):
            kernel = shallow[1]["decoder"][f"layer_{layer}"]["cross_attention"][name]
            expected = np.asarray(memory) @ np.asarray(kernel).reshape(6, -1)
            drawn_values = values(figure, f"{name}s of layer {layer + 1}")
            np.testing.assert_allclose(drawn_values, expected, atol=1e-5)


def test_the_output_layer_of_a_hand_worked_example():
    """Logits 1, 2 and 3 have the probabilities 0.0900, 0.2447 and 0.6652."""
    matrix = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    figure = figures.plot_output_layer([1.0, 2.0], matrix, ["a", "b", "c"], top_k=2)
    np.testing.assert_array_equal(values(figure, "hidden"), [[1.0, 2.0]])
    [logits] = [line for line in panel(figure, "logits").lines if line.get_gid()]
    np.testing.assert_array_equal(logits.get_ydata(), [1, 2, 3])
    bars = [bar.get_width() for bar in panel(figure, "probability bars").patches]
    np.testing.assert_allclose(bars, [0.6652, 0.2447], atol=1e-4)
    texts = {*written(figure)}
    assert {"3.00  logit", "2.00", "0.6652  probability", "0.2447"} <= texts
    biased = figures.plot_output_layer([1.0, 2.0], matrix, ["a", "b", "c"], bias=[9, 0, 0])
    assert "Highest probabilities: 'a'" in biased.description


def test_target_distributions_of_a_hand_worked_example():
    """Uniform over 4 tokens: cross-entropy log 4 = 1.39; the target's own is its entropy, 0.43."""
    target = np.full((2, 4), 0.1 / 3)
    target[0, 2] = target[1, 3] = 0.9
    after = np.log(target)
    arguments = (list("abcd"), ["<s>", "c"], [2, 3])
    figure = figures.plot_target_distributions(np.zeros((2, 4)), target, after, *arguments)
    np.testing.assert_allclose(values(figure, "before training"), [[0.25, 0.25, 0.5]] * 2)
    drawn_target = values(figure, "target")
    np.testing.assert_allclose(drawn_target, [[0.9, 0.1 / 3, 0.2 / 3], [0.1 / 3, 0.9, 0.2 / 3]])
    np.testing.assert_allclose(values(figure, "after training"), drawn_target)
    assert labels(panel(figure, "target").xaxis) == ["c", "d", "all others"]
    entropy = -0.9 * np.log(0.9) - 0.1 * np.log(0.1 / 3)
    assert f"{entropy:.2f}" == "0.43"
    texts = written(figure)
    assert "before training\ncross-entropy 1.39" in texts
    assert {"target\ncross-entropy 0.43", "after training\ncross-entropy 0.43"} <= {*texts}
