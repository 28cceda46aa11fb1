package preload

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// TestExecProcess is not a test: other tests start it as a process, and the environment tells it what to execute.
func TestExecProcess(t *testing.T) {
	text := os.Getenv("GS_TEST_EXEC")
	if text == "" {
		t.Skip("run by the other tests")
	}
	_ = os.Unsetenv("GS_TEST_EXEC")
	if os.Getenv("GS_TEST_HASTE") == "" { // however busy this machine is
		patience, patienceRequired, listWithin = time.Minute, time.Minute, time.Minute
	}
	var o ExecOptions
	fixture.Must(t, json.Unmarshal([]byte(text), &o))
	status, err := Exec(o, os.Stderr)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(status)
}

// An onlyTenant is a policy with one tenant for every process, regardless of its request.
type onlyTenant string

func (o onlyTenant) Tenant(_ broker.Facts, wished string) (string, error) {
	if wished != "" && wished != string(o) {
		return "", errors.New("there is no such tenant")
	}
	return string(o), nil
}
func (o onlyTenant) Quota(string, string) broker.Quota { return broker.Quota{} }
func (o onlyTenant) Tenants() []string                 { return []string{string(o)} }

// socketOf returns a path for a socket.
func socketOf(t *testing.T) string { return filepath.Join(fixture.ShortDir(t), "s") }

// brokerOf starts a broker of one tenant, and returns it with its socket.
func brokerOf(t *testing.T, tenant string) (b *broker.Broker, socket string) {
	t.Helper()
	return brokerBy(t, onlyTenant(tenant))
}

// brokerBy starts a broker with a policy, and returns it with its socket.
func brokerBy(t *testing.T, p broker.Policy) (b *broker.Broker, socket string) {
	t.Helper()
	socket = socketOf(t)
	b = fixture.Value(broker.New(broker.Options{Socket: socket, Policy: p, Logger: slog.New(slog.DiscardHandler)}))(t)
	fixture.Running(t, b.Run)
	return b, socket
}

// executing returns a command that calls Exec and is not started yet. It has a broker unless the options name a socket.
func executing(t *testing.T, o ExecOptions, env ...string) *exec.Cmd {
	t.Helper()
	if o.Socket == "" {
		_, o.Socket = brokerOf(t, cmp.Or(o.Tenant, "a"))
	}
	text := fixture.Value(json.Marshal(o))(t)
	exe := fixture.Value(os.Executable())(t)
	cmd := exec.Command(exe, "-test.run=^TestExecProcess$", "-test.v=false")
	cmd.Env = append([]string{"GS_TEST_EXEC=" + string(text), "PATH=/usr/bin:/bin"}, env...)
	return cmd
}

