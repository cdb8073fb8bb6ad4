# SPDX-License-Identifier: Apache-2.0
"""Sample text from a language model.

python -m experiments.sample --workdir=runs/lm --num_samples=5
python -m experiments.sample --workdir=runs/lm --prompt="The animal didn't" --num_samples=5

Prints one line a sample; every line begins with the prompt. The next token may continue the
prompt's last word. --config.decode.seed=N draws other samples; --config.decode.temperature, top_k,
top_p and min_p adapt the distribution. With --best the lines are the most probable texts that beam
search finds, best first. With --scores, the natural-log probability of the text, prompt and EOS
included, and a tab precede each line.
"""

from absl import flags

from experiments.cli import checkpoint_flags
from experiments.cli.command_line import require_one_line, run
from transformer.config import Config
from transformer.errors import InputError

PROMPT = flags.DEFINE_string("prompt", "", "Text that every sample begins with.")
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Number of samples.")
BEST = flags.DEFINE_boolean("best", False, "Search for the most probable texts instead.")
SCORES = flags.DEFINE_boolean("scores", False, "Print the log-probability and a tab before a line.")


def main(config: Config) -> None:
    """Sample or search, and print."""
    if NUM_SAMPLES.value < 1:
        raise InputError(f"--num_samples={NUM_SAMPLES.value}, but it must be at least 1")
    require_one_line(PROMPT)
    translator = checkpoint_flags.translator(config)
    method = {"method": "beam", "beams": NUM_SAMPLES.value} if BEST.value else {"method": "sample"}
    [samples] = translator.continuations([PROMPT.value], NUM_SAMPLES.value, **method)
    for sample in samples:
        print(f"{sample.log_prob:.6f}\t{sample.text}" if SCORES.value else sample.text)


if __name__ == "__main__":
    run(main, config_from="workdir")
