#!/bin/sh
# Slurm's HealthCheckProgram: drains the node when gpusteward check calls it
# critical, with the verdict as the reason. In slurm.conf:
#
#   HealthCheckProgram=/usr/libexec/gpusteward/healthcheck.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY,CYCLE
#
# A warning, an unknown state and a check that cannot run drain nothing. A node
# that is drained already keeps its reason, and none is resumed: that is for
# whoever repaired it. Arguments go to gpusteward check.
set -u

verdict=$(gpusteward "${GPUSTEWARD_VERDICT:-check}" "$@") # or diag, for diag.sh
case $?:$verdict in
2:CRITICAL*) ;;
*) exit 0 ;; # a Go program that crashes ends with 2 as well; slurmd may wait for 0 before it registers the node
esac

node=${SLURMD_NODENAME:-$(hostname -s)}
shown=$(scontrol --oneliner show node "$node") || exit 1
state=${shown#* State=}
case ${state%% *} in
*DRAIN*) exit 0 ;;
esac

# The first line says it all. What Slurm or a shell might read as more than
# text is left out.
reason=$(printf '%s\n' "$verdict" | head -n 1 | LC_ALL=C tr -c 'A-Za-z0-9 .,:;/()_%+\n-' '?' | cut -c 1-250)
exec scontrol update "NodeName=$node" State=DRAIN "Reason=gpusteward: $reason"
