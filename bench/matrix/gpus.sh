#!/usr/bin/env bash
# Measures the cells of a set on all GPUs of this machine at once: each GPU has its part of the
# cells, and its part of the processors.
#   bench/matrix/gpus.sh OUT [FLAG OF matrix]...
# OUT is a folder. It receives gpuN.jsonl, gpuN.md and gpuN.log of each GPU. MATRIX names the
# program (default: ./matrix), and CELLS the cells, with ; between them.
set -u
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$1
shift
matrix=${MATRIX:-./matrix}
mkdir -p "$out"
mapfile -t gpus < <(nvidia-smi --query-gpu=uuid --format=csv,noheader)
n=${#gpus[@]}
each=$(($(nproc) / n))
IFS=';' read -ra cells <<<"${CELLS:?is missing}"
running=()
for ((i = 0; i < n; i++)); do
	own=
	for ((k = i; k < ${#cells[@]}; k += n)); do own+="${own:+;}${cells[k]}"; done
	[ -n "$own" ] || continue
	CUDA_VISIBLE_DEVICES=${gpus[i]} taskset -c $((i * each))-$(((i + 1) * each - 1)) \
		"$matrix" -cells "$own" -out "$out/gpu$i.jsonl" "$@" >"$out/gpu$i.log" 2>&1 &
	running+=($!)
done
failed=0
for pid in "${running[@]}"; do wait "$pid" || failed=1; done
tail -n 60 "$out"/gpu*.log
exit $failed
