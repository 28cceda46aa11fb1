package broker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestStranger is not a test but a hostile process, or a broker without rights: the test binary runs itself
// with GS_STRANGER set to the kind. It prints its results, and ends with its stdin.
func TestStranger(t *testing.T) {
	what, path := os.Getenv("GS_STRANGER"), os.Getenv("GS_SOCKET")
	n, _ := strconv.Atoi(os.Getenv("GS_TIMES"))
	switch what {
	case "":
		t.Skip("run by the other tests")
	case "broker":
		serveAlone(t, path, n)
		return
	case "unread", "statistics":
		fmt.Println(leaveUnread(path, n, what == "statistics"))
	case "idle":
		fmt.Println(idle(t, path, n))
	case "connect":
		fmt.Println(connectOn(path, n))
	case "hoard":
		fmt.Println(hoard(n))
	case "flood":
		fmt.Println(flood(t, path, n))
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// serveAlone is a broker that may have n descriptors, and for which the kernel makes no exception. Each line
// of stdin is a time, by which its clock jumps. It answers with whether it starved and is to be doubted.
func serveAlone(t *testing.T, path string, n int) {
	fixture.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(n), Max: uint64(n)}))
	b := fixture.Value(New(Options{Socket: path, Policy: book{}, Observer: func(uint32) bool { return true }}))(t)
	jump := b.clockThatJumps()
	b.timing.stale = time.Hour  // a minute is no absence
	b.timing.behind = time.Hour // a busy machine may serve nobody for a while
	fixture.Running(t, b.Run)
	fmt.Println("listens")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		by := fixture.Value(time.ParseDuration(lines.Text()))(t)
		jump(by)
		fmt.Println(b.Stats().Starved, b.Doubtful())
	}
}

// opens connects to a broker with a raw socket that no finaliser closes; -1 if that fails.
func opens(path string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// leaveUnread opens n connections, on each of which the broker sends a
// descriptor that is never received. It returns the number of successes.
func leaveUnread(path string, n int, statistics bool) (all int) {
	c := &client{}
	for range n {
		fd := opens(path)
		if fd < 0 {
			continue
		}
		message := c.frame(wire.TypeHello, hello("hostile", 1))
		if statistics {
			message = c.frame(wire.TypeStats, nil)
		}
		_, err := unix.Write(fd, message)
		if statistics {
			for range 9 {
				_, _ = unix.Write(fd, message)
			}
		}
		if _, bye := unix.Write(fd, c.frame(wire.TypeBye, nil)); err == nil && bye == nil {
			all++
		}
	}
	return all
}

// idle opens n sessions that speak as rarely as they may. It returns the number that it got.
func idle(t *testing.T, path string, n int) int {
	var all []*client
	for range n {
		c := connect(t, path)
		_, _ = c.conn.Write(c.frame(wire.TypeHello, hello("hostile", 1))) // the broker may have refused it already
		h, _, err := c.next(patience)
		if err != nil || h.Type != wire.TypeWelcome {
			c.close()
			continue
		}
		c.session = h.Session
		_ = unix.Close(c.fd)
		c.fd = -1
		all = append(all, c)
	}
	go func() {
		for range time.Tick(time.Second) {
			for _, c := range all {
				_, _ = c.conn.Write(c.frame(wire.TypePing, nil))
				_, _, _ = c.next(patience)
			}
		}
	}()
	return len(all)
}

// connectOn connects n times and returns how many connections ended at once.
func connectOn(path string, n int) (closed int) {
	c := client{}
	for range n {
		fd := opens(path)
		if fd < 0 {
			continue
		}
		_, err := unix.Write(fd, c.frame(wire.TypeHello, hello("hostile", 1)))
		in := make([]byte, wire.FrameMax)
		if read, lost := unix.Read(fd, in); err != nil || lost != nil || read == 0 {
			closed++
		}
		_ = unix.Close(fd)
	}
	return closed
}

// hoard keeps n descriptors in flight, charged to its user.
func hoard(n int) (all int) {
	for range n / 10 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return all
		}
		for range 10 {
			if unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(0), nil, unix.MSG_DONTWAIT) == nil {
				all++
			}
		}
	}
	return all
}

