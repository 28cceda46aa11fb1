#!/bin/sh
# Slurm's Epilog: removes the files that prolog.sh wrote for the job, and once a
# day those of jobs that Slurm no longer knows. It never fails a job.
run=${GPUSTEWARD_RUN:-/run/gpusteward}
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH

case ${SLURM_JOB_ID-} in
'' | *[!0-9]*) ;;
*) rm -f "$run/slurm/$SLURM_JOB_ID" "$run/tenants.d/slurm-$SLURM_JOB_ID.yml" ;;
esac
for link in "$run"/slurm/s*; do
	[ -e "$link" ] || rm -f "$link" # the SLUID of a job without a record
done

old=$(find "$run/slurm" "$run/tenants.d" -maxdepth 1 -type f \
	\( -name '[0-9]*' -o -name 'slurm-[0-9]*.yml' -o -name '.*.new' \) -mmin +1440 2>/dev/null)
node=${SLURMD_NODENAME:-$(hostname -s)}
if [ -n "$old" ] && known=$(timeout 5 squeue --noheader --nodelist="$node" --format=%A); then
	for file in $old; do
		job=${file##*/}
		job=${job#slurm-}
		if printf '%s\n' "$known" | grep -qx "${job%.yml}"; then
			touch "$file" # looked up again in a day
		else
			rm -f "$file"
		fi
	done
fi
exit 0 # any other status drains the node
