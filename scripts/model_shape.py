# SPDX-License-Identifier: Apache-2.0
"""Count what makes the model's code quick to read, or slow: frames, parameters and lines.

Run:    python scripts/model_shape.py
"""

import ast
import inspect
import pathlib
import sys

import jax
import jax.numpy as jnp

from transformer import TransformerConfig
from transformer.models import transformer as layers

PACKAGE = pathlib.Path(inspect.getfile(layers)).parents[1]
BACKENDS = ("cpu", "gpu", "cuda", "tpu", "default_backend")


def frames_to_first_einsum() -> tuple[int, set[str]]:
    """Frames of this package between a training step and the first einsum, and their files."""
    import transformer

    config = TransformerConfig(vocab_size=11, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    model = transformer.Transformer(config)
    optimizer = transformer.optimizer(model)
    state = transformer.TrainState.create(model, optimizer, jax.random.key(0))
    tokens = jnp.ones((2, 3), jnp.int32)
    found: list[str] = []

    def profile(frame, event, argument):
        if event != "call" or found or frame.f_code is not inspect.unwrap(jnp.einsum).__code__:
            return
        while frame := frame.f_back:
            if frame.f_code.co_filename.startswith(str(PACKAGE)):
                found.append(frame.f_code.co_filename)

    def step(state, batch):
        return transformer.train_step(model, optimizer, state, batch)

    with transformer.platforms.compiling_for("tpu"):  # jnp.einsum, and no form of a CPU
        sys.setprofile(profile)
        try:
            jax.eval_shape(step, state, transformer.Batch(tokens, tokens))
        finally:
            sys.setprofile(None)
    return len(found), {str(pathlib.Path(name).relative_to(PACKAGE)) for name in found}


def parameters_of_layer_calls() -> dict[str, int]:
    """The number of parameters of each call of a layer, without ``self``."""
    classes = (layers.EncoderLayer, layers.DecoderLayer, layers.MultiHeadAttention)
    return {
        one.__name__: len(inspect.signature(one.__call__).parameters) - 1
        for one in (*classes, layers.FeedForward, layers.Residual)
    }


def lines_of_the_model() -> dict[str, int]:
    """Lines of every file of the forward pass."""
    files = [*sorted((PACKAGE / "nn").glob("*.py")), PACKAGE / "models" / "transformer.py"]
    return {
        str(path.relative_to(PACKAGE)): len(path.read_text("utf-8").splitlines()) for path in files
    }


def modules_that_name_a_backend() -> list[str]:
    """Modules of the forward pass whose code (not prose) has the name of a backend."""
    named = []
    for name in lines_of_the_model():
        tree = ast.parse((PACKAGE / name).read_text("utf-8"))
        words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        words |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        if words & {*BACKENDS}:
            named.append(name)
    return named


def main() -> None:
    """Print the counts."""
    frames, files = frames_to_first_einsum()
    print(f"frames from train_step to the first einsum: {frames} in {len(files)} files")
    calls = parameters_of_layer_calls()
    largest = max(calls, key=calls.__getitem__)
    print(f"parameters of the largest call of a layer: {calls[largest]} ({largest})")
    lines = lines_of_the_model()
    print(f"lines of nn/ and models/transformer.py: {sum(lines.values())} in {len(lines)} files")
    print(f"modules that name a backend: {len(modules_that_name_a_backend())}")


if __name__ == "__main__":
    main()