// executed returns a program's exit status under Exec, and its output.
func executed(t *testing.T, o ExecOptions, env ...string) (status int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := executing(t, o, env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	fixture.Stop(t, cmd.ProcessState == nil, "%v", err)
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// ended compares the end of a program with what is wanted: its exit status, and a part of its messages;
// empty: it has none.
func ended(t *testing.T, name string, status, want int, errs, says string) {
	t.Helper()
	fixture.If(t, status != want || !strings.Contains(errs, says) || (says == "") != (errs == ""),
		"%s: exit status %d, %q; want %d and %q", name, status, errs, want, says)
}

// build compiles C into a file of a new directory. Exec accepts any library as the hook, even one that does nothing.
func build(t *testing.T, name, source string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-o", path, "-", "-xnone"}, flags...)...)
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.CombinedOutput()
	fixture.Stop(t, err != nil, "%v\n%s", err, out)
	return path
}

func hook(t *testing.T) string {
	t.Helper()
	return build(t, Library, "int gs_none;", "-shared", "-fPIC")
}

func TestExecLoadsTheHookAndSaysWhereTheBrokerIs(t *testing.T) {
	t.Parallel()
	library := hook(t)
	_, socket := brokerOf(t, "a")
	const script = `echo "$LD_PRELOAD|$GPUSTEWARD_TENANT|$GPUSTEWARD_SOCKET|$1 $2"; grep -c "$0" /proc/self/maps`
	command := []string{"sh", "-c", script, library, "a b", "--tenant"}
	other := build(t, "other.so", "int other;", "-shared", "-fPIC")
	old := hook(t) // another library, in a directory of its own
	for name, c := range map[string]struct{ tenant, before, preload, after string }{
		"alone":             {"", "", library, ""},
		"with a tenant":     {"a", "GPUSTEWARD_TENANT=b", library, "a"},
		"of the caller's":   {"", "GPUSTEWARD_TENANT=a", library, "a"},
		"beside another":    {"", "LD_PRELOAD=" + other, library + ":" + other, ""},
		"and not twice":     {"", "LD_PRELOAD=" + other + " " + library, library + ":" + other, ""},
		"instead of an old": {"", "LD_PRELOAD=" + old + ":" + other + ":", library + ":" + other, ""},
	} {
		status, out, errs := executed(t, ExecOptions{Tenant: c.tenant, Socket: socket, Library: library,
			Command: command}, cmp.Or(c.before, "X=1"), "GPUSTEWARD_SOCKET=/old")
		lines := strings.Split(out, "\n")
		if want := c.preload + "|" + c.after + "|" + socket + "|a b --tenant"; status != 0 || errs != "" ||
			len(lines) != 3 || lines[0] != want || lines[1] == "0" {
			t.Errorf("%s: exit status %d, %q %q; want %q and the library in the process", name, status, out, errs, want)
		}
	}
}

// The program is the process that the caller started, so the caller observes it directly.
func TestExecIsTheProgram(t *testing.T) {
	t.Parallel()
	o := ExecOptions{Library: hook(t)}
	for _, want := range []int{0, 1, 42, 125, 255} {
		o.Command = []string{"sh", "-c", fmt.Sprintf("exit %d", want)}
		status, _, errs := executed(t, o)
		fixture.If(t, status != want || errs != "", "exit status %d (%q), want %d", status, errs, want)
	}
	for script, want := range map[string]syscall.Signal{"kill -SEGV $$": syscall.SIGSEGV,
		"kill -KILL $$": syscall.SIGKILL} {
		o.Command = []string{"sh", "-c", script}
		cmd := executing(t, o)
		_ = cmd.Run()
		got := cmd.ProcessState.Sys().(syscall.WaitStatus)
		fixture.If(t, !got.Signaled() || got.Signal() != want, "%s ends as %v", script, cmd.ProcessState)
	}
	o.Command = []string{"sh", "-c", `trap 'echo got it; exit 7' TERM; echo $$; while :; do read -r line; done`}
	cmd := executing(t, o)
	in := fixture.Value(cmd.StdinPipe())(t)
	defer in.Close()
	out := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	var pid int
	var got, it string
	if _, err := fmt.Fscanln(out, &pid); err != nil || pid != cmd.Process.Pid {
		t.Errorf("the program is process %d, the caller's is %d (%v)", pid, cmd.Process.Pid, err)
	}
	fixture.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	_, _ = in.Write([]byte("\n")) // dash handles signals between commands
	_, err := fmt.Fscanln(out, &got, &it)
	fixture.If(t, err != nil || got+" "+it != "got it", "after SIGTERM the program prints %q (%v)", got+" "+it, err)
	_ = cmd.Wait()
	fixture.Equal(t, cmd.ProcessState.ExitCode(), 7, "it ends with %v, want its own 7", cmd.ProcessState)
}

// Signals that the shell ignores for a background command stay ignored.
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
		fixture.Must(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	plain := file("plain", "#!/bin/sh\nexit 3\n", 0o644)
	foreign := fixture.Value(os.ReadFile(library))(t)
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
		"nothing":                {library, nil, 125, "no command given"},
		"no hook":                {dir + "/none.so", []string{"true"}, 125, "make hook"},
		"no library":             {plain, []string{"true"}, 125, "is not a library"},
		"another machine's":      {file(Library, string(foreign), 0o755), []string{"true"}, 125, "not a library for this machine"},
		"a colon":                {file("a:b.so", string(foreign), 0o755), []string{"true"}, 125, "would split this path"},
	} {
		status, _, errs := executed(t, ExecOptions{Library: c.library, Command: c.command}, "PATH="+dir+":/usr/bin:/bin")
		ended(t, name, status, c.status, errs, c.says)
	}
}

func TestExecFindsTheHook(t *testing.T) {
	library := hook(t)
	if status, out, errs := executed(t, ExecOptions{Command: []string{"sh", "-c", "echo $LD_PRELOAD"}},
		"GPUSTEWARD_LIBRARY="+library); status != 0 || out != library+"\n" {
		t.Errorf("named by the environment: exit status %d, %q %q", status, out, errs)
	}
	for _, beside := range []string{Library, "enforcer/hook/build/" + Library} {
		dir := t.TempDir()
		exe := fixture.Value(os.Executable())(t)
		for to, from := range map[string]string{filepath.Join(dir, "gpusteward"): exe,
			filepath.Join(dir, beside): library} {
			fixture.Must(t, os.MkdirAll(filepath.Dir(to), 0o755))
			if err := os.Link(from, to); err != nil {
				text := fixture.Value(os.ReadFile(from))(t)
				fixture.Program(t, to, text)
			}
		}
		cmd := executing(t, ExecOptions{Command: []string{"sh", "-c", "echo $LD_PRELOAD"}})
		cmd.Path = filepath.Join(dir, "gpusteward")
		fixture.Equal(t, string(fixture.Value(cmd.CombinedOutput())(t)), filepath.Join(dir, beside)+"\n",
			"%s beside the program", beside)
	}
}

func TestExecWarnsOfWhatTheHookCannotSee(t *testing.T) {
	t.Parallel()
	o := ExecOptions{Library: hook(t)}
	me, other := os.Getuid(), 65534
	for _, c := range []struct {
		owner      int
		mode       os.FileMode
		flag, says string
	}{
		{me, 0, "-static", "is linked statically: the hook cannot see it"},
		{me, 0, "-static-pie", "is linked statically: the hook cannot see it"},
		{me, 0, "-pie", ""},
		{me, os.ModeSetuid, "-pie", ""}, // the program raises its own rights
		{other, 0, "-pie", ""},
		{other, os.ModeSetuid, "-pie", "runs with another user's rights: the hook cannot see it"},
	} {
		if c.owner != me && me != 0 {
			continue // only root can give a file away
		}
		path := build(t, "program", "int main(void) { return 5; }", c.flag)
		fixture.Must(t, errors.Join(os.Chown(path, c.owner, -1), os.Chmod(path, 0o755|c.mode)))
		o.Command = []string{path}
		status, _, errs := executed(t, o)
		ended(t, fmt.Sprintf("%+v", c), status, 5, errs, c.says)
	}
}

// TestExecRunsWhatCannotLoadTheHook: programs that the hook would end run without it, and the message says why.
func TestExecRunsWhatCannotLoadTheHook(t *testing.T) {
	t.Parallel()
	good := hook(t)
	program := func(flags ...string) string {
		return build(t, "program", `#include <stdlib.h>
#include <string.h>
int main(void) { const char *p = getenv("LD_PRELOAD"); return p && strstr(p, "libgpusteward") ? 1 : 5; }`, flags...)
	}
	// As AddressSanitizer does, it ends a program in which it is not the first library.
	asan := build(t, "libasan.so.8", `#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void check(void)
{ const char *p = getenv("LD_PRELOAD"); if (p && !strstr(p, "libasan")) _exit(1);
  if (p && strstr(p, "libgpusteward") && strstr(p, "libgpusteward") < strstr(p, "libasan")) _exit(2); }`,
		"-shared", "-fPIC", "-Wl,-soname,libasan.so.8")
	sanitized := program("-Wl,--no-as-needed", asan, "-Wl,-rpath,"+filepath.Dir(asan))
	needs := build(t, "libneeds.so", "int needs;", "-shared", "-fPIC", "-Wl,--no-as-needed", asan, "-Wl,-rpath,"+filepath.Dir(asan))
	plain := program()
	file := fixture.Value(elf.Open(plain))(t)
	loader, err := io.ReadAll(file.Progs[slices.IndexFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })].Open())
	fixture.Must(t, errors.Join(err, file.Close()))
	musl := filepath.Join(t.TempDir(), "ld-musl-x86_64.so.1")
	fixture.Must(t, os.Symlink(strings.TrimRight(string(loader), "\x00"), musl))
	absent := build(t, "libmissing.so", "int missing;", "-shared", "-fPIC", "-Wl,-soname,libmissing.so")
	refused := build(t, Library, "int gs_none;", "-shared", "-fPIC", "-Wl,--no-as-needed", absent)
	fixture.Must(t, os.Remove(absent))
	script := func(line string) string {
		path := filepath.Join(t.TempDir(), "script")
		fixture.Program(t, path, "#!"+line+"\n")
		return path
	}
	for name, c := range map[string]struct {
		library, path, preload, says string
		status                       int
	}{
		"plain":                           {good, plain, "", "", 1},
		"AddressSanitizer":                {good, sanitized, "", "AddressSanitizer (libasan.so.8)", 5},
		"in one of its libraries":         {good, program("-Wl,--no-as-needed", needs, "-Wl,-rpath,"+filepath.Dir(needs)), "", "AddressSanitizer", 5},
		"as a script's interpreter":       {good, script(sanitized), "", "AddressSanitizer", 5},
		"found by env":                    {good, script("/usr/bin/env -S A=1 program"), "", "AddressSanitizer", 5},
		"that the caller preloads":        {good, sanitized, asan, "", 1},
		"that is preloaded and not named": {good, plain, asan, "", 1},
		"musl":                            {good, program("-Wl,--dynamic-linker=" + musl), "", "another C library than glibc", 5},
		"a loader that refuses it":        {refused, plain, "", "refuses the hook", 5},
	} {
		t.Run(name, func(t *testing.T) {
			env := []string{"PATH=" + filepath.Dir(sanitized) + ":/usr/bin:/bin"}
			if c.preload != "" {
				env = append(env, "LD_PRELOAD="+c.preload)
			}
			status, _, errs := executed(t, ExecOptions{Library: c.library, Command: []string{c.path}}, env...)
			ended(t, name, status, c.status, errs, c.says)
		})
	}
}

