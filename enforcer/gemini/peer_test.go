package gemini

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// TestMain runs the tests, or a client's process if GEMINI_TEST_SERVER is set. The client takes 600 bytes as
// "a" and lives until its input ends. By further variables it first opens many connections that send one
// request each, or takes a turn instead of memory, or has a child that outlives it. If the variable holds a
// number, the process opens that many files and no connection.
func TestMain(m *testing.M) {
	address := os.Getenv("GEMINI_TEST_SERVER")
	if address == "" {
		os.Exit(m.Run())
	}
	if files, err := strconv.Atoi(address); err == nil {
		for range files {
			if _, err := unix.Dup(0); err != nil {
				os.Exit(1)
			}
		}
		os.Stdout.WriteString("true\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	var others []net.Conn // open until the end
	idle, _ := strconv.Atoi(os.Getenv("GEMINI_TEST_IDLE"))
	for range idle {
		c, err := net.Dial("tcp", address)
		if err != nil {
			os.Exit(1)
		}
		others = append(others, c)
		b, _ := Request{Name: []byte("nobody"), Kind: MemoryLimit}.Append(nil)
		_, _ = c.Write(b)
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		os.Exit(1)
	}
	r := Request{Name: []byte("a"), Kind: MemoryUpdate, Bytes: 600, Allocate: true}
	if os.Getenv("GEMINI_TEST_TURN") != "" {
		r = Request{Name: []byte("a"), Kind: Quota}
	}
	b, _ := r.Append(nil)
	var answer [ResponseSize]byte
	if _, err := c.Write(b); err != nil {
		os.Exit(1)
	}
	if _, err := io.ReadFull(c, answer[:]); err != nil && idle == 0 { // the server may be full
		os.Exit(1)
	}
	if os.Getenv("GEMINI_TEST_CHILD") != "" { // it outlives its parent, and has the connection
		file, _ := c.(*net.TCPConn).File()
		heir := exec.Command("sleep", "5")
		heir.ExtraFiles = []*os.File{file}
		_ = heir.Start()
	}
	os.Stdout.WriteString(strconv.FormatBool(DecodeResponse(MemoryUpdate, &answer).Granted) + "\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(others)
}

// A child is a client's process. The bytes that it took are not available while it lives.
type child struct {
	*exec.Cmd
	input io.WriteCloser
	out   *bufio.Reader
}

func spawn(t *testing.T, address string, env ...string) child { return spawnIn(t, "", address, env...) }

// spawnIn starts a child in a cgroup.
func spawnIn(t *testing.T, dir, address string, env ...string) child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "GEMINI_TEST_SERVER="+address), env...)
	if dir != "" {
		group := fixture.Value(os.Open(dir))(t)
		defer func() { _ = group.Close() }()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	}
	input, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	fixture.Stop(t, err1 != nil || err2 != nil || cmd.Start() != nil, "no child")
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return child{cmd, input, bufio.NewReader(out)}
}

// verdict returns whether the child received its memory.
func (c child) verdict(t *testing.T) string {
	t.Helper()
	return fixture.Value(c.out.ReadString('\n'))(t)
}

func TestMemoryOfADeadProcessComesBack(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	h.call(take(100))
	c := spawn(t, s.address().String())
	fixture.Need(t, c.verdict(t), "true\n", "the child was told")
	if st := s.Stats(); st.Clients != 2 || st.Tenants[0].Used != 700 {
		t.Errorf("%+v", st)
	}
	h.call(give(600)) // bytes of the other process, which this one cannot give back
	if st := s.Stats(); st.Tenants[0].Used != 600 || st.Overfreed != 1 {
		t.Errorf("%+v", st)
	}
	_ = c.Process.Kill()
	until(t, s, "its memory comes back", func(st Stats) bool { return st.Tenants[0].Used == 0 && st.Clients == 1 })
}

// TestASuccessorHasTheMemoryOfTheDead has a process end of which a child has the connection. Who
// asks for all memory next has it at once.
func TestASuccessorHasTheMemoryOfTheDead(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	c := spawn(t, s.address().String(), "GEMINI_TEST_CHILD=1")
	fixture.Need(t, c.verdict(t), "true\n", "the child was told")
	fixture.Equal(t, h.call(take(1000)).Granted, false, "while it lives, another has its memory")
	_ = c.Process.Kill()
	_, _ = c.Process.Wait()
	a, st := h.call(take(1000)), s.Stats().Tenants[0]
	fixture.If(t, !a.Granted || st.Used != 1000 || st.Denied != 1, "%+v, %+v", a, st)
}

func TestAProcessKeepsItsMemoryBetweenConnections(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	h.call(take(100))
	_ = h.conn.Close()
	until(t, s, "the connection is gone", func(st Stats) bool { return st.Connections == 0 })
	h = dial(t, s, "a")
	fixture.Equal(t, h.call(Request{Kind: MemoryLimit}).Used, 100, "Used")
	h.call(give(100))
	fixture.Equal(t, s.Stats().Overfreed, 0, "it is another client on its second connection")
}

