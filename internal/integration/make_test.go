package integration

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// TestMakeRunSaysWhyItBuilds: make run explains a build that takes long, and is
// silent about a short one. The tree has a go that builds when it is told to.
func TestMakeRunSaysWhyItBuilds(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("there is no make here:", err)
	}
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, slow := range []bool{true, false} {
		dir := t.TempDir()
		wait := filepath.Join(dir, "wait")
		built := "#!/bin/sh\necho the agent runs\n"
		compile := "printf '" + strings.ReplaceAll(built, "\n", "\\n") + "' >gpusteward; chmod +x gpusteward"
		if slow {
			if err := unix.Mkfifo(wait, 0o600); err != nil {
				t.Fatal(err)
			}
			compile = "cat wait >/dev/null; " + compile
		}
		for _, name := range []string{"bin", "enforcer/hook", "deploy/package"} {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		fixture.Program(t, filepath.Join(dir, "bin/go"), "#!/bin/sh\n"+compile+"\n")
		fixture.Program(t, filepath.Join(dir, "deploy/package/version.sh"), "#!/bin/sh\necho 1\n")
		for name, content := range map[string]string{"Makefile": string(text), "enforcer/hook/Makefile": "all:\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		patience := map[bool]string{true: "0.1", false: "600"}[slow]
		cmd := exec.Command("make", "--no-print-directory", "-C", dir, "run", "PATIENCE="+patience)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "MAKEFLAGS=", "MAKELEVEL=")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		if slow {
			line, err := lines.ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "Building gpusteward. The first build takes ") {
				t.Errorf("a long build: %q, %v", line, err)
			}
			if err := os.WriteFile(wait, nil, 0o600); err != nil { // now it goes on
				t.Fatal(err)
			}
		}
		rest, err := io.ReadAll(lines)
		if err != nil || strings.Contains(string(rest), "Building") || !strings.HasSuffix(string(rest), "the agent runs\n") {
			t.Errorf("then (slow: %v): %q, %v", slow, rest, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}