// flood sends requests over n sessions as fast as they are answered.
func flood(t *testing.T, path string, n int) (all int) {
	for range n {
		c := connect(t, path)
		c.send(wire.TypeHello, hello("hostile", 1))
		if h, _, err := c.next(patience); err != nil || h.Type != wire.TypeWelcome {
			continue
		} else {
			c.session = h.Session
		}
		all++
		go func() {
			for {
				if _, err := c.conn.Write(c.frame(wire.TypePing, nil)); err != nil {
					return
				}
				if _, _, err := c.next(patience); err != nil && !errors.Is(err, wire.ErrFrame) {
					return
				}
			}
		}()
	}
	return all
}

// strange runs TestStranger as a user, in a cgroup unless that is empty.
func strange(t testing.TB, what, path string, times, uid int, cgroup string) *process {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be others")
	}
	as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if cgroup != "" {
		dir := fixture.Value(os.Open(cgroup))(t)
		defer dir.Close()
		as.UseCgroupFD, as.CgroupFD = true, int(dir.Fd())
	}
	return again(t, "TestStranger", as, "GS_STRANGER="+what, "GS_SOCKET="+path, fmt.Sprintf("GS_TIMES=%d", times))
}

// number returns the next line as a number.
func (p *process) number(t testing.TB) int {
	t.Helper()
	return fixture.Value(strconv.Atoi(p.says(t)))(t)
}

// open returns a path for a socket that every user can reach.
func open(t testing.TB) string {
	t.Helper()
	path := socket(t)
	fixture.Must(t, os.Chmod(filepath.Dir(path), 0o777))
	return path
}

// group makes a cgroup for the test, below the unified hierarchy.
func group(t *testing.T, name string) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(root, fmt.Sprintf("%s-%d.service", name, os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no cgroup can be made: %v", err)
		}
		t.Cleanup(func() { eventually(t, dir+" is empty", func() bool { return os.Remove(dir) == nil }) })
		return dir
	}
	t.Skip("no unified hierarchy of cgroups")
	return ""
}

// TestUnread lets a user leave thousands of descriptors unread. They are in flight and charged to the broker,
// which the kernel limits. All others are served.
func TestUnread(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"unread", "statistics"} {
		t.Run(what, func(t *testing.T) {
			path := open(t)
			b := strange(t, "broker", path, 1000, 4711, "")
			line := b.says(t)
			fixture.Stop(t, line != "listens", "%v", line)
			var hostile []*process
			for i := range 4 {
				hostile = append(hostile, strange(t, what, path, 400, 4712+i%2, ""))
			}
			took := 0
			for _, h := range hostile {
				took += h.number(t)
			}
			served := 0
			for range 10 {
				c := connect(t, path)
				c.send(wire.TypeHello, hello("honest", 1))
				if h, _, err := c.next(patience); err == nil && h.Type == wire.TypeWelcome {
					served++
				}
				c.close()
			}
			fmt.Fprintln(b.in, "0s")
			if said := b.says(t); served < 10 || strings.HasPrefix(said, "true") {
				t.Errorf("%d were left unread, %d of 10 others were served; starved, doubtful: %s", took, served, said)
			}
		})
	}
}

// TestHoard lets another process of the broker's own user exhaust the limit of descriptors in flight. A
// client that cannot be served is told so, and the broker logs it.
func TestHoard(t *testing.T) {
	t.Parallel()
	path := open(t)
	b := strange(t, "broker", path, 330, 4711, "")
	b.says(t)
	h := strange(t, "hoard", path, 600, 4711, "")
	fixture.Need(t, h.number(t), 600, "… are in flight")
	c := connect(t, path)
	c.send(wire.TypeHello, hello("honest", 1))
	c.refused(wire.CodeLimit)
	c.gone()
	fmt.Fprintln(b.in, "0s")
	fixture.Equal(t, b.says(t), "true true", "starved, doubtful")
	h.kill()
	connect(t, path).hello(wire.TypeHello, hello("honest", 1))
	fmt.Fprintln(b.in, "1m")
	fixture.Equal(t, b.says(t), "false false", "a minute later: starved, doubtful")
}

