#!/bin/sh
# For Slurm's Prolog or Epilog: tests the GPUs that the job gets, or had, and
# drains the node when one of them fails, as healthcheck.sh does. Ten seconds for
# each job that has GPUs alone. In slurm.conf:
#
#   Epilog=/usr/libexec/gpusteward/diag.sh
#
# GPUs that somebody uses, such as those of shards, are left alone. Arguments go
# to gpusteward diag.
[ -n "${SLURM_JOB_GPUS-}" ] || exit 0
GPUSTEWARD_VERDICT=diag exec "${0%/*}/healthcheck.sh" --gpus="$SLURM_JOB_GPUS" --fail-on=critical "$@"
