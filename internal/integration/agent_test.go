package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	entry "gpusteward/internal/agent"
	"gpusteward/internal/fixture"
)

// asAgent is the environment variable that makes the test binary the agent, for tests that need a process of
// their own. It has the root directory of the agent's host.
const asAgent = "GPUSTEWARD_TEST_AS_AGENT"

func TestMain(m *testing.M) {
	if root := os.Getenv(asAgent); root != "" {
		os.Exit(entry.Main(root))
	}
	if addresses := os.Getenv(asPeer); addresses != "" {
		besiege(addresses)
		os.Exit(0)
	}
	if os.Getenv(onFaulty) != "" {
		panic(beFaulty())
	}
	if _, err := os.Stat("go.mod"); err != nil { // paths begin at the root; a built test may also start there
		if err := os.Chdir("../.."); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	if err := fixture.ReadByOthers("."); err != nil { // scripts, and the files of deploy
		panic(err)
	}
	if machine == "" {
		var err error
		if machine, err = os.MkdirTemp("", "gs"); err == nil {
			err = bare(machine)
		}
		if err != nil {
			panic(err)
		}
	}
	for _, name := range []string{"NODE_NAME", "NOTIFY_SOCKET", "GPUSTEWARD_SOCKET", "GPUSTEWARD_TENANT"} {
		os.Unsetenv(name)
	}
	status := m.Run()
	if machine != "/" {
		os.RemoveAll(machine)
	}
	os.Exit(status)
}

// run runs the program and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return entry.Run(ctx, machine, args, stdout, stderr)
}

// gpusteward runs a command of the program in this process.
func gpusteward(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

// process returns a command of the program as a process of its own.
func process(environment []string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asAgent+"="+machine), environment...)
	return cmd
}

// exited runs a command to its end.
func exited(t *testing.T, cmd *exec.Cmd) (status int, stdout string) {
	t.Helper()
	out, err := cmd.Output()
	fixture.Need(t, cmd.ProcessState == nil, false, "it did not begin: %v", err)
	return cmd.ProcessState.ExitCode(), string(out)
}

// content returns the text of a file.
func content(t *testing.T, path string) string {
	t.Helper()
	return string(fixture.Value(os.ReadFile(path))(t))
}

const loopback = "--web.listen-address=127.0.0.1:0"

// patience is the time after which a test gives up, also on a machine with ten times as much work as
// processors; ending is the time in which an agent must end.
const patience, ending = 3 * time.Minute, time.Minute

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	fixture.Until(t, patience, what, cond)
}

// A transcript is the output of a program.
type transcript struct{ fixture.Transcript }

// find returns the first line of the log with that message; nil if there is none.
func (l *transcript) find(message string) map[string]any {
	for line := range strings.Lines(l.String()) {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) == nil && entry["message"] == message {
			return entry
		}
	}
	return nil
}

// An agent is a running agent, in this process or as a child.
type agent struct {
	t      *testing.T
	log    *transcript
	end    func()
	ended  chan struct{} // closed when the agent has ended
	status int           // its exit status after that
	pid    int           // of a child
	client *http.Client
	url    string
}

// ownDirectories gives an agent directories of its own, unless args have them.
func ownDirectories(t *testing.T, args []string) []string {
	var own []string
	for _, flag := range []string{"--state.dir=", "--runtime.dir="} {
		if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, flag) }) {
			own = append(own, flag+t.TempDir())
		}
	}
	return own
}

// socketOf returns a copy of a listener's descriptor until the test ends.
func socketOf(t *testing.T, l interface{ File() (*os.File, error) }) *os.File {
	t.Helper()
	file := fixture.Value(l.File())(t)
	t.Cleanup(func() { file.Close() })
	return file
}

