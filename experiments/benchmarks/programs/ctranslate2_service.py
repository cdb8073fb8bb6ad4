# SPDX-License-Identifier: Apache-2.0
"""CTranslate2 behind the service's own batching core and routes, for `service_load`.

python -m experiments.benchmarks.programs.ctranslate2_service --workdir=runs/de --compute_type=int8

Takes the flags of `experiments.serve`. The model is the workdir's, exported exactly; scores are
CTranslate2's.
"""

import pathlib
import tempfile
import types
from collections.abc import Sequence
from typing import Any

import ctranslate2
from absl import flags

from experiments import serve
from experiments.cli import checkpoint_flags
from experiments.cli.command_line import run
from experiments.serving.engine import Engine
from transformer import trained_model
from transformer.config import Config
from transformer.interop import ctranslate2_export
from transformer.translator import Translation

COMPUTE_TYPE = flags.DEFINE_enum(
    "compute_type", "float32", ["float32", "int8"], "Type of CTranslate2's matmuls."
)
CORES = flags.DEFINE_integer("cores", 2, "Batches that are translated at the same time.")


class CTranslate2Translator:
    """The part of a `Translator` that an engine uses."""

    model = None

    def __init__(self, config: Config, directory: pathlib.Path):
        trained = trained_model.load(checkpoint_flags.directory(), config)
        ctranslate2_export.export(trained, directory)
        self.config, self.vocabularies = config, trained.vocabularies
        self.search = types.SimpleNamespace(
            threads=CORES.value,
            lengths=config.data.bucket_lengths,
            padded_length=config.data.bucket,
        )
        # A thread for each batch: threads within a matmul wait for each other so often that another
        # busy process slows them down a hundredfold.
        self._translator = ctranslate2.Translator(
            str(directory),
            compute_type=COMPUTE_TYPE.value,
            inter_threads=CORES.value,
            intra_threads=1,
        )

    def nbest(
        self, sentences: Sequence[str], num_results: int, first_line: int = 1
    ) -> list[list[Translation]]:
        """Translations of each sentence, best first."""
        source, target = self.vocabularies
        pieces = [source.pieces(ids[:-1]) for ids in source.encode(sentences)]
        decode, forced = self.config.decode, target.pieces(target.forced_ids)
        longest = max(map(len, pieces)) + 1 + decode.extra_length
        results = self._translator.translate_batch(
            pieces,
            target_prefix=[forced] * len(pieces) if forced else None,
            beam_size=decode.beams,
            num_hypotheses=num_results,
            length_penalty=decode.alpha if decode.length_penalty == "length" else 1.0,
            max_batch_size=len(pieces),
            max_decoding_length=(decode.max_length or longest) - 1,  # without EOS
            return_scores=True,
        )
        return [
            [
                Translation(target.decode(target.ids(hypothesis)), score, score, ())
                for hypothesis, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def warm_up(self, *arguments: Any) -> None:
        """Nothing is compiled."""


def main(config: Config) -> None:
    """Export the model and serve it."""
    serve.check_flags(config)
    with tempfile.TemporaryDirectory() as folder:
        translator = CTranslate2Translator(config, pathlib.Path(folder))
        # Its batches have no padding rows, so any number is taken at once.
        costs = {config.decode.batch_size: 1.0}
        serve.serve(config, lambda **options: Engine(translator, costs=costs, **options))


if __name__ == "__main__":
    run(main, config_from="workdir")
