//go:build deploy

package packages

import (
	"bytes"
	"debug/elf"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestEachArchitecture: the metadata, the program and the hook are of the architecture that the
// name of the package says.
func TestEachArchitecture(t *testing.T) {
	t.Parallel()
	for arch, machine := range machines {
		b, root := shipped(t, arch), unpacked(t, arch)
		if got := strings.TrimSpace(run(t, "dpkg-deb", "-f", b.deb, "Architecture")); got != arch {
			t.Errorf("%s is for %s", filepath.Base(b.deb), got)
		}
		if got := run(t, "rpm", "-qp", "--queryformat", "%{ARCH}", b.rpm); got != machine {
			t.Errorf("%s is for %s", filepath.Base(b.rpm), got)
		}
		for name, kind := range map[string]elf.Type{
			"usr/bin/gpusteward": elf.ET_EXEC,
			"usr/lib/" + machine + "-linux-gnu/gpusteward/libgpusteward.so": elf.ET_DYN,
		} {
			file, err := elf.Open(filepath.Join(root, name))
			if err != nil {
				t.Error(err)
				continue
			}
			want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
			if file.Machine != want || file.Type != kind || file.Class != elf.ELFCLASS64 {
				t.Errorf("%s: %s is %v for %v", arch, name, file.Type, file.Machine)
			}
			if file.Section(".debug_info") != nil {
				t.Errorf("%s: %s is not stripped", arch, name)
			}
			file.Close()
		}
	}
}

// TestArm64AgentServes runs the program of the arm64 package under qemu, with the C library that
// the cross compiler brings.
func TestArm64AgentServes(t *testing.T) {
	t.Parallel()
	l := fixture.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	at := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	cmd := exec.Command("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu",
		filepath.Join(unpacked(t, "arm64"), "usr/bin/gpusteward"), "--demo=h100", "--web.listen-address="+at,
		"--state.dir="+dir, "--runtime.dir="+dir)
	var log bytes.Buffer
	cmd.Stderr = &log
	fixture.Must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill() })
	scrape := func() string {
		answer, err := http.Get("http://" + at + "/metrics")
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return string(text)
	}
	text := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(text, "\nnvgpu_power_watts{"); text = scrape() {
		fixture.Stop(t, time.Now().After(end), "a scrape answers %.500s", text)
		select {
		case err := <-ended:
			t.Fatalf("the agent ended with %v:\n%s", err, &log)
		case <-time.After(50 * time.Millisecond):
		}
	}
	fixture.Contains(t, text, "\ngpusteward_build_info{", "a scrape answers")
	cmd.Process.Signal(syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM it ended with %v:\n%s", err, &log)
	}
}

// TestCompilersAreNamed: without the cross compiler, the packages of this machine are built, and
// the error for the others names Debian's packages.
func TestCompilersAreNamed(t *testing.T) {
	t.Parallel()
	tools := t.TempDir()
	for _, tool := range []string{"as", "bash", "cp", "dirname", "gcc", "go", "ld", "make", "mkdir", "strip"} {
		path := fixture.Value(exec.LookPath(tool))(t)
		fixture.Must(t, os.Symlink(path, filepath.Join(tools, tool)))
	}
	tree := t.TempDir() // other tests use dist/ meanwhile
	for name, text := range map[string]string{
		"deploy/binaries.sh": read(t, "../binaries.sh"),
		"gpusteward":         "",
		"enforcer/hook/Makefile": "all:\n\t@mkdir -p $(BUILD) && $(CC) -x c -shared -o $(BUILD)/libgpusteward.so " +
			"/dev/null\n",
	} {
		fixture.Must(t, os.MkdirAll(filepath.Join(tree, filepath.Dir(name)), 0o755))
		fixture.Program(t, filepath.Join(tree, name), text)
	}
	const missing = "arm64 needs the compiler aarch64-linux-gnu-gcc: " +
		"apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross\n"
	for arch, want := range map[string]string{
		"":        "amd64\n" + missing,
		"amd64":   "amd64\n",
		"arm64":   missing,
		"riscv64": "ARCH=riscv64: the architectures are amd64 and arm64\n",
	} {
		cmd := exec.Command(filepath.Join(tree, "deploy/binaries.sh"))
		cmd.Env = append(os.Environ(), "PATH="+tools, "ARCH="+arch)
		out, err := cmd.CombinedOutput()
		fixture.If(t, string(out) != want || (err == nil) != strings.HasPrefix(want, "amd64"),
			"ARCH=%s: %v, %q; want %q", arch, err, out, want)
	}
}

// TestArm64LooksForItsHook where the package puts it. Here it is not installed.
func TestArm64LooksForItsHook(t *testing.T) {
	t.Parallel()
	program := filepath.Join(unpacked(t, "arm64"), "usr/bin/gpusteward")
	out, err := exec.Command("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", program, "exec", "--", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(out), ", /usr/lib/aarch64-linux-gnu/gpusteward/libgpusteward.so, ") {
		t.Errorf("%v: %s", err, out)
	}
}
