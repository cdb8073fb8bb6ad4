# SPDX-License-Identifier: Apache-2.0
"""Plant bugs one at a time, and report which of them the default tests notice.

python scripts/mutations.py [PATTERN ...]

Each bug of `MUTATIONS` is planted in a copy of the working tree, and the tests of its rooms run
until the first failure. With patterns, only bugs are planted whose file or text contains one.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).parent.parent

MUTATIONS = {
    # File: the rooms of its tests, and for each bug the text and its replacement.
    "transformer/nn/attention.py": (
        "nn models",
        ("return scores / jnp.sqrt(query.shape[-1]).astype(scores.dtype)", "return scores"),
        ("jnp.finfo(scores.dtype).min)", "0.0)"),
        ("mask = both(mask, causal_mask(query.shape[1]))", "mask = causal_mask(query.shape[1])"),
        ("scores = scores + positions.bias", "scores = scores + 0 * positions.bias"),
        ("jnp.repeat(x, num_heads // heads, axis=2)", "jnp.tile(x, (1, 1, num_heads // heads, 1))"),
        ("weights = dropout(weights).astype", "weights = weights.astype"),
    ),
    "transformer/nn/masks.py": (
        "nn models training",
        ("<= position[:, None]", "< position[:, None]"),
        ("return (same & (key_segments != 0)[:, None, :])[:, None]", "return same[:, None]"),
        ("distance <= size // 2", "distance < size // 2"),
    ),
    "transformer/nn/positions.py": (
        "nn models training",
        ("exponent = np.arange(0, d_model, 2) / d_model", "exponent = np.arange(half) / half"),
        ("even * cosine - odd * sine", "even * cosine + odd * sine"),
        ("jnp.where(_is_first(segments), bos_id, shifted)", "shifted"),
        ("return position - begin", "return position - 0 * begin"),
    ),
    "transformer/nn/multi_head_attention.py": (
        "nn models",
        ("repeat_heads(positions.rotate(self.adjust(key, ", "repeat_heads((self.adjust(key, "),
        ("(dropout is not None and config.attention_dropout > 0)", "False"),
    ),
    "transformer/nn/norm.py": (
        "nn models",
        ("jnp.square(exact).mean", "jnp.square(exact - exact.mean(-1, keepdims=True)).mean"),
    ),
    "transformer/nn/feed_forward.py": ("nn models", ("approximate=False)", "approximate=True)")),
    "transformer/nn/residual.py": (
        "nn models",
        ("apply_dropout(self, output, self.config.dropout, dropout)", "output"),
    ),
    "transformer/nn/dropout.py": ("nn models", ("x / (1.0 - rate))", "x)")),
    "transformer/nn/embedding.py": (
        "nn models",
        ("(vectors * jnp.sqrt(self.config.d_model))", "vectors"),
        ("encodings[config.position_offset :]", "encodings[:length]"),
    ),
    "transformer/models/relative_positions.py": (
        "nn models",
        ("jnp.where(distance > 0, half, 0)", "jnp.where(distance >= 0, half, 0)"),
        (
            "jnp.clip(distance, -self.max_distance, largest)",
            "jnp.clip(distance, -largest, largest)",
        ),
    ),
    "transformer/models/transformer.py": (
        "nn models decoding",
        ("y, y, y, self_mask, causal=True,", "y, y, y, self_mask, causal=False,"),
        ("memory, memory, cross_mask, dropout=dropout", "memory, memory, None, dropout=dropout"),
        ('norm if self.config.norm == "pre" else lambda x: x', "lambda x: x"),
        ("1 if config.shared_layers else config.depth(self.side)", "config.depth(self.side)"),
        ("cache.replace(self_attention=written)", "cache"),
        (
            "self.sentence_positions(target_in.shape[1], target_segments)",
            "self.sentence_positions(target_in.shape[1], None)",
        ),
    ),
    "transformer/kernels/chunked.py": (
        "nn",
        (
            "scores_gradient = weights * (weights_gradient - mean)",
            "scores_gradient = weights * weights_gradient",
        ),
    ),
    "transformer/decode_cache.py": (
        "decoding models",
        ("jnp.arange(length) <= self.index", "jnp.arange(length) < self.index"),
        ("ancestry=gather(self.ancestry, parents[..., None])", "ancestry=self.ancestry"),
    ),
    "transformer/decoding/beam_search.py": (
        "decoding",
        ("((5.0 + length) / 6.0)", "((5.0 + length) / 5.0)"),
        ("jnp.where(ends, score(log_probs, index + 1)", "jnp.where(ends, score(log_probs, index)"),
        ('group_beams if finish_from == "best_k" else num_candidates', "num_candidates"),
        ("log_probs - diversity * chosen", "log_probs + diversity * chosen"),
        ("& (worst_result >= best_active_score)", ""),
        ("length_penalty(length_limits, penalty, alpha)", "length_penalty(index, penalty, alpha)"),
        ("jnp.where(is_same.any(1), NEG_INF, other.scores)", "other.scores"),
    ),
    "transformer/decoding/constraints.py": (
        "decoding",
        ("jnp.arange(num_ngrams) + n <= index", "jnp.arange(num_ngrams) + n < index"),
        ("at_limit = (index + 1 >=", "at_limit = (index >="),
        ("index >= constraints.min_length", "index > constraints.min_length"),
    ),
    "transformer/decoding/decode_loop.py": (
        "decoding",
        ("jnp.argsort(~active(", "jnp.argsort(active("),
    ),
    "transformer/decoding/sampling.py": (
        "decoding",
        ("draw(fold_in(state.keys, index), adapted)", "draw(state.keys, adapted)"),
        ("last = jnp.minimum((sums < total)", "last = jnp.minimum((sums <= total)"),
    ),
    "transformer/training/losses.py": (
        "training",
        ("other = smoothing / (vocab_size - 1)", "other = smoothing / vocab_size"),
        ("gold = 1.0 - smoothing + other", "gold = 1.0 - smoothing"),
        ("nll=(nll * weights).sum()", "nll=nll.sum()"),
    ),
    "transformer/training/step.py": (
        "training",
        ("rng = jax.random.fold_in(state.rng, state.step)", "rng = state.rng"),
        ("& jnp.isfinite(sums.gradient_norm)", ""),
        ("jnp.minimum(ema_decay, (1.0 + state.step)", "jnp.minimum(ema_decay, (9.0 + state.step)"),
        ("jax.lax.axis_index(axis_name) * example_ids.size", "0 * example_ids.size"),
    ),
    "transformer/training/consistency.py": (
        "training",
        ("weight / 2 * divergence", "weight * divergence"),
    ),
    "transformer/training/optimizers.py": (
        "training",
        ("count, jnp.float32) + 1.0", "count, jnp.float32) + 2.0"),
        ("lambda leaf: leaf.is_weight", "lambda leaf: True"),
    ),
    "transformer/training/adapters.py": ("training", ("+= scale * product", "+= product")),
    "experiments/data/batching.py": (
        "data",
        (
            "np.searchsorted(config.bucket_lengths, max_lengths)",
            'np.searchsorted(config.bucket_lengths, max_lengths, side="right")',
        ),
        ("sample += [pairs] * int(repeats)", "sample += [pairs]"),
    ),
    "experiments/data/packing.py": (
        "data",
        ("target_capacity -= targets[kind]", "target_capacity -= 0"),
    ),
    "experiments/data/text_files.py": (
        "data",
        ('.removesuffix("\\n").removesuffix("\\r")', '.splitlines()[0] if text.strip() else ""'),
    ),
    "transformer/checkpoints/selection.py": (
        "checkpoints training",
        ('else -metrics["nll"]', 'else metrics["nll"]'),
        ("max(config.keep_last, config.keep_around_best)", "config.keep_last"),
    ),
    "transformer/checkpoints/integrity.py": (
        "checkpoints",
        ("if expected.get(name) != actual[name]:", "if False:"),
    ),
    "transformer/checkpoints/manager.py": (
        "checkpoints",
        ("sum(leaves) / len(leaves)", "leaves[-1]"),
        ("self._identity.require(", "print("),
    ),
}


def main(patterns: list[str]) -> int:
    """Plant each chosen bug, print whether it was noticed, and return the number that was not."""
    mutations = [
        (file, rooms.split(), *texts)
        for file, (rooms, *bugs) in MUTATIONS.items()
        for texts in bugs
        if not patterns or any(pattern in f"{file} {texts[0]}" for pattern in patterns)
    ]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "_build", "runs")
        shutil.copytree(REPOSITORY, copy, ignore=ignored)
        for file, rooms, before, after in mutations:
            noticed, seconds = notices(copy, file, rooms, before, after)
            survivors += not noticed
            print(
                f"{'killed' if noticed else 'ALIVE '} {seconds:4.0f} s  {file}: {before}",
                flush=True,
            )
    print(f"{len(mutations) - survivors} of {len(mutations)} killed")
    return survivors


def notices(
    copy: pathlib.Path, file: str, rooms: list[str], before: str, after: str
) -> tuple[bool, float]:
    """Whether the tests of these rooms fail with this bug, and after how many seconds."""
    path = copy / file
    text = path.read_text(encoding="utf-8")
    if text.count(before) != 1:
        raise SystemExit(f"{file} has {before!r} {text.count(before)} times; mend MUTATIONS")
    start = time.monotonic()
    path.write_text(text.replace(before, after), encoding="utf-8")
    tests = [f"tests/{room}" for room in rooms]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "-n", "0", "-p", "no:cacheprovider", *tests],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    path.write_text(text, encoding="utf-8")
    if finished.returncode not in (0, 1):
        raise SystemExit(finished.stdout + finished.stderr)
    return finished.returncode == 1, time.monotonic() - start


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
