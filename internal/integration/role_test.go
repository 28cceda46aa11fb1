package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// Two processes, one that only enforces and one that only observes, equal one process that does both.
func TestRoles(t *testing.T) {
	t.Parallel()
	enforcer, observer, socket := divided(t, fmt.Sprintf("enforcer:\n  enabled: true\n  tenants:\n    - {name: tests, "+
		"select: [{users: [%d]}], guarantee: 40 %%}\n", os.Getuid()))
	uuid := observer.uuid(1)
	_, tenant := hello(t, socket, uuid, "")
	fixture.If(t, tenant != "tests", "this process is of %q, want tests", tenant)
	observer.sees("what the enforcer says", func(s series) bool {
		return s[fmt.Sprintf(`nvgpu_quota_compute_guarantee_ratio{gpu="1",tenant="tests",uuid="%s"}`, uuid)] == .4
	})
	if os.Getuid() == 0 {
		const enforcing = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_KILL | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYS_RESOURCE |
			1<<unix.CAP_SYSLOG
		status := content(t, fmt.Sprintf("/proc/%d/status", enforcer.pid))
		for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
			if want := fmt.Sprintf("%s:\t%016x\n", set, permitted(t)&enforcing); !strings.Contains(status, want) {
				t.Errorf("the enforcer has not %s of CAP_DAC_OVERRIDE, CAP_KILL, CAP_SYS_PTRACE, CAP_SYS_RESOURCE and CAP_SYSLOG:\n%s",
					want, status)
			}
		}
		fixture.Contains(t, status, "NoNewPrivs:\t1\n", "the enforcer could get others again")
	}
	enforcer.endsWell()
	observer.sees("no broker", func(s series) bool { return s["gpusteward_broker_up"] == 0 })
}

// divided starts an enforcer and an observer that sees it, and returns the broker's socket.
func divided(t *testing.T, config string) (enforcer, observer *agent, socket string) {
	t.Helper()
	dir := fixture.ShortDir(t)
	flags := []string{"--demo=testdata/scenario/two.yml", "--config.file=" + fixture.Config(t, config),
		"--runtime.dir=" + dir}
	enforcer = spawn(t, nil, append(flags, "--role=enforce")...)
	eventually(t, "it enforces", func() bool {
		return enforcer.log.find("gpusteward enforces") != nil || enforcer.hasEnded()
	})
	observer = spawn(t, nil, append(flags, "--role=observe")...).ready()
	observer.sees("the broker", func(s series) bool { return s["gpusteward_broker_up"] == 1 })
	return enforcer, observer, filepath.Join(dir, "broker/broker.sock")
}

// crowd keeps more descriptors in flight than the enforcer may have, as a process of the enforcer's user.
func crowd(t *testing.T, enforcer *agent) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may limit others")
	}
	const most = 400
	fixture.Must(t, unix.Prlimit(enforcer.pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil))
	pair := fixture.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { _ = errors.Join(unix.Close(pair[0]), unix.Close(pair[1])) })
	for range 3 {
		fixture.Must(t, unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(slices.Repeat([]int{pair[0]}, 200)...), nil,
			unix.MSG_DONTWAIT))
	}
}

// permitted returns the capabilities that this process may have. Root in a container lacks some.
func permitted(t *testing.T) uint64 {
	t.Helper()
	var sets [2]unix.CapUserData // the lower and the upper 32
	fixture.Must(t, unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]))
	return uint64(sets[1].Permitted)<<32 | uint64(sets[0].Permitted)
}

// mayExceed reports whether the enforcer is exempt from the limit of descriptors in flight.
func mayExceed(t *testing.T) bool { return permitted(t)&(1<<unix.CAP_SYS_RESOURCE) != 0 }

// A broker that may have no more descriptors in flight cannot serve clients, and reports that.
func TestStarvedBrokerIsReported(t *testing.T) {
	t.Parallel()
	if mayExceed(t) {
		t.Skip("root has CAP_SYS_RESOURCE here, so that the broker does not starve: " +
			"TestRootInAContainerCannotStarveTheBroker")
	}
	enforcer, observer, _ := divided(t, "enforcer: {enabled: true}\n")
	crowd(t, enforcer)
	began := time.Now()
	observer.sees("that it starves", func(s series) bool {
		return s["gpusteward_broker_up"] == 0 && s["gpusteward_broker_starved"] == 1 &&
			slices.Contains(s.family("nvgpu_health_check_failing", `check="broker"`), 1)
	})
	t.Logf("seen after %v", time.Since(began))
	eventually(t, "the log says so", func() bool {
		return strings.Contains(enforcer.log.String(), "the broker cannot serve all clients")
	})
}

