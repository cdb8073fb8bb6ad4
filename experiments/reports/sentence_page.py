# SPDX-License-Identifier: Apache-2.0
"""What a trained model does with one sentence, as the parts of a page."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import BOS_ID, Array, Float, Int, Params
from transformer.config import TransformerConfig
from transformer.inspection import ablation, attribution, measures, patching, readout, residual
from transformer.inspection.html import Html, Series, element, line_chart, paragraph, section, table
from transformer.inspection.search_log import SearchLog
from transformer.inspection.trace import run
from transformer.inspection.views.attention_data import Family, families_of, shown
from transformer.inspection.views.compare_view import compare
from transformer.inspection.views.grid import grid
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.numbers import numbers
from transformer.inspection.views.picture import joined
from transformer.inspection.views.replay import replay
from transformer.inspection.views.step_view import heads_of, steps
from transformer.inspection.views.view import View
from transformer.nn.capture import KINDS, Trace
from transformer.text.tokenizer import Tokenizer

Part = View | Html

NUMBERS = 8_000
"""The most numbers of queries, keys and values on a page: of some heads where all have more. Also
the most weights that the search shows: of the last layer where all have more.
"""

COMPARED = 40_000
"""The most weights of two sentences that are compared: of the last layers where all have more, but
of one layer at least.
"""

POINTS = 64
"""At which the gradient is taken on the way from no words to the words, where that is not too much:
where all points and predictions take more than `OPERATIONS`, at the words alone.
"""
OPERATIONS = 1e12

AT_ONCE = 16
"""Heads that are removed, or sites that are patched, in one batch: memory for that many logits."""


@flax.struct.dataclass
class Computed:
    """What one run of the model shows."""

    trace: Trace
    distance: dict[str, Float[Array, "L N"]]
    """From a query to what it reads, on average, by the kind of attention."""
    roles: dict[str, measures.HeadRoles]
    lens: Float[Array, "P T V"]
    """The probabilities of every token after each of P = L + 1 places of the decoder."""
    flows: dict[str, residual.ResidualFlow]
    """By the side."""


@functools.partial(jax.jit, static_argnames="config")
def _computed(
    params: Params,
    config: TransformerConfig,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
) -> Computed:
    """All in one program, which is compiled much sooner than many small ones."""
    _, trace = run(params, config, source, target_in, capture="full")
    weights = {kind: trace.attention(kind).weights for kind in KINDS}
    logits = readout.logit_lens(params, config, trace.decoder.residual)
    return Computed(
        trace=trace,
        distance={
            kind: measures.row_mean(measures.attention_distance(own))
            for kind, own in weights.items()
        },
        roles={kind: measures.head_roles(own) for kind, own in weights.items()},
        lens=jax.nn.softmax(logits.astype(jnp.float32)),
        flows={
            side: jax.tree.map(
                lambda own: own.astype(jnp.float32), residual.residual_flow(getattr(trace, side))
            )
            for side in ("encoder", "decoder")
        },
    )


@dataclasses.dataclass(frozen=True)
class Reading:
    """A model, what it reads, and all that it computes then."""

    params: Params
    config: TransformerConfig
    tokenizer: Tokenizer
    source: list[int]
    target: list[int]
    """What is predicted, the end token last."""
    computed: Computed

    @classmethod
    def of(
        cls,
        params: Params,
        config: TransformerConfig,
        tokenizer: Tokenizer,
        source: Sequence[int],
        target: Sequence[int],
    ) -> "Reading":
        """Runs the model on one sentence pair."""
        # The other kernels compute the same and keep no weights.
        config = config.replace(attention_kernel="einsum")
        target_in = np.array([BOS_ID, *target[:-1]])
        computed = jax.device_get(_computed(params, config, np.array(source), target_in))
        return cls(params, config, tokenizer, list(source), list(target), computed)

    def of_source(self, source: Sequence[int]) -> "Reading":
        """The same model and target with another source."""
        return self.of(self.params, self.config, self.tokenizer, source, self.target)

    @property
    def target_in(self) -> list[int]:
        """What the decoder reads."""
        return [BOS_ID, *self.target[:-1]]

    @property
    def tokens(self) -> dict[str, list[str]]:
        """The names of rows and columns."""
        ids = {
            "source_tokens": self.source,
            "target_in": self.target_in,
            "target_out": self.target,
        }
        return {name: self.tokenizer.pieces(each) for name, each in ids.items()}

    @property
    def rows(self) -> list[str]:
        """The decoder's rows: the token that is read, and the one it predicts."""
        read, predicted = self.tokens["target_in"], self.tokens["target_out"]
        return [joined((shown(r), shown(p))) for r, p in zip(read, predicted, strict=True)]


# Attention, and what the heads do.


def attention(reading: Reading) -> list[Part]:
    """The head view, every head with its measures, and the six steps."""
    families = families_of(reading.computed.trace, **reading.tokens)
    heads = heads_of(reading.computed.trace, _some_heads(reading), **reading.tokens)
    return [
        head_view(families),
        grid(families, measures=_of_heads(reading)),
        steps(heads),
    ]


