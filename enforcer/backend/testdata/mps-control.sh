#!/bin/sh
# Stands in for nvidia-cuda-mps-control, and answers as that of driver 580 was
# seen to: complaints are answers, with status 0. Its state is in the directory
# of the control daemon: server.PID has threads, clients and memory.GPU. Of the
# files hang, down, rubbish and flood each has it do what it is called, and
# dies has the servers go when something is set. Questions go to the file log,
# the process that hangs to hung.
dir=$CUDA_MPS_PIPE_DIRECTORY
[ -e "$dir/hang" ] && sh -c 'echo $$ >"$0/hung"; exec sleep 1000' "$dir"
[ -e "$dir/flood" ] && exec yes 1234
if [ -e "$dir/down" ]; then
	echo "Cannot find MPS control daemon process" >&2
	exit 1
fi
while read -r verb pid gpu value; do
	echo "$verb $pid $gpu $value" >>"$dir/log"
	[ -e "$dir/rubbish" ] && echo "Unknown command \"$verb\"" && continue
	case $verb in
	set_*) [ -e "$dir/dies" ] && rm -rf "$dir"/server.* ;;
	esac
	if [ "$verb" = get_server_list ]; then
		for s in "$dir"/server.*; do
			[ -e "$s" ] && echo "${s##*.}"
		done
		continue
	fi
	s=$dir/server.$pid
	if [ ! -e "$s" ]; then
		echo "Server $pid not found"
		continue
	fi
	case $verb in
	get_active_thread_percentage) cat "$s/threads" ;;
	set_active_thread_percentage) case $gpu in *.*) ;; *) gpu=$gpu.0 ;; esac; echo "$gpu" | tee "$s/threads" ;;
	get_client_list) cat "$s/clients" ;;
	get_device_pinned_mem_limit)
		[ -e "$s/memory.$gpu" ] || continue
		m=$(tr -d M <"$s/memory.$gpu")
		if [ "$m" -ge 1024 ]; then echo $((m / 1024))G; else echo "${m}M"; fi
		;;
	set_device_pinned_mem_limit) [ "$gpu" = GPU-none ] || echo "$value" >"$s/memory.$gpu" ;;
	*) echo "Unknown command \"$verb\"" ;;
	esac
done
