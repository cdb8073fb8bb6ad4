# SPDX-License-Identifier: Apache-2.0
"""Size, speed and BLEU of a trained model: here, and exported to CTranslate2.

python -m experiments.benchmarks.export_costs --workdir=runs/m30k --source=val.en --target=val.de

Every system translates the same sentences, in turns, so that what slows the machine down affects
all. The time is the median of the turns, without loading and compiling. Standard output has one
JSON object per system and number of beams, with the signature of BLEU and the share of sentences
that float32 here translates in the same way.
"""

import dataclasses
import functools
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax

from experiments.benchmarks.comparison import alternate
from experiments.benchmarks.worker import fastest, seconds_of
from experiments.cli import command_line
from experiments.cli.scored_pairs import ScoredPairs
from experiments.cli.weights import Weights
from transformer import trained_model
from transformer.cores import num_cores
from transformer.interop import ctranslate2_export, export_limits
from transformer.text.metrics import corpus_scores
from transformer.translator import Translator

SAMPLE = 256
"""Number of sentences that decide how CTranslate2 uses the cores."""

System = Callable[[Sequence[str], int], list[str]]
"""Map sentences and a number of beams to translations."""


@dataclasses.dataclass(frozen=True)
class Options(ScoredPairs, Weights):
    """The model, the test set, and the turns."""

    rounds: int = 5
    """Turns of every system."""
    beams: tuple[int, ...] = (1, 4)
    """Numbers of beams."""
    sentences: int | None = None
    """Translate only this number of sentences, the first ones."""


def run(options: Options) -> None:
    """Load every system, let them translate in turns, and print the figures."""
    bleu = options.bleu_options(options.config)
    split = options.load(options.config.data).first(options.sentences or sys.maxsize)
    sources, references = split.sources, split.targets
    about = {"sentences": len(sources), "cores": num_cores(), "rounds": options.rounds}
    with tempfile.TemporaryDirectory() as folder:
        systems = load_systems(options, pathlib.Path(folder), sources[:SAMPLE])
        for beams in options.beams:
            for result in measure(systems, sources, references, beams, options.rounds, bleu):
                print(json.dumps(about | result), flush=True)


def load_systems(
    options: Options, folder: pathlib.Path, sample: Sequence[str]
) -> dict[str, tuple[int, System]]:
    """Return the bytes of the weights and the function of every system, by name."""
    weights = options.directory, options.config, options.average, options.around
    systems: dict[str, tuple[int, System]] = {}
    for dtype in ("float32", "bfloat16"):
        translator = Translator.from_workdir(*weights, dtype=dtype)
        cast = jax.eval_shape(translator.model.cast_params, translator.params)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cast))
        systems[f"this project, {dtype}"] = size, functools.partial(_translate, translator)
    trained = trained_model.load(*weights)
    for name, quantization in (("float32", None), ("int8", "int8")):
        directory = folder / name
        directory.mkdir()
        ctranslate2_export.export(trained, directory, quantization)
        size = (directory / "model.bin").stat().st_size
        systems[f"CTranslate2, {name}"] = size, ctranslate2_system(trained, directory, name, sample)
    return systems


def _translate(translator: Translator, sentences: Sequence[str], beams: int) -> list[str]:
    return [best.text for best in translator(sentences, beams=beams)]


def ctranslate2_system(
    trained: trained_model.TrainedModel,
    directory: pathlib.Path,
    kind: str,
    sample: Sequence[str],
) -> System:
    """Return CTranslate2's search, with all cores for a batch or a batch for every core.

    The faster of the two for the sentences of `sample` is used.
    """
    import ctranslate2

    config, (source, target) = trained.config, trained.vocabularies
    ids, forced = config.model.special_ids, target.pieces(target.forced_ids)
    translator = None

    def use(threads: tuple[int, int]) -> None:
        nonlocal translator
        inter, intra = threads
        options = {"device": "cpu", "inter_threads": inter, "intra_threads": intra}
        translator = ctranslate2.Translator(str(directory), compute_type=kind, **options)

    def translate(sentences: Sequence[str], beams: int) -> list[str]:
        results = translator.translate_batch(
            [source.pieces(tokens[:-1]) for tokens in source.encode(sentences)],
            target_prefix=[forced] * len(sentences) if forced else None,
            beam_size=beams,
            length_penalty=export_limits.length_penalty(config.decode),
            max_batch_size=config.decode.batch_size,
            max_decoding_length=export_limits.longest_output(config) - 1,  # without EOS
            min_decoding_length=config.decode.min_length,
            suppress_sequences=[target.pieces([ids.pad]), target.pieces([ids.bos])],
        )
        return [target.decode(target.ids(result.hypotheses[0])) for result in results]

    fastest(lambda: translate(sample, 1), use, {(1, num_cores()), (num_cores(), 1)})
    return translate


def measure(
    systems: dict[str, tuple[int, System]],
    sources: Sequence[str],
    references: Sequence[str],
    beams: int,
    rounds: int,
    bleu_options: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the figures of every system; the first is the one to agree with."""
    texts = {}
    for name, (_, translate) in systems.items():
        print(f"preparing {name}, {beams} beams", file=sys.stderr)
        texts[name] = translate(sources, beams)  # compiles
    searches = [
        functools.partial(seconds_of, functools.partial(translate, sources, beams))
        for _, translate in systems.values()
    ]
    seconds = zip(*alternate(searches, rounds), strict=True)
    first = texts[next(iter(systems))]
    results = []
    for (name, (size, _)), times in zip(systems.items(), seconds, strict=True):
        scores = corpus_scores(texts[name], references, **bleu_options)
        equal = sum(one == other for one, other in zip(texts[name], first, strict=True))
        result = {"system": name, "bytes": size, "beams": beams, "equal": equal / len(first)}
        result["sentences_per_second"] = len(sources) / statistics.median(times)
        result["seconds"] = times
        names = ("bleu", "bleu_ci", "bleu_signature")
        results.append(result | {key: scores[key] for key in names})
    return results


if __name__ == "__main__":
    command_line.run(run, "workdir", Options)
