#!/bin/sh
# Slurm's TaskProlog: runs a job's programs under the hook if the hook and a
# broker are present. It runs as the job's user, who can undo it; the audit finds
# programs without the hook. In slurm.conf:
#
#   TaskProlog=/usr/libexec/gpusteward/taskprolog.sh
library=${GPUSTEWARD_LIBRARY:-/usr/lib/$(uname -m)-linux-gnu/gpusteward/libgpusteward.so}
socket=${GPUSTEWARD_SOCKET:-/run/gpusteward/broker/broker.sock}

[ -n "${SLURM_JOB_GPUS-}${CUDA_VISIBLE_DEVICES-}" ] && [ -r "$library" ] && [ -S "$socket" ] || exit 0
case :${LD_PRELOAD-}: in
*"${library##*/}:"*) ;; # the step inherits it from the job
*) echo "export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}" ;;
esac