// A program starts even without a broker, unless one is required. If no broker takes it, a message says so.
func TestExecSaysWhereNoQuotaHolds(t *testing.T) {
	t.Parallel()
	library, none := hook(t), socketOf(t)
	b, socket := brokerOf(t, "a")
	silent := fixture.Value(net.ListenUnix("unixpacket", &net.UnixAddr{Name: socketOf(t), Net: "unixpacket"}))(t)
	defer func() { _ = silent.Close() }()
	for name, c := range map[string]struct {
		socket, tenant string
		require        bool
		env            string
		status         int
		says           string
	}{
		"a broker":           {socket, "a", false, "X=1", 5, ""},
		"a broker, required": {socket, "", true, "X=1", 5, ""},
		"no broker":          {none, "", false, "X=1", 5, "no broker at " + none + ": no such file or directory: no quota applies"},
		"no broker, closed": {none, "", false, "GPUSTEWARD_FAIL=closed", 5,
			"no broker at " + none + ": no such file or directory: the program's launches wait"},
		"no broker, required": {none, "", true, "X=1", 125,
			"no broker at " + none + ": no such file or directory; --require-broker"},
		"no answer": {silent.Addr().String(), "", false, "GS_TEST_HASTE=1", 5, "no answer: i/o timeout: no quota applies"},
		"not of it": {socket, "b", false, "X=1", 5,
			"the broker at " + socket + " refuses: there is no such tenant: no quota applies"},
		"not of it, by its own": {socket, "", false, "GPUSTEWARD_TENANT=b", 5,
			"refuses: there is no such tenant: no quota applies"},
		"not of it, required": {socket, "b", true, "X=1", 125, "refuses: there is no such tenant; --require-broker"},
	} {
		o := ExecOptions{Tenant: c.tenant, Socket: c.socket, Library: library, Require: c.require,
			Command: []string{"sh", "-c", "exit 5"}}
		status, _, errs := executed(t, o, c.env)
		ended(t, name, status, c.status, errs, c.says)
		fixture.AtMost(t, strings.Count(errs, "\n"), 1, "%s: lines", name)
	}
	sessions := func() (n int) {
		for _, count := range b.Stats().Sessions {
			n += count
		}
		return n
	}
	for end := time.Now().Add(time.Minute); sessions() > 0; time.Sleep(time.Millisecond) {
		fixture.Stop(t, time.Now().After(end), "programs that ended have sessions: %v", b.Stats().Sessions)
	}
}

