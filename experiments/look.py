# SPDX-License-Identifier: Apache-2.0
"""Opens up a trained model: a page of what it does with one sentence.

python -m experiments.look --workdir=runs/de --sentence=TEXT --output=FILE.html

The page is one file and needs no network. It has the attention of every layer and head, one head's
computation in six steps, and the search for the translation. With --target=TEXT the decoder reads
that translation in place of the one found. The last line is the page's path.
"""

import itertools

import jax
import jax.numpy as jnp
from absl import flags
from etils import epath

from experiments import weights, workdir
from experiments.flags import run
from transformer import families, paths
from transformer.arrays import BOS_ID, Params
from transformer.capture import Trace
from transformer.config import Config, TransformerConfig
from transformer.errors import InputError
from transformer.inspection import search_log
from transformer.inspection.html import Html, element, paragraph, section, sentence
from transformer.inspection.views.attention import families_of
from transformer.inspection.views.grid import grid
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.replay import replay
from transformer.inspection.views.steps import heads_of, steps
from transformer.inspection.views.view import page

SENTENCE = flags.DEFINE_string("sentence", None, "What the encoder reads.")
TARGET = flags.DEFINE_string(
    "target", None, "What the decoder reads; the translation found if absent."
)
OUTPUT = flags.DEFINE_string("output", None, "Where the page goes, for example look.html.")

NUMBERS = 12_000
"""The most numbers of queries, keys and values on a page: of some heads where all have more. Also
the most weights that the search shows: of the last layer where all have more.
"""


def main(config: Config) -> None:
    """Translates, traces, writes the page."""
    output = _output()
    if weights.ENSEMBLE.value:
        raise InputError("--ensemble: a page shows one model; name its workdir alone")
    for flag in (SENTENCE, TARGET):
        _check(flag)
    translator = weights.translator(config)
    tokenizer, params, model = translator.tokenizer, translator.params, config.model
    [source] = tokenizer.encode([SENTENCE.value])
    _check_length("--sentence", source, config)
    log = search_log.record(params, model, source, decode=config.decode)
    target = list(log.results[0].tokens)
    if TARGET.value is not None:
        [target] = tokenizer.encode([TARGET.value])
        _check_length("--target", target, config)
    target_in = [BOS_ID, *target[:-1]]
    trace = _trace(params, model, source, target_in)
    tokens = {
        "source_tokens": tokenizer.pieces(source),
        "target_in": tokenizer.pieces(target_in),
        "target_out": tokenizer.pieces(target),
    }
    attention = families_of(trace, **tokens)
    heads = heads_of(trace, _some_heads(model, len(source), len(target)), **tokens)
    views = [
        head_view(attention),
        grid(attention),
        steps(heads),
        replay(log, tokenizer.pieces, layers=_some_layers(log, model)),
    ]
    found = tokenizer.decode(log.results[0].tokens)
    text = page("A look inside", views, before=[_introduction(config, found)])
    workdir.write_text(output, text)
    print(OUTPUT.value)


def _output() -> epath.Path:
    """Where the page goes; what is plainly wrong with it is said before anything is computed."""
    if not OUTPUT.value:
        raise InputError("missing --output=FILE.html")
    output = paths.reachable(OUTPUT.value)
    if output.is_dir() or not (paths.is_remote(output) or output.parent.is_dir()):
        raise InputError(f"--output={output} cannot be written; name a file in a directory")
    return output


def _check(flag: flags.FlagHolder) -> None:
    """Refuses what is not one sentence."""
    text = flag.value
    if text is None and flag is TARGET:
        return
    if text is None:
        raise InputError(f"missing --{flag.name}=TEXT")
    if not text.strip():
        raise InputError(f"--{flag.name} is empty; give a sentence")
    if "\n" in text:
        raise InputError(f"--{flag.name} has several lines; give one sentence")


def _check_length(name: str, ids: list[int], config: Config) -> None:
    """Refuses a sentence that the model was not made for."""
    if len(ids) > config.data.max_length:
        raise InputError(
            f"{name} has {len(ids)} tokens, more than data.max_length = "
            f"{config.data.max_length}; shorten it, or raise --config.data.max_length"
        )


def _trace(params: Params, config: TransformerConfig, source: list, target_in: list) -> Trace:
    """Everything that the model computes for one sentence pair."""
    # The other kernels compute the same and keep no weights.
    model = families.build(config.replace(attention_kernel="einsum"))
    run_model = jax.jit(lambda *tokens: model.apply({"params": params}, *tokens, capture="full"))
    _, trace = run_model(jnp.asarray([source]), jnp.asarray([target_in]))
    return trace


def _some_heads(config: TransformerConfig, source: int, target: int) -> list[tuple[str, int, int]]:
    """(kind, layer, head) of as many heads as a page has room for, of the last layers first."""
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


def _some_layers(log: search_log.SearchLog, config: TransformerConfig) -> list[int] | None:
    """The decoder's layers whose reading the search shows: all if there is room, or the last."""
    read = sum(len(step.tokens) for step in log.steps) * len(log.source)
    return None if read * config.depth("decoder") <= NUMBERS else [-1]


def _introduction(config: Config, found: str) -> Html:
    """The sentences, the model, and what the pictures do not say."""
    lines = [("Read: ", SENTENCE.value), ("Translated: ", found)]
    if TARGET.value is not None:
        lines.append(("What the decoder reads here: ", TARGET.value))
    model = config.model
    return section(
        "The sentence",
        *(paragraph(name, sentence(text)) for name, text in lines),
        paragraph(
            f"{model.depth('encoder')} encoder and {model.depth('decoder')} decoder layers, "
            f"{model.heads('encoder')} and {model.heads('decoder')} heads; "
            f"{weights.description(config)}. A row of the decoder is named after the token it "
            "reads and the one it predicts."
        ),
        paragraph(
            element("strong", "What this does not show. "),
            "Attention says where a head reads, not why the model answers as it does; above the "
            "first layer a position holds a mixture of words, not its own alone; a large weight on "
            "a small value moves little; and one sentence is an example, not evidence.",
        ),
    )


if __name__ == "__main__":
    run(main, config_from="workdir")