// If another process of root keeps more descriptors in flight than the limit, the broker still serves its clients.
func TestRootInAContainerCannotStarveTheBroker(t *testing.T) {
	t.Parallel()
	if !mayExceed(t) {
		t.Skip("NOT TESTED: root lacks CAP_SYS_RESOURCE here")
	}
	enforcer, observer, socket := divided(t, "enforcer: {enabled: true}\n")
	crowd(t, enforcer)
	uuid := observer.uuid(1)
	for range 5 {
		hello(t, socket, uuid, "")
	}
	asked := observer.scrape()[`nvgpu_broker_requests_total{op="stats",result="ok"}`]
	observer.sees("statistics", func(s series) bool {
		return s[`nvgpu_broker_requests_total{op="stats",result="ok"}`] > asked+1 && s["gpusteward_broker_up"] == 1
	})
	const starved = "the broker cannot serve all clients"
	fixture.Equal(t, strings.Contains(enforcer.log.String(), starved), false, "it starved:\n%s", enforcer.log)
}

func TestEnforceWithNothingToEnforce(t *testing.T) {
	t.Parallel()
	a := spawn(t, nil, "--role=enforce", "--demo=h100", "--config.file="+fixture.Config(t, ""))
	eventually(t, "it ends", a.hasEnded)
	if a.status != exitConfig || !strings.Contains(a.log.String(), "--role=enforce: enforcer.enabled is false in ") {
		t.Errorf("exit status %d, %s", a.status, a.log)
	}
}

// activated returns the command of an agent that gets these files as systemd's sockets. systemd names the PID
// that they are for, which exists only after the start.
func activated(files []*os.File, args ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("LISTEN_FDS=%d", len(files)))
	cmd.ExtraFiles = files
	return cmd
}