// TestExecObserves runs a program only if a broker holds it to no terms. Its hook asks
// for no tenant, so that a later broker with terms does not refuse it.
func TestExecObserves(t *testing.T) {
	t.Parallel()
	library := hook(t)
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: quota.Free()}}
	_, free := brokerBy(t, tabled{policy.New(table, policy.HostView{}, nil)})
	table.Default.Limit = 0.5
	_, bound := brokerBy(t, tabled{policy.New(table, policy.HostView{}, nil)})
	none := socketOf(t)
	for name, c := range map[string]struct {
		socket, tenant string
		status         int
		says           string
	}{
		"without terms": {free, "", 5, ""},
		"with terms": {bound, "", 125, "the broker at " + bound + " refuses: this process is held to terms, those of tenant " +
			"\"default\"; --observe needs"},
		"no broker":     {none, "", 125, "no broker at " + none + ": no such file or directory; --observe needs"},
		"with a tenant": {free, "a", 125, "leave out --tenant"},
	} {
		o := ExecOptions{Observe: true, Tenant: c.tenant, Socket: c.socket, Library: library,
			Command: []string{"sh", "-c", `echo "$GPUSTEWARD_TENANT"; exit 5`}}
		status, out, errs := executed(t, o, "GPUSTEWARD_TENANT=b")
		ended(t, name, status, c.status, errs, c.says)
		fixture.If(t, c.status == 5 && out != "\n", "%s: the hook asks for tenant %q", name, out)
	}
}

