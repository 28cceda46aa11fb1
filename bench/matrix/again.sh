#!/usr/bin/env bash
# Measures a cell several times, each time with new processes: two processes of one program differ,
# which no number of blocks of the same two shows.
#   bench/matrix/again.sh OUT TIMES [FLAG OF matrix]...
# OUT is a folder. It receives N.jsonl, N.jsonl.md and N.log. MATRIX names the program (default: ./matrix).
set -u
[ $# -gt 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$1
times=$2
shift 2
mkdir -p "$out"
for ((i = 1; i <= times; i++)); do
	"${MATRIX:-./matrix}" -out "$out/$i.jsonl" "$@" >"$out/$i.log" 2>&1 || exit
	grep -h '±' "$out/$i.log" | grep -v '|'
done
