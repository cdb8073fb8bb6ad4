#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Train and evaluate on the GPU of this machine, in a separate virtual environment.
#
#   scripts/one_gpu.sh experiments/configs/multi30k.py runs/multi30k [FLAGS OF train ...]
#
# With DETERMINISTIC=1 two runs are equal bit for bit, at the cost of some speed.
# Run it again to continue where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: $0 CONFIG WORKDIR [FLAGS OF train ...]"
config=${1:?$usage}
workdir=${2:?$usage}
shift 2

if [[ ! -d .venv ]]; then
  python3 -m venv .venv
  .venv/bin/pip install --quiet --editable . 'jax[cuda12]'
fi
if [[ -n "${DETERMINISTIC:-}" ]]; then
  export XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_deterministic_ops=true"
fi

.venv/bin/python -m experiments.train --config="$config" --workdir="$workdir" "$@"
.venv/bin/python -m experiments.evaluate --workdir="$workdir" --split=test
