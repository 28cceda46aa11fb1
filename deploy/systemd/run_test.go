//go:build deploy

package systemd

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

const (
	patience = time.Minute // bounds a hang
	watchdog = 2 * time.Second
)

// A service is a running unit, with this test as its service manager.
type service struct {
	root
	unit
	log    *fixture.Transcript
	cmd    *exec.Cmd
	notify *net.UnixConn
	ended  chan struct{}

	mu   sync.Mutex
	told map[int]string // notifications by PID
}

// start starts a unit. file is an activated socket, if any, and before is a prefix of its command.
func (r root) start(name string, variables map[string]string, file *os.File, before ...string) *service {
	t := r.t
	t.Helper()
	s := &service{
		root: r, unit: readUnit(t, name),
		log: new(fixture.Transcript), ended: make(chan struct{}), told: map[int]string{},
	}
	r.makeDirectories(s.unit)
	if s.last("Service.StateDirectory") == "gpusteward" { // the default
		variables["GPUSTEWARD_OPTS"] += " --state.dir=" + r.path("var/lib/gpusteward")
	}
	socket := r.path(name + ".notify")
	err := os.RemoveAll(socket) // left by an earlier run
	fixture.Must(t, err)
	s.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	fixture.Stop(t, err != nil, "%v", err)
	fixture.Must(t, os.Chmod(socket, 0o777))
	raw := fixture.Value(s.notify.SyscallConn())(t)
	fixture.Must(t, raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}))
	sec := seconds(t, s.unit, "WatchdogSec")
	fixture.If(t, sec <= watchdog, "%s: WatchdogSec=%v", name, sec)
	environment := []string{
		"NOTIFY_SOCKET=" + socket,
		fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()), // the unit's is longer
	}
	if file != nil {
		before = append(before, "sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@"`)
	}
	argv := append(append(before, r.confined(s.unit)...), r.command(s.unit, "ExecStart", 0, variables)...)
	if len(before) > 0 && filepath.Base(before[0]) == "systemd-socket-activate" { // passes on only what --setenv names
		for _, variable := range environment {
			argv = append([]string{argv[0], "--setenv=" + variable}, argv[1:]...)
		}
	}
	s.cmd = exec.Command(argv[0], argv[1:]...)
	s.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}, environment...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if file != nil {
		s.cmd.ExtraFiles = []*os.File{file}
	}
	s.cmd.Dir = "/"
	fixture.Must(t, s.cmd.Start())
	var listening sync.WaitGroup
	listening.Go(s.listen)
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.ended
		_ = s.notify.Close()
		listening.Wait()
		if t.Failed() {
			t.Logf("%s, %q:\n%s", name, argv, s.log)
		}
	})
	return s
}

// listen receives notifications.
func (s *service) listen() {
	for b, control := make([]byte, 4096), make([]byte, 256); ; {
		n, cn, _, _, err := s.notify.ReadMsgUnix(b, control)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(control[:cn])
		if err != nil || len(messages) == 0 {
			continue
		}
		from, err := unix.ParseUnixCredentials(&messages[0])
		if err != nil {
			continue
		}
		s.mu.Lock()
		s.told[int(from.Pid)] += string(b[:n]) + "\n"
		s.mu.Unlock()
	}
}

// tells returns how often the main process has sent a notification. NotifyAccess=main ignores other processes.
func (s *service) tells(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.told[s.cmd.Process.Pid], what)
}

func (s *service) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// ready waits until the unit is ready.
func (s *service) ready() *service {
	s.t.Helper()
	fixture.Eventually(s.t, "READY=1", func() bool { return s.tells("READY=1") == 1 || s.over() })
	if s.over() {
		s.t.Fatalf("it ended: %v", s.cmd.ProcessState)
	}
	return s
}

// stop stops the service like systemd, and returns its exit status.
func (s *service) stop() int {
	s.t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	return s.wait()
}

// wait returns the exit status. The service must end within TimeoutStopSec, and within 15 s, since it suspends nobody.
func (s *service) wait() int {
	s.t.Helper()
	limit := min(seconds(s.t, s.unit, "TimeoutStopSec"), 15*time.Second)
	select {
	case <-s.ended:
	case <-time.After(limit):
		s.t.Fatalf("it did not end within %v", limit)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *service) status(key string) string { return status(s.cmd.Process.Pid, key) }

// status returns a line of /proc/PID/status.
func status(pid int, key string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	m := regexp.MustCompile(`(?m)^` + key + `:\s*(.*)$`).FindStringSubmatch(string(text))
	if m == nil {
		return ""
	}
	return m[1]
}

// capabilities are the numbers of those that a unit of ours may name.
var capabilities = map[string]int{"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_KILL": unix.CAP_KILL,
	"CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "CAP_SYSLOG": unix.CAP_SYSLOG}

// granted returns a set of capabilities of the unit as /proc/PID/status prints it. Root in a
// container may lack some of them.
func (s *service) granted(key string) string {
	s.t.Helper()
	set := uint64(0)
	for _, name := range strings.Fields(s.last("Service." + key)) {
		number, known := capabilities[name]
		fixture.Stop(s.t, !known, "%s=%s: give the capability its number in this test", key, name)
		set |= 1 << number
	}
	here, err := strconv.ParseUint(status(os.Getpid(), "CapBnd"), 16, 64)
	fixture.Stop(s.t, err != nil || set == 0, "%s grants %#x, and root has %#x here: %v", key, set, here, err)
	return fmt.Sprintf("%016x", set&here)
}

// url returns the URL at which the service listens.
func (s *service) url() (url string) {
	s.t.Helper()
	fixture.Eventually(s.t, "it listens", func() bool {
		m := regexp.MustCompile(`"address":"([^"]+)".*"message":"Listening on"`).FindStringSubmatch(s.log.String())
		if m != nil {
			url = "http://" + m[1]
		}
		return m != nil || s.over()
	})
	return url
}

