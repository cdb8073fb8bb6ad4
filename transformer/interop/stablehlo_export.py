# SPDX-License-Identifier: Apache-2.0
"""Export to StableHLO: compiled programs that run with JAX alone, without this project.

There is a program for each number of sentences and each length of sources: the encoder, and a
complete search with the config's decoding. The weights are a separate file, which is their first
argument. Every model family that translates can be exported.
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.arrays import Array, Int
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.decoding.generate import generate
from transformer.errors import InputError
from transformer.interop.model_card import Export
from transformer.interop.tokenizer_files import write_tokenizers
from transformer.platforms import compiling_for
from transformer.text.tokenizer import Vocabularies
from transformer.trained_model import TrainedModel

MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.json"
"""The list of pieces, whose positions are the ids."""
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms of `jax.export`, which accepts any other word too, or fails."""
WEIGHTS = "weights.safetensors"


def export(
    trained: TrainedModel,
    directory: pathlib.Path,
    batch_sizes: Sequence[int] = (8,),
    lengths: Sequence[int] | None = None,
    platforms: Sequence[str] | None = None,
) -> Export:
    """Write the programs, the weights, the tokenizers and a manifest of the shapes.

    Args:
      trained: a model of any family that translates.
      directory: an empty directory.
      batch_sizes: B of the programs.
      lengths: S of the programs. None: `config.data.bucket_lengths`.
      platforms: some of `PLATFORMS`, for example ``["cpu", "cuda"]``. None: that of this machine.

    Raises:
      InputError: for decoding that is not a plain search, a language model, an unknown platform, or
        if the package flatbuffers is not installed.
    """
    import safetensors.numpy

    config = trained.config
    lengths = sorted(set(lengths or config.data.bucket_lengths))
    batch_sizes = sorted(set(batch_sizes))
    require_supported(config, lengths)
    require_platforms(platforms or ())
    weights = jax.jit(trained.model.cast_params)(trained.params)
    weights = {name: np.asarray(leaf) for name, leaf in flatten_dict(weights, sep="/").items()}
    (directory / WEIGHTS).write_bytes(safetensors.numpy.save(weights))
    files = write_tokenizers(trained.vocabularies, directory)
    for side, name in _vocabularies(trained.vocabularies).items():
        tokenizer = getattr(trained.vocabularies, side)
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        (directory / name).write_text(json.dumps(pieces, ensure_ascii=False), encoding="utf-8")
    shapes = [(batch, length) for batch in batch_sizes for length in lengths]
    for batch, length in shapes:
        for name, function in _functions(trained, length).items():
            data = program(function, weights, batch, length, platforms)
            (directory / f"{name}_{batch}x{length}.stablehlo").write_bytes(data)
    manifest = {
        "programs": [f"search_{batch}x{length}.stablehlo" for batch, length in shapes],
        "encoders": [f"encode_{batch}x{length}.stablehlo" for batch, length in shapes],
        "weights": WEIGHTS,
        "tokenizers": {"source": files.source, "target": files.target},
        "vocabularies": _vocabularies(trained.vocabularies),
        "source_prefix": files.source_prefix,
        "target_prefix": files.target_prefix,
        "special_ids": config.model.special_ids._asdict(),
        "jax": jax.__version__,
    }
    (directory / MANIFEST).write_text(workdir_files.json_text(manifest), encoding="utf-8")
    print_text = files.print_code("found", 'models["target"]', indent="    ")
    usage = _USAGE.format(batch=batch_sizes[0], length=lengths[0], print_text=print_text)
    return Export(usage, config.model.compute_dtype, [*files.notes(), *_differences(config)])


def _vocabularies(vocabularies: Vocabularies) -> dict[str, str]:
    """The name of the list of pieces of each side; the same if they share it."""
    source = VOCABULARY if vocabularies.are_shared else f"source_{VOCABULARY}"
    return {"source": source, "target": VOCABULARY}


def require_supported(config: Config, lengths: Sequence[int]) -> None:
    """Refuse what has no program."""
    decode, model = config.decode, config.model
    if not model.reads_source:
        raise InputError(
            f"model.family is {model.family!r}, which translates no source; --to=stablehlo "
            "exports searches for translations"
        )
    if decode.method != "beam":
        raise InputError(
            f"decode.method is {decode.method!r}, but --to=stablehlo exports a search; add "
            "--config.decode.method=beam"
        )
    if lengths[-1] > config.data.max_length:
        raise InputError(
            f"--lengths: {lengths[-1]} is more than data.max_length = {config.data.max_length}"
        )