func TestUnseenProcess(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{ProcFS: t.TempDir()})
	h, other := dial(t, s, "a"), dial(t, s, "a")
	h.call(take(100))
	h.call(take(20))
	other.call(take(3))
	other.call(give(20)) // a client that opens a connection for each request
	if st := s.Stats(); st.Unseen != 2 || st.Clients != 1 || st.Tenants[0].Used != 103 {
		t.Errorf("%+v", st)
	}
	third := dial(t, s, "a")
	third.call(take(50))
	_ = third.conn.Close()
	until(t, s, "what it took is back", func(st Stats) bool { return st.Connections == 2 && st.Tenants[0].Used == 103 })
	_ = other.conn.Close()
	until(t, s, "one has gone", func(st Stats) bool { return st.Connections == 1 })
	fixture.Equal(t, s.Stats().Tenants[0].Used, 103, "Used")
	fourth := dial(t, s, "a") // 17 of its bytes were given back before
	fourth.call(take(30))
	_ = fourth.conn.Close()
	until(t, s, "the rest is back", func(st Stats) bool { return st.Connections == 1 && st.Tenants[0].Used == 120 })
	_ = h.conn.Close()
	until(t, s, "both have gone", func(st Stats) bool { return st.Clients == 0 && st.Tenants[0].Used == 0 })
}

// realGroup makes a cgroup of version 2 and returns its directory. It is removed when the test ends.
func realGroup(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join("/sys/fs/cgroup", fmt.Sprintf("gs-gemini-%d-%s", os.Getpid(), name))
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		dir = filepath.Join("/sys/fs/cgroup/unified", filepath.Base(dir))
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("NOT TESTED: cgroups cannot be made here:", err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
			if err := os.Remove(dir); err == nil {
				return
			} else if time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	return dir
}

func TestANameIsBoundToOneCgroup(t *testing.T) {
	t.Parallel()
	one, other := realGroup(t, "one"), realGroup(t, "other")
	hidden := "true\n"
	if groups, _ := os.ReadFile("/proc/self/cgroup"); strings.Count(string(groups), "\n") > 1 {
		hidden = "false\n" // with cgroups of version 1 as well, the kernel reports too little
	}
	for _, c := range []struct {
		name, group string
		hidden      bool
		want        string
	}{
		{"beside it", one, false, "true\n"},
		{"hidden beside it", one, true, hidden},
		{"elsewhere", other, false, "false\n"},
		{"hidden elsewhere", other, true, "false\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			const most = 200
			s := start(t, "1\na 0.5 1 2000\n", Options{Unknown: Deny, descriptors: most})
			fixture.Need(t, spawnIn(t, one, s.address().String()).verdict(t), "true\n",
				"the first to come is told …; %+v", s.Stats())
			for have := 0; c.hidden && have <= most; have += 150 { // more files than are read
				spawnIn(t, c.group, "150").verdict(t)
			}
			fixture.Equal(t, spawnIn(t, c.group, s.address().String()).verdict(t), c.want,
				"it is told …; %+v", s.Stats())
		})
	}
}

// ownAddress returns an address of this host other than loopback.
func ownAddress(t *testing.T) string {
	t.Helper()
	all := fixture.Value(net.InterfaceAddrs())(t)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}

func TestPeerByAnyAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "127.0.0.1"}, {"0.0.0.0:0", ownAddress(t)}, {"[::1]:0", "::1"}, {"[::]:0", "::1"},
		{"[::]:0", "127.0.0.1"},
	} {
		t.Run(c.listen+" by "+c.dial, func(t *testing.T) {
			l, err := net.Listen("tcp", c.listen)
			if err != nil || c.dial == "" {
				t.Skip("NOT TESTED: this host has no such address:", err)
			}
			_ = l.Close()
			s := start(t, two, Options{Listen: c.listen})
			conn := fixture.Value(net.Dial("tcp", net.JoinHostPort(c.dial, strconv.Itoa(int(s.address().Port())))))(t)
			defer func() { _ = conn.Close() }()
			(&hook{t: t, conn: conn, name: "a"}).call(take(1))
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, k := range s.clients {
				fixture.If(t, k.pid != os.Getpid() || k.peer.cgroup == 0, "it is taken for %+v", k.peer)
			}
		})
	}
}

// TestAChildIsNotTheClient has a child with the client's socket, which is looked at first.
func TestAChildIsNotTheClient(t *testing.T) {
	l := fixture.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	conn := fixture.Value(net.Dial("tcp", l.Addr().String()))(t)
	defer func() { _ = conn.Close() }()
	file := fixture.Value(conn.(*net.TCPConn).File())(t)
	defer func() { _ = file.Close() }()
	heir := exec.Command("sleep", "1000")
	heir.ExtraFiles = []*os.File{file}
	fixture.Must(t, heir.Start())
	defer func() { _ = heir.Process.Kill(); _ = heir.Wait() }()
	it := fixture.Value(lookup(unmap(conn.LocalAddr()), unmap(conn.RemoteAddr())))(t)
	f := &finder{procFS: "/proc", cgroupFS: "/sys/fs/cgroup", most: mostDescriptors}
	p := fixture.Value(f.find(it, []int{heir.Process.Pid}))(t)
	defer p.close()
	fixture.Equal(t, p.pid, os.Getpid(), "the client")
}
