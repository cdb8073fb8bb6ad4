#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Train in two processes on the CPU of this machine, connected over localhost, to try out distributed
# training without a cluster.
#
#   scripts/two_processes.sh copy runs/copy [FLAGS OF train ...]
#
# PYTHON and PORT set the interpreter and the port of process 0. SIGINT and SIGTERM are forwarded, so
# both processes save before they stop.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: $0 CONFIG WORKDIR [FLAGS OF train ...]"
config=${1:?$usage}
workdir=${2:?$usage}
shift 2

# Several simulated devices per process would deadlock.
export JAX_PLATFORMS=cpu
unset JAX_NUM_CPU_DEVICES

processes=()
for process in 0 1; do
  "${PYTHON:-.venv/bin/python}" -m experiments.train --config="$config" --workdir="$workdir" \
    --coordinator="localhost:${PORT:-12355}" --processes=2 --process="$process" \
    --config.parallel.data=2 "$@" &
  processes+=($!)
done
trap 'kill -TERM "${processes[@]}" 2> /dev/null || true' INT TERM

status=0
for process in "${processes[@]}"; do
  ended=0
  wait "$process" || ended=$?
  # A signal interrupts `wait`, but the process saves before it exits.
  while kill -0 "$process" 2> /dev/null; do
    ended=0
    wait "$process" || ended=$?
  done
  if ((ended > status)); then status=$ended; fi
done
exit "$status"
