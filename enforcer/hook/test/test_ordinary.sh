#!/usr/bin/env bash
# LD_PRELOAD of the hook over programs that have nothing to do with CUDA: the
# same output, the same exit status, and the cost at their start.
#   test_ordinary.sh [BUILD [RUNS]]     BUILD holds libgpusteward.so and stub/
# Prints for each program the median of RUNS paired, alternating runs, and fails
# if that is a millisecond or more.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-$here/../build}" && pwd) || exit 2
runs=${2:-41}
library=$build/libgpusteward.so
[ -e "$library" ] || { echo "no $library: run make first" >&2; exit 2; }
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0
us() { echo $(( ${EPOCHREALTIME/[.,]/} )); }

# hooked COMMAND...: with the library.
hooked() { env LD_PRELOAD="$library" "$@"; }
plain() { env "$@"; }

# row NAME COMMAND...: compares and measures.
row() {
	local name=$1 a b c one two i
	shift
	command -v "$1" >/dev/null || { printf '%-12s not here\n' "$name"; return; }
	plain "$@" >"$work/a" 2>"$work/ea" </dev/null; one=$?
	hooked "$@" >"$work/b" 2>"$work/eb" </dev/null; two=$?
	if [ $one != $two ] || ! cmp -s "$work/a" "$work/b" || ! cmp -s "$work/ea" "$work/eb"; then
		printf '%-12s DIFFERS: exit %d and %d\n' "$name" $one $two
		diff "$work/a" "$work/b" | head -5
		diff "$work/ea" "$work/eb" | head -5
		failed=1
		return
	fi
	for ((i = 0; i < runs; i++)); do
		# They take turns in being first: a second run finds warmer caches.
		if ((i % 2)); then
			a=$(us); plain "$@" >/dev/null 2>&1 </dev/null
			b=$(us); hooked "$@" >/dev/null 2>&1 </dev/null
			c=$(us)
			echo $(( (c - b) - (b - a) ))
		else
			a=$(us); hooked "$@" >/dev/null 2>&1 </dev/null
			b=$(us); plain "$@" >/dev/null 2>&1 </dev/null
			c=$(us)
			echo $(( (b - a) - (c - b) ))
		fi
	done | sort -n >"$work/costs"
	local cost
	cost=$(sed -n "$((runs / 2 + 1))p" "$work/costs")
	printf '%-12s same output, exit %d, %+d us to start\n' "$name" $one "$cost"
	[ "$cost" -lt 1000 ] || failed=1
}

row true true
row bash bash -c 'for i in 1 2 3; do echo $i; done; exit 3'
# A python3 of pyenv is a script that starts dozens of programs first.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null || echo python3)
row python3 "$python" -c 'import ctypes, json, threading; print(json.dumps({"a": 1})); print(bool(ctypes.CDLL(None).getpid))'
row perl perl -e 'use POSIX; print strftime("%Y", gmtime(0)), "\n"; exit 5'
row git git --version
row curl curl --max-time 5 -sS file:///etc/hostname
row 'curl fails' curl --max-time 5 -sS http://127.0.0.1:1/
row java java -version
exit $failed
