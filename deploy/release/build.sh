#!/bin/bash
# Collects a release in dist/release, or $RELEASE, from the results of make package,
# package-otlp and image: packages, archives of the programs, the image from dist/ or
# $DIST, the chart, a bill of materials and checksums. The chart's image is that of
# the archive, $IMAGE. Two runs are identical.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y go.mod)}"
: "${RELEASE:=dist/release}"
export SOURCE_DATE_EPOCH LC_ALL=C # the order of names
version=$(./gpusteward --version | sed -n '1s/^gpusteward, version \([^ ]*\).*/\1/p')
tag=${version//[^A-Za-z0-9_.-]/-}

grep -q "^## $version\$" CHANGELOG.md || echo "CHANGELOG.md has no section $version: its changes are in the first one" >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$RELEASE"
mkdir -p "$RELEASE"

# pack DIRECTORY NAME... packs files of a directory.
pack() {
	tar --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
		-C "$1" -c "${@:2}"
}

for arch in amd64 arm64; do
	name=gpusteward-$version-linux-$arch
	mkdir "$work/$name"
	cp dist/$arch/{gpusteward,libgpusteward.so,gpusteward-kube,gpusteward-otlp} LICENSE CHANGELOG.md deploy/gpusteward.yml \
		"$work/$name"
	pack "$work" "$name" | gzip -n >"$RELEASE/$name.tar.gz"
done
cp dist/gpusteward_"$version"_*.deb dist/gpusteward-"$version".*.rpm dist/otlp/gpusteward-otlp[_-]"$version"* \
	CHANGELOG.md "$RELEASE"
mkdir "$work/image" # the archive has the times of its files
tar -C "$work/image" -xf "${DIST:-dist}/gpusteward-$tag.oci.tar"
pack "$work/image" blobs index.json oci-layout >"$RELEASE/gpusteward-$tag.oci.tar"

# Helm wants a version of three numbers with - and +, and sets files below the chart's name.
cp -RL deploy/kubernetes/chart "$work/gpusteward"
sed -i -E "s|^version: .*|version: ${version//\~/-}|; s|^appVersion: [^ ]*|appVersion: \"$tag\"|" "$work/gpusteward/Chart.yaml"
[ -z "${IMAGE:-}" ] || sed -i -E "s|^  repository: .*|  repository: $IMAGE|" "$work/gpusteward/values.yaml"
pack "$work" gpusteward | gzip -n >"$RELEASE/gpusteward-${version//\~/-}.tgz"

go run deploy/release/sbom.go "$version" dist/{amd64,arm64}/gpusteward{,-kube,-otlp} >"$RELEASE/gpusteward-$version.cdx.json"
cd "$RELEASE"
sha256sum -- * >"$work/SHA256SUMS"
cp "$work/SHA256SUMS" .
ls -l