def _of_heads(reading: Reading) -> dict[str, dict[str, np.ndarray]]:
    """Numbers of every head, by their names and the kind of attention."""
    removed = ablation.ablate_heads(
        reading.params,
        reading.config,
        [reading.source],
        [reading.target],
        heads_at_once=AT_ONCE,
    ).increase
    roles = reading.computed.roles
    positions = {"previous": "previous", "next": "next", "first": "first", "end": "last"}
    return {
        "loss added without the head, nats a token": {
            kind: getattr(removed, kind) for kind in KINDS
        },
        "mean distance": reading.computed.distance,
        **{
            f"weight on the {name} position": {kind: getattr(roles[kind], role) for kind in KINDS}
            for role, name in (positions | {"diagonal": "own"}).items()
        },
    }


def _some_heads(reading: Reading) -> list[tuple[str, int, int]]:
    """(kind, layer, head) of as many heads as a page has room for, of the last layers first."""
    config, source, target = reading.config, len(reading.source), len(reading.target)
    shapes = {
        "encoder": ("encoder", source, source),
        "decoder": ("decoder", target, target),
        "cross": ("decoder", target, source),
    }
    every = []
    for kind, (side, rows, columns) in shapes.items():
        size = sum(config.head_widths(side)) * (rows + columns)
        places = itertools.product(range(config.depth(side)), range(config.heads(side)))
        every += [(config.depth(side) - layer, head, kind, layer, size) for layer, head in places]
    chosen, room = [], NUMBERS
    for _, head, kind, layer, size in sorted(every, key=lambda one: one[:2]):
        room -= size
        if room < 0 and chosen:
            break
        chosen.append((kind, layer, head))
    return sorted(chosen, key=lambda one: (list(shapes).index(one[0]), one[1:]))


# The search.


def search(log: SearchLog, reading: Reading) -> View:
    """The search for the translation; the reading of all decoder layers, or the last."""
    read = sum(len(step.tokens) for step in log.steps) * len(log.source)
    all_fit = read * reading.config.depth("decoder") <= NUMBERS
    return replay(log, reading.tokenizer.pieces, layers=None if all_fit else [-1])


# Layer by layer.


def logit_lens(reading: Reading) -> Html:
    """The most probable token of every position, from the residual stream after every layer."""
    probabilities = reading.computed.lens
    best = probabilities.argmax(-1)
    layers = len(best) - 1
    columns = [
        "input",
        *(f"layer {layer}" for layer in range(1, layers)),
        f"layer {layers}: output",
    ]

    def cell(layer: int, position: int) -> Html:
        token = best[layer, position]
        [name] = reading.tokenizer.pieces([token])
        said = f"{joined((shown(name),))} {probabilities[layer, position, token]:.2f}"
        return (
            element("strong", said)
            if token == reading.target[position]
            else Html(element("span", said))
        )

    rows = [
        [name, *(cell(layer, position) for layer in range(layers + 1))]
        for position, name in enumerate(reading.rows)
    ]
    return section(
        "Logit lens",
        paragraph(
            "What would be predicted if the decoder ended at each layer: the most probable token "
            "and its probability, bold where it is the one that comes next in the target. Early "
            "layers are not trained to be read this way."
        ),
        table("Rows: the token that is read → the token that comes next", ["", *columns], rows),
    )


def residual_stream(reading: Reading) -> Html:
    """How long the vectors are that every sub-layer reads, adds and leaves."""
    content = [part for side, flow in reading.computed.flows.items() for part in _flow(side, flow)]
    goes_on = "LayerNorm(x + f(x))" if reading.config.norm == "post" else "x + f(LayerNorm(x))"
    return section(
        "Residual stream",
        paragraph(
            "x is the stream that comes to a sub-layer, f(x) what it adds; the stream goes on as "
            f"{goes_on}. Lengths are Euclidean, on average over the positions."
        ),
        *content,
    )


def _flow(side: str, flow: residual.ResidualFlow) -> list[Html]:
    name = side.capitalize()
    vectors = {"x": flow.before, "f(x)": flow.added, "x + f(x)": flow.total, "goes on": flow.after}
    means = {key: residual.vector_norm(own).mean(-1) for key, own in vectors.items()}
    places = range(1, len(flow.names) + 1)
    lines = [Series(key, places, own.tolist()) for key, own in means.items()]
    columns = [*means.values(), flow.cosine().mean(-1)]
    rows = [
        [sublayer, *(f"{own[place]:.2f}" for own in columns)]
        for place, sublayer in enumerate(flow.names)
    ]
    caption = f"{name}: lengths, and the cosine of x and x + f(x)"
    in_numbers = table(
        caption, ["sub-layer", *means, "cosine"], rows, numeric=range(1, len(columns) + 1)
    )
    title = f"{name}: lengths around every sub-layer"
    return [
        line_chart(title, lines, x_label="sub-layer", y_label="mean length", include=[0]),
        element("details", element("summary", "The same in numbers"), in_numbers),
    ]


# Where the answer rests.


