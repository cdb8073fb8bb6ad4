# SPDX-License-Identifier: Apache-2.0
"""Write a page about what a trained model does with one sentence.

python -m experiments.look --workdir=runs/de --sentence=TEXT --output=FILE.html

The page is one file and needs no network. It opens with the answer: the token in question, the word
that counts most for it, and the heads and positions that carry it. Its views show the attention of
every layer and head and what is lost without each, one head's computation in six steps, the search
for the translation, the prediction of every layer, the contribution of every token to every
prediction, and the residual stream. With --target=TEXT the decoder reads that translation instead
of the search result. With --compare=TEXT the question is where both translations first differ, and
the page also shows the second sentence; if it has the same number of tokens, with the difference of
the attention and a patch map of the encoder. The last line of the output is the path of the page.

python -m experiments.look --live --workdir=runs/de --output=live.html

writes a page in which the model itself runs: it translates what a reader types, and shows every
number on the way.
"""

import jax
from absl import flags
from etils import epath

from experiments.cli import checkpoint_flags
from experiments.cli.command_line import require_one_line, run
from experiments.pages.sentence import sentence_page, sentence_question
from experiments.pages.sentence.analyzed_pair import AnalyzedPair
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.inspection import search_log
from transformer.inspection.html import Html, element, paragraph, sentence
from transformer.inspection.live import live_limits, live_page
from transformer.inspection.views.attention_kinds import TITLES
from transformer.models.protocol import build
from transformer.text.tokenizer import Tokenizer

SENTENCE = flags.DEFINE_string("sentence", None, "Sentence that the encoder reads.")
TARGET = flags.DEFINE_string(
    "target", None, "Translation that the decoder reads; the search result by default."
)
LIVE = flags.DEFINE_bool(
    "live",
    False,
    "Write the live page, in which the model itself runs. It opens with --sentence, and overwrites "
    "states with those of --compare.",
)
COMPARE = flags.DEFINE_string("compare", None, "Second sentence, to compare with the first.")
OUTPUT = flags.DEFINE_string("output", None, "Path of the page, for example look.html.")


def main(config: Config) -> None:
    """Translate and analyze the sentence, and write the page."""
    output = _output_path()
    if checkpoint_flags.ENSEMBLE.value:
        raise InputError("--ensemble: a page shows one model; give its workdir alone")
    if LIVE.value:
        workdir_files.write_text(output, _live_page(config))
        print(OUTPUT.value)
        return
    if not build(config.model).describe().attention:
        raise InputError(
            f"model.family {config.model.family!r} has no attention that a page could show; give "
            "the workdir of another family, such as 'transformer'"
        )
    for flag in (SENTENCE, TARGET, COMPARE):
        _require_sentence(flag)
    # Every program runs once, so compiling it quickly matters more than how fast it runs.
    jax.config.update("jax_disable_most_optimizations", True)
    translator = checkpoint_flags.translator(config)
    tokenizer, of_source = translator.tokenizer, translator.vocabularies.source
    model = (translator.model, translator.params)

    source = _encode(SENTENCE, config, of_source)
    log = search_log.record(*model, source, decode=config.decode, prefix=tokenizer.forced_ids)
    target = log.results[0].tokens
    longest = config.decode.longest_output(len(source))
    # The last token of the longest output is EOS, whatever the model predicts.
    last = len(target) - 1 if len(target) >= longest > 1 else len(target)
    chosen = slice(min(len(tokenizer.forced_ids), last - 1), last)
    texts = [("Source", SENTENCE.value), ("Translation", tokenizer.decode(list(target)))]
    if TARGET.value is not None:
        target, chosen = _encode(TARGET, config, tokenizer), slice(None)
        texts.append(("Target that the decoder reads", TARGET.value))
    pair, second = AnalyzedPair.of(*model, tokenizer, source, target), None
    if COMPARE.value is not None:
        source = _encode(COMPARE, config, of_source)
        translation = search_log.best_result(
            *model, source, config.decode, tokenizer.forced_ids
        ).tokens
        texts.append(("Second sentence", COMPARE.value))
        texts.append(("Translation", tokenizer.decode(list(translation))))
        second = AnalyzedPair.of(*model, tokenizer, source, translation)
    evidence = sentence_question.gather(pair, second, chosen)
    read = "the model's own translation" if TARGET.value is None else "the given target"
    text = sentence_page.sentence_page(evidence, log, second, _about(config, texts), read)
    workdir_files.write_text(output, text)
    print(OUTPUT.value)


LIVE_SENTENCES = tuple(
    f"The animal didn't cross the street because it was too {adjective}."
    for adjective in ("tired", "wide")
)
"""The sentences that a live page of a `pronouns` model opens with."""


def _live_page(config: Config) -> str:
    """The page in which the model itself runs."""
    if TARGET.value is not None:
        raise InputError(
            "--target has no effect with --live, where the decoder reads its own translation; "
            "leave one of them out"
        )
    live_limits.require_model(config)
    sentence, second = SENTENCE.value, COMPARE.value
    if sentence is None and config.data.dataset.startswith("pronouns_grammar/"):
        sentence, second = LIVE_SENTENCES[0], second or LIVE_SENTENCES[1]
    else:
        _require_sentence(SENTENCE)
    _require_sentence(COMPARE)
    translator = checkpoint_flags.translator(config)
    return live_page.live_page(
        translator.params,
        translator.config,
        translator.tokenizer,
        (sentence, second or sentence),
        description=checkpoint_flags.description(config),
    )


def _output_path() -> epath.Path:
    """The path of the page, checked before anything is computed."""
    if not OUTPUT.value:
        raise InputError("missing --output=FILE.html")
    output = paths.reachable(OUTPUT.value)
    if output.is_dir() or not (paths.is_remote(output) or output.parent.is_dir()):
        raise InputError(f"--output={output} cannot be written; name a file in a directory")
    return output


def _require_sentence(flag: flags.FlagHolder) -> None:
    """Reject text that is not one sentence; only --sentence is required."""
    text = flag.value
    if text is None:
        if flag is SENTENCE:
            raise InputError(f"missing --{flag.name}=TEXT")
        return
    require_one_line(flag)
    if not text.strip():
        raise InputError(f"--{flag.name} is empty; give a sentence")


def _encode(flag: flags.FlagHolder, config: Config, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a flag's text, checked against the length limit."""
    [ids] = tokenizer.encode([flag.value])
    if len(ids) > config.data.max_length:
        raise InputError(
            f"--{flag.name} has {len(ids)} tokens, more than data.max_length = "
            f"{config.data.max_length}; shorten it, or raise --config.data.max_length"
        )
    return ids


def _about(config: Config, texts: list[tuple[str, str]]) -> Html:
    """The sentences, the model, and the limits of the method."""
    sizes = build(config.model).describe().attention
    heads = "; ".join(
        f"{TITLES[kind].lower()} in {size.layers} layers with {size.heads} "
        f"{'heads' if size.heads > 1 else 'head'} each"
        for kind, size in sizes.items()
    )
    definitions = [(element("dt", name), element("dd", sentence(text))) for name, text in texts]
    parts = (
        element("dl", *(part for definition in definitions for part in definition)),
        paragraph(
            f"The model has {heads}. The weights are {checkpoint_flags.description(config)}. "
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
    run(main, config_from="workdir")
