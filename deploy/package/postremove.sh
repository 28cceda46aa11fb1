#!/bin/sh
# For both formats. The user stays, because it may own files. rpm has no purge:
# it leaves the state and the edited configuration.
set -e
case $1 in
remove | 0) rm -rf /run/gpusteward ;;
purge)
	rm -rf /etc/gpusteward /var/lib/gpusteward /var/lib/gpusteward-broker
	deb-systemd-helper purge gpusteward.service gpusteward.socket \
		gpusteward-broker.service gpusteward-broker.socket >/dev/null || :
	exit 0
	;;
[0-9]*) ;;
*) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
