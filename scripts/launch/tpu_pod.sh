#!/usr/bin/env bash
# Runs a cdejax command on all workers of a Cloud TPU pod slice.
#
#     scripts/launch/tpu_pod.sh [--dry-run] NAME ZONE FOLDER COMMAND [ARGUMENT …]
#     scripts/launch/tpu_pod.sh my-pod us-east5-a /mnt/shared/cdejax \
#         train --config configs/evidence.yaml
#
# FOLDER is a checkout whose .venv has cdejax with the extra `tpu`, on a file system that
# all workers mount (a Filestore share, for example); recipe paths are relative to it.
# JAX finds the workers by itself (CDEJAX_CLUSTER=auto). `--dry-run` prints the command.
#
# Checked by dry run only. Not run on a TPU.
set -euo pipefail

dry_run=false
if [[ ${1-} == --dry-run ]]; then
  dry_run=true
  shift
fi
if (($# < 4)); then
  echo "usage: $0 [--dry-run] NAME ZONE FOLDER COMMAND [ARGUMENT …]" >&2
  exit 2
fi
name=$1 zone=$2 folder=$3
shift 3

printf -v remote '%q ' \
  env CDEJAX_CLUSTER=auto .venv/bin/cdejax launch -- "$@"
printf -v place '%q' "$folder"
command=(
  gcloud compute tpus tpu-vm ssh "$name" "--zone=$zone" --worker=all
  "--command=cd $place && exec ${remote% }"
)
if $dry_run; then
  printf '%q ' "${command[@]}"
  echo
else
  exec "${command[@]}"
fi
