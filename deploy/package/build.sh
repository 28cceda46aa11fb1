#!/bin/bash
# Builds the packages in dist/ from the results of `make build` and binaries.sh,
# according to nfpm.yaml, for the architectures in $ARCH. Two builds of one commit
# are identical.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y go.mod)}"
VERSION=$(./gpusteward --version | sed -n '1s/^gpusteward, version \([^ ]*\).*/\1/p')
if ! [[ $VERSION =~ ^[0-9][0-9A-Za-z.+~]*$ ]]; then
	echo "VERSION=$VERSION: dpkg and rpm need a digit, followed by letters, digits and . + ~" >&2
	exit 1
fi
MAINTAINER='gpusteward <gpusteward@users.noreply.github.com>'
export SOURCE_DATE_EPOCH VERSION MAINTAINER

rm -rf dist/files dist/gpusteward_*.deb dist/gpusteward-*.rpm
mkdir -p dist/files # generated files, which nfpm.yaml names
go run deploy/package/generate.go dist/files

declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
for ARCH in $ARCH; do
	MACHINE=${machines[$ARCH]}
	# The oldest glibc with all required symbols.
	GLIBC=$(for file in gpusteward libgpusteward.so; do readelf -VW "dist/$ARCH/$file"; done |
		sed -n 's/.*Name: GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
	export ARCH MACHINE GLIBC
	for package in "deb dist/gpusteward_${VERSION}_$ARCH.deb" "rpm dist/gpusteward-$VERSION.$MACHINE.rpm"; do
		go tool -modfile=deploy/tools/go.mod nfpm package -f deploy/package/nfpm.yaml \
			-p ${package% *} -t "${package#* }" >/dev/null
		echo "${package#* }"
	done
done