// TestAway lets a broker stand still for longer than processes wait for its heartbeat. Its
// answers are then doubted for a while, as after its start.
func TestAway(t *testing.T) {
	var jump func(time.Duration)
	b := start(t, Options{}, func(b *Broker) {
		b.timing.heartbeat, b.timing.stale = time.Millisecond, 10*time.Minute
		jump = b.clockThatJumps()
		jump(b.timing.stale) // since the machine's start
	})
	for _, when := range []string{"after its start", "after it was away"} {
		eventually(t, "it is doubted "+when, b.Doubtful)
		jump(time.Minute)
		fixture.If(t, b.Doubtful() || b.Stats().Starved, "it is doubted a minute %s", when)
		jump(b.timing.stale + 1)
	}
}

// TestSharesOfSessions lets users take all the sessions that they can get, each in as many jobs. Each
// gets a part, and root in one cgroup counts apart from root in another.
func TestSharesOfSessions(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Socket: open(t), MaxSessions: 120, Owner: newJob}, func(b *Broker) {
		b.timing.hello, b.timing.stale = time.Hour, time.Hour // on a busy machine they are late, and silent
	})
	for _, hostile := range []struct {
		uid    int
		cgroup string
		want   int
	}{{4711, "", 8}, {4712, "", 7}, {0, group(t, "a"), 7}, {0, group(t, "b"), 6}} {
		n := strange(t, "idle", b.options.Socket, 100, hostile.uid, hostile.cgroup).number(t)
		fixture.Equal(t, n, hostile.want, "sessions of user %d in %q", hostile.uid, hostile.cgroup)
	}
	c := dial(t, b, "a", 1)
	if refused, _ := b.Refused(os.Getpid()); refused || b.Stats().Starved {
		t.Error("the broker counts a process that it served as refused")
	}
	for range 5 {
		look(t, b, "a", 1)
	}
	last := connect(t, b.options.Socket)
	last.refused(wire.CodeLimit)
	last.gone()
	refused, excused := b.Refused(os.Getpid())
	if another, _ := b.Refused(1); !refused || excused || another || b.Stats().Starved {
		t.Error("the broker does not count exactly the refused process as refused, by its own fault")
	}
	c.sync()
}

// TestRefusalsBlameTheRightOwner has an owner take all sessions that it can get beside others that did.
func TestRefusalsBlameTheRightOwner(t *testing.T) {
	for others, want := range map[int]bool{0: false, 1: false, 10: false, 13: true, 60: true, -13: false, -60: false} {
		b := start(t, Options{MaxSessions: 1200}, nil)
		last := 0
		fill := func(user int) (n int) {
			for ; ; n++ {
				if last++; b.roll.enter(&session{b: b, facts: Facts{PID: last, UID: uint32(user)}}) != nil {
					return n
				}
			}
		}
		for i := range max(others, -others) {
			fill(1000 + max(0, min(1, others))*(i+1)) // of others, or in its own other jobs
		}
		n := fill(1000)
		if refused, excused := b.Refused(last); !refused || excused != want || b.Stats().Starved {
			t.Errorf("beside %d it has %d sessions, is refused: %v, excused: %v", others, n, refused, excused)
		}
		b.roll.mu.Lock()
		clear(b.roll.sessions) // they have no connections to end
		b.roll.mu.Unlock()
	}
}

// TestFull fills a broker to its last session.
func TestFull(t *testing.T) {
	b := start(t, Options{MaxSessions: 1}, nil)
	c := dial(t, b, "a", 1)
	d := connect(t, b.options.Socket)
	d.refused(wire.CodeLimit)
	_, excused := b.Refused(1)
	fixture.If(t, !b.Stats().Starved || !excused, "nobody says that it is full")
	c.sync()
}

// TestFewSessionsOfAProcess refuses more than a few sessions to one process,
// and reports that as the process's own fault.
func TestFewSessionsOfAProcess(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Socket: open(t), MaxPerPID: 16}, nil)
	h := strange(t, "idle", b.options.Socket, 20, 4711, "")
	fixture.Equal(t, h.number(t), 16, "a process has … sessions")
	refused, _ := b.Refused(h.Process.Pid)
	fixture.If(t, refused, "a process that has all that it may have passes for refused")
	fixture.Equal(t, strange(t, "idle", b.options.Socket, 1, 4711, "").number(t), 1, "another of its user has … sessions")
}

