#!/usr/bin/env bash
# Runs a cdejax command as an xpk workload: TPU slices of a GKE cluster.
#
#     scripts/launch/xpk.sh [--dry-run] CLUSTER WORKLOAD TPU_TYPE SLICES IMAGE \
#         COMMAND [ARGUMENT …]
#     scripts/launch/xpk.sh my-cluster mine v5litepod-16 1 my-registry/cdejax \
#         train --config /shared/configs/evidence.yaml
#
# IMAGE has cdejax with the extra `tpu`. The recipe and its `output` are on a volume that
# all pods mount (`xpk storage attach`). Zone and project are gcloud's. JAX finds the
# hosts by itself (CDEJAX_CLUSTER=auto). `--dry-run` prints the command.
#
# Checked by dry run only. Not run with xpk, on Kubernetes or on a TPU.
set -euo pipefail

dry_run=false
if [[ ${1-} == --dry-run ]]; then
  dry_run=true
  shift
fi
if (($# < 6)); then
  echo "usage: $0 [--dry-run] CLUSTER WORKLOAD TPU_TYPE SLICES IMAGE COMMAND …" >&2
  exit 2
fi
cluster=$1 workload=$2 tpu_type=$3 slices=$4 image=$5
shift 5

printf -v remote '%q ' env CDEJAX_CLUSTER=auto cdejax launch -- "$@"
command=(
  xpk workload create
  "--cluster=$cluster" "--workload=$workload"
  "--tpu-type=$tpu_type" "--num-slices=$slices" "--docker-image=$image"
  "--command=${remote% }"
)
if $dry_run; then
  printf '%q ' "${command[@]}"
  echo
else
  exec "${command[@]}"
fi
