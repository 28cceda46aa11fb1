#!/bin/sh
# Slurm's HealthCheckProgram: drains the node if gpusteward check reports
# CRITICAL, with the verdict as the reason. In slurm.conf:
#
#   HealthCheckProgram=/usr/libexec/gpusteward/healthcheck.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY,CYCLE
#
# A warning, an unknown state or a check that cannot run does not drain the node.
# A drained node keeps its reason and is never resumed: resume it after the
# repair. Arguments are passed to gpusteward check.
set -u

verdict=$(gpusteward "${GPUSTEWARD_VERDICT:-check}" "$@") # diag.sh sets diag
# A Go program that crashes exits with 2, too. slurmd may wait for 0 before it
# registers the node.
case $?:$verdict in
2:CRITICAL*) ;;
*) exit 0 ;;
esac

node=${SLURMD_NODENAME:-$(hostname -s)}
shown=$(scontrol --oneliner show node "$node") || exit 1
state=${shown#* State=}
case ${state%% *} in
*DRAIN*) exit 0 ;;
esac

# The first line is the verdict. Characters that are special to Slurm or a shell
# are replaced.
reason=$(printf '%s\n' "$verdict" | head -n 1 | LC_ALL=C tr -c 'A-Za-z0-9 .,:;/()_%+\n-' '?' | cut -c 1-250)
exec scontrol update "NodeName=$node" State=DRAIN "Reason=gpusteward: $reason"
