#!/bin/bash
# Builds the packages in dist/ from the results of `make build hook`, according
# to nfpm.yaml. Two builds of one commit are identical.
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

files=dist/files # generated files, which nfpm.yaml names
rm -rf $files dist/gpusteward_*.deb dist/gpusteward-*.rpm
mkdir -p $files
strip --strip-unneeded -o $files/libgpusteward.so enforcer/hook/build/libgpusteward.so
go run deploy/package/generate.go $files

# The oldest glibc with all required symbols.
GLIBC=$(objdump -T gpusteward $files/libgpusteward.so | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
export GLIBC
for package in "deb dist/gpusteward_${VERSION}_amd64.deb" "rpm dist/gpusteward-$VERSION.x86_64.rpm"; do
	go tool -modfile=deploy/tools/go.mod nfpm package -f deploy/package/nfpm.yaml \
		-p ${package% *} -t "${package#* }" >/dev/null
	echo "${package#* }"
done