const (
	loopback = "--web.listen-address=127.0.0.1:0"
	quotas   = "enforcer:\n  enabled: true\n  tenants:\n    - {name: team, select: [{users: [0]}], guarantee: 40 %}\n"
)

func (r root) config(text string) { put(r.t, r.path("etc/gpusteward/gpusteward.yml"), text, 0o644) }

// TestObserverUnit starts the observer as its unit does, on this host. It becomes ready, has one
// capability, writes its state, serves, and takes commands.
func TestObserverUnit(t *testing.T) {
	t.Parallel()
	r := newRoot(t)
	r.config("")
	began := time.Now()
	s := r.start("gpusteward.service", r.options(loopback), nil).ready()
	t.Logf("ready after %v", time.Since(began))
	fixture.Contains(t, fixture.Get(t, s.url()+"/metrics"), "\ngpusteward_build_info", "/metrics")
	fixture.Eventually(t, "the watchdog is fed twice", func() bool { return s.tells("WATCHDOG=1") >= 2 })
	fixture.If(t, s.tells("STATUS=") == 0, "no STATUS: %v", s.told)
	for key, want := range map[string]string{
		"Uid":    fmt.Sprintf("%d\t%[1]d\t%[1]d\t%[1]d", r.uid),
		"CapEff": s.granted("AmbientCapabilities"), "CapBnd": s.granted("CapabilityBoundingSet"), "NoNewPrivs": "1",
	} {
		fixture.Equal(t, s.status(key), want, "%s", key)
	}
	journal, err := os.ReadDir(r.path("var/lib/gpusteward"))
	fixture.If(t, err != nil || len(journal) == 0, "it wrote no state: %v", err)
	r.is("run/gpusteward/agent/control.sock", os.ModeSocket|0o600, r.uid, r.gid)
	if out, status := run(t, agent, "status", "--runtime.dir="+r.path("run/gpusteward")); status != 0 {
		t.Errorf("gpusteward status: %s", out)
	}
	if kernel, err := os.Open("/dev/kmsg"); err == nil { // as root
		kernel.Close()
		log := s.log.String()
		fixture.If(t, strings.Contains(log, "kmsg"), "it cannot read the kernel's log: %s", log)
	}
	if status := s.stop(); status != 0 || s.tells("STOPPING=1") != 1 {
		t.Errorf("exit status %d; it told %v", status, s.told)
	}
	fixture.If(t, fixture.Error(os.Stat(r.path("run/gpusteward/agent/control.sock"))) == nil,
		"it left its control socket")
}

