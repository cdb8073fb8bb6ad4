# SPDX-License-Identifier: Apache-2.0
"""The parts of the page that shows what a trained model does with one sentence."""

import dataclasses
import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float, Int, Params
from transformer.config import ModelConfig
from transformer.inspection import (
    ablation,
    attribution,
    figures,
    measures,
    patching,
    readout,
    residual,
)
from transformer.inspection.html import (
    Html,
    details,
    element,
    number_table,
    paragraph,
    section,
    table,
)
from transformer.inspection.search_log import SearchLog
from transformer.inspection.trace import run
from transformer.inspection.views.attention_kinds import (
    label_text,
    trace_attention_kinds,
    visible_token,
)
from transformer.inspection.views.attention_steps import attention_steps
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.search_replay import search_replay
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.inspection.views.view import View, figure_html
from transformer.models.base import build
from transformer.nn.capture import KINDS, Trace
from transformer.text.tokenizer import Tokenizer

Part = View | Html

# Limits that keep a page of 6 layers, 8 heads and 30 tokens below 2 MB. Of larger models, the last
# layers are shown.
MAX_VECTOR_VALUES = 6_000
"""Values of queries, keys, values and outputs for the six steps."""
MAX_COMPARED_WEIGHTS = 40_000
"""Attention weights of the two sentences of a comparison; at least one layer is shown."""

GRADIENT_POINTS = 64
"""Points of integrated gradients."""
MAX_ATTRIBUTION_FLOPS = 1e12
"""Computations that would take more use gradient times input instead."""

BATCH_SIZE = 16
"""Removed heads, or patched sites, per batch."""


@flax.struct.dataclass
class Computed:
    """Results of one forward pass on one sentence pair."""

    trace: Trace
    distance: dict[str, Float[Array, "L N"]]
    """Mean distance between a query and the keys it reads, by kind of attention."""
    roles: dict[str, measures.HeadRoles]
    lens: Float[Array, "L+1 T V"]
    """Token probabilities from the decoder's residual stream at its input and after each layer."""
    flows: dict[str, residual.ResidualFlow]
    """By stack."""


@functools.partial(jax.jit, static_argnames="config")
def _compute(
    params: Params,
    config: ModelConfig,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
) -> Computed:
    """Compute everything in one program, which compiles faster than many small ones."""
    _, trace = run(params, config, source, target_in, capture="full")
    weights = {kind: trace.attention(kind).weights for kind in KINDS}
    logits = readout.logit_lens(params, config, trace.decoder.residual)
    flows = {side: residual.residual_flow(getattr(trace, side)) for side in ("encoder", "decoder")}
    return Computed(
        trace=trace,
        distance={k: measures.row_mean(measures.attention_distance(w)) for k, w in weights.items()},
        roles={kind: measures.head_roles(w) for kind, w in weights.items()},
        lens=jax.nn.softmax(logits.astype(jnp.float32)),
        flows=jax.tree.map(lambda vectors: vectors.astype(jnp.float32), flows),
    )


@dataclasses.dataclass(frozen=True)
class AnalyzedPair:
    """A model, one sentence pair, and everything that one forward pass computes for it."""

    params: Params
    config: ModelConfig
    tokenizer: Tokenizer
    source: list[int]
    target: list[int]
    """Predicted tokens, ending with EOS."""
    computed: Computed

    @classmethod
    def of(
        cls,
        params: Params,
        config: ModelConfig,
        tokenizer: Tokenizer,
        source: Sequence[int],
        target: Sequence[int],
    ) -> "AnalyzedPair":
        """Run the model on a sentence pair."""
        config = config.capturable()
        target_in = np.array([config.special_ids.bos, *target[:-1]])
        computed = jax.device_get(_compute(params, config, np.array(source), target_in))
        return cls(params, config, tokenizer, list(source), list(target), computed)

    def with_source(self, source: Sequence[int]) -> "AnalyzedPair":
        """The same model and target with another source."""
        return self.of(self.params, self.config, self.tokenizer, source, self.target)

    @property
    def target_in(self) -> list[int]:
        """Tokens that the decoder reads."""
        return [self.config.special_ids.bos, *self.target[:-1]]

    @property
    def tokens(self) -> dict[str, list[str]]:
        """Text of all tokens, as arguments of the views."""
        ids = {"source_tokens": self.source, "target_in": self.target_in, "target_out": self.target}
        return {name: self.tokenizer.pieces(each) for name, each in ids.items()}

    def decoder_rows(self) -> list[str]:
        """Labels of decoder rows: the token that is read, and the one that is predicted."""
        pairs = zip(self.tokens["target_in"], self.tokens["target_out"], strict=True)
        return [label_text(tuple(map(visible_token, pair))) for pair in pairs]

    def token_text(self, token: int) -> str:
        """One token of the vocabulary."""
        [text] = self.tokenizer.pieces([token])
        return label_text((visible_token(text),))


# Attention.


