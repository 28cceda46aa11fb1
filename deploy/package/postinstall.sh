#!/bin/sh
# Both formats. $1 is configure, or abort-... of what has been undone; of rpm,
# how many versions are installed now.
set -e
config=/etc/gpusteward/gpusteward.yml
agent=gpusteward.service
others="gpusteward.socket gpusteward-broker.service gpusteward-broker.socket" # are not enabled here

systemd-sysusers gpusteward.conf
systemd-tmpfiles --create gpusteward.conf || :

# Enabled once: who disables it has that kept.
case $1 in
1) systemctl --no-reload preset $agent $others || : ;;
[0-9]*) ;;
*)
	if deb-systemd-helper --quiet was-enabled $agent; then
		deb-systemd-helper enable $agent >/dev/null || :
	fi
	deb-systemd-helper update-state $agent $others >/dev/null || :
	;;
esac

[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || :

# A process that runs is better than one that this version does not start.
if [ -e $config ] && ! refused=$(gpusteward config check $config 2>&1); then
	cat >&2 <<END
gpusteward: this version refuses the configuration:
  $refused
gpusteward was NOT restarted: what ran before goes on, until it ends. Correct the file, then:
  gpusteward config check $config
  systemctl restart $agent
END
	exit 0
fi

# What is enabled or runs.
case $1 in
[0-9]*)
	for unit in $agent $others; do
		if systemctl --quiet is-enabled $unit || systemctl --quiet is-active $unit; then
			systemctl restart $unit || :
		fi
	done
	;;
*) deb-systemd-invoke restart $agent $others || : ;;
esac
