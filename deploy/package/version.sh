#!/bin/sh
# Prints the version of this tree in the order of dpkg and rpm: 1.2.3 at the tag
# v1.2.3, 1.2.3~rc.1 at v1.2.3-rc.1, 1.2.3+5.gHASH five commits after a tag, and
# 0.0.0~gitTIME.HASH without a tag. +dirty marks uncommitted changes.
tagged=$(git describe --tags --match='v[0-9]*' --dirty=+dirty 2>/dev/null) &&
	printf '%s\n' "$tagged" | sed -E 's/^v//; s/-([0-9]+)-(g[0-9a-f]+)/+\1.\2/; s/-/~/' && exit
time=$(TZ=UTC0 git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd 2>/dev/null) &&
	echo "0.0.0~git$time.$(git describe --always --exclude='*' --dirty=+dirty)" || echo 0.0.0
