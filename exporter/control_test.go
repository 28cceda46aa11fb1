package exporter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

var nothing = Action{Do: func(context.Context, url.Values) (string, error) { return "", nil }}

// control runs a control socket in dir until the test ends, and returns its log.
func control(t *testing.T, dir string, actions map[string]Action) (log *fixture.Transcript, stop func()) {
	t.Helper()
	log = new(fixture.Transcript)
	c := &Control{Path: filepath.Join(dir, ControlSocket), Actions: actions, Done: func() {}, Log: slog.New(slog.NewTextHandler(log, nil)),
		Reads: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "read "+r.URL.Path) })}
	stop = fixture.Running(t, c.Run)
	fixture.Eventually(t, "there is a control socket, or the log says why not", func() bool {
		conn, err := net.Dial("unix", c.Path)
		if err == nil {
			conn.Close()
		}
		return err == nil || strings.Contains(log.String(), "no control socket")
	})
	return log, stop
}

func TestOrdersAreCarriedOutAndLogged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	done := 0
	log, stop := control(t, dir, map[string]Action{
		"drain": {Do: func(context.Context, url.Values) (string, error) { done++; return "", nil }},
		"resume": {Do: func(context.Context, url.Values) (string, error) {
			return "", errors.New("gpu 2 hangs in a call")
		}},
		"ack": {Takes: []string{"check", "entity"}, Do: func(ctx context.Context, v url.Values) (string, error) {
			return v.Get("check") + " of " + v.Get("entity") + " cleared by " + OrderedBy(ctx), nil
		}},
	})
	if said, err := Order(t.Context(), filepath.Join(dir, ControlSocket), "drain", nil); err != nil || said != "" || done != 1 {
		t.Errorf("drain: %q, %v, done %d times", said, err, done)
	}
	if _, err := Order(t.Context(), filepath.Join(dir, ControlSocket), "resume", nil); err == nil || err.Error() != "gpu 2 hangs in a call" {
		t.Errorf("resume: %v, want the action's own error", err)
	}
	said, err := Order(t.Context(), filepath.Join(dir, ControlSocket), "ack", url.Values{"check": {"gpu_lost"}, "entity": {"gpu=3,workload=a & b"}})
	want := fmt.Sprintf("gpu_lost of gpu=3,workload=a & b cleared by uid %d, pid %d", os.Geteuid(), os.Getpid())
	fixture.If(t, err != nil || said != want, "ack: %q, %v; want %q", said, err, want)
	for _, want := range []string{"action=drain", "pid=", "uid=0", "action=resume", `err="gpu 2 hangs in a call"`,
		"action=ack", "check=gpu_lost", `entity="gpu=3,workload=a & b"`} {
		if os.Geteuid() != 0 && want == "uid=0" {
			continue
		}
		fixture.Contains(t, log.String(), want, "the log")
	}
	info, err := os.Stat(filepath.Join(dir, ControlSocket))
	fixture.If(t, err != nil || info.Mode().Perm() != 0o600, "the socket: %v, %v; want mode 0600", info, err)
	stop()
	if _, err := os.Stat(filepath.Join(dir, ControlSocket)); !os.IsNotExist(err) {
		t.Errorf("the socket of an agent that ended: %v", err)
	}
	_, err = Order(t.Context(), filepath.Join(dir, ControlSocket), "drain", nil)
	fixture.Fails(t, err, "no agent answers at "+dir, "without an agent")
}

func TestControlSocketAnswers(t *testing.T) {
	dir := t.TempDir()
	control(t, dir, map[string]Action{"drain": nothing, "ack": {Takes: []string{"check", "entity"}, Do: nothing.Do}})
	for _, c := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/api/v1/state", 200, "read /api/v1/state"},
		{"GET", "/drain", 200, "read /drain"}, // a read, and the agent has no such read
		{"POST", "/drain", 204, ""},
		{"PUT", "/drain", 405, "drain is done by POST"},
		{"POST", "/api/v1/state", 404, `this agent has no order "api/v1/state"; its orders are ack, drain`},
		{"POST", "/drain/../drain", 404, "its orders are ack, drain"},
		{"DELETE", "/", 404, "its orders are ack, drain"},
		{"POST", "/ack?check=a&entity=node", 204, ""},
		{"POST", "/ack", 400, "ack: it requires check and entity, each once; check is missing"},
		{"POST", "/ack?check=a", 400, "entity is missing"},
		{"POST", "/ack?check=&entity=node", 400, "check is missing, empty"},
		{"POST", "/ack?check=a&check=b&entity=node", 400, "check is missing, empty or repeated"},
		{"POST", "/ack?check=a&entity=node&all=1", 400, `it takes check and entity, each once, but was given "all"`},
		{"POST", "/drain?gpu=1", 400, `it takes no arguments, but was given "gpu"`},
		{"POST", "/ack?check=%zz", 400, "ack: invalid URL escape"},
	} {
		r := fixture.Value(http.NewRequest(c.method, "http://agent"+c.path, nil))(t)
		answer := fixture.Value(overSocket(filepath.Join(dir, ControlSocket)).Do(r))(t)
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		fixture.If(t, err != nil || answer.StatusCode != c.status || !strings.Contains(string(body), c.body),
			"%s %s: %d %q, %v; want %d with %q", c.method, c.path, answer.StatusCode, body, err, c.status, c.body)
	}
}

