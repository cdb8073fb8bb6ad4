#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains on a TPU slice: the same command on every host of it, started from your own machine.
#
#   gcloud compute tpus tpu-vm create my-slice --zone=europe-west4-b \
#     --accelerator-type=v5litepod-32 --version=v2-alpha-tpuv5-lite
#   CHIPS=32 scripts/tpu_slice.sh my-slice europe-west4-b \
#     experiments/configs/wmt14_ende_big.py gs://my-bucket/runs/big [FLAGS OF train ...]
#
# CHIPS is how many devices JAX has there: 32 of v5litepod-32, but 16 of v4-32 or v5p-32, which count
# two cores for each.
# The last commit of this repository is what runs. The slice's service account must be allowed to
# write to the bucket. Run it again to go on where it stopped, after a preemption for example.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: CHIPS=N $0 NAME ZONE CONFIG gs://BUCKET/WORKDIR [FLAGS OF train ...]"
name=${1:?$usage}
zone=${2:?$usage}
config=${3:?$usage}
workdir=${4:?$usage}
chips=${CHIPS:?$usage}
shift 4

everywhere() {
  gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="$1"
}

archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git archive --format=tar.gz --output="$archive" HEAD
gcloud compute tpus tpu-vm scp "$archive" "$name:transformer.tar.gz" --zone="$zone" --worker=all

# uv brings its own Python, as the image's may be older than this project needs.
everywhere 'set -e
mkdir -p transformer && tar -xzf transformer.tar.gz -C transformer && cd transformer
python3 -m pip install --quiet --user uv
[ -d .venv ] || python3 -m uv venv --quiet --python 3.12 .venv
python3 -m uv pip install --quiet --python .venv/bin/python --editable . "jax[tpu]" gcsfs'

train=(
  .venv/bin/python -m experiments.train --config="$config" --workdir="$workdir"
  --distributed --config.parallel.data="$chips" "$@"
)
everywhere "cd transformer && $(printf '%q ' "${train[@]}")"
