#!/bin/sh
# For both formats. $1 is remove (dpkg) or 0 (rpm) if no other version follows.
set -e
units="gpusteward.service gpusteward.socket gpusteward-broker.service gpusteward-broker.socket"
case $1 in
remove) [ ! -d /run/systemd/system ] || deb-systemd-invoke stop $units ;;
0)
	[ ! -d /run/systemd/system ] || systemctl stop $units || :
	systemctl --no-reload disable $units || :
	;;
esac
