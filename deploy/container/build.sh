#!/bin/bash
# Builds the image from the results of `make build hook`, with docker, podman or
# buildah: $BUILDER or the first that is installed. It writes dist/*.oci.tar,
# which all three can load. Arguments are passed to the build, such as
# --build-arg=BASE=IMAGE.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y go.mod)}"
export SOURCE_DATE_EPOCH
version=$(./gpusteward --version | sed -n '1s/^gpusteward, version \([^ ]*\).*/\1/p')
revision=$(./gpusteward --version | sed -n '1s/.*revision: \([^)]*\).*/\1/p')
tag=${version//[^A-Za-z0-9_.-]/-}
name=ghcr.io/gpusteward/gpusteward:$tag
archive=dist/gpusteward-$tag.oci.tar

if [ -z "${BUILDER:-}" ]; then
	for BUILDER in docker podman buildah none; do
		if [ $BUILDER = docker ]; then
			docker info >/dev/null 2>&1 && break
		else
			type $BUILDER >/dev/null 2>&1 && break
		fi
	done
fi
if [ "$BUILDER" = none ]; then
	echo "found no running docker, no podman and no buildah: install one of them" >&2
	exit 1
fi

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
usr=$context/files/usr
library=$usr/lib/x86_64-linux-gnu/gpusteward
mkdir -p dist "$context/empty" "$usr/bin" "$library" "$usr/share/doc/gpusteward"
install -m 755 gpusteward "$usr/bin/"
strip --strip-unneeded -o "$library/libgpusteward.so" enforcer/hook/build/libgpusteward.so
install -m 644 LICENSE "$usr/share/doc/gpusteward/copyright"
chmod -R go=u-w "$context"
cp deploy/container/Dockerfile "$context"

build=("$@" --build-arg="VERSION=$version" --build-arg="REVISION=$revision" -t "$name" "$context")
rm -f "$archive"
case $BUILDER in
docker)
	docker build -q "${build[@]}" >/dev/null
	docker save -o "$archive" "$name"
	;;
podman)
	podman build -q --timestamp="$SOURCE_DATE_EPOCH" "${build[@]}" >/dev/null
	podman save -q --format=oci-archive -o "$archive" "$name"
	;;
buildah)
	buildah build -q --timestamp="$SOURCE_DATE_EPOCH" "${build[@]}" >/dev/null
	buildah push -q "$name" "oci-archive:$archive:$name"
	;;
*)
	echo "BUILDER=$BUILDER is not docker, podman or buildah" >&2
	exit 1
	;;
esac
echo "$archive"
