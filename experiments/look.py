# SPDX-License-Identifier: Apache-2.0
"""Write a page about what a trained model does with one sentence.

transformer look --workdir=runs/de --sentence=TEXT --output=FILE.html

The page is one file and needs no network. It opens with the answer: the token in question, the word
that counts most for it, and the heads and positions that carry it. Its views show the attention of
every layer and head and what is lost without each, one head's computation in six steps, the search
for the translation, the prediction of every layer, the contribution of every token to every
prediction, and the residual stream. With --target=TEXT the decoder reads that translation instead
of the search result. With --compare=TEXT the question is where both translations first differ, and
the page also shows the second sentence; if it has the same number of tokens, with the difference of
the attention and a patch map of the encoder. The last line of the output is the path of the page.

transformer look --live --workdir=runs/de --output=live.html

writes a page in which the model itself runs: it translates what a reader types, and shows every
number on the way.
"""

import dataclasses

import jax

from experiments.cli import command_line
from experiments.cli.options import output_file
from experiments.cli.weights import Weights
from experiments.pages.sentence import sentence_page, sentence_question
from experiments.pages.sentence.analyzed_pair import AnalyzedPair
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.inspection import search_log
from transformer.inspection.html import Html, element, paragraph, sentence
from transformer.inspection.live import live_limits, live_page
from transformer.inspection.views.attention_kinds import TITLES
from transformer.models.protocol import build
from transformer.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, the sentence, and the page."""

    sentence: str | None = None
    """Sentence that the encoder reads."""
    target: str | None = None
    """Translation that the decoder reads; the search result by default."""
    live: bool = False
    """Write the live page, in which the model itself runs. It opens with --sentence, and overwrites
    states with those of --compare.
    """
    compare: str | None = None
    """Second sentence, to compare with the first."""
    output: str | None = None
    """Path of the page, for example look.html."""


def main(options: Options) -> None:
    """Write the page and print its path."""
    output = output_file(options.output, ".html")
    workdir_files.write_text(output, run(options))
    print(options.output)


def run(options: Options) -> str:
    """Translate and analyze the sentence; return the page."""
    config = options.config
    if options.ensemble:
        raise InputError("--ensemble: a page shows one model; give its workdir alone")
    if options.live:
        return _live_page(options)
    if not build(config.model).describe().attention:
        raise InputError(
            f"model.family {config.model.family!r} has no attention that a page could show; give "
            "the workdir of another family, such as 'transformer'"
        )
    for name in ("sentence", "target", "compare"):
        _require_sentence(name, options)
    # Every program runs once, so compiling it quickly matters more than how fast it runs.
    jax.config.update("jax_disable_most_optimizations", True)
    translator = options.translator()
    tokenizer, of_source = translator.tokenizer, translator.vocabularies.source
    model = (translator.model, translator.params)

    source = _encode("sentence", options, of_source)
    log = search_log.record(*model, source, decode=config.decode, prefix=tokenizer.forced_ids)
    target = log.results[0].tokens
    longest = config.decode.longest_output(len(source))
    # The last token of the longest output is EOS, whatever the model predicts.
    last = len(target) - 1 if len(target) >= longest > 1 else len(target)
    chosen = slice(min(len(tokenizer.forced_ids), last - 1), last)
    texts = [("Source", options.sentence), ("Translation", tokenizer.decode(list(target)))]
    if options.target is not None:
        target, chosen = _encode("target", options, tokenizer), slice(None)
        texts.append(("Target that the decoder reads", options.target))
    pair, second = AnalyzedPair.of(*model, tokenizer, source, target), None
    if options.compare is not None:
        source = _encode("compare", options, of_source)
        translation = search_log.best_result(
            *model, source, config.decode, tokenizer.forced_ids
        ).tokens
        texts.append(("Second sentence", options.compare))
        texts.append(("Translation", tokenizer.decode(list(translation))))
        second = AnalyzedPair.of(*model, tokenizer, source, translation)
    evidence = sentence_question.gather(pair, second, chosen)
    read = "the model's own translation" if options.target is None else "the given target"
    return sentence_page.sentence_page(evidence, log, second, _about(options, texts), read)


LIVE_SENTENCES = tuple(
    f"The animal didn't cross the street because it was too {adjective}."
    for adjective in ("tired", "wide")
)
"""The sentences that a live page of a `pronouns` model opens with."""


def _live_page(options: Options) -> str:
    """The page in which the model itself runs."""
    if options.target is not None:
        raise InputError(
            "--target has no effect with --live, where the decoder reads its own translation; "
            "leave one of them out"
        )
    config = options.config
    live_limits.require_model(config)
    sentence, second = options.sentence, options.compare
    if sentence is None and config.data.dataset.startswith("pronouns_grammar/"):
        sentence, second = LIVE_SENTENCES[0], second or LIVE_SENTENCES[1]
    else:
        _require_sentence("sentence", options)
    _require_sentence("compare", options)
    translator = options.translator()
    return live_page.live_page(
        translator.params,
        translator.config,
        translator.tokenizer,
        (sentence, second or sentence),
        description=options.description(),
    )


def _require_sentence(name: str, options: Options) -> None:
    """Reject text that is not one sentence; only --sentence is required."""
    text = getattr(options, name)
    if text is None:
        if name == "sentence":
            raise InputError("missing --sentence=TEXT")
        return
    command_line.require_one_line(name, text)
    if not text.strip():
        raise InputError(f"--{name} is empty; give a sentence")


def _encode(name: str, options: Options, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a text, checked against the length limit."""
    [ids] = tokenizer.encode([getattr(options, name)])
    if len(ids) > options.config.data.max_length:
        raise InputError(
            f"--{name} has {len(ids)} tokens, more than data.max_length = "
            f"{options.config.data.max_length}; shorten it, or raise --config.data.max_length"
        )
    return ids


def _about(options: Options, texts: list[tuple[str, str]]) -> Html:
    """The sentences, the model, and the limits of the method."""
    sizes = build(options.config.model).describe().attention
    heads = "; ".join(
        f"{TITLES[kind].lower()} in {size.layers} layers with {size.heads} "
        f"{'heads' if size.heads > 1 else 'head'} each"
        for kind, size in sizes.items()
    )
    definitions = [(element("dt", name), element("dd", sentence(text))) for name, text in texts]
    parts = (
        element("dl", *(part for definition in definitions for part in definition)),
        paragraph(
            f"The model has {heads}. The weights are {options.description()}. "
            "Decoder rows are named after the token that is read and the token that is predicted."
        ),
        paragraph(
            element("strong", "What this page does not show. "),
            "Attention shows where a head reads, not why the model gives its answer. Above the "
            "first layer, each position mixes information from several tokens. A large weight on a "
            "small value vector has little effect. Heads can stand in for each other, so a head "
            "without which nothing is lost may still do something. One sentence is an example, not "
            "evidence.",
        ),
    )
    return Html("".join(parts))


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
