# SPDX-License-Identifier: Apache-2.0
"""Every figure, drawn from random sentences with awkward tokens, and its texts."""

import functools

import numpy as np
from matplotlib.text import Text

from transformer.config import TransformerConfig
from transformer.inspection import figures, search_log
from transformer.inspection.activations import AttentionTrace, StackTrace
from transformer.inspection.residual import ResidualFlow
from transformer.nn.positions import sinusoids

LONG_WORD = "▁Donaudampfschifffahrtsgesellschaft"
AWKWARD = ["▁$x^2$", "שלום", "你好", "a\nb", "", "  ", "&<b>", LONG_WORD, "▁_{", "👩‍👩‍👧"]


def words(count, side):
    """Tokens of a sentence, some of them long or awkward."""
    plain = ["▁The", "▁animal", "didn", "'", "t", "▁because", "▁it", ".", "</s>"]
    cycle = plain[:count] if count <= 5 else [*plain, *AWKWARD]
    return [f"{cycle[i % len(cycle)]}" for i in range(count - 1)] + [f"{side}{count}"]


def softmax(scores):
    """Softmax over the last axis."""
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


class Sentence:
    """Random arrays of one sentence pair; no two sizes are the same."""

    def __init__(self, source, target):
        random = np.random.default_rng(source)
        self.normal = random.standard_normal
        self.source, self.target_in = words(source, "s"), words(target, "i")
        self.target_out = [*self.target_in[1:], "</s>"]
        self.rows = figures.read_predict(self.target_in, self.target_out)
        self.causal = np.tril(np.ones((target, target), bool))
        self.encoder = softmax(self.normal((2, 4, source, source)) * 3)
        self.cross = softmax(self.normal((3, 8, target, source)) * 3)
        scores = np.where(self.causal, self.normal((3, 8, target, target)) * 2, -1e30)
        self.decoder = softmax(scores)
        self.x = self.normal((source, 24))
        self.kernels = [self.normal((24, size)) for size in (6, 6, 7)]
        self.q, self.k, self.v = (self.x @ kernel for kernel in self.kernels)
        self.vocabulary = [*words(source, "v"), *AWKWARD, *map(str, range(10))]
        self.ids = random.integers(0, len(self.vocabulary), target)
        self.logits = self.normal((4, target, len(self.vocabulary))) * 2
        smooth = np.full(self.logits.shape[1:], 0.1 / (len(self.vocabulary) - 1))
        smooth[np.arange(target), self.ids] = 0.9
        self.smooth = smooth
        self.sublayers = [f"{layer} {name}" for layer in (1, 2) for name in ("attention", "ffn")]
        self.stream = self.normal((3, 4, source, 24))
        self.stack = StackTrace(
            self_attention=AttentionTrace(weights=self.encoder),
            residual=self.normal((3, source, 24)),
            sublayers=self.normal((2, 2, source, 24)),
        )
        self.log = self.search(source, target)

    def search(self, source, target):
        """The log of a search with two beams."""
        ids = [4 + i % 5 for i in range(source)]
        steps, live = [], [((), 0.0)]
        for index in range(target):
            beams = len(live)
            top = np.argsort(self.normal((beams, 20)), axis=-1)[:, :4]
            steps.append(
                search_log.SearchStep(
                    tokens=tuple(tokens for tokens, _ in live),
                    log_probs=tuple(total for _, total in live),
                    parents=() if index == 0 else (0, 0) if index == 1 else (1, 0),
                    top_tokens=top,
                    top_log_probs=-np.sort(np.abs(self.normal((beams, 4))), axis=-1) - 0.3,
                    cross_attention=softmax(self.normal((beams, 3, 8, source)) * 2),
                    finished=(search_log.Finished(0, -2.5 - index, -1.5),)
                    if index >= target - 2
                    else (),
                )
            )
            grown = [live[0], live[0]] if index == 0 else [live[1], live[0]]
            live = [
                ((*tokens, 5 + beam + index % 3), total - 0.5 - beam)
                for beam, (tokens, total) in enumerate(grown)
            ]
        results = tuple(
            search_log.Result((*step.tokens[0], 2), -1.5, step.finished[0].log_prob)
            for step in steps[-1:-3:-1]
        )
        return search_log.SearchLog(tuple(ids), tuple(steps), results)


@functools.cache
def sentence(size):
    """Short: 5 and 4 tokens; long: 30 and 29."""
    return {"short": Sentence(5, 4), "long": Sentence(30, 29)}[size]


TINY = TransformerConfig(
    vocab_size=11, encoder_layers=2, decoder_layers=3, d_model=12, num_heads=3, d_ff=20, norm="pre"
)

