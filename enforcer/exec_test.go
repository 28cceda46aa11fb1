package enforcer

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestExecProcess is no test: it becomes what the environment says, in a
// process that the other tests start.
func TestExecProcess(t *testing.T) {
	text := os.Getenv("GS_TEST_EXEC")
	if text == "" {
		t.Skip("run by the other tests")
	}
	_ = os.Unsetenv("GS_TEST_EXEC")
	var o ExecOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	status, err := Exec(o, os.Stderr)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(status)
}

// executing returns a command that is not started, which calls Exec.
func executing(t *testing.T, o ExecOptions, env ...string) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestExecProcess$", "-test.v=false")
	cmd.Env = append([]string{"GS_TEST_EXEC=" + string(text), "PATH=/usr/bin:/bin"}, env...)
	return cmd
}

// executed returns the exit status of a program under Exec, and what it wrote.
func executed(t *testing.T, o ExecOptions, env ...string) (status int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := executing(t, o, env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// build compiles C into a file of a new directory; a library that does nothing
// is a hook as far as Exec can tell.
func build(t *testing.T, name, source string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-o", path, "-"}, flags...)...)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func hook(t *testing.T) string {
	t.Helper()
	return build(t, Library, "int gs_none;", "-shared", "-fPIC")
}

func TestExecLoadsTheHookAndSaysWhereTheBrokerIs(t *testing.T) {
	t.Parallel()
	library := hook(t)
	const script = `echo "$LD_PRELOAD|$GPUSTEWARD_TENANT|$GPUSTEWARD_SOCKET|$1 $2"; grep -c "$0" /proc/self/maps`
	command := []string{"sh", "-c", script, library, "a b", "--tenant"}
	other := build(t, "other.so", "int other;", "-shared", "-fPIC")
	old := hook(t) // another one, of a directory of its own
	for name, c := range map[string]struct{ tenant, before, preload, after string }{
		"alone":             {"", "", library, ""},
		"with a tenant":     {"a", "GPUSTEWARD_TENANT=b", library, "a"},
		"of the caller's":   {"", "GPUSTEWARD_TENANT=b", library, "b"},
		"beside another":    {"", "LD_PRELOAD=" + other, library + ":" + other, ""},
		"and not twice":     {"", "LD_PRELOAD=" + other + " " + library, library + ":" + other, ""},
		"instead of an old": {"", "LD_PRELOAD=" + old + ":" + other + ":", library + ":" + other, ""},
	} {
		status, out, errs := executed(t, ExecOptions{Tenant: c.tenant, Socket: "/s", Library: library, Command: command}, cmp.Or(c.before, "X=1"), "GPUSTEWARD_SOCKET=/old")
		lines := strings.Split(out, "\n")
		if want := c.preload + "|" + c.after + "|/s|a b --tenant"; status != 0 || errs != "" || len(lines) != 3 || lines[0] != want || lines[1] == "0" {
			t.Errorf("%s: exit status %d, %q %q; want %q and the library in the process", name, status, out, errs, want)
		}
	}
}

// The program is the process that the caller started: whatever it does and
// whatever is done to it is seen from outside as it is.
func TestExecIsTheProgram(t *testing.T) {
	t.Parallel()
	o := ExecOptions{Library: hook(t)}
	for _, want := range []int{0, 1, 42, 125, 255} {
		o.Command = []string{"sh", "-c", fmt.Sprintf("exit %d", want)}
		if status, _, errs := executed(t, o); status != want || errs != "" {
			t.Errorf("exit status %d (%q), want %d", status, errs, want)
		}
	}
	for script, want := range map[string]syscall.Signal{"kill -SEGV $$": syscall.SIGSEGV, "kill -KILL $$": syscall.SIGKILL} {
		o.Command = []string{"sh", "-c", script}
		cmd := executing(t, o)
		_ = cmd.Run()
		if got := cmd.ProcessState.Sys().(syscall.WaitStatus); !got.Signaled() || got.Signal() != want {
			t.Errorf("%s ends as %v", script, cmd.ProcessState)
		}
	}
	o.Command = []string{"sh", "-c", `trap 'echo got it; exit 7' TERM; echo $$; while :; do read -r line; done`}
	cmd := executing(t, o)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var got, it string
	if _, err := fmt.Fscanln(out, &pid); err != nil || pid != cmd.Process.Pid {
		t.Errorf("the program is process %d, the caller's is %d (%v)", pid, cmd.Process.Pid, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Write([]byte("\n")) // dash looks for signals between commands
	if _, err := fmt.Fscanln(out, &got, &it); err != nil || got+" "+it != "got it" {
		t.Errorf("of SIGTERM the program says %q (%v)", got+" "+it, err)
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("it ends with %v, want its own 7", cmd.ProcessState)
	}
}

// What the shell ignores for a command in the background stays ignored.
func TestExecKeepsSignalsIgnored(t *testing.T) {
	t.Parallel()
	inner := executing(t, ExecOptions{Library: hook(t), Command: []string{"grep", "SigIgn", "/proc/self/status"}})
	cmd := exec.Command("sh", append([]string{"-c", `trap "" HUP INT; exec "$0" "$@"`}, inner.Args...)...)
	cmd.Env = inner.Env
	out, err := cmd.Output()
	var mask uint64
	if _, scan := fmt.Sscanf(string(out), "SigIgn: %x", &mask); err != nil || scan != nil || mask&3 != 3 {
		t.Errorf("%q (%v): SIGHUP and SIGINT are no longer ignored", out, err)
	}
}

func TestExecFailsAsEnvDoes(t *testing.T) {
	t.Parallel()
	library, dir := hook(t), t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := file("plain", "#!/bin/sh\nexit 3\n", 0o644)
	foreign, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	foreign = slices.Clone(foreign)
	foreign[18] = byte(elf.EM_AARCH64) // e_machine
	foreign[19] = 0
	for name, c := range map[string]struct {
		library string
		command []string
		status  int
		says    string
	}{
		"no such command":        {library, []string{"gs-no-such-command"}, 127, "gs-no-such-command"},
		"no such file":           {library, []string{dir + "/none"}, 127, dir + "/none"},
		"no interpreter":         {library, []string{file("lost", "#!/no/such/shell\n", 0o755)}, 127, "interpreter"},
		"not executable":         {library, []string{plain}, 126, "permission denied"},
		"not executable in PATH": {library, []string{"plain"}, 126, "permission denied"},
		"a directory":            {library, []string{dir}, 126, "permission denied"},
		"a script without #!":    {library, []string{file("bare", "exit 9\n", 0o755)}, 9, ""},
		"nothing":                {library, nil, 125, "which command"},
		"no hook":                {dir + "/none.so", []string{"true"}, 125, "make hook"},
		"no library":             {plain, []string{"true"}, 125, "is no library"},
		"another machine's":      {file(Library, string(foreign), 0o755), []string{"true"}, 125, "no library of this machine"},
		"a colon":                {file("a:b.so", string(foreign), 0o755), []string{"true"}, 125, "takes a path with a colon"},
	} {
		status, _, errs := executed(t, ExecOptions{Library: c.library, Command: c.command}, "PATH="+dir+":/usr/bin:/bin")
		if status != c.status || !strings.Contains(errs, c.says) || (c.says == "") != (errs == "") {
			t.Errorf("%s: exit status %d, %q; want %d and %q", name, status, errs, c.status, c.says)
		}
	}
}

func TestExecFindsTheHook(t *testing.T) {
	library := hook(t)
	if status, out, errs := executed(t, ExecOptions{Command: []string{"sh", "-c", "echo $LD_PRELOAD"}}, "GPUSTEWARD_LIBRARY="+library); status != 0 || out != library+"\n" {
		t.Errorf("named by the environment: exit status %d, %q %q", status, out, errs)
	}
	for _, beside := range []string{Library, "enforcer/hook/build/" + Library} {
		dir := t.TempDir()
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		for to, from := range map[string]string{filepath.Join(dir, "gpusteward"): exe, filepath.Join(dir, beside): library} {
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Link(from, to); err != nil {
				text, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(to, text, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		cmd := executing(t, ExecOptions{Command: []string{"sh", "-c", "echo $LD_PRELOAD"}})
		cmd.Path = filepath.Join(dir, "gpusteward")
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != filepath.Join(dir, beside)+"\n" {
			t.Errorf("%s beside the program: %q, %v", beside, out, err)
		}
	}
}

func TestExecWarnsOfWhatTheHookCannotSee(t *testing.T) {
	t.Parallel()
	o := ExecOptions{Library: hook(t)}
	me, other := os.Getuid(), 65534
	for _, c := range []struct {
		owner int
		mode  os.FileMode
		flag  string
		says  string
	}{
		{me, 0, "-static", "is linked statically: the hook cannot see it"},
		{me, 0, "-static-pie", "is linked statically: the hook cannot see it"},
		{me, 0, "-pie", ""},
		{me, os.ModeSetuid, "-pie", ""}, // its own rights
		{other, 0, "-pie", ""},
		{other, os.ModeSetuid, "-pie", "runs with another's rights: the hook cannot see it"},
	} {
		if c.owner != me && me != 0 {
			continue // only root can give a file away
		}
		path := build(t, "program", "int main(void) { return 5; }", c.flag)
		if err := errors.Join(os.Chown(path, c.owner, -1), os.Chmod(path, 0o755|c.mode)); err != nil {
			t.Fatal(err)
		}
		o.Command = []string{path}
		if status, _, errs := executed(t, o); status != 5 || !strings.Contains(errs, c.says) || (c.says == "") != (errs == "") {
			t.Errorf("%+v: exit status %d, %q", c, status, errs)
		}
	}
}
