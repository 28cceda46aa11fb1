#!/bin/sh
# For both formats. dpkg passes configure, or abort-... after a failure. rpm
# passes the number of installed versions.
set -e
config=/etc/gpusteward/gpusteward.yml
agent=gpusteward.service
others="gpusteward.socket gpusteward-broker.service gpusteward-broker.socket" # not enabled by default

systemd-sysusers gpusteward.conf
systemd-tmpfiles --create gpusteward.conf || :

# Enable the agent once. An upgrade does not enable it again.
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

# Keep the old process running if the new version refuses its configuration.
if [ -e $config ] && ! refused=$(gpusteward config check $config 2>&1); then
	cat >&2 <<END
gpusteward: this version refuses the configuration:
  $refused
gpusteward was NOT restarted: the previous version continues to run. Correct the file, then run:
  gpusteward config check $config
  systemctl restart $agent
END
	exit 0
fi

# Restart the units that are enabled or active.
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
