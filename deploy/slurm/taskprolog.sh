#!/bin/sh
# Slurm's TaskProlog: has a job's programs run under the hook, where there is one
# and a broker. It runs as the job's user, who can undo it: such a program is
# found by the broker's audit. In slurm.conf:
#
#   TaskProlog=/usr/libexec/gpusteward/taskprolog.sh
library=${GPUSTEWARD_LIBRARY:-/usr/lib/x86_64-linux-gnu/gpusteward/libgpusteward.so}
socket=${GPUSTEWARD_SOCKET:-/run/gpusteward/broker/broker.sock}

[ -n "${SLURM_JOB_GPUS-}${CUDA_VISIBLE_DEVICES-}" ] && [ -r "$library" ] && [ -S "$socket" ] || exit 0
case :${LD_PRELOAD-}: in
*"${library##*/}:"*) ;; # a step of a job that has it already
*) echo "export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}" ;;
esac
