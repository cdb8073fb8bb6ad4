# SPDX-License-Identifier: Apache-2.0
"""Opens up a trained model: a page of what it does with one sentence.

python -m experiments.look --workdir=runs/de --sentence=TEXT --output=FILE.html

The page is one file and needs no network. It has the attention of every layer and head, what is
lost without each, one head's computation in six steps, the search for the translation, what every
layer would predict, and the words that each prediction rests on. With --target=TEXT the decoder
reads that translation in place of the one found. With --compare=TEXT the page also compares the
sentence with a second one; where that has as many tokens, with the difference of their attention,
and with the places of the encoder that carry the first one's answer. The last line is the page's
path.
"""

from absl import flags
from etils import epath

from experiments import checkpoint_flags
from experiments.flags import run
from experiments.reports import sentence_page
from experiments.reports.sentence_page import Reading
from transformer import paths
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.inspection import search_log
from transformer.inspection.html import Html, element, paragraph, section, sentence
from transformer.inspection.views.view import page
from transformer.text.tokenizer import Tokenizer

SENTENCE = flags.DEFINE_string("sentence", None, "What the encoder reads.")
TARGET = flags.DEFINE_string(
    "target", None, "What the decoder reads; the translation found if absent."
)
COMPARE = flags.DEFINE_string("compare", None, "A second sentence, to compare with the first.")
OUTPUT = flags.DEFINE_string("output", None, "Where the page goes, for example look.html.")


def main(config: Config) -> None:
    """Translates, traces, measures, writes the page."""
    output = _output()
    if checkpoint_flags.ENSEMBLE.value:
        raise InputError("--ensemble: a page shows one model; name its workdir alone")
    for flag in (SENTENCE, TARGET, COMPARE):
        _check(flag)
    translator = checkpoint_flags.translator(config)
    model = (translator.params, config.model, translator.tokenizer)
    source = _encoded(SENTENCE, config, translator.tokenizer)
    log = search_log.record(*model[:2], source, decode=config.decode)
    found = target = list(log.results[0].tokens)
    texts = [("Read: ", SENTENCE.value), ("Translated: ", translator.tokenizer.decode(found))]
    if TARGET.value is not None:
        target = _encoded(TARGET, config, translator.tokenizer)
        texts.append(("What the decoder reads here: ", TARGET.value))
    reading = Reading.of(*model, source, target)
    parts = [
        *sentence_page.attention(reading),
        sentence_page.search(log, reading),
        sentence_page.logit_lens(reading),
        sentence_page.residual_stream(reading),
        *sentence_page.attributions(reading),
    ]
    if COMPARE.value is not None:
        other = _encoded(COMPARE, config, translator.tokenizer)
        log = search_log.record(*model[:2], other, decode=config.decode)
        translation = log.results[0].tokens
        texts.append(("The second sentence: ", COMPARE.value))
        texts.append(("Translated: ", translator.tokenizer.decode(translation)))
        parts += sentence_page.comparison(reading, Reading.of(*model, other, translation))
    workdir_files.write_text(output, page("A look inside", [_introduction(config, texts), *parts]))
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
    if text is None and flag is not SENTENCE:
        return
    if text is None:
        raise InputError(f"missing --{flag.name}=TEXT")
    if not text.strip():
        raise InputError(f"--{flag.name} is empty; give a sentence")
    if "\n" in text:
        raise InputError(f"--{flag.name} has several lines; give one sentence")


def _encoded(flag: flags.FlagHolder, config: Config, tokenizer: Tokenizer) -> list[int]:
    """The token ids of what a flag says, if the model was made for so many."""
    [ids] = tokenizer.encode([flag.value])
    if len(ids) > config.data.max_length:
        raise InputError(
            f"--{flag.name} has {len(ids)} tokens, more than data.max_length = "
            f"{config.data.max_length}; shorten it, or raise --config.data.max_length"
        )
    return ids


def _introduction(config: Config, texts: list[tuple[str, str]]) -> Html:
    """The sentences by what they are, the model, and what the pictures do not say."""
    model = config.model
    return section(
        "The sentence",
        *(paragraph(name, sentence(text)) for name, text in texts),
        paragraph(
            f"{model.depth('encoder')} encoder and {model.depth('decoder')} decoder layers, "
            f"{model.heads('encoder')} and {model.heads('decoder')} heads; "
            f"{checkpoint_flags.description(config)}. A row of the decoder is named after the "
            "token it reads and the one it predicts."
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