// asks has a client connect to the broker's socket and request statistics. It
// returns a function that waits for the answer.
func asks(t *testing.T, socket string) (answered func()) {
	t.Helper()
	conn := fixture.Value(net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"}))(t)
	t.Cleanup(func() { conn.Close() })
	fixture.Must(t, fixture.Error(conn.Write(wire.Header{Type: wire.TypeStats, Seq: 1}.Append(nil))))
	return func() { t.Helper(); hooked{t, conn}.hears(wire.TypeStatsReply) }
}

// The broker takes over systemd's socket: a client that connects before the
// broker runs, or while it restarts, is answered, and the file stays the same.
func TestBrokerUsesSystemdsSocket(t *testing.T) {
	t.Parallel()
	dir := fixture.ShortDir(t)
	socket := filepath.Join(dir, "broker/broker.sock")
	fixture.Must(t, os.Mkdir(filepath.Dir(socket), 0o755))
	l := fixture.Value(net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"}))(t)
	defer l.Close()
	file := socketOf(t, l)
	before := fixture.Value(os.Stat(socket))(t)
	config := fixture.Config(t, "enforcer: {enabled: true}\n")
	for _, role := range []string{"enforce", "enforce", "all"} {
		answered := asks(t, socket)
		a := launch(t, activated([]*os.File{file}, "--demo=testdata/scenario/two.yml", "--config.file="+config,
			"--runtime.dir="+dir, "--role="+role, loopback))
		answered()
		answered = asks(t, socket)
		answered()
		a.endsWell()
		fixture.Equal(t, strings.Contains(a.log.String(), "is not where"), false, "it says otherwise: %s", a.log)
	}
	after, err := os.Stat(socket)
	fixture.If(t, err != nil || !os.SameFile(before, after), "the socket is not what it was: %v", err)

	elsewhere := launch(t, activated([]*os.File{file}, "--demo=testdata/scenario/two.yml", "--config.file="+config,
		"--role=enforce"))
	asks(t, socket)()
	eventually(t, "it says that nobody looks for it there", func() bool {
		const said = "systemd's socket of the broker is not at the path that programs and agents use"
		return elsewhere.log.find(said)["socket"] == socket
	})
}

func TestBrokerRefusesOtherSockets(t *testing.T) {
	t.Parallel()
	tcp := onLoopback(t)
	unix := func(network string) *os.File {
		l := fixture.Value(net.ListenUnix(network, &net.UnixAddr{Net: network}))(t) // the kernel chooses the name
		defer l.Close()
		return socketOf(t, l)
	}
	datagrams := fixture.Value(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer datagrams.Close()
	config := fixture.Config(t, "enforcer: {enabled: true}\n")
	for want, given := range map[string][]*os.File{
		"received tcp " + tcp.Addr().String(): {socketOf(t, tcp)},
		"received unix @":                     {unix("unix")},
		"received none that listens":          {socketOf(t, datagrams)},
		"received unixpacket @":               {unix("unixpacket"), unix("unixpacket")},
	} {
		a := launch(t, activated(given, "--demo=h100", "--config.file="+config, "--role=enforce"))
		if status := a.wait(); status != exitConfig || !strings.Contains(a.log.String(), want) ||
			!strings.Contains(a.log.String(), "ListenSequentialPacket=") {
			t.Errorf("%s: exit status %d: %s", want, status, a.log)
		}
	}
}

// crammed makes directories until there is no room.
func crammed(dir string) (err error) {
	err = os.Mkdir(filepath.Join(dir, "full"), 0o700)
	for i := 0; err == nil; i++ {
		err = os.Mkdir(filepath.Join(dir, "full", fmt.Sprint(i)), 0o700)
	}
	return err
}

// An enforcer starts with a runtime directory without room, says what it cannot
// write, and does the rest once there is room.
func TestFullRuntimeDirectory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role, limit string
		fills       func(dir string) error
		says        string
		serves      bool // without room
	}{
		"no space": {"enforce", "size=16k", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600)
		}, "the enforcer's lock is held but does not name this process, and that is tried again", true},
		"no inode for a directory": {"enforce", "nr_inodes=10", crammed,
			"nothing is enforced until the runtime directory has room", false},
		"no inode for a socket": {"all", "nr_inodes=10", func(dir string) error {
			fixture.Must(t, os.Mkdir(filepath.Join(dir, "broker"), 0o755))
			return errors.Join(crammed(dir), os.Remove(filepath.Join(dir, "full/0"))) // for the lock
		}, "nothing is enforced until the runtime directory has room", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := fixture.ShortDir(t)
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, c.limit); err != nil {
				t.Skipf("NOT TESTED: %v", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			if err := c.fills(dir); !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("the directory is not full: %v", err)
			}
			a := spawn(t, nil, "--demo=testdata/scenario/two.yml", "--role="+c.role, "--runtime.dir="+dir,
				"--config.file="+fixture.Config(t, "enforcer: {enabled: true}\n"))
			serves := func() {
				t.Helper()
				eventually(t, "there is a broker", func() bool {
					conn, err := net.Dial("unixpacket", filepath.Join(dir, "broker/broker.sock"))
					if err == nil {
						conn.Close()
					}
					return err == nil || a.hasEnded()
				})
				asks(t, filepath.Join(dir, "broker/broker.sock"))()
			}
			eventually(t, "it says what it cannot write", func() bool { return a.log.find(c.says) != nil || a.hasEnded() })
			said, _ := a.log.find(c.says)["err"].(string)
			fixture.If(t, !strings.Contains(said, dir), "it names no path in %s: %q", dir, said)
			if c.serves {
				serves()
			}
			fixture.Must(t, os.RemoveAll(filepath.Join(dir, "full")))
			serves()
			eventually(t, "the lock names it, and orders reach it", func() bool {
				held, _ := os.ReadFile(filepath.Join(dir, "enforcer.lock"))
				info, err := os.Stat(filepath.Join(dir, "enforcer/control.sock"))
				return strings.HasPrefix(string(held), fmt.Sprintf("%d pid:[", a.pid)) && err == nil && info.Mode().Perm() == 0o600
			})
			a.endsWell()
		})
	}
}
