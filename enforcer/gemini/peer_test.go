package gemini

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestMain is the test, or where it is told an address, a client's process
// that takes 600 bytes as "a" and lives until its input ends.
func TestMain(m *testing.M) {
	address := os.Getenv("GEMINI_TEST_SERVER")
	if address == "" {
		os.Exit(m.Run())
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		os.Exit(1)
	}
	b, _ := Request{Name: []byte("a"), Kind: MemoryUpdate, Bytes: 600, Allocate: true}.Append(nil)
	var answer [ResponseSize]byte
	if _, err := c.Write(b); err != nil {
		os.Exit(1)
	}
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString(strconv.FormatBool(DecodeResponse(MemoryUpdate, &answer).Granted) + "\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// A child is a client's process; what it took is not to be had meanwhile.
type child struct {
	*exec.Cmd
	input io.WriteCloser
	out   *bufio.Reader
}

func spawn(t *testing.T, address string) child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GEMINI_TEST_SERVER="+address)
	input, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil || cmd.Start() != nil {
		t.Fatal("no child")
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return child{cmd, input, bufio.NewReader(out)}
}

// verdict returns whether the child was given its memory.
func (c child) verdict(t *testing.T) string {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func TestMemoryOfADeadProcessComesBack(t *testing.T) {
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	h.call(take(100))
	c := spawn(t, s.address().String())
	if got := c.verdict(t); got != "true\n" {
		t.Fatalf("the child was told %q", got)
	}
	if st := s.Stats(); st.Clients != 2 || st.Tenants[0].Used != 700 {
		t.Errorf("%+v", st)
	}
	h.call(give(600)) // of the other process: it is not this one's to give
	if st := s.Stats(); st.Tenants[0].Used != 600 || st.Overfreed != 1 {
		t.Errorf("%+v", st)
	}
	_ = c.Process.Kill()
	until(t, s, "its memory comes back", func(st Stats) bool { return st.Tenants[0].Used == 0 && st.Clients == 1 })
}

func TestAProcessKeepsItsMemoryBetweenConnections(t *testing.T) {
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	h.call(take(100))
	_ = h.conn.Close()
	until(t, s, "the connection is gone", func(st Stats) bool { return st.Connections == 0 })
	h = dial(t, s, "a")
	if a := h.call(Request{Kind: MemoryLimit}); a.Used != 100 {
		t.Errorf("%+v", a)
	}
	if h.call(give(100)); s.Stats().Overfreed != 0 {
		t.Error("it is another client on its second connection")
	}
}

func TestUnseenProcess(t *testing.T) {
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
	if st := s.Stats(); st.Tenants[0].Used != 103 {
		t.Errorf("%+v", st)
	}
	fourth := dial(t, s, "a") // 17 of what it took were given back before
	fourth.call(take(30))
	_ = fourth.conn.Close()
	until(t, s, "the rest is back", func(st Stats) bool { return st.Connections == 1 && st.Tenants[0].Used == 120 })
	_ = h.conn.Close()
	until(t, s, "both have gone", func(st Stats) bool { return st.Clients == 0 && st.Tenants[0].Used == 0 })
}

// fakeProc returns a /proc with the real sockets and two processes, which are
// in the cgroups that it says.
func fakeProc(t *testing.T, cgroups map[int]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink("/proc/net", filepath.Join(dir, "net")); err != nil {
		t.Fatal(err)
	}
	for pid, cgroup := range cgroups {
		own := filepath.Join(dir, strconv.Itoa(pid))
		_ = os.Mkdir(own, 0o755)
		if err := os.Symlink(filepath.Join("/proc", strconv.Itoa(pid), "fd"), filepath.Join(own, "fd")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(own, "cgroup"), []byte(cgroup), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestANameIsBoundToOneCgroup(t *testing.T) {
	for _, c := range []struct{ cgroup, want string }{{"0::/pod1\n", "true\n"}, {"0::/pod2\n", "false\n"}} {
		// The child's number is known only when it runs: it waits at a listener
		// in between until its directory is there.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		_ = l.Close()
		cmd := exec.Command("/bin/sh", "-c", `read go && exec "$0"`, os.Args[0])
		cmd.Env = append(os.Environ(), "GEMINI_TEST_SERVER="+address)
		input, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		procFS := fakeProc(t, map[int]string{os.Getpid(): "0::/pod1\n", cmd.Process.Pid: c.cgroup})
		s := start(t, two, Options{Listen: address, ProcFS: procFS, Unknown: Deny})
		h := dial(t, s, "a")
		h.call(take(1))
		_, _ = io.WriteString(input, "go\n")
		if got := (child{out: bufio.NewReader(out)}).verdict(t); got != c.want {
			t.Errorf("beside /pod1 a process of %q is told %q; %+v", c.cgroup, got, s.Stats())
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func TestHexAddr(t *testing.T) {
	for text, want := range map[string][2]string{
		"127.0.0.1:50052": {"0100007F:C384", "0000000000000000FFFF00000100007F:C384"},
		"[::1]:1":         {"00000000000000000000000001000000:0001", "00000000000000000000000001000000:0001"},
	} {
		a := netip.MustParseAddrPort(text)
		if got := [2]string{hexAddr(a, false), hexAddr(a, true)}; got != want && isLittle() {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}

// isLittle says whether the kernel's list looks as on most machines.
func isLittle() bool { return hexAddr(netip.MustParseAddrPort("1.0.0.0:0"), false) == "00000001:0000" }

func TestPeerOfIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here")
	}
	_ = l.Close()
	s := start(t, two, Options{Listen: "[::1]:0"})
	dial(t, s, "a").call(take(1))
	if st := s.Stats(); st.Unseen != 0 {
		t.Errorf("%+v", st)
	}
}
