#!/bin/sh
# For Slurm's Prolog or Epilog: tests the GPUs of the job, and drains the node if
# one of them fails, like healthcheck.sh. It takes ten seconds for each job with
# whole GPUs. In slurm.conf:
#
#   Epilog=/usr/libexec/gpusteward/diag.sh
#
# GPUs in use, such as those shared by shards, are skipped. Arguments are passed
# to gpusteward diag.
[ -n "${SLURM_JOB_GPUS-}" ] || exit 0
GPUSTEWARD_VERDICT=diag exec "${0%/*}/healthcheck.sh" --gpus="$SLURM_JOB_GPUS" --fail-on=critical "$@"