func TestOrderPermissions(t *testing.T) {
	for _, c := range []struct {
		who  peer
		own  int
		want bool
	}{
		{peer{uid: 0}, 0, true},
		{peer{uid: 0}, 997, true},
		{peer{uid: 997}, 997, true},
		{peer{uid: 1000}, 0, false},
		{peer{uid: 1000}, 997, false},
		{peer{uid: 0, err: errors.New("not known")}, 0, false},
	} {
		fixture.Equal(t, c.who.may(c.own), c.want, "%+v of an agent of user %d", c.who, c.own)
	}
	nobody := &Control{Actions: map[string]Action{"drain": {Do: func(context.Context, url.Values) (string, error) {
		t.Error("drained by nobody")
		return "", nil
	}}}}
	r := fixture.Value(http.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, peer{uid: 65534}), "POST",
		"/drain", nil))(t)
	if os.Geteuid() != 65534 {
		w := httptest.NewRecorder()
		nobody.ServeHTTP(w, r)
		fixture.Equal(t, w.Code, http.StatusForbidden, "the answer to nobody's order")
	}
	_, stranger := net.Pipe()
	fixture.If(t, peerOf(stranger).may(0), "somebody whom the kernel does not know may give orders")
}

// withSocketDir returns a runtime directory that contains the control socket's directory.
func withSocketDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	fixture.Must(t, os.Mkdir(filepath.Join(dir, filepath.Dir(ControlSocket)), 0o755))
	return dir
}

func TestExistingSockets(t *testing.T) {
	drain := map[string]Action{"drain": nothing}
	t.Run("an ended agent's", func(t *testing.T) {
		dir := withSocketDir(t)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, ControlSocket), Net: "unix"})
		fixture.Must(t, err)
		l.SetUnlinkOnClose(false)
		l.Close()
		control(t, dir, drain)
		fixture.Must(t, fixture.Error(Order(t.Context(), filepath.Join(dir, ControlSocket), "drain", nil)))
	})
	t.Run("a live agent's", func(t *testing.T) {
		dir := t.TempDir()
		control(t, dir, drain)
		c := &Control{Path: filepath.Join(dir, ControlSocket)}
		fixture.Fails(t, fixture.Error(c.listen()), "another agent listens", "beside a live agent")
		fixture.Must(t, fixture.Error(Order(t.Context(), filepath.Join(dir, ControlSocket), "drain", nil)))
	})
	t.Run("a file", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, ControlSocket)
		fixture.Rewrite(t, file, "kept")
		log, _ := control(t, dir, drain)
		if text, err := os.ReadFile(file); err != nil || string(text) != "kept" ||
			!strings.Contains(log.String(), "is not a socket") {
			t.Errorf("the file: %q, %v; log %s", text, err, log)
		}
	})
	t.Run("a directory that cannot be made", func(t *testing.T) {
		log, _ := control(t, "/proc/no/such", drain)
		fixture.Contains(t, log.String(), "no control socket", "the log")
	})
}

// TestASharedSocketIsShared: every user may read at it and give no order, and no user takes the places of the others.
func TestASharedSocketIsShared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &Control{Path: filepath.Join(dir, CrashSocket), Anyone: true, Actions: map[string]Action{"drain": nothing},
		Log: slog.New(slog.DiscardHandler),
		Reads: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			uid, known := UIDOf(r.Context())
			fmt.Fprint(w, uid, known, r.URL.Path)
		})}
	fixture.Must(t, os.Mkdir(filepath.Dir(c.Path), 0o700)) // by a strict umask
	fixture.Running(t, c.Run)
	fixture.Eventually(t, "it answers", func() bool {
		text, err := AskCrashes(t.Context(), dir, "/crashes")
		return err == nil && string(text) == fmt.Sprint(os.Geteuid(), true, "/crashes")
	})
	info := fixture.Value(os.Stat(c.Path))(t)
	fixture.Equal(t, info.Mode().Perm(), 0o666, "the socket's mode:")
	info = fixture.Value(os.Stat(filepath.Dir(c.Path)))(t)
	fixture.Equal(t, info.Mode().Perm(), 0o755, "the mode of its directory:")
	for method, want := range map[string]int{http.MethodGet: http.StatusOK, http.MethodPost: http.StatusForbidden} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(method, "/drain", nil)
		c.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, peer{uid: os.Geteuid() + 1})))
		fixture.Equal(t, w.Code, want, "%s by another user:", method)
	}
	users := Users{Each: 1, All: 2}
	took := []bool{users.take("7"), users.take("7"), users.take("8"), users.take("9"), users.take(""), users.take("")}
	users.leave("7")
	users.leave("")
	took = append(took, users.take("9"))
	fixture.EqualSlices(t, took, []bool{true, false, true, false, true, true, true}, "a place is taken")
	users.leave("8")
	users.leave("9")
	fixture.If(t, users.many != 0 || len(users.of) != 0, "after all have ended: %d, %v", users.many, users.of)

	users.Each, users.All = 1, 1
	ask := func(h http.Handler, user string) int {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, peer{user: user})))
		return w.Code
	}
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for range 2 {
		fixture.Equal(t, ask(users.Limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			fixture.Equal(t, ask(users.Limit(empty, io.EOF), "7"), http.StatusTooManyRequests, "while another answer is on its way:")
			fixture.Equal(t, ask(users.Limit(empty, io.EOF), ""), http.StatusOK, "root meanwhile:")
		}), io.EOF), "7"), http.StatusOK, "one answer at a time:")
	}
}