// listens creates the socket of gpusteward-broker.socket, which systemd would hold.
func (r root) listens() (socket string, file *os.File) {
	r.t.Helper()
	u := readUnit(r.t, "gpusteward-broker.socket")
	socket = r.path(u.last("Socket.ListenSequentialPacket"))
	fixture.If(r.t, u.last("Socket.SocketMode") != "0666" || u.last("Socket.PassCredentials") != "yes", "%v", u)
	l := fixture.Value(net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"}))(r.t)
	file = fixture.Value(l.File())(r.t)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	r.t.Cleanup(func() { file.Close() })
	fixture.Must(r.t, unix.SetsockoptInt(int(file.Fd()), unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
	fixture.Must(r.t, os.Chmod(socket, 0o666))
	return socket, file
}

// asks sends a request to the broker. The returned function waits for an answer of a type.
func asks(t *testing.T, socket string, request []byte) (answered func(want wire.Type)) {
	t.Helper()
	var conn *net.UnixConn
	fixture.Eventually(t, "the socket listens", func() bool { // it exists a moment earlier
		var err error
		conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	fixture.Value(conn.Write(request))(t)
	return func(want wire.Type) {
		t.Helper()
		fixture.Must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		frame := make([]byte, wire.FrameMax)
		n, _, _, _, err := conn.ReadMsgUnix(frame, make([]byte, 64))
		fixture.Must(t, err)
		if h, _, err := wire.Decode(frame[:n]); err != nil || h.Type != want {
			t.Errorf("the answer is %v, %v", h.Type, err)
		}
	}
}

// statistics returns a request for the broker's books.
func statistics() []byte { return wire.Header{Type: wire.TypeStats, Seq: 1}.Append(nil) }

// session returns a request for a session on a GPU, like the hook's.
func session(t *testing.T, uuid string) []byte {
	t.Helper()
	m := wire.Hello{PID: uint32(os.Getpid()), GPUs: 1, CUDA: 13000}
	copy(m.Hook[:], "0.1")
	digits := strings.ReplaceAll(strings.TrimPrefix(uuid, "GPU-"), "-", "")
	_, err := hex.Decode(m.UUID[0][:], []byte(digits))
	fixture.Stop(t, err != nil, "%s: %v", uuid, err)
	return m.Append(wire.Header{Type: wire.TypeHello, Seq: 1}.Append(nil))
}

// TestBrokerIsStartedByItsSocket starts the broker's unit with systemd-socket-activate when a client connects.
func TestBrokerIsStartedByItsSocket(t *testing.T) {
	t.Parallel()
	needs(t, "systemd-socket-activate")
	r := newRoot(t)
	r.config(quotas)
	socket := r.path(readUnit(t, "gpusteward-broker.socket").last("Socket.ListenSequentialPacket"))
	s := r.start("gpusteward-broker.service", r.options("--demo=h100"), nil,
		"systemd-socket-activate", "--seqpacket", "--listen="+socket)
	fixture.Eventually(t, "the socket exists", func() bool { _, err := os.Stat(socket); return err == nil })
	fixture.Must(t, os.Chmod(socket, 0o666))
	answered := asks(t, socket, statistics())
	s.ready()
	answered(wire.TypeStatsReply)
	fixture.Eventually(t, "the watchdog is fed twice", func() bool { return s.tells("WATCHDOG=1") >= 2 })
	bounding := s.granted("CapabilityBoundingSet")
	for key, want := range map[string]string{
		"Uid": "0\t0\t0\t0", "CapEff": bounding, "CapPrm": bounding, "CapBnd": bounding, "NoNewPrivs": "1",
	} {
		fixture.Equal(t, s.status(key), want, "%s", key)
	}
	r.is("run/gpusteward/enforcer.lock", 0o600, 0, 0)
	if status := s.stop(); status != 0 || s.tells("STOPPING=1") != 1 || s.tells("STATUS=") == 0 {
		t.Errorf("exit status %d; it told %v", status, s.told)
	}
}

// TestObserverAndBroker connects an observer to a broker through systemd's socket. The observer
// serves the quotas, also after a restart of the broker.
func TestObserverAndBroker(t *testing.T) {
	t.Parallel()
	r := newRoot(t)
	r.config(quotas)
	socket, file := r.listens()
	before := fixture.Value(os.Stat(socket))(t)
	observer := r.start("gpusteward.service", r.options(loopback, "--demo=h100"), nil).ready()
	url := observer.url()
	m := regexp.MustCompile(`\nnvgpu_up{gpu="0",uuid="([^"]+)"} 1\n`).FindStringSubmatch(fixture.Get(t, url+"/metrics"))
	fixture.Stop(t, m == nil, "there is no GPU")
	guarantee := fmt.Sprintf("\nnvgpu_quota_compute_guarantee_ratio{gpu=\"0\",tenant=\"team\",uuid=\"%s\"} 0.4\n", m[1])
	for range 2 {
		answered := asks(t, socket, session(t, m[1])) // before it runs
		broker := r.start("gpusteward-broker.service", r.options("--demo=h100"), file)
		answered(wire.TypeWelcome)
		broker.ready()
		fixture.Eventually(t, "the observer serves the quotas", func() bool {
			text := fixture.Get(t, url+"/metrics")
			return strings.Contains(text, "\ngpusteward_broker_up 1\n") && strings.Contains(text, guarantee)
		})
		fixture.Equal(t, broker.stop(), 0, "exit status … of the broker")
		fixture.Eventually(t, "the observer notices that the broker is gone", func() bool {
			text := fixture.Get(t, url+"/metrics")
			return strings.Contains(text, "\ngpusteward_broker_up 0\n") && !strings.Contains(text, guarantee)
		})
	}
	after, err := os.Stat(socket)
	fixture.If(t, err != nil || !os.SameFile(before, after), "the socket was replaced: %v", err)
}

// TestHTTPBySocketActivation checks that scrapes wait at systemd's socket until the observer runs.
func TestHTTPBySocketActivation(t *testing.T) {
	t.Parallel()
	needs(t, "systemd-socket-activate")
	r := newRoot(t)
	r.config("")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fixture.Must(t, err)
	address := l.Addr().String()
	l.Close()
	fixture.Equal(t, readUnit(t, "gpusteward.socket").last("Socket.ListenStream"), "9836",
		"gpusteward.socket listens at")
	s := r.start("gpusteward.service", r.options("--demo=h100", "--web.systemd-socket"), nil,
		"systemd-socket-activate", "--listen="+address)
	var conn net.Conn
	fixture.Eventually(t, "the socket listens", func() bool {
		conn, err = net.Dial("tcp", address)
		return err == nil
	})
	defer conn.Close()
	fmt.Fprintf(conn, "GET /-/healthy HTTP/1.0\r\n\r\n")
	s.ready()
	fixture.Must(t, conn.SetReadDeadline(time.Now().Add(patience)))
	if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), " 200 OK\r\n") {
		t.Errorf("a client that connected before it ran got %q, %v", answer, err)
	}
	fixture.Equal(t, s.stop(), 0, "exit status")
}

// TestReload checks that systemctl reload fails with the reason if the file is invalid, and that
// the agent then keeps its configuration. It reloads a valid file.
func TestReload(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gpusteward.service", "gpusteward-broker.service"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRoot(t)
			r.config(quotas)
			s := r.start(name, r.options(loopback, "--demo=h100"), nil).ready()
			variables := map[string]string{"MAINPID": fmt.Sprint(s.cmd.Process.Pid)}
			reload := func() (out string, status int) {
				for i := range s.unit["Service.ExecReload"] {
					out, status = run(t, append(r.confined(s.unit), r.command(s.unit, "ExecReload", i, variables)...)...)
					if status != 0 {
						break
					}
				}
				return out, status
			}
			r.config("collectors: {fats: 1s}\n")
			if out, status := reload(); status == 0 ||
				!strings.Contains(out, "gpusteward.yml:1") || !strings.Contains(out, `"fats"`) {
				t.Errorf("%s: an invalid file: exit status %d: %s", name, status, out)
			}
			r.config(quotas + "  turn: 20ms\n")
			if out, status := reload(); status != 0 {
				t.Errorf("%s: a valid file: exit status %d: %s", name, status, out)
			}
			fixture.Eventually(t, "the file is read again", func() bool {
				return strings.Contains(s.log.String(), "configuration reloaded")
			})
			fixture.If(t, strings.Contains(s.log.String(), "not reloaded"),
				"%s: the invalid file reached the agent", name)
			fixture.Equal(t, s.stop(), 0, "%s: exit status", name)
		})
	}
}

