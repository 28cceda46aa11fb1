#!/bin/bash
# Runs a demo: an agent on a simulated host, Prometheus with the shipped rules,
# and Alertmanager. The servers listen on loopback. Their data is in a temporary
# directory that is removed at the end. Ctrl-C stops all three. If a server ends
# by itself, the demo prints its log and stops.
#
# DEMO_AGENT, DEMO_PROMETHEUS and DEMO_ALERTMANAGER set other listen addresses,
# DEMO_SCENARIO sets another scenario, and GPUSTEWARD sets the agent's program.
set -u
agent=${DEMO_AGENT:-127.0.0.1:9836}
prometheus=${DEMO_PROMETHEUS:-127.0.0.1:9090}
alertmanager=${DEMO_ALERTMANAGER:-127.0.0.1:9093}

for program in prometheus prometheus-alertmanager; do
	if ! type -P "$program" >/dev/null; then
		echo "The demo needs $program, which is not installed." >&2
		echo "make tools installs it (Debian packages prometheus and prometheus-alertmanager)." >&2
		exit 1
	fi
done
cd "${0%/*}/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/gpusteward-demo.XXXXXX") || exit 1
declare -A named=() # servers by PID

# end stops the servers, kills them after 5 s, and removes their data.
end() {
	trap '' INT TERM
	[ ${#named[@]} -gt 0 ] && kill "${!named[@]}" 2>/dev/null
	for _ in {1..50}; do
		kill -0 "${!named[@]}" 2>/dev/null || break
		sleep 0.1
	done
	for pid in "${!named[@]}"; do kill -KILL "$pid" 2>/dev/null; done
	wait
	rm -rf "$dir"
}
trap end EXIT
trap 'echo; echo "Stopping."; exit 0' INT TERM

# begin starts a server in the background, with a log of its own.
begin() {
	local name=$1
	shift
	"$@" >"$dir/$name.log" 2>&1 </dev/null &
	named[$!]=$name
}

# died reports a server that ended by itself.
died() {
	echo "${named[$1]} ended by itself, with status $2. The end of its log:" >&2
	tail -n 15 "$dir/${named[$1]}.log" >&2
	if grep -q 'address already in use' "$dir/${named[$1]}.log"; then
		local variable=DEMO_${named[$1]^^}
		echo "Its address is taken. This sets another one: $variable=127.0.0.1:PORT make demo" >&2
	fi
	unset "named[$1]"
	exit 1
}

# answers ADDRESS PATH reports whether a server answers a request with status 200.
answers() {
	(exec 3<>"/dev/tcp/${1%:*}/${1##*:}" && printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3 &&
		read -r -t 2 _ status _ <&3 && [ "$status" = 200 ]) 2>/dev/null
}

mkdir "$dir/state" "$dir/run"
# The demo notifies nobody: its receivers have no addresses.
sed -e '/webhook_configs:/d' -e '/- url:/d' deploy/alertmanager.yml >"$dir/alertmanager.yml"
cat >"$dir/prometheus.yml" <<END
global: {scrape_interval: 5s, evaluation_interval: 5s}
rule_files: ["$PWD/alerts/gpusteward.rules.yml", "$PWD/alerts/fleet.rules.yml"]
alerting: {alertmanagers: [{static_configs: [{targets: ["$alertmanager"]}]}]}
scrape_configs:
  - job_name: gpusteward
    static_configs: [{targets: ["$agent"]}]
END
begin agent "${GPUSTEWARD:-./gpusteward}" "--demo=${DEMO_SCENARIO:-demo}" "--web.listen-address=$agent" \
	"--state.dir=$dir/state" "--runtime.dir=$dir/run" --log.format=console
begin prometheus prometheus "--config.file=$dir/prometheus.yml" "--storage.tsdb.path=$dir/prometheus" \
	"--web.listen-address=$prometheus"
begin alertmanager prometheus-alertmanager "--config.file=$dir/alertmanager.yml" "--storage.path=$dir/alertmanager" \
	"--web.listen-address=$alertmanager" --cluster.listen-address=

for address in "$agent" "$prometheus" "$alertmanager"; do
	until answers "$address" /-/ready; do
		for pid in "${!named[@]}"; do
			kill -0 "$pid" 2>/dev/null || { wait "$pid"; died "$pid" $?; }
		done
		sleep 0.1
	done
done
alerts=/alerts
answers "$prometheus" "$alerts" || alerts=/classic/alerts # Debian's Prometheus has only the classic UI
cat <<END
These GPUs are SIMULATED (${DEMO_SCENARIO:-demo}).
  The live page:        http://$agent/
  Prometheus's alerts:  http://$prometheus$alerts
  Alertmanager:         http://$alertmanager/ (Debian's has no UI: use /api/v2/alerts)
Ctrl-C stops all three.
END
wait -n -p pid "${!named[@]}"
died "$pid" $?