// onLoopback returns a listener that is closed with the test.
func onLoopback(t *testing.T) *net.TCPListener {
	t.Helper()
	l := fixture.Value(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

// uuid returns the UUID of a GPU.
func (a *agent) uuid(gpu int) string {
	a.t.Helper()
	_, page := a.get("/metrics")
	_, rest, _ := strings.Cut(page, "nvgpu_up{"+label(gpu)+`,uuid="`)
	id, _, _ := strings.Cut(rest, `"`)
	return id
}

// start runs the program in this process.
func start(t *testing.T, args ...string) *agent {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &agent{t: t, log: new(transcript), end: cancel, ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		a.status = run(ctx, append(args, append(ownDirectories(t, args), loopback)...), io.Discard, a.log)
	}()
	a.begin()
	return a
}

// spawn runs the program as a child process, with additions to its environment.
func spawn(t *testing.T, environment []string, args ...string) *agent {
	t.Helper()
	cmd := exec.Command(os.Args[0], append(args, loopback)...)
	cmd.Env = append(os.Environ(), environment...)
	return launch(t, cmd)
}

// launch is spawn for a given command.
func launch(t *testing.T, cmd *exec.Cmd) *agent {
	t.Helper()
	a := &agent{t: t, log: new(transcript), ended: make(chan struct{})}
	cmd.Args = append(cmd.Args, ownDirectories(t, cmd.Args)...)
	cmd.Env = append([]string{asAgent + "=" + machine}, append(cmd.Env, "GORACE=atexit_sleep_ms=0")...)
	cmd.Stderr = a.log
	fixture.Must(t, cmd.Start())
	a.pid = cmd.Process.Pid
	a.end = func() { cmd.Process.Signal(syscall.SIGTERM) }
	go func() {
		defer close(a.ended)
		state, _ := cmd.Process.Wait()
		a.status = state.ExitCode()
		cmd.Wait() // until all its output is there
	}()
	t.Cleanup(func() { cmd.Process.Kill() }) // if it ignored the signal
	a.begin()
	return a
}

// waited returns how long the agent has waited for a processor from now on, as long as one of its threads did.
func (a *agent) waited() func() time.Duration {
	seen := map[string]time.Duration{}
	fixture.Waited(a.pid, seen)
	return func() time.Duration { return fixture.Waited(a.pid, seen) }
}

func (a *agent) begin() {
	a.client = &http.Client{Timeout: ending, Transport: &http.Transport{DisableKeepAlives: true}}
	a.t.Cleanup(func() {
		a.stop()
		if a.t.Failed() {
			a.t.Logf("log of the agent:\n%s", a.log)
		}
	})
}

// listening waits for the agent's address.
func (a *agent) listening() *agent {
	a.t.Helper()
	var entry map[string]any
	eventually(a.t, "the agent listens", func() bool {
		entry = a.log.find("Listening on")
		return entry != nil || a.hasEnded()
	})
	fixture.Stop(a.t, entry == nil, "the agent ended with status %d before it listened", a.status)
	a.url = "http://" + entry["address"].(string)
	return a
}

func (a *agent) hasEnded() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// stop ends the agent and returns its exit status.
func (a *agent) stop() int {
	a.t.Helper()
	a.end()
	return a.wait()
}

// endsWell stops the agent, which must end with status 0.
func (a *agent) endsWell() {
	a.t.Helper()
	fixture.Equal(a.t, a.stop(), 0, "exit status")
}

// wait returns the agent's exit status; it must end soon.
func (a *agent) wait() int {
	a.t.Helper()
	select {
	case <-a.ended:
		return a.status
	case <-time.After(ending):
		a.t.Errorf("the agent did not end within %v", ending)
		if a.pid == 0 { // it is in this process
			stacks := new(strings.Builder)
			_ = pprof.Lookup("goroutine").WriteTo(stacks, 1)
			a.t.Logf("goroutines:\n%s", stacks)
		}
		return -1
	}
}

// fetch returns the status and the body of a page.
func (a *agent) fetch(path string) (int, string, error) {
	response, err := a.client.Get(a.url + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

func (a *agent) get(path string) (int, string) {
	a.t.Helper()
	status, body, err := a.fetch(path)
	fixture.Must(a.t, err)
	return status, body
}

// ready waits until /-/ready answers 200.
func (a *agent) ready() *agent {
	a.t.Helper()
	a.listening()
	eventually(a.t, "the agent is ready", func() bool {
		status, _ := a.get("/-/ready")
		return status == http.StatusOK
	})
	return a
}

// scrape returns /metrics by series.
func (a *agent) scrape() series {
	a.t.Helper()
	status, body := a.get("/metrics")
	fixture.Need(a.t, status, http.StatusOK, "/metrics: … %s", body)
	return parse(body)
}

// series are values by name and labels, as in the exposition.
type series map[string]float64

func parse(exposition string) series {
	s := series{}
	for line := range strings.Lines(exposition) {
		at := strings.LastIndexByte(line, ' ')
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); line[0] != '#' && err == nil {
			s[line[:at]] = v
		}
	}
	return s
}

// family returns the values of a family's series that have all labels, each as name="value".
func (s series) family(name string, labels ...string) (values []float64) {
	for key, v := range s {
		n, rest, _ := strings.Cut(key, "{")
		if n == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			values = append(values, v)
		}
	}
	return values
}

// machine is the root directory of the host that agents run on, unless a test
// has another for them. They find nothing of this machine but its processes.
var machine string

// bare makes a directory the root of a host without a driver and without
// configuration, whose kernel has logged nothing.
func bare(root string) error {
	return errors.Join(os.Chmod(root, 0o755), os.Mkdir(filepath.Join(root, "dev"), 0o755),
		os.WriteFile(filepath.Join(root, "dev/kmsg"), nil, 0o644), os.Mkdir(filepath.Join(root, "sys"), 0o755),
		os.Symlink("/proc", filepath.Join(root, "proc")))
}

// records returns texts as records of the kernel's log. They came one after the other, the last one an interval ago.
func records(interval time.Duration, texts []string) string {
	var log strings.Builder
	for i, text := range texts {
		at := time.Duration(fixture.Monotonic()) - time.Duration(len(texts)-i)*interval
		fmt.Fprintf(&log, "4,%d,%d,-;%s\n", i, at.Microseconds(), text)
	}
	return log.String()
}

// onFaulty is the environment variable that has all tests run on a machine whose kernel has logged every
// fault that there is, as real hosts do. A test that reads this machine's log fails then. It requires root.
const onFaulty = "GPUSTEWARD_TEST_ON_FAULTY_MACHINE"

// beFaulty begins this program anew, in a mount namespace with such a log. It does not return, unless that fails.
func beFaulty() error {
	lines, err := os.ReadFile("../../health/incident/testdata/kernel-lines.tsv")
	if err != nil {
		return err
	}
	var texts []string
	for row := range strings.Lines(string(lines)) {
		texts = append(texts, strings.Split(row, "\t")[1])
	}
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "kmsg")
	runtime.LockOSThread() // the namespace is that of a thread
	for _, do := range []func() error{
		func() error { return os.WriteFile(path, []byte(records(time.Millisecond, texts)), 0o644) },
		func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount(path, "/dev/kmsg", "", unix.MS_BIND, "") },
		func() error { return os.RemoveAll(dir) },
		func() error { return os.Unsetenv(onFaulty) },
		func() error { return syscall.Exec("/proc/self/exe", os.Args, os.Environ()) },
	} {
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", onFaulty, err)
		}
	}
	return nil
}
