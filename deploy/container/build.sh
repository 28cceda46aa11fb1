#!/bin/bash
# Builds the image from the results of `make build`, binaries.sh and `make kube`, for
# the architectures in $ARCH, with docker, podman or buildah: $BUILDER or the first that
# is installed. It writes to dist/, or $DIST: gpusteward-TAG.oci.tar, which all three
# can load, and image.yaml, values for the chart that name the image. $IMAGE is its
# repository, $BASE another base. Arguments are passed to the build.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${ARCH:=$(cd dist && ls -d amd64 arm64 2>/dev/null)}" # those that binaries.sh has built
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y go.mod)}"
export SOURCE_DATE_EPOCH
version=$(./gpusteward --version | sed -n '1s/^gpusteward, version \([^ ]*\).*/\1/p')
revision=$(./gpusteward --version | sed -n '1s/.*revision: \([^,)]*\).*/\1/p')
tag=${version//[^A-Za-z0-9_.-]/-}
repository=${IMAGE:-ghcr.io/gpusteward/gpusteward}
name=$repository:$tag
dist=${DIST:-dist}
archive=$dist/gpusteward-$tag.oci.tar

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
mkdir -p "$dist" "$context/empty"
declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
platforms=
for arch in $ARCH; do
	platforms+=${platforms:+,}linux/$arch
	usr=$context/files/$arch/usr
	library=$usr/lib/${machines[$arch]}-linux-gnu/gpusteward
	mkdir -p "$usr/bin" "$library" "$usr/share/doc/gpusteward"
	install -m 755 "dist/$arch/gpusteward" "dist/$arch/gpusteward-kube" "$usr/bin/"
	install -m 755 "dist/$arch/libgpusteward.so" "$library/"
	install -m 644 LICENSE "$usr/share/doc/gpusteward/copyright"
done
chmod -R go=u-w "$context"
cp deploy/container/Dockerfile "$context"

build=("$@" ${BASE:+--build-arg="BASE=$BASE"} --build-arg="VERSION=$version" --build-arg="REVISION=$revision" "$context")
rm -f "$archive"
case $BUILDER in
docker) # more than one architecture needs its containerd image store, or a builder with its own driver
	docker buildx build -q --provenance=false --output="type=oci,dest=$archive,name=$name" --platform="$platforms" "${build[@]}" >/dev/null
	;;
podman)
	podman manifest rm "$name" >/dev/null 2>&1 || podman rmi "$name" >/dev/null 2>&1 || :
	for arch in $ARCH; do # all at once, the manifest would have them in any order
		podman build -q --timestamp="$SOURCE_DATE_EPOCH" --manifest="$name" --platform="linux/$arch" "${build[@]}" >/dev/null
	done
	podman manifest push -q --all "$name" "oci-archive:$archive:$name"
	;;
buildah)
	buildah manifest rm "$name" >/dev/null 2>&1 || buildah rmi "$name" >/dev/null 2>&1 || :
	for arch in $ARCH; do # likewise
		buildah build -q --timestamp="$SOURCE_DATE_EPOCH" --manifest="$name" --platform="linux/$arch" "${build[@]}" >/dev/null
	done
	buildah manifest push -q --all "$name" "oci-archive:$archive:$name"
	;;
*)
	echo "BUILDER=$BUILDER is not docker, podman or buildah" >&2
	exit 1
	;;
esac
printf 'image: {repository: "%s", tag: "%s"}\n' "$repository" "$tag" >"$dist/image.yaml"
echo "$archive"