// TestRestarts checks that invalid flags and files end with a message and a status after which
// systemd does not restart the unit, and that other restarts are limited.
func TestRestarts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, config, option, says string }{
		{"gpusteward-broker.service", "", "", "enforcer.enabled is false in"},
		{"gpusteward-broker.service", "enforcer: {enabled: yes, turn: 1s}\n", "", "enforcer.turn"},
		{"gpusteward.service", "collectors: {fats: 1s}\n", "", "fats"},
		{"gpusteward.service", "", "--web.config.file=/nowhere.yml", "/nowhere.yml"},
		{"gpusteward.service", "", "--bogus", "--bogus"},
	} {
		r := newRoot(t)
		r.config(c.config)
		s := r.start(c.name, r.options(loopback, "--demo=h100", c.option), nil)
		status := s.wait()
		prevents := " " + s.last("Service.RestartPreventExitStatus") + " "
		if !strings.Contains(prevents, fmt.Sprintf(" %d ", status)) || !strings.Contains(s.log.String(), c.says) {
			t.Errorf("%s: exit status %d: %s", c.says, status, s.log)
		}
	}
	for _, name := range []string{"gpusteward.service", "gpusteward-broker.service"} {
		u := readUnit(t, name)
		within, burst := 0, 0
		_, err1 := fmt.Sscan(u.last("Unit.StartLimitIntervalSec"), &within)
		_, err2 := fmt.Sscan(u.last("Unit.StartLimitBurst"), &burst)
		// Restart= alone never reaches the limit. A socket that keeps starting the unit does.
		every := int(seconds(t, u, "RestartSec").Seconds())
		if err1 != nil || err2 != nil || u.last("Service.Restart") != "on-failure" || within/every >= burst {
			t.Errorf("%s: restarts every %d s, at most %d times in %d s", name, every, burst, within)
		}
	}
}

