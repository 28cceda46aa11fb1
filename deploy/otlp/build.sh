#!/bin/bash
# Builds the packages of gpusteward-otlp in dist/otlp from the results of `make
# build otlp`, according to nfpm.yaml, for the architectures in $ARCH. Two builds
# of one commit are identical.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y go.mod)}"
VERSION=$(./gpusteward --version | sed -n '1s/^gpusteward, version \([^ ]*\).*/\1/p')
MAINTAINER='gpusteward <gpusteward@users.noreply.github.com>'
export SOURCE_DATE_EPOCH VERSION MAINTAINER
mkdir -p dist/otlp
rm -f dist/otlp/*.deb dist/otlp/*.rpm
declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
for ARCH in ${ARCH:-amd64 arm64}; do
	export ARCH
	for package in "deb dist/otlp/gpusteward-otlp_${VERSION}_$ARCH.deb" "rpm dist/otlp/gpusteward-otlp-$VERSION.${machines[$ARCH]}.rpm"; do
		go tool -modfile=deploy/tools/go.mod nfpm package -f deploy/otlp/nfpm.yaml \
			-p ${package% *} -t "${package#* }" >/dev/null
		echo "${package#* }"
	done
done