def attributions(reading: Reading) -> list[Part]:
    """What each prediction is attributed to, over source and target prefix, and what is missed."""
    params = sum(leaf.size for leaf in jax.tree.leaves(reading.params))
    predictions = len(reading.target)
    tokens = len(reading.source) + predictions
    integrated = 6 * params * tokens * POINTS * predictions <= OPERATIONS

    def attribute(position: int, token: int) -> attribution.Attribution:
        pair = (reading.params, reading.config, reading.source, reading.target_in)
        metric = readout.LogProbability(position, token)
        if integrated:
            return attribution.integrated_gradients(*pair, metric, steps=POINTS)
        return attribution.input_x_gradient(*pair, metric)

    found = [attribute(position, token) for position, token in enumerate(reading.target)]
    values = np.stack([np.concatenate([own.source, own.target]) for own in found])
    predicted = [f"predicts {token}" for token in reading.tokens["target_out"]]
    view = numbers(
        values,
        predicted,
        [
            *(f"x {token}" for token in reading.tokens["source_tokens"]),
            *(f"y {token}" for token in reading.tokens["target_in"]),
        ],
        measure="Nats that a token adds to the log-probability of what comes next",
        title="Where each prediction rests",
    )
    rows = [
        [
            name,
            f"{float(own.value):.3f}",
            f"{float(own.baseline):.3f}",
            f"{total:.3f}",
            f"{float(own.gap):.3f}",
        ]
        for name, own, total in zip(reading.rows, found, values.sum(1), strict=True)
    ]
    how = (
        f"Integrated gradients with {POINTS} points: what each token makes of the difference "
        "between the log-probability of the sentence pair and that of the same positions without "
        "words. The contributions should add up to that difference; the gap is what they miss."
        if integrated
        else "Gradient times input: the slope at the sentence pair, since integrated gradients "
        "would take too long here. It need not add up to anything; the gap says by how much it "
        "misses the difference from the same positions without words."
    )
    check = section(
        "What the contributions add up to",
        paragraph(
            how,
            " x: a token of the source; y: a token that the decoder has read. Another baseline "
            "would give other numbers.",
        ),
        table(
            "Nats",
            ["prediction", "log-probability", "without words", "contributions", "gap"],
            rows,
            numeric=range(1, 5),
        ),
    )
    return [view, check]


# Two sentences.


def comparison(first: Reading, second: Reading) -> list[Part]:
    """The attention of two sentences, its difference, and where the first one's answer lies.

    Args:
      first: of the sentence that the page is about.
      second: of another sentence with its own translation.
    """
    heading = "The two sentences side by side"
    lengths = len(first.source), len(second.source)
    if lengths[0] != lengths[1]:
        reason = (
            f"The first sentence has {lengths[0]} tokens, the second {lengths[1]}: their positions "
            "cannot be compared one by one, so there is neither a difference nor a patch map. What "
            "follows is the second sentence's own attention."
        )
        own = families_of(second.computed.trace, **second.tokens)
        return [section(heading, paragraph(reason)), head_view(own, title="The second sentence")]
    other = first.of_source(second.source)
    patch, measure, said = _patch_map(first, second)
    pairs = [families_of(own.computed.trace, **own.tokens) for own in (first, other)]
    layers = COMPARED // _weights_of_a_layer(pairs[0])
    view = compare(
        *(tuple(family.last(max(layers, 1)) for family in pair) for pair in pairs),
        patch=patch,
        measure=measure,
        title="Attention in both, its difference, and patching",
    )
    both = "In both, the decoder reads the first sentence's target, so that rows are the same. "
    return [section(heading, paragraph(both + said)), view]


def _weights_of_a_layer(pair: tuple[Family, ...]) -> int:
    """Of two sentences."""
    return 2 * sum(family.weights[0].size for family in pair)


def _patch_map(first: Reading, second: Reading) -> tuple[np.ndarray | None, str, str]:
    """The effects [L+1,S], what they measure, and what is said of them, or why there are none."""
    answers = zip(first.target, second.target, strict=False)
    differ = [position for position, (one, other) in enumerate(answers) if one != other]
    if first.source == second.source:
        return None, "", "There is no patch map: the two sentences are the same."
    if not differ:
        return None, "", "There is no patch map: the two have the same translation."
    position = differ[0]
    token, other = first.target[position], second.target[position]
    effect = patching.patch_sites(
        first.params,
        first.config,
        first.source,
        second.source,
        first.target_in,
        readout.LogitDifference(position, token, other),
        sites_at_once=AT_ONCE,
    ).effect
    named, otherwise = (joined((shown(piece),)) for piece in first.tokenizer.pieces([token, other]))
    measure = f"Share of the preference for {named} over {otherwise} that one place restores"
    said = (
        f"The translations differ first at target token {position + 1}: {named} in the first, "
        f"{otherwise} in the second. The patch map takes the second sentence, puts the first one's "
        "vector into one place of the encoder's residual stream, and shows how much of the first "
        "answer comes back: 0 is nothing, 1 all of it. It holds for this pair and these two tokens."
    )
    return np.asarray(effect), measure, said