// TestDeviceNodes checks that device nodes are created for the GPUs of a loaded driver. Without
// one nothing runs, so that no driver is loaded.
func TestDeviceNodes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gpusteward.service", "gpusteward-broker.service"} {
		command := readUnit(t, name).last("Service.ExecStartPre")
		argv := words(t, strings.TrimPrefix(command, "-+"), nil)
		fixture.Stop(t, !strings.HasPrefix(command, "-+") || len(argv) != 3, "%s: %q", name, argv)
		for minors, want := range map[string]string{"": "", "0": "-c=255 -c=0\n", "0 1 7": "-c=255 -c=0 -c=1 -c=7\n"} {
			dir := t.TempDir()
			put(t, filepath.Join(dir, "bin/nvidia-modprobe"), "#!/bin/sh\necho \"$@\"\n", 0o755)
			for i, minor := range strings.Fields(minors) {
				put(t, filepath.Join(dir, fmt.Sprintf("gpus/0000:%02d:00.0/information", i)),
					"Model: \t\t NVIDIA H100 80GB HBM3\nDevice Minor: \t "+minor+"\nGPU Excluded:\t No\n", 0o444)
			}
			cmd := exec.Command(argv[0], argv[1], strings.ReplaceAll(argv[2], "/proc/driver/nvidia", dir))
			cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")}
			if out, err := cmd.CombinedOutput(); string(out) != want || (err == nil) != (want != "") {
				t.Errorf("%s: minors %q: %q, %v", name, minors, out, err)
			}
		}
	}
}