def attention(pair: AnalyzedPair) -> list[Part]:
    """The head view, the overview with measures of every head, and the six steps."""
    trace = pair.computed.trace
    kinds = trace_attention_kinds(trace, **pair.tokens)
    return [
        head_view(kinds),
        head_overview(kinds, measures=_head_measures(pair)),
        attention_steps(trace, kinds, _heads_that_fit(trace)),
    ]


def _head_measures(pair: AnalyzedPair) -> dict[str, dict[str, np.ndarray]]:
    """Measures of every head: name -> kind of attention -> values [L,N]."""
    ablated = ablation.ablate_heads(
        pair.params, pair.config, [pair.source], [pair.target], heads_at_once=BATCH_SIZE
    )
    roles = {
        "previous position": "previous",
        "next position": "next",
        "first position": "first",
        "last position": "end",
        "same position": "diagonal",
    }
    return {
        "loss increase without the head (nats per token)": {
            kind: getattr(ablated.increase, kind) for kind in KINDS
        },
        "mean distance": pair.computed.distance,
        **{
            f"weight on the {name}": {k: getattr(pair.computed.roles[k], role) for k in KINDS}
            for name, role in roles.items()
        },
    }


def _heads_that_fit(trace: Trace) -> list[tuple[str, int, int]]:
    """(kind, layer, head) of the heads whose vectors fit on a page, preferring the last layers."""
    heads, largest = [], 0
    for kind in KINDS:
        vectors = trace.attention(kind)
        arrays = (vectors.query, vectors.key, vectors.value, vectors.z)  # [L, N, T or S, H]
        largest = max(largest, sum(array[0, 0].size for array in arrays))
        heads += [(kind, *indices) for indices in np.ndindex(vectors.query.shape[:2])]
    count = max(MAX_VECTOR_VALUES // largest, 1)
    chosen = set(sorted(heads, key=lambda head: -head[1])[:count])
    return [head for head in heads if head in chosen]


def search(log: SearchLog, pair: AnalyzedPair) -> View:
    """The search for the translation."""
    return search_replay(log, pair.tokenizer.pieces(range(pair.config.vocab_size)))


# Layer by layer.


def logit_lens(pair: AnalyzedPair) -> Html:
    """The most probable token of every position, from the residual stream after every layer."""
    probabilities = pair.computed.lens  # [L+1, T, V]
    best = probabilities.argmax(-1)
    last = len(best) - 1
    columns = ["input", *(f"layer {layer}" for layer in range(1, last)), f"layer {last}: output"]

    def cell(layer: int, position: int) -> Html:
        token = best[layer, position]
        text = f"{pair.token_text(token)} {probabilities[layer, position, token]:.2f}"
        return element("strong" if token == pair.target[position] else "span", text)

    rows = [
        [label, *(cell(layer, position) for layer in range(last + 1))]
        for position, label in enumerate(pair.decoder_rows())
    ]
    return section(
        "Logit lens",
        paragraph(
            "The most probable token and its probability if the decoder ended at each layer, bold "
            "where it is the target. Early layers are not trained for this."
        ),
        table("Rows: the token read → the token to predict", ["", *columns], rows),
    )


def residual_stream(pair: AnalyzedPair) -> Html:
    """The norms of what every sub-layer reads, adds and outputs."""
    tokens = {"encoder": pair.tokens["source_tokens"], "decoder": pair.tokens["target_in"]}
    content = []
    for side in ("encoder", "decoder"):
        flow = pair.computed.flows[side]
        title = f"{side.capitalize()}: the residual stream around every sub-layer"
        picture = figures.plot_residual_flow(flow, tokens[side], title=title)
        content += [figure_html(picture), details("In numbers", _flow_table(side, flow))]
    return section(
        "Residual stream",
        paragraph(
            "Euclidean norms of the input x of every sub-layer, of what it adds, f(x), of the sum, "
            "and of its output, averaged over the positions."
        ),
        *content,
    )


def _flow_table(side: str, flow: residual.ResidualFlow) -> Html:
    columns = {
        name: each.mean(-1) for name, each in (flow.norms() | {"cosine": flow.cosine()}).items()
    }
    caption = f"{side.capitalize()}: mean norms, and the cosine of x and x + f(x)"
    rows = zip(flow.names, np.stack(list(columns.values()), axis=1), strict=True)
    return number_table(caption, ["sub-layer", *columns], rows, digits=2)


# Attribution.


def attributions(pair: AnalyzedPair) -> Html:
    """The contribution of every source and prefix token to every prediction."""
    forward_flops = build(pair.config).describe().forward_flops
    flops_per_gradient = 3 * forward_flops(1, len(pair.source), len(pair.target))
    flops = flops_per_gradient * GRADIENT_POINTS * len(pair.target)
    integrated = flops <= MAX_ATTRIBUTION_FLOPS

    results = jax.device_get(
        _attribute(
            pair.params,
            pair.config,
            np.array(pair.source),
            np.array(pair.target_in),
            np.array(pair.target),
            integrated,
        )
    )
    values = np.concatenate([results.source, results.target], axis=1)  # [T, S + T]
    totals = values.sum(1)
    gaps = np.abs(totals - (results.value - results.baseline))
    method = (
        f"Integrated gradients with {GRADIENT_POINTS} points. The contributions should add up to "
        "the log-probability minus that of the baseline; the gap is the error."
        if integrated
        else "Gradient times input, because integrated gradients would take too long here. The "
        "contributions need not add up to the difference from the baseline; the gap is the error."
    )
    columns = [f"source {pair.token_text(token)}" for token in pair.source]
    columns += [f"prefix {pair.token_text(token)}" for token in pair.target_in]
    contributions = number_table(
        "Contribution of each token to the log-probability of the prediction, in nats",
        ["prediction", *columns],
        zip(map(pair.token_text, pair.target), values, strict=True),
    )
    sums = number_table(
        "Sum of the contributions, in nats",
        ["prediction", "log-probability", "baseline", "contributions", "gap"],
        zip(
            pair.decoder_rows(),
            np.stack([results.value, results.baseline, totals, gaps], axis=1),
            strict=True,
        ),
    )
    return section(
        "Attribution of each prediction",
        paragraph(
            f"{method} The baseline has the same positions without tokens. Another baseline would "
            "give other numbers."
        ),
        figure_html(figures.plot_attribution(values, *pair.tokens.values())),
        details("In numbers", contributions),
        sums,
    )


@functools.partial(jax.jit, static_argnames=("config", "integrated"))
def _attribute(
    params: Params,
    config: ModelConfig,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
    target: Int[Array, " T"],
    integrated: bool,
) -> attribution.Attribution:
    """Attribute the log-probability of every target token, one after the other."""

    def of_token(position_and_token: tuple[Int[Array, ""], Int[Array, ""]]):
        arguments = (params, config, source, target_in)
        metric = readout.LogProbability(*position_and_token)
        if integrated:
            return attribution.integrated_gradients(*arguments, metric, steps=GRADIENT_POINTS)
        return attribution.input_x_gradient(*arguments, metric)

    return jax.lax.map(of_token, (jnp.arange(len(target)), target))


# Two sentences.


def comparison(first: AnalyzedPair, second: AnalyzedPair) -> list[Part]:
    """The attention of two sentences, its difference, and a patch map of the first's answer.

    Args:
      first: The sentence pair that the page is about.
      second: Another sentence with its translation.
    """
    heading = "Comparison of the two sentences"
    lengths = len(first.source), len(second.source)
    if lengths[0] != lengths[1]:
        reason = (
            f"The first sentence has {lengths[0]} tokens and the second {lengths[1]}, so positions "
            "cannot be compared one by one. There is no difference and no patch map; below is the "
            "attention of the second sentence."
        )
        kinds = trace_attention_kinds(second.computed.trace, **second.tokens)
        return [section(heading, paragraph(reason)), head_view(kinds, title="The second sentence")]
    same_target = first.with_source(second.source)
    pairs = [
        trace_attention_kinds(each.computed.trace, **each.tokens) for each in (first, same_target)
    ]
    weights_per_layer = 2 * sum(kind.weights[0].size for kind in pairs[0])
    layers = max(MAX_COMPARED_WEIGHTS // weights_per_layer, 1)
    view = compare_sentences(
        *(tuple(kind.last_layers(layers) for kind in pair) for pair in pairs),
        title="Attention in both sentences, and its difference",
    )
    note = "The decoder reads the first sentence's target in both, so that the rows are the same."
    return [section(heading, paragraph(note)), view, _patch_map(first, second)]


def _patch_map(first: AnalyzedPair, second: AnalyzedPair) -> Html:
    """Where the encoder's residual stream determines the first difference of the translations."""
    heading = "Patch map"
    if first.source == second.source:
        return section(heading, paragraph("There is no patch map: the sentences are the same."))
    answers = zip(first.target, second.target, strict=False)
    differing = [position for position, (one, other) in enumerate(answers) if one != other]
    if not differing:
        return section(heading, paragraph("There is no patch map: the translations are the same."))
    position = differing[0]
    token, other = first.target[position], second.target[position]
    effect = patching.patch_sites(
        first.params,
        first.config,
        first.source,
        second.source,
        first.target_in,
        readout.LogitDifference(position, token, other),
        sites_at_once=BATCH_SIZE,
    ).effect
    named, otherwise = first.token_text(token), first.token_text(other)
    sources = zip(first.tokens["source_tokens"], second.tokens["source_tokens"], strict=True)
    columns = [one if one == other else f"{one} / {other}" for one, other in sources]
    levels = ["input", *(f"after layer {layer}" for layer in range(1, len(effect)))]
    numbers = number_table(
        f"Share of the preference for {named} over {otherwise} that is restored",
        ["", *columns],
        zip(levels, np.asarray(effect), strict=True),
    )
    return section(
        heading,
        paragraph(
            f"The translations first differ at target token {position + 1}: {named} in the first, "
            f"{otherwise} in the second. The model reads the second sentence, with the vector of "
            "the first at one site of the encoder's residual stream. The map shows the share of "
            "the first answer that this restores: 0 is nothing, 1 all of it. It holds for these "
            "two sentences and tokens."
        ),
        figure_html(figures.plot_patch_map(effect, columns)),
        details("In numbers", numbers),
    )