def require_platforms(platforms: Sequence[str]) -> None:
    """Refuse names that JAX has no platform for."""
    for name in platforms:
        if name not in PLATFORMS:
            raise InputError(
                f"--platforms: {name!r} is not a platform of JAX; choose from "
                f"{', '.join(PLATFORMS)} (GPUs are cuda or rocm)"
            )


def program(
    function: Callable[..., Any],
    weights: dict[str, np.ndarray],
    batch: int,
    length: int,
    platforms: Sequence[str] | None = None,
) -> bytes:
    """Serialize a function of weights and a source [B,S]; needs the package flatbuffers."""
    shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in weights.items()}
    source = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    platforms = platforms or [jax.export.default_export_platform()]
    # A program for several platforms has no form that only a CPU computes fast.
    target = next((name for name in platforms if name != "cpu"), "cpu")
    with compiling_for(target):
        exported = jax.export.export(jax.jit(function), platforms=platforms)(shapes, source)
    try:
        return bytes(exported.serialize())
    except ImportError:
        raise InputError(
            "--to=stablehlo needs the package flatbuffers, which is not installed; install it "
            "with: pip install flatbuffers"
        ) from None


def _functions(trained: TrainedModel, length: int) -> dict[str, Callable[..., Any]]:
    """The functions of `(weights, source)` that are exported, by name."""
    model, decode = trained.model, trained.config.decode
    max_length = decode.longest_output(length)
    forced = trained.vocabularies.target.forced_ids

    def prefix(batch: int) -> Int[Array, "B M"] | None:
        """The pieces with which every translation begins, padded."""
        if not forced:
            return None
        padding = [model.config.pad_id] * (max_length - len(forced))
        return jnp.tile(jnp.array([*forced, *padding], jnp.int32), (batch, 1))

    def best(weights: dict[str, Array], source: Int[Array, "B S"]) -> dict[str, Array]:
        """The best translation of each source: tokens [B,M], scores and log-probabilities [B]."""
        hypotheses = generate(
            *(model, unflatten_dict(weights, sep="/"), source, decode),
            prefix=prefix(len(source)),
            max_length=max_length,
        )
        names = ("tokens", "scores", "log_probs")
        return {name: getattr(hypotheses, name)[:, 0] for name in names}

    def encode(weights: dict[str, Array], source: Int[Array, "B S"]) -> Any:
        """The memory, [B,S,D]; in some families several arrays, in a list."""
        variables = {"params": unflatten_dict(weights, sep="/")}
        memory = model.apply(variables, source, method=model.encode)
        leaves = jax.tree.leaves(memory)
        return leaves[0] if len(leaves) == 1 else leaves

    return {"search": best, "encode": encode}


def _differences(config: Config) -> list[str]:
    decode = config.decode
    longest = decode.max_length or f"as many as the program's length + {decode.extra_length}"
    return [
        f"A search has {decode.beams} beams, {decode.length_penalty} length penalty; translations "
        f"have at most {longest} tokens. Only the best one is returned.",
        "JAX reads programs of the versions of the last six months.",
    ]


_USAGE = """\
```python
import json
import pathlib

import jax
import numpy as np
import sentencepiece
from jax import export
from safetensors.numpy import load_file

folder = pathlib.Path("DIRECTORY")
manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
special = manifest["special_ids"]
models, pieces = {{}}, {{}}
for side, name in manifest["tokenizers"].items():
    models[side] = sentencepiece.SentencePieceProcessor(str(folder / name))
    vocabulary = folder / manifest["vocabularies"][side]
    pieces[side] = json.loads(vocabulary.read_text(encoding="utf-8"))
ids = {{piece: index for index, piece in enumerate(pieces["source"])}}

weights = jax.device_put(load_file(folder / manifest["weights"]))
search = export.deserialize((folder / "search_{batch}x{length}.stablehlo").read_bytes())
translate = jax.jit(search.call)

texts = ["a sentence"]  # {batch} at most, of {length} tokens at most
source = np.full(({batch}, {length}), special["pad"], np.int32)
for row, segmented in enumerate(models["source"].encode(texts, out_type=str)):
    segmented = [*manifest["source_prefix"], *segmented]
    tokens = [ids.get(piece, special["unk"]) for piece in segmented] + [special["eos"]]
    source[row, : len(tokens)] = tokens
best = translate(weights, source)
skipped = len(manifest["target_prefix"])
no_text = special["pad"], special["bos"], special["eos"]
for tokens in np.asarray(best["tokens"])[: len(texts), skipped:].tolist():
    found = [pieces["target"][token] for token in tokens if token not in no_text]
{print_text}```
"""