// TestCalls lets a process connect again and again. It is served a limited number of times in a second, and
// others are always served. The processes of a workload share its number, and a process of it that is refused
// for that reason passes for refused, and is not excused.
func TestCalls(t *testing.T) {
	b := start(t, Options{Socket: open(t)}, func(b *Broker) {
		b.timing.callsOfProcess, b.timing.callsOfUser = 5, 8
		b.stopClock()
	})
	h := strange(t, "connect", b.options.Socket, 100, 4711, "")
	fixture.Equal(t, h.number(t), 95, "… of 100 connections within a second were turned away, at 5 a second")
	if refused, _ := b.Refused(h.Process.Pid); refused {
		t.Error("it passes for refused")
	}
	dial(t, b, "a", 1)
	refused := strange(t, "idle", b.options.Socket, 4, 4711, "")
	fixture.Equal(t, refused.number(t), 3,
		"the workload got … sessions after 5 connections within the same second, at 8 a second")
	if is, excused := b.Refused(refused.Process.Pid); !is || excused {
		t.Errorf("the process of a workload that connects too often passes for refused: %v, excused: %v", is, excused)
	}
}

// TestSilentSessionsGoFirst fills the broker: silent sessions are dropped first, except those with memory.
func TestSilentSessionsGoFirst(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Socket: open(t), MaxSessions: 68},
		func(b *Broker) { b.timing.heartbeat, b.timing.stale = 5*time.Millisecond, 300*time.Millisecond })
	rich := dial(t, b, "a", 1)
	rich.take(5)
	var poor []*client
	for range 3 {
		poor = append(poor, dial(t, b, "a", 1))
	}
	eventually(t, "all are silent", func() bool { return b.Stats().Sessions["stale"] == 4 })
	poor[0].sync() // speaks again
	dial(t, b, "a", 1).sync()
	gone := 0
	for _, c := range poor[1:] {
		if _, _, err := c.next(100 * time.Millisecond); errors.Is(err, io.EOF) {
			gone++
		}
	}
	rich.sync()
	poor[0].sync()
	if used := b.tenant("a").MemoryUsed; gone != 1 || used != 5 {
		t.Errorf("%d silent sessions made room for one, and there are %d bytes of 5", gone, used)
	}
}

// TestUnreadCounts counts an ended session until its last message is read, or its process hangs up.
func TestUnreadCounts(t *testing.T) {
	b := start(t, Options{MaxPerPID: 2}, func(b *Broker) { b.timing.heartbeat = 5 * time.Millisecond })
	leave := func() *client {
		c := connect(t, b.options.Socket)
		c.send(wire.TypeHello, hello("a", 1))
		c.send(wire.TypeBye, nil)
		return c
	}
	c, d := leave(), leave()
	sessions := func() int {
		n := b.Stats().Sessions
		return n["authenticated"] + n["active"] + n["closing"] + n["unread"]
	}
	eventually(t, "both have ended", func() bool { return b.Stats().Sessions["unread"] == 2 })
	connect(t, b.options.Socket).refused(wire.CodeLimit)
	c.close()
	eventually(t, "one counts", func() bool { return sessions() == 1 })
	d.hears(wire.TypeWelcome)
	d.gone()
	eventually(t, "none counts", func() bool { return sessions() == 0 })
	dial(t, b, "a", 1)
}

// TestUnreadStatistics asks again before it has read the answer, and too often.
func TestUnreadStatistics(t *testing.T) {
	b := start(t, Options{}, func(b *Broker) {
		b.timing.asks = 1
		b.stopClock()
	})
	c := connect(t, b.options.Socket)
	for range 2 {
		c.send(wire.TypeStats, nil)
	}
	eventually(t, "both are dealt with", func() bool {
		return b.requests("stats", "ok") == 1 && b.requests("stats", "limit") == 1
	})
	c.hears(wire.TypeStatsReply)
	c.refused(wire.CodeLimit)
	c.send(wire.TypeStats, nil)
	c.refused(wire.CodeLimit)
}
