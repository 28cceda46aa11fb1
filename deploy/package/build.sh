#!/bin/bash
# Makes the packages of what `make build hook` built, in dist/, as nfpm.yaml
# says. Two builds of one commit are the same, byte by byte.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y go.mod)}"
VERSION=$(./gpusteward --version | sed -n '1s/^gpusteward, version \([^ ]*\).*/\1/p')
[[ $VERSION =~ ^[0-9][0-9A-Za-z.+~]*$ ]] || { echo "VERSION=$VERSION: dpkg and rpm order by a digit first, and then letters, digits and . + ~" >&2; exit 1; }
MAINTAINER='gpusteward <gpusteward@users.noreply.github.com>'
export SOURCE_DATE_EPOCH VERSION MAINTAINER

files=dist/files # what is made for packages; nfpm.yaml takes it from there
rm -rf $files dist/gpusteward_*.deb dist/gpusteward-*.rpm
mkdir -p $files
strip --strip-unneeded -o $files/libgpusteward.so enforcer/hook/build/libgpusteward.so
go run deploy/package/generate.go $files

# The oldest C library that has every symbol that is asked for.
GLIBC=$(objdump -T gpusteward $files/libgpusteward.so | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
export GLIBC
for package in "deb dist/gpusteward_${VERSION}_amd64.deb" "rpm dist/gpusteward-$VERSION.x86_64.rpm"; do
	go tool -modfile=deploy/tools/go.mod nfpm package -f deploy/package/nfpm.yaml -p ${package% *} -t "${package#* }" >/dev/null
	echo "${package#* }"
done
