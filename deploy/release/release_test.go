//go:build deploy

// Package release tests what make release collects. It uses the packages and programs in dist/.
package release

import (
	"debug/buildinfo"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// collect runs build.sh, and returns the directory of the release.
func collect(t *testing.T, environment ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "release")
	cmd := exec.Command("./build.sh")
	cmd.Env = append(os.Environ(), append(environment, "RELEASE="+dir)...)
	out, err := cmd.CombinedOutput()
	fixture.Need(t, err, nil, "%s", out)
	return dir
}

func TestRelease(t *testing.T) {
	out := fixture.Value(exec.Command("../../gpusteward", "--version").Output())(t)
	m := regexp.MustCompile(`^gpusteward, version (\S+) \(revision: [0-9a-f]+, commit of 20\d\d-\d\d-\d\dT[\d:]+Z\)\n`).
		FindSubmatch(out)
	fixture.Need(t, m != nil, true, "--version says %s", out)
	version := string(m[1])
	tag, number := regexp.MustCompile(`[^\w.-]`).ReplaceAllString(version, "-"), strings.ReplaceAll(version, "~", "-")
	images := t.TempDir()
	stand := exec.Command("sh", "-c", "mkdir blobs && touch index.json oci-layout && tar -cf gpusteward-"+tag+".oci.tar *")
	stand.Dir = images // in place of the image
	fixture.Must(t, stand.Run())
	dir := collect(t, "DIST="+images, "IMAGE=registry.example/gpusteward")
	again := collect(t, "DIST="+images, "IMAGE=registry.example/gpusteward", "TZ=Asia/Kathmandu", "LC_ALL=C")

	files := fixture.Value(os.ReadFile(filepath.Join(dir, "SHA256SUMS")))(t)
	fixture.Equal(t, string(fixture.Value(os.ReadFile(filepath.Join(again, "SHA256SUMS")))(t)), string(files),
		"another release of the same builds has")
	check := exec.Command("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	check.Dir = dir
	said, err := check.CombinedOutput()
	fixture.Equal(t, err, nil, "sha256sum says %s", said)
	var names []string
	for line := range strings.Lines(string(files)) {
		names = append(names, strings.Fields(line)[1])
	}
	want := []string{"CHANGELOG.md", "gpusteward-" + number + ".tgz", "gpusteward-" + tag + ".oci.tar",
		"gpusteward-" + version + ".cdx.json"}
	for arch, machine := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
		want = append(want, "gpusteward-"+version+"-linux-"+arch+".tar.gz")
		for _, name := range []string{"gpusteward", "gpusteward-otlp"} {
			want = append(want, name+"_"+version+"_"+arch+".deb", name+"-"+version+"."+machine+".rpm")
		}
	}
	slices.Sort(names)
	slices.Sort(want)
	fixture.Equal(t, strings.Join(names, "\n"), strings.Join(want, "\n"), "the release has")

	for _, archive := range []string{"gpusteward-" + version + "-linux-amd64.tar.gz", "gpusteward-" + number + ".tgz"} {
		said, err := exec.Command("tar", "-C", images, "-xzf", filepath.Join(dir, archive)).CombinedOutput()
		fixture.Need(t, err, nil, "%s", said)
	}
	chart := fixture.Value(os.ReadFile(filepath.Join(images, "gpusteward/Chart.yaml")))(t)
	fixture.Contains(t, string(chart), "\nversion: "+number+"\nappVersion: \""+tag+"\"", "the chart is")
	fixture.Contains(t, string(fixture.Value(os.ReadFile(filepath.Join(images, "gpusteward/values.yaml")))(t)),
		"\n  repository: registry.example/gpusteward\n", "its image is")
	fixture.Value(os.ReadFile(filepath.Join(images, "gpusteward/files/gpusteward.rules.yml")))(t)

	var bom struct {
		Components []struct{ Name, Version string }
	}
	fixture.Must(t, json.Unmarshal(fixture.Value(os.ReadFile(filepath.Join(dir, "gpusteward-"+version+".cdx.json")))(t), &bom))
	listed := map[string]bool{}
	for _, c := range bom.Components {
		listed[c.Name+" "+c.Version] = true
	}
	for _, name := range []string{"gpusteward", "gpusteward-kube", "gpusteward-otlp"} {
		path := filepath.Join(images, "gpusteward-"+version+"-linux-amd64", name)
		info := fixture.Value(buildinfo.ReadFile(path))(t)
		for _, m := range info.Deps {
			fixture.Equal(t, listed[m.Path+" "+m.Version], true, "the bill of materials has %s of %s: %v", m.Path, name,
				slices.Sorted(maps.Keys(listed)))
		}
		static := !strings.Contains(string(fixture.Value(exec.Command("readelf", "-lW", path).Output())(t)), "INTERP")
		fixture.Equal(t, static, name != "gpusteward", "%s is static", name)
	}
}
