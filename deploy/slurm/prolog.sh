#!/bin/sh
# Slurm's Prolog: records the owner of the job and its GPUs on this node for
# gpusteward, below /run/gpusteward.
#
#   slurm/JOBID                the owner, which neither the user nor the job can change
#   slurm/SLUID                a link to it; cgroups have that name since Slurm 26.05
#   tenants.d/slurm-JOBID.yml  the quota, if the job has shards of a GPU
#
# epilog.sh removes both. In slurm.conf:
#
#   PrologFlags=Alloc
#   Prolog=/usr/libexec/gpusteward/prolog.sh
#   Epilog=/usr/libexec/gpusteward/epilog.sh
#
# The script delays a job by at most 10 s and never fails it, even without
# gpusteward. Errors are logged. The shell sources /etc/gpusteward/slurm.conf;
# docs/slurm.md lists its settings.
run=${GPUSTEWARD_RUN:-/run/gpusteward}
conf=${GPUSTEWARD_SLURM_CONF:-/etc/gpusteward/slurm.conf}
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH

if [ "${1-}" != job ]; then
	said=$(timeout -k 1 10 "$0" job 2>&1) || said="$said (it failed, or took longer than 10 s)"
	[ -z "$said" ] || logger -t gpusteward -p daemon.warning -- "prolog of job ${SLURM_JOB_ID-}: $said" || :
	exit 0 # any other status drains the node
fi

umask 022
job=${SLURM_JOB_ID-}
case $job in
'' | *[!0-9]*)
	echo "SLURM_JOB_ID is \"$job\": Slurm did not start this"
	exit 1
	;;
esac

sluid=${SLURM_JOB_SLUID-}
case $sluid in
*[!0-9A-Za-z]*) sluid= ;;
s?*) ;;
*) sluid= ;;
esac

# put FILE: writes its input to FILE atomically.
put() {
	mkdir -p "${1%/*}" && cat >"${1%/*}/.${1##*/}.new" && mv "${1%/*}/.${1##*/}.new" "$1"
}

# line KEY VALUE: prints a line, without control characters. Users choose some
# values, such as the account.
line() {
	printf '%s=%s\n' "$1" "$(printf '%s' "$2" | LC_ALL=C tr '\001-\037\177' '?')"
}

{
	line JOB "$job"
	line USER "${SLURM_JOB_USER-}"
	line UID "${SLURM_JOB_UID-}"
	line ACCOUNT "${SLURM_JOB_ACCOUNT-}"
	line PARTITION "${SLURM_JOB_PARTITION-}"
	line GPUS "${SLURM_JOB_GPUS-}"
	[ -z "$sluid" ] || line SLUID "$sluid"
} | put "$run/slurm/$job" || echo "the owner cannot be written: gpusteward shows what the job's environment says"
[ -z "$sluid" ] || ln -sfn "$job" "$run/slurm/$sluid"

# quota: prints the job's terms for a GPU, as keys of a tenant; no output is no
# quota. $part is the job's part of the GPU's shards, such as 25 %, or empty.
quota() {
	[ -z "$part" ] || echo "guarantee: $part, limit: $part, memory: $part"
}
tenant= # further keys of the tenant, such as "priority: low, ladder: {mode: pause}"
shards= # shards of each GPU; empty: taken from Slurm's configuration of this node

[ ! -r "$conf" ] || . "$conf"