// TestSystemCalls checks that the system calls of both services are within SystemCallFilter=, and that none requests
// memory that is writable and executable. The calls of NVIDIA's library need a GPU.
func TestSystemCalls(t *testing.T) {
	t.Parallel()
	needs(t, "strace", "systemd-analyze")
	r := newRoot(t)
	r.config(quotas)
	_, file := r.listens()
	for _, name := range []string{"gpusteward-broker.service", "gpusteward.service"} {
		trace := r.path(name + ".trace")
		if name == "gpusteward.service" {
			file = nil
		}
		s := r.start(name, r.options(loopback, "--demo=h100"), file, "strace", "-D", "-f", "-q", "-o", trace)
		s.ready()
		if name == "gpusteward.service" {
			fixture.Get(t, s.url()+"/metrics")
		}
		fixture.Eventually(t, "the watchdog is fed", func() bool { return s.tells("WATCHDOG=1") >= 2 })
		pid := s.cmd.Process.Pid
		fixture.Equal(t, s.stop(), 0, "%s: exit status", name)
		var text []byte
		fixture.Eventually(t, "the trace is complete", func() bool {
			text, _ = os.ReadFile(trace)
			return regexp.MustCompile(fmt.Sprintf(`(?m)^%d +\+\+\+ exited`, pid)).Match(text)
		})
		_, text, began := bytes.Cut(text, []byte(`execve("`+agent)) // earlier calls are the test's
		fixture.Stop(t, !began, "it was not traced:\n%.2000s", text)
		allowed := s.allowed()
		for _, m := range regexp.MustCompile(`(?m)^\d+\s+(?:<\.\.\. )?(\w+)[( ](.*)$`).FindAllSubmatch(text, -1) {
			if call := string(m[1]); !allowed[call] {
				t.Errorf("%s: %s is not among SystemCallFilter=: %s", name, call, m[0])
			}
			if args := string(m[2]); strings.Contains(args, "PROT_EXEC") &&
				(strings.HasPrefix(string(m[1]), "mprotect") || strings.Contains(args, "PROT_WRITE")) {
				t.Errorf("%s: MemoryDenyWriteExecute= forbids %s", name, m[0])
			}
		}
	}
}

// allowed returns the system calls that a unit's filter allows.
func (s *service) allowed() map[string]bool {
	s.t.Helper()
	all := map[string]bool{}
	var add func(set string, is bool)
	add = func(set string, is bool) {
		for line := range strings.Lines(do(s.t, "systemd-analyze", "syscall-filter", set)) {
			switch call := strings.TrimSpace(line); {
			case !strings.HasPrefix(line, " ") || strings.HasPrefix(call, "#"):
			case strings.HasPrefix(call, "@"):
				add(call, is)
			default:
				all[call] = is
			}
		}
	}
	for _, filter := range s.unit["Service.SystemCallFilter"] {
		sets, denied := strings.CutPrefix(filter, "~")
		for _, set := range strings.Fields(sets) {
			if strings.HasPrefix(set, "@") {
				add(set, !denied)
			} else {
				all[set] = !denied
			}
		}
	}
	fixture.Stop(s.t, len(all) < 100 || all["reboot"] || all["mount"], "%d system calls", len(all))
	return all
}