// TestAUserIsOneAtASharedSocket: a user with subordinate UIDs has the places of one, and more requests than a user may
// make wait. Root's do not.
func TestAUserIsOneAtASharedSocket(t *testing.T) {
	procs.Etc = t.TempDir()
	t.Cleanup(func() { procs.Etc = "/etc" })
	fixture.Rewrite(t, procs.Etc+"/subuid", "1000:100000:65536\n")
	c := &Control{Path: filepath.Join(fixture.ShortDir(t), CrashSocket), Anyone: true, Log: slog.New(slog.DiscardHandler),
		Reads: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "read") })}
	fixture.Must(t, os.Chmod(filepath.Dir(filepath.Dir(c.Path)), 0o755))
	fixture.Running(t, c.Run)
	dial := func(uid int) net.Conn { return dialAs(t, c.Path, uid) }
	ask := func(conn net.Conn, requests int) (answers int) {
		go func() {
			_, _ = io.WriteString(conn, strings.Repeat("GET /x HTTP/1.1\r\nHost: agent\r\n\r\n", requests))
		}()
		for in := bufio.NewScanner(conn); answers < requests && in.Scan(); answers += strings.Count(in.Text(), "HTTP/1.1 200") {
		}
		return answers
	}
	served := 0
	for uid := range 3 * maxOfUser {
		served += ask(dial(100_000+uid), 1)
	}
	fixture.Equal(t, served, maxOfUser, "connections of a user under many UIDs")
	for uid, atLeast := range map[int]time.Duration{7: time.Second / 2, 0: 0} {
		began, n := time.Now(), requestsOfUser*3/2
		fixture.Equal(t, ask(dial(uid), n), n, "answers to user %d", uid)
		fixture.AtLeast(t, time.Since(began), atLeast, "%d requests of user %d took", n, uid)
	}
}

// dialAs connects as a user, once it is possible.
func dialAs(t *testing.T, path string, uid int) net.Conn {
	if os.Geteuid() != 0 {
		t.Skip("it needs root, to connect as others")
	}
	runtime.LockOSThread() // credentials are those of the thread
	defer runtime.UnlockOSThread()
	as := func(uid int) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
	}
	for {
		as(uid)
		conn, err := net.Dial("unix", path)
		if as(0); err == nil {
			t.Cleanup(func() { conn.Close() })
			return conn
		}
	}
}

// TestRefusalsAreNearlyFree: it is looked once whose a process is that connects without end, and refusals rest for
// 19 times as long as they take. An honest user behind them is served.
func TestRefusalsAreNearlyFree(t *testing.T) {
	path := filepath.Join(fixture.ShortDir(t), "s")
	s, looks, rested := fixture.Value(share(fixture.Value(net.Listen("unix", path))(t).(*net.UnixListener)))(t), 0, time.Duration(0)
	fixture.Must(t, errors.Join(os.Chmod(filepath.Dir(path), 0o755), os.Chmod(path, 0o666)))
	s.whose = func(_ string, _ int, uid uint32) string { looks++; return fmt.Sprint(uid) }
	s.rest = func(d time.Duration) { rested += d }
	t.Cleanup(func() { _ = s.Close() })
	for i := range 2001 {
		dialAs(t, path, 7+i/2000).Close()
	}
	began, users := time.Now(), ""
	for range maxOfUser + 1 {
		users += fixture.Value(s.Accept())(t).(*counted).user
	}
	took := time.Since(began)
	fixture.Equal(t, users, "77778", "those who are served:")
	fixture.AtMost(t, looks, 2+int(took/whoseFor), "looks whose a process is")
	fixture.AtLeast(t, rested, restOnRefusals*workOnRefusals, "the rest after %v of work", took)
}

// TestACrowdedSocketIsAskedAgain: others fill the queue, which is of one connection, until the server takes them.
func TestACrowdedSocketIsAskedAgain(t *testing.T) {
	path := filepath.Join(fixture.ShortDir(t), "s")
	l := fixture.Value(net.Listen("unix", path))(t)
	defer l.Close()
	raw := fixture.Value(l.(*net.UnixListener).SyscallConn())(t)
	fixture.Must(t, raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), 0) }))
	defer fixture.Value(net.Dial("unix", path))(t).Close()
	time.AfterFunc(20*time.Millisecond, func() { _ = http.Serve(l, http.NotFoundHandler()) })
	fixture.Must(t, fixture.Value(overSocket(path).Get("http://agent/"))(t).Body.Close())
}