# types FILE: prints the GresTypes of FILE, which is like slurm.conf, and of the
# files that it includes. It fails if one cannot be read.
types() {
	awk -v file="$1" '
		function read(name, depth,    text, more, got) {
			if (depth > 16 || name in open) { bad = 1; return }
			open[name] = 1
			while ((got = (getline more < name)) > 0) {
				sub(/\r$/, "", more)
				while (match(more, /(^|[^\\])(\\\\)*#/)) more = substr(more, 1, RSTART + RLENGTH - 2)
				text = text more
				if (text ~ /(^|[^\\])(\\\\)*\\[ \t]*$/) { sub(/\\[ \t]*$/, "", text); continue }
				take(text, depth)
				text = ""
			}
			if (text != "") take(text, depth)
			if (got < 0) bad = 1
			if (depth) close(name) # not the standard input
			delete open[name]
		}
		function take(text, depth,    key) {
			gsub(/^[ \t]+|[ \t]+$/, "", text)
			key = tolower(text)
			if (key ~ /^include[ \t]/) {
				sub(/^[^ \t]+[ \t]+/, "", text)
				sub(/[ \t].*$/, "", text)
				gsub(/%c/, cluster, text)
				read(text ~ /^\// ? text : dir text, depth + 1)
			} else if (key ~ /^(grestypes|clustername)[ \t]*=/) {
				sub(/^[^=]*=[ \t]*/, "", text)
				if (!sub(/^"/, "", text)) sub(/[ \t].*$/, "", text)
				sub(/".*$/, "", text)
				if (key ~ /^g/) types = tolower(text)
				else cluster = tolower(text)
			}
		}
		BEGIN {
			dir = file
			sub(/[^\/]*$/, "", dir)
			read(file, 0)
			print types
			exit bad
		}'
}

# shared: whether Slurm has shards of GPUs. Its files say so, or Slurm itself,
# which also knows what its files do not have, such as in a cluster without any.
shared() {
	files=$(types "${SLURM_CONF:-/etc/slurm/slurm.conf}") && complete=1 || complete=
	case ,$files, in *,shard,*) return 0 ;; esac
	if told=$(timeout 3 scontrol show config 2>/dev/null) && [ -n "$told" ]; then
		case ,$(printf '%s\n' "$told" | types /dev/stdin), in *,shard,*) return 0 ;; esac
	elif [ -z "$complete" ]; then
		echo "neither slurm.conf nor Slurm says whether GPUs have shards: the job has no quota of its own" >&2
	fi
	return 1
}

# granted: prints the GRES of the job on this node. The name of the job, which its
# user chooses, may look like further fields, and be a grant that is none.
granted() {
	scontrol --oneliner --details show job "$job" | tr ' ' '\n' |
		awk '/^Nodes=/ { nodes = substr($0, 7) } /^GRES=/ && nodes != "" { print nodes, substr($0, 6); nodes = "" }' |
		while read -r nodes gres; do
			if scontrol show hostnames "$nodes" | grep -qx "${SLURMD_NODENAME:-$(hostname -s)}"; then
				echo "$gres"
			fi
		done
}

# each: prints the number of shards of a GPU of this node. Slurm may write 2K for
# 2048, and the sockets of a GPU as (S:0-1) or (S:1,3).
each() {
	scontrol --oneliner show node "${SLURMD_NODENAME:-$(hostname -s)}" |
		tr ' ' '\n' | sed -n 's/([^)]*)//g; s/^Gres=//p' | tr ',' '\n' |
		awk -F : '
			$1 == "gpu" || $1 == "shard" { n[$1] += ($NF ~ /^[0-9]/ ? $NF : 1) * ($NF ~ /^[0-9]+K$/ ? 1024 : 1) }
			END { if (n["gpu"] > 0) print int(n["shard"] / n["gpu"]) }'
}

# parts GRES SHARDS: prints a line with GPU and part for each GPU with shards of
# the job. Shards on several GPUs are divided equally among them, never more.
# Slurm writes shard:h100:3(IDX:0), or shard:h100:3(3/4,0/4) with an entry for
# each GPU. The type may be (null).
parts() {
	printf '%s\n' "$1" | sed 's/(null)//g; s/),/)\n/g' | awk -v each="$2" '
		function part(gpu, has, of) {
			if (of > 0 && has > 0) printf "%d %.2f %%\n", gpu, int(10000 * (has > of ? of : has) / of) / 100
		}
		/^shard[:(]/ && match($0, /\(.*\)/) {
			inside = substr($0, RSTART + 1, RLENGTH - 2)
			total = substr($0, 1, RSTART - 1)
			sub(/.*:/, "", total)
			if (sub(/K$/, "", total)) total *= 1024
			if (inside ~ /^IDX:/) {
				sub(/^IDX:/, "", inside)
				n = 0
				k = split(inside, list, ",")
				for (i = 1; i <= k; i++) {
					split(list[i] "-" list[i], ends, "-")
					for (gpu = ends[1]; gpu <= ends[2] && n < 1024; gpu++) gpus[n++] = gpu
				}
				for (i = 0; i < n; i++) part(gpus[i], total / n, each)
			} else {
				k = split(inside, list, ",")
				for (i = 1; i <= k; i++) { split(list[i], of, "/"); part(i - 1, of[1], of[2]) }
			}
		}'
}

if [ -n "${SLURM_JOB_GPUS-}" ] && shared; then
	has=$(granted)
	[ -n "$has" ] ||
		echo "Slurm does not say how many shards it has: it belongs to the tenant default, or to another that fits"
	case $has in
	*shard*) given=$(parts "$has" "${shards:-$(each)}") ;;
	esac
fi

# The terms for each GPU of the job. The job gets next to nothing of other GPUs.
gpus=
for gpu in $(printf '%s' "${SLURM_JOB_GPUS-}" | tr -c '0-9\n' ' '); do
	part=$(printf '%s\n' "${given-}" | sed -n "s/^$gpu //p" | sort -n | head -n 1) # of two grants, one is none
	terms=$(quota)
	[ -z "$terms" ] || gpus="$gpus${gpus:+, }{gpu: [\"$gpu\"], $terms}"
done
also= # the same while only the SLUID is known
[ -z "$sluid" ] || also=", \"slurm:$sluid\", \"slurm:$sluid.*\""
[ -z "$gpus" ] || put "$run/tenants.d/slurm-$job.yml" <<END
- {name: slurm-$job, select: [{workloads: ["slurm:$job", "slurm:$job.*"$also]}], binding: true,
   limit: 1 %, memory: 1 MiB, gpus: [$gpus]${tenant:+, $tenant}}
END
