//go:build deploy

// Package container builds the image and runs it. Its base is built from the same Debian packages as the real base, so
// no registry is needed. The tests need root, apt, buildah and runc.
package container

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

const (
	repository     = "../.."
	nonroot        = 65532
	mostCompressed = 40_000_000 // bytes in a registry, which each node downloads
)

// run runs a command in dir and returns its output.
func run(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	fixture.Stop(t, err != nil, "%q: %v\n%s", command, err, out)
	return strings.TrimSpace(string(out))
}

// standIn builds a replacement for gcr.io/distroless/base-debian12:nonroot: for amd64 from the same
// packages; for arm64 only its configuration, because no container is run there.
func standIn(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	download := []string{"apt-get", "download", "-q", "base-files", "ca-certificates", "libc6", "libssl3", "netbase",
		"tzdata"}
	fetch := exec.Command(download[0], download[1:]...)
	fetch.Dir = dir
	if fetch.Run() != nil { // a fresh machine has no package lists
		run(t, dir, "apt-get", "update", "-q")
		run(t, dir, download...)
	}
	root := filepath.Join(dir, "root-amd64")
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	fixture.Stop(t, err != nil || len(debs) != 6, "%q, %v", debs, err)
	for _, deb := range debs {
		run(t, dir, "dpkg-deb", "-x", deb, root)
	}
	fixture.Rewrite(t, filepath.Join(root, "etc/passwd"), "root:x:0:0:root:/root:/sbin/nologin\n"+
		"nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n"+
		"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
	fixture.Rewrite(t, filepath.Join(root, "etc/group"), "root:x:0:\nnobody:x:65534:\ntty:x:5:\nstaff:x:50:\nnonroot:x:65532:\n")
	run(t, root, "sh", "-c", "mkdir -p etc/ssl/certs home/nonroot && "+
		"cat usr/share/ca-certificates/mozilla/*.crt >etc/ssl/certs/ca-certificates.crt && "+
		"chown 65532:65532 home/nonroot")
	fixture.Rewrite(t, filepath.Join(dir, "root-arm64/etc/passwd"), "nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
	fixture.Rewrite(t, filepath.Join(dir, "Dockerfile"), "FROM scratch\nARG TARGETARCH\nCOPY root-${TARGETARCH}/ /\n"+
		"ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "+
		"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\nUSER 65532\nWORKDIR /home/nonroot\n")
	const name = "localhost/base-debian12:nonroot"
	run(t, dir, "buildah", "build", "-q", "--platform=linux/amd64,linux/arm64", "--manifest="+name, dir)
	return name
}

// An image is the metadata of an image in an OCI archive.
type image struct {
	manifest struct {
		Config blob   `json:"config"`
		Layers []blob `json:"layers"`
	}
	config struct {
		Architecture string `json:"architecture"`
		Config       struct {
			User, WorkingDir string
			Env, Entrypoint  []string
			Labels           map[string]string
			ExposedPorts     map[string]struct{}
		} `json:"config"`
	}
	compressed int64 // bytes
}

type blob struct {
	Digest   string `json:"digest"`
	Size     int64  `json:"size"`
	Platform struct {
		Architecture, OS string
	} `json:"platform"`
}

// unpack reads the image for an architecture from an archive, and unpacks its layers into root.
// The archive has the images for amd64 and arm64.
func unpack(t *testing.T, archive, arch, root string) (i image) {
	t.Helper()
	dir := t.TempDir()
	run(t, dir, "tar", "-xf", archive)
	read := func(path string, into any) {
		text, err := os.ReadFile(filepath.Join(dir, path))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		fixture.Must(t, err)
	}
	file := func(b blob) string { return "blobs/" + strings.Replace(b.Digest, ":", "/", 1) }
	var named, index struct{ Manifests []blob }
	read("index.json", &named)
	fixture.Need(t, len(named.Manifests), 1, "the archive has … images under names")
	read(file(named.Manifests[0]), &index)
	platforms := map[string]blob{}
	for _, m := range index.Manifests {
		platforms[m.Platform.OS+"/"+m.Platform.Architecture] = m
	}
	fixture.Stop(t, len(index.Manifests) != 2 || len(platforms) != 2, "the archive has images for %v", platforms)
	manifest, ok := platforms["linux/"+arch]
	fixture.Stop(t, !ok, "the archive has images for %v", platforms)
	read(file(manifest), &i.manifest)
	read(file(i.manifest.Config), &i.config)
	for _, l := range i.manifest.Layers {
		i.compressed += l.Size
		run(t, root, "tar", "-xzf", filepath.Join(dir, file(l)))
	}
	return i
}

// A container is a process that runc runs in an image's files. Its root directory is read-only,
// it has only the given capabilities, and it cannot gain privileges. It shares the host's
// network and PID namespace, which a broker needs to identify its clients.
type container struct {
	root         string
	program      string // default: the image's entry point
	env          []string
	uid          int
	capabilities []string
	mounts       map[string]string // directories of the host, by mount point
}

// command returns the command that runs args in the container.
func (c container) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	type mount struct {
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Destination string   `json:"destination"`
		Options     []string `json:"options"`
	}
	own := fmt.Sprintf("uid=%d", c.uid)
	mounts := []mount{
		{"proc", "proc", "/proc", nil},
		{"tmpfs", "tmpfs", "/dev", []string{"nosuid", "mode=755"}},
		{"tmpfs", "tmpfs", "/run/gpusteward", []string{own}},
	}
	for to, from := range c.mounts {
		how := "rw"
		if strings.HasSuffix(to, "/broker") {
			how = "ro"
		}
		mounts = append(mounts, mount{"bind", from, to, []string{"bind", how}})
	}
	type object = map[string]any
	spec := object{
		"ociVersion": "1.0.2",
		"root":       object{"path": c.root, "readonly": true},
		"mounts":     mounts,
		"process": object{
			"args": append([]string{cmp.Or(c.program, "/usr/bin/gpusteward")}, args...), "env": c.env, "cwd": "/",
			"user": object{"uid": c.uid, "gid": c.uid}, "noNewPrivileges": true,
			"capabilities": object{
				"bounding": c.capabilities, "effective": c.capabilities, "permitted": c.capabilities,
			},
		},
		"linux": object{"namespaces": []object{{"type": "mount"}, {"type": "ipc"}}},
	}
	text := fixture.Value(json.Marshal(spec))(t)
	bundle := t.TempDir()
	fixture.Rewrite(t, filepath.Join(bundle, "config.json"), string(text))
	return exec.Command("runc", "--root", runcRoot, "run", "--bundle", bundle, name)
}

const runcRoot = "/run/gpusteward-test-runc"

// does runs args in the container and returns the output.
func (c container) does(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := c.command(t, fmt.Sprintf("gpusteward-test-%d", time.Now().UnixNano()), args...).CombinedOutput()
	return string(out), err
}

// eventually waits until done returns nil.
func eventually(t *testing.T, done func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// answers requests url and returns an error unless the response contains want.
func answers(url, want string) error {
	answer, err := http.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && !strings.Contains(string(text), want) {
		err = fmt.Errorf("%s answers %s, %.200q, without %q", url, answer.Status, text, want)
	}
	return err
}

// begins starts args in the container and returns its name. end stops it with SIGTERM and checks its exit status.
func (c container) begins(t *testing.T, args ...string) (name string, end func()) {
	t.Helper()
	name = fmt.Sprintf("gpusteward-test-%d", time.Now().UnixNano())
	var log bytes.Buffer
	cmd := c.command(t, name, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	fixture.Must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if exec.Command("runc", "--root", runcRoot, "kill", name, "KILL").Run() == nil { // the test failed
			<-ended
		}
		if t.Failed() {
			t.Logf("%q:\n%s", args, log.String())
		}
	})
	return name, func() {
		t.Helper()
		run(t, ".", "runc", "--root", runcRoot, "kill", name, "TERM")
		select {
		case err := <-ended:
			ended <- err
			fixture.If(t, err != nil, "%q: it ended with %v after SIGTERM", args, err)
		case <-time.After(20 * time.Second):
			t.Errorf("%q: it did not end after SIGTERM", args)
		}
	}
}

// serves runs an agent in the container and calls look while it runs.
func (c container) serves(t *testing.T, look func(url, name string), args ...string) {
	t.Helper()
	at := fixture.FreeAddress(t)
	name, end := c.begins(t, append(args, "--web.listen-address="+at)...)
	eventually(t, func() error { return answers("http://"+at+"/-/healthy", "is healthy") })
	look("http://"+at, name)
	end()
}

// sum returns what identifies the image for an architecture.
func sum(t *testing.T, archive, arch string) string {
	return unpack(t, archive, arch, t.TempDir()).manifest.Config.Digest
}

// onArm64 checks the image for arm64: its program runs under qemu, and the hook is in the place for it.
func onArm64(t *testing.T, archive string) {
	t.Helper()
	root := t.TempDir()
	i := unpack(t, archive, "arm64", root)
	fixture.If(t, i.config.Architecture != "arm64" || i.config.Config.User != "65532:65532" ||
		!slices.Equal(i.config.Config.Entrypoint, []string{"/usr/bin/gpusteward"}),
		"the image for arm64 is %+v", i.config)
	for name, kind := range map[string]elf.Type{
		"usr/bin/gpusteward": elf.ET_EXEC,
		"usr/lib/aarch64-linux-gnu/gpusteward/libgpusteward.so": elf.ET_DYN,
	} {
		file, err := elf.Open(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		fixture.If(t, file.Machine != elf.EM_AARCH64 || file.Type != kind,
			"%s is %v for %v", name, file.Type, file.Machine)
		file.Close()
	}
	fixture.If(t, fixture.Error(os.Stat(filepath.Join(root, "usr/lib/x86_64-linux-gnu/gpusteward"))) == nil,
		"the image for arm64 has the hook for amd64")
	out := run(t, root, "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "usr/bin/gpusteward", "--version")
	fixture.Contains(t, out, "linux/arm64", "the program for arm64 says")
}

func TestImage(t *testing.T) {
	store := t.TempDir()
	fixture.Rewrite(t, filepath.Join(store, "storage.conf"),
		fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n",
			filepath.Join(store, "graph"), filepath.Join(store, "run")))
	t.Setenv("CONTAINERS_STORAGE_CONF", filepath.Join(store, "storage.conf"))
	t.Setenv("BUILDER", "buildah")
	missing := exec.Command("deploy/container/build.sh", "--build-arg=BASE=localhost/missing", "--pull=never")
	missing.Dir = repository
	if out, err := missing.CombinedOutput(); err == nil || strings.Contains(string(out), ".oci.tar") {
		t.Errorf("a build without its base succeeds: %v\n%s", err, out)
	}
	base := standIn(t)
	built := func() string {
		out := run(t, repository, "deploy/container/build.sh", "--build-arg=BASE="+base, "--pull=never")
		return filepath.Join(repository, out[strings.LastIndex(out, "\n")+1:])
	}
	archive := fixture.Value(filepath.Abs(built()))(t)
	root := t.TempDir()
	i := unpack(t, archive, "amd64", root)
	t.Logf("%s: %.1f MB compressed, %d layers", filepath.Base(archive), float64(i.compressed)/1e6, len(i.manifest.Layers))
	fixture.AtMost(t, i.compressed, mostCompressed, "the image has … bytes")
	onArm64(t, archive)
	before := sum(t, archive, "amd64") + sum(t, archive, "arm64")
	built()
	again := sum(t, archive, "amd64") + sum(t, archive, "arm64")
	fixture.If(t, again != before, "two builds of one tree differ: %s and %s", before, again)

	c := i.config.Config
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/usr/bin/gpusteward"}) ||
		i.config.Architecture != "amd64" {
		t.Errorf("user %q, entry point %q, %s", c.User, c.Entrypoint, i.config.Architecture)
	}
	if _, ok := c.ExposedPorts["9836/tcp"]; !ok || !slices.Contains(c.Env, "NVIDIA_VISIBLE_DEVICES=all") ||
		!slices.Contains(c.Env, "NVIDIA_DRIVER_CAPABILITIES=utility") {
		t.Errorf("ports %v, environment %q", c.ExposedPorts, c.Env)
	}
	version := strings.Fields(run(t, repository, "./gpusteward", "--version"))[2]
	for label, want := range map[string]string{
		"title": "gpusteward", "licenses": "Apache-2.0", "version": version,
		"source": "https://github.com/gpusteward/gpusteward",
	} {
		fixture.Equal(t, c.Labels["org.opencontainers.image."+label], want, "label %s is", label)
	}

	t.Run("observes a simulated host", func(t *testing.T) {
		container{root: root, env: c.Env, uid: nonroot}.serves(t, func(url, name string) {
			eventually(t, func() error { return answers(url+"/metrics", "\nnvgpu_power_watts{") })
			out := run(t, ".", "runc", "--root", runcRoot, "exec", "--user", "65532:65532", name,
				"/usr/bin/gpusteward", "status")
			fixture.Contains(t, out, "of 8 GPUs", "status in the container")
		}, "--role=observe", "--demo")
	})
	// As in the chart, root without capabilities. There is no kubelet, and so no file.
	t.Run("asks the kubelet", func(t *testing.T) {
		host := t.TempDir()
		kube := container{root: root, program: "/usr/bin/gpusteward-kube",
			mounts: map[string]string{"/run/gpusteward/kubelet": host}}
		var log bytes.Buffer
		cmd := kube.command(t, "gpusteward-test-kube", "allocations", "--socket=/run/gpusteward/kubelet/kubelet.sock")
		lines, err := cmd.StderrPipe()
		if err == nil {
			err = cmd.Start()
		}
		fixture.Must(t, err)
		if _, err := io.CopyN(&log, lines, 10); err != nil {
			t.Error(err)
		}
		run(t, ".", "runc", "--root", runcRoot, "kill", "gpusteward-test-kube", "TERM")
		_, _ = io.Copy(&log, lines)
		if err := cmd.Wait(); err != nil || !strings.Contains(log.String(), "cannot keep the allocations") {
			t.Errorf("%v: %s", err, log.String())
		}
		if left, err := os.ReadDir(host); err != nil || len(left) > 0 {
			t.Errorf("%v, %v", left, err)
		}
	})
	t.Run("runs programs under the hook", func(t *testing.T) {
		hooked := container{root: root, env: append(slices.Clone(c.Env), "LD_DEBUG=files"), uid: nonroot}
		out, err := hooked.does(t, "exec", "--", "/usr/bin/gpusteward", "--version")
		fixture.If(t, err != nil || !strings.Contains(out, "gpusteward, version") ||
			!strings.Contains(out, "calling init: /usr/lib/x86_64-linux-gnu/gpusteward/libgpusteward.so"),
			"%v: %.500s", err, out)
	})
	// As in the chart: at each start of the pod, an init container with one capability prepares
	// the host for the observer, which has none.
	t.Run("prepares a host and runs without a driver", func(t *testing.T) {
		host := t.TempDir()
		fixture.Must(t, os.Chmod(host, 0o755))
		mounts := map[string]string{}
		for _, name := range []string{"state", "library", "cdi", "run/gpusteward/agent"} {
			mounts["/"+name] = filepath.Join(host, name)
			fixture.Must(t, os.MkdirAll(mounts["/"+name], 0o755)) // like the kubelet
		}
		prepare := container{root: root, env: c.Env, capabilities: []string{"CAP_CHOWN"}, mounts: mounts}
		for range 2 {
			if out, err := prepare.does(t, "install", "--state.dir=/state", "--owner=65532", "--cdi=/cdi",
				"/library"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			container{root: root, env: c.Env, uid: nonroot, mounts: mounts}.serves(t, func(url, _ string) {
				eventually(t, func() error { return answers(url+"/-/ready", "libnvidia-ml.so.1 is not on this host") })
				eventually(t, func() error { return answers(url+"/metrics", "\ngpusteward_driver_up 0") })
			}, "--role=observe", "--state.dir=/state")
			info, err := os.Stat(filepath.Join(mounts["/state"], "events.jsonl"))
			fixture.If(t, err != nil || info.Sys().(*syscall.Stat_t).Uid != nonroot, "the journal: %v, %v", info, err)
		}
		run(t, host, "cmp", "library/gpusteward", filepath.Join(root, "usr/bin/gpusteward"))
		run(t, host, "cmp", "library/libgpusteward.so",
			filepath.Join(root, "usr/lib/x86_64-linux-gnu/gpusteward/libgpusteward.so"))
	})
	// The broker is root with four capabilities. Like pods, the observer has the broker's
	// directory mounted read-only. The broker identifies it by the owner of its own directory.
	t.Run("brokers", func(t *testing.T) {
		host := t.TempDir()
		in := func(path string) string { return filepath.Join(host, path) }
		fixture.Rewrite(t, in("etc/gpusteward.yml"), "enforcer: {enabled: true}\n")
		fixture.Must(t, errors.Join(
			os.Chmod(host, 0o755),
			os.MkdirAll(in("run/broker"), 0o755),
			os.Mkdir(in("run/agent"), 0o755),
			os.Chown(in("run/agent"), nonroot, nonroot),
			os.Mkdir(in("state"), 0o755),
		))
		capabilities := []string{"CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SYS_PTRACE"}
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0); err != nil || has == 0 {
			t.Log("NOT TESTED: the broker with CAP_SYS_RESOURCE, which root lacks here")
		} else {
			capabilities = append(capabilities, "CAP_SYS_RESOURCE")
		}
		broker := container{root: root, env: c.Env, capabilities: capabilities, mounts: map[string]string{
			"/run/gpusteward": in("run"), "/etc/gpusteward": in("etc"), "/state": in("state"),
		}}
		_, end := broker.begins(t, "--role=enforce", "--demo", "--state.dir=/state")
		observer := container{root: root, env: c.Env, uid: nonroot, mounts: map[string]string{
			"/run/gpusteward/agent": in("run/agent"), "/run/gpusteward/broker": in("run/broker"),
			"/etc/gpusteward": in("etc"),
		}}
		observer.serves(t, func(url, _ string) {
			eventually(t, func() error { return answers(url+"/metrics", "\ngpusteward_broker_up 1") })
		}, "--role=observe", "--demo")
		end()
	})
}