// TestTermsEndUnbound gives terms to a program that was held to none: they hold
// from then on, whatever the program asked for.
func TestTermsEndUnbound(t *testing.T) {
	t.Parallel()
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: quota.Free()}}
	b, socket := brokerBy(t, tabled{policy.New(table, policy.HostView{}, nil)})
	conn := fixture.Value(net.Dial("unixpacket", socket))(t)
	defer conn.Close()
	hello := wire.Hello{GPUs: 1, UUID: [wire.GPUs][16]byte{{1}}}
	copy(hello.Tenant[:], policy.Unbound)
	frame := make([]byte, wire.FrameMax)
	fixture.Must(t, fixture.Error(conn.Write(hello.Append(wire.Header{Type: wire.TypeHello}.Append(nil)))))
	fixture.Must(t, fixture.Error(conn.Read(frame)))
	all := b.Sessions()
	fixture.Stop(t, len(all) != 1 || all[0].Tenant != policy.DefaultTenant, "sessions: %+v", all)
	late := policy.Rule{Name: "late", Select: []policy.Selector{{Users: []string{fmt.Sprint(os.Getuid())}}}, Terms: table.Default}
	late.Limit = 0.5
	table.Rules = []policy.Rule{late}
	b.Reload(tabled{policy.New(table, policy.HostView{}, nil)})
	all = b.Sessions()
	fixture.If(t, len(all) != 1 || all[0].Tenant != "late", "after the terms: %+v", all)
	n, err := conn.Read(frame)
	if h, payload, _ := wire.Decode(frame[:n]); err != nil || h.Type != wire.TypeNotice ||
		!strings.Contains(string(payload), `no longer grants the request for "+observe": this process is held to terms`) {
		t.Errorf("the program is told %q, %v", payload, err)
	}
}

// tabled is a policy whose quotas do not matter.
type tabled struct{ *policy.Policy }

func (tabled) Quota(string, string) broker.Quota { return broker.Quota{} }

// held is a policy of one tenant with a quota.
type held struct {
	onlyTenant
	quota broker.Quota
}

func (h held) Quota(string, string) broker.Quota { return h.quota }

func TestExecSaysWhichQuotaHolds(t *testing.T) {
	t.Parallel()
	free := quota.Free()
	some := quota.Quota{Guarantee: .2, Limit: .5, Memory: 8 << 30}
	part := quota.Quota{Limit: 1, MemoryPart: .3}
	o := ExecOptions{Library: hook(t), Command: []string{"true"}, Tell: true}
	for want, q := range map[string]broker.Quota{"tenant a: no quota": {Quota: free},
		"tenant a: guarantee 20 %, limit 50 %, memory 8 GiB":           {Quota: some},
		"tenant a: memory 30 % of the GPU's; other terms on some GPUs": {Quota: part, Differs: true}} {
		_, o.Socket = brokerBy(t, held{"a", q})
		status, _, errs := executed(t, o)
		ended(t, want, status, 0, errs, "gpusteward: "+want+"\n")
	}
	fixture.Equal(t, heldTo(wire.Welcome{Tenant: [64]byte{'b'}}, false), "tenant b", "of an older broker")
	fixture.Equal(t, heldTo(wire.Welcome{}, true), "it is only observed", "without terms")
}

// A full queue of connections shows that a broker runs: the program waits for it.
func TestExecWaitsForABusyBroker(t *testing.T) {
	t.Parallel()
	path := socketOf(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0))
	}
	fixture.Must(t, err)
	defer func() { _ = unix.Close(fd) }()
	first := fixture.Value(net.Dial("unixpacket", path))(t)
	defer func() { _ = first.Close() }()
	if _, err := net.Dial("unixpacket", path); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("the queue takes a second one: %v", err)
	}
	go func() {
		for range 2 {
			if c, _, err := unix.Accept(fd); err == nil {
				_ = unix.Send(c, (&wire.Welcome{}).Append(wire.Header{Type: wire.TypeWelcome}.Append(nil)), 0)
			}
		}
	}()
	fixture.Must(t, fixture.Error(taken(path, "", true)))
}
