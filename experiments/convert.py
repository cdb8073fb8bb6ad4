# SPDX-License-Identifier: Apache-2.0
"""Convert models from and to the formats of other programs.

transformer convert --from=huggingface --input=opus-mt-en-de --workdir=runs/opus
transformer convert --to=ctranslate2 --workdir=runs/de --output=de_ct2

--from writes a workdir, which every app accepts. Nothing is downloaded, and PyTorch is not needed.

--to writes a directory with the weights, the tokenizers and a model card, README.md, with the code
that loads them. A model that a format cannot hold exactly is refused with the names of its fields.

The last line on standard output is one JSON object with the path of what was written, and its size.
"""

import dataclasses
import json
import sys
from typing import Any, Literal

import jax

from experiments.cli import command_line
from experiments.cli.weights import Weights
from experiments.console.formatting import byte_size
from experiments.console.progress import say
from transformer import trained_model
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.interop import (
    ctranslate2_export,
    huggingface_export,
    huggingface_import,
    imported_model,
    marian_files,
    stablehlo_export,
)
from transformer.interop.model_card import hub_metadata, model_card
from transformer.interop.new_directory import new_directory

EXPORTS = {
    "huggingface": huggingface_export.export,
    "ctranslate2": ctranslate2_export.export,
    "stablehlo": stablehlo_export.export,
}
"""From the name of a format to `(trained, directory, **options) -> Export`."""

IMPORTS = {"huggingface": huggingface_import.load, "marian": marian_files.load}
"""From the name of a format to `(directory, **options) -> ImportedModel`."""


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The direction, the format, and the options of each."""

    from_: Literal[tuple(IMPORTS)] | None = None
    """Format to read."""
    input: str | None = None
    """With --from: local directory with the model's files."""
    positions: Literal[tuple(huggingface_import.POSITIONS)] | None = None
    """With --from: sinusoids of a Marian model, those of Hugging Face or those of its training,
    which differ; default: those of the format.
    """
    target_language: str | None = None
    """With --from: language of the translations of a multilingual model, such as deu_Latn (NLLB);
    with Marian, of sentences that begin with no code such as >>deu<<.
    """
    source_language: str | None = None
    """With --from=huggingface: language of the sources, for NLLB and M2M100."""
    to: Literal[tuple(EXPORTS)] | None = None
    """Format to write."""
    output: str | None = None
    """With --to: path of the new directory."""
    quantization: Literal[tuple(ctranslate2_export.QUANTIZATIONS)] | None = None
    """With --to=ctranslate2: how kernels and embeddings are stored; float32 without."""
    batch_sizes: tuple[int, ...] | None = None
    """With --to=stablehlo: numbers of sentences of the programs; 8 by default."""
    lengths: tuple[int, ...] | None = None
    """With --to=stablehlo: lengths of sources in tokens; data.bucket_lengths by default."""
    platforms: tuple[str, ...] | None = None
    """With --to=stablehlo: where the programs run: cpu, cuda, rocm, tpu; here by default."""

    def __post_init__(self) -> None:
        if self.to:  # An import makes the workdir.
            super().__post_init__()


_FLAGS = {
    "--from": ("input",),
    "--to": ("output", "average", "around", "ensemble"),
}
"""The flags of each direction."""
_OPTIONS = {
    "--from": ("positions", "target_language"),
    "--from=huggingface": ("source_language",),
    "--to=ctranslate2": ("quantization",),
    "--to=stablehlo": ("batch_sizes", "lengths", "platforms"),
}
"""The flags that are options of every format of a direction, or of one format."""


def run(options: Options) -> dict[str, Any]:
    """Convert a model; return where it is, its format and its size."""
    if options.from_ and options.to:
        raise InputError("--from and --to exclude each other; convert twice")
    return _import(options) if options.from_ else _export(options)


def _import(options: Options) -> dict[str, Any]:
    """Read the model of --input, and write it as a workdir."""
    given = _given(options, f"--from={options.from_}")
    for name, what in (("input", "the model's files"), ("workdir", "which is made")):
        if not getattr(options, name):
            raise InputError(f"missing --{name}=DIRECTORY, {what}")
    imported = IMPORTS[options.from_](options.input, **given)
    imported_model.write_workdir(imported, options.workdir)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(imported.params))
    languages = imported.vocabulary.languages
    if languages and not imported.vocabulary.source_prefix:
        say(
            f"note: begin every sentence with one of {', '.join(languages)}, or import with "
            "--target_language"
        )
    return {"workdir": options.workdir, "parameters": parameters, "format": options.from_}


def _export(options: Options) -> dict[str, Any]:
    """Load the model of the workdir, and write it in the format of --to."""
    if not options.to:
        raise InputError(f"missing --to=FORMAT, one of {', '.join(EXPORTS)}")
    given = _given(options, f"--to={options.to}")
    if not options.output:
        raise InputError("missing --output=DIRECTORY, the path of the export")
    if options.ensemble:
        raise InputError("--ensemble: an export holds one model; export each")
    workdir = options.directory
    trained = trained_model.load(workdir, options.config, options.average, options.around)
    with new_directory(options.output) as directory:
        export = EXPORTS[options.to](trained, directory, **given)
        command = " ".join(["transformer convert", *sys.argv[1:]])
        card = hub_metadata(trained.config, export.library) + model_card(
            workdir_files.opened(workdir),
            trained,
            export,
            f"A model that translates one sentence at a time, exported with `{command}`.",
            options.description(),
        )
        (directory / "README.md").write_text(card, encoding="utf-8")
        size = sum(path.stat().st_size for path in directory.iterdir())
    for note in export.differences:
        say(f"note: {note}")
    say(f"{options.output}: {byte_size(size)}")
    return {"output": options.output, "bytes": size, "format": options.to}


def _given(options: Options, chosen: str) -> dict[str, Any]:
    """The options of a conversion that are given, by name.

    Args:
      options: the flags of all conversions.
      chosen: direction and format, for example ``--to=huggingface``.

    Raises:
      InputError: for an option of another conversion.
    """
    applicable = (chosen, chosen.partition("=")[0])
    for conversion, names in (*_FLAGS.items(), *_OPTIONS.items()):
        for name in names:
            given = getattr(options, name) != getattr(Options, name)
            if given and conversion not in applicable:
                raise InputError(f"--{name} is only for {conversion}; leave it out")
    names = [name for conversion in applicable for name in _OPTIONS.get(conversion, ())]
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def main(options: Options) -> None:
    """Convert and print the result."""
    print(json.dumps(run(options)))


if __name__ == "__main__":
    # Only an export has a config, from its workdir, and help is about either.
    imports = any(each.partition("=")[0] in ("-from", "--from") for each in sys.argv[1:])
    command_line.run(main, None if imports else "workdir", Options)
