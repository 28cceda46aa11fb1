#!/usr/bin/env bash
# Runs a test binary of ./enforcer on a machine with a GPU, which needs no Go:
#   go test -c -tags gpu -o enforcer/hook/build/enforcer.test ./enforcer     (elsewhere)
#   enforcer/hook/bench/card.sh enforcer/hook/build/enforcer.test -test.run 'TestGPUMemory$'
# The hook is built unless it is there, or GS_HOOK names one.
set -u
[ $# -gt 0 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
bench=$(cd "$(dirname "$0")" && pwd)
hook=$(dirname "$bench")
binary=$1
shift
case $binary in /*) ;; *) binary=$PWD/$binary ;; esac

[ -n "${GS_HOOK:-}" ] || [ -e "$hook/build/libgpusteward.so" ] || make -s -C "$hook" || exit 1
export GS_HOOK=${GS_HOOK:-$hook/build/libgpusteward.so}
export GS_LOAD=${GS_LOAD:-$hook/build/stub/load}
export GS_RECIPES=${GS_RECIPES:-$hook/build/stub/recipes}
export GS_BENCH=${GS_BENCH:-$bench}
# A program that uses NVLink's multicast can put a shared host's GPUs out of service.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
export TORCH_SYMM_MEM_DISABLE_MULTICAST=${TORCH_SYMM_MEM_DISABLE_MULTICAST:-1}
export NVSHMEM_DISABLE_NVLS=${NVSHMEM_DISABLE_NVLS:-1}
export XLA_PYTHON_CLIENT_PREALLOCATE=${XLA_PYTHON_CLIENT_PREALLOCATE:-false}
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTHONWARNINGS=${PYTHONWARNINGS:-ignore}
exec "$binary" -test.v -test.timeout=30m "$@"
