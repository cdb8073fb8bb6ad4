#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Train on a TPU slice: run the same command on every host, started from your machine.
#
#   gcloud compute tpus tpu-vm create my-slice --zone=europe-west4-b \
#     --accelerator-type=v5litepod-32 --version=v2-alpha-tpuv5-lite
#   CHIPS=32 scripts/tpu_slice.sh my-slice europe-west4-b \
#     experiments/configs/wmt14_ende_big.py gs://my-bucket/runs/big [FLAGS OF train ...]
#
# CHIPS is the number of devices that JAX sees: 32 on v5litepod-32, but 16 on v4-32 or v5p-32, whose
# names count two cores per chip.
# The last commit of this repository runs. The service account of the slice needs write access to
# the bucket. Buckets have no locks: start only one training per WORKDIR. Run the script again to
# continue where it stopped, for example after a preemption.
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

# uv installs Python 3.12, since the image may have an older one than this project needs.
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
