#!/bin/bash
# Builds the program with the command $GOBUILD, and the hook, in dist/amd64 and
# dist/arm64, and prints these architectures. ARCH selects some; by default they
# are all for which this machine has a compiler. The program of this machine is
# that of `make build`.
set -euo pipefail
cd "$(dirname "$0")/.."
declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
for arch in ${ARCH:-amd64 arm64}; do
	machine=${machines[$arch]:-}
	if [ -z "$machine" ]; then
		echo "ARCH=$arch: the architectures are amd64 and arm64" >&2
		exit 1
	fi
	prefix= build=build
	[ "$arch" = "$(go env GOHOSTARCH)" ] || prefix=$machine-linux-gnu- build=build/$arch
	if ! type "${prefix}gcc" >/dev/null 2>&1; then
		echo "$arch needs the compiler ${prefix}gcc: apt-get install gcc-${machine/_/-}-linux-gnu libc6-dev-$arch-cross" >&2
		[ -z "${ARCH:-}" ] || exit 1
		continue
	fi
	mkdir -p "dist/$arch"
	if [ -z "$prefix" ]; then
		cp gpusteward "dist/$arch/"
	else
		CGO_ENABLED=1 GOARCH=$arch CC=${prefix}gcc bash -c "$GOBUILD -o dist/$arch/gpusteward ."
	fi
	make --no-print-directory -s -C enforcer/hook BUILD=$build CC="${prefix}gcc"
	"${prefix}strip" --strip-unneeded -o "dist/$arch/libgpusteward.so" "enforcer/hook/$build/libgpusteward.so"
	echo "$arch"
done