DRAWN = {
    "architecture": lambda s: figures.plot_architecture(TINY),
    "attention": lambda s: figures.plot_attention(
        s.decoder[0, 0], s.rows, s.target_in, mask=s.causal, annotate=True
    ),
    "attention_grid": lambda s: figures.plot_attention_grid(s.cross, s.rows, s.source),
    "token_heads": lambda s: figures.plot_token_heads(s.encoder[1], 2, s.source, s.source),
    "head_shares": lambda s: figures.plot_token_heads(
        s.decoder[1], 2, s.rows, s.target_in, normalize="heads"
    ),
    "attention_steps": lambda s: figures.plot_attention_steps(
        s.x, s.q, s.k, s.v, 1, s.source, mask=np.tril(np.ones((len(s.source),) * 2, bool))
    ),
    "attention_matrices": lambda s: figures.plot_attention_matrices(s.x, *s.kernels, s.source),
    "head_assembly": lambda s: figures.plot_head_assembly(
        s.normal((8, len(s.source), 7)), s.normal((8, 7, 24)), s.source
    ),
    "positional_encoding": lambda s: figures.plot_positional_encoding(
        {layout: sinusoids(len(s.source), 24, layout) for layout in ("interleaved", "halves")}
    ),
    "vectors": lambda s: figures.plot_vectors(
        {"embedding": s.x, "position": s.x[:, ::-1], "query": s.q, "value": s.v}, s.source
    ),
    "residual_flow": lambda s: figures.plot_residual_flow(
        ResidualFlow(s.sublayers, *s.stream), s.source
    ),
    "output_distribution": lambda s: figures.plot_output_distribution(
        s.logits[1],
        s.vocabulary,
        s.target_in,
        s.ids,
        before=s.logits[0],
        target=s.smooth,
    ),
    "alignment": lambda s: figures.plot_alignment(
        s.cross[0, 0], s.source, s.target_in, s.target_out, gold={(0, 0), (2, 1), (2, 4)}
    ),
    "decoding": lambda s: figures.plot_decoding(s.log, s.vocabulary),
    "beam_tree": lambda s: figures.plot_beam_tree(s.log, s.vocabulary),
    "black_box": lambda s: figures.plot_black_box(TINY, " ".join(s.source), " ".join(s.target_out)),
    "vector_flow": lambda s: figures.plot_vector_flow(s.stack, s.source, layer=1),
    "multi_head": lambda s: figures.plot_multi_head(
        s.x,
        {name: s.normal((24, 4, 6)) for name in ("query", "key", "value")}
        | {"output": s.normal((4, 6, 24))},
        s.source,
    ),
    "residual_norm": lambda s: figures.plot_residual_norm(
        ResidualFlow(s.sublayers, *s.stream), 1, s.source
    ),
    "memory": lambda s: figures.plot_memory(
        s.x, s.normal((3, 8, len(s.source), 6)), s.normal((3, 8, len(s.source), 7)), s.source
    ),
    "output_layer": lambda s: figures.plot_output_layer(
        s.x[0], s.normal((len(s.vocabulary), 24)), s.vocabulary
    ),
    "target_distributions": lambda s: figures.plot_target_distributions(
        s.logits[0], s.smooth, s.logits[1], s.vocabulary, s.target_in, s.ids
    ),
    "curves": lambda s: figures.plot_curves(
        {
            "training": (range(len(s.source)), np.exp(s.normal(len(s.source)))),
            "validation": ([0, len(s.source)], [3.0, 0.5]),
        },
        x_label="step",
        y_label="loss (nats a token)",
        levels={"lower bound": 0.33},
    ),
    "logit_lens": lambda s: figures.plot_logit_lens(s.logits, s.vocabulary, s.target_in, s.ids),
    "head_table": lambda s: figures.plot_head_table(
        {"encoder": s.normal((2, 4)), "decoder": s.normal((3, 8)), "cross": s.normal((3, 8))},
        label="coreference score",
    ),
    "patch_map": lambda s: figures.plot_patch_map(s.normal((3, len(s.source))), s.source),
    "attribution": lambda s: figures.plot_attribution(
        s.normal((len(s.rows), len(s.source) + len(s.target_in))),
        s.source,
        s.target_in,
        s.target_out,
    ),
    "masks": lambda s: figures.plot_masks(
        s.source,
        s.target_in,
        source_mask=np.arange(len(s.source)) < len(s.source) - 2,
        causal=s.causal,
    ),
}


@functools.cache
def drawn(name, size="short"):
    """The figure, drawn once for all tests that only read it."""
    return DRAWN[name](sentence(size))


def panel(figure, label):
    """The axes of this name."""
    [ax] = [ax for ax in figure.axes if ax.get_label() == label]
    return ax


def values(figure, label=None):
    """Values of a heat map; of the only one by default."""
    axes = [panel(figure, label)] if label else [ax for ax in figure.axes if ax.images]
    [image] = [image for ax in axes for image in ax.images]
    return image.get_array()


def framed(figure):
    """Names of the framed cells."""
    return sorted(p.get_gid() for ax in figure.axes for p in ax.patches if p.get_gid())


def labels(axis):
    """Tick labels of an axis."""
    return [text.get_text() for text in axis.get_ticklabels()]


def every_text(figure):
    """All visible texts of a figure."""
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def written(figure):
    """The words of all visible texts of a figure."""
    return [text.get_text() for text in every_text(figure)]
