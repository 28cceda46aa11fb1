package exporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"gpusteward/collectors/host"
	"gpusteward/internal/procs"
)

// ControlSocket is the control socket in the runtime directory. It has a
// directory of its own, which belongs to the agent's user. The rest of the
// runtime directory does not.
const ControlSocket = "agent/control.sock"

// EnforcerSocket is the control socket of the enforcer in the runtime directory.
// Its directory belongs to root.
const EnforcerSocket = "enforcer/control.sock"

// CrashSocket is the enforcer's socket at which every user may read of the crashes of
// his programs.
const CrashSocket = "enforcer/crash.sock"

// controlTime bounds an action, and the time that a client waits for it.
const controlTime = 10 * time.Second

// endTime is how long requests may take once the agent ends.
const endTime = 100 * time.Millisecond

// maxArguments bounds an order's arguments, in bytes.
const maxArguments = 16 << 10

// A Control takes orders over HTTP at a Unix socket. Only root and the agent's
// own user may use it, and the kernel identifies the peer. POST /drain runs the
// action "drain" of Actions; GET goes to Reads.
type Control struct {
	Path    string // of the socket; Run creates its directory if it is missing
	Actions map[string]Action
	Done    func()       // called after each
	Reads   http.Handler // nil: nothing can be read
	Anyone  bool         // every user may read; Reads decides by UIDOf what
	Log     *slog.Logger

	requests requests
}

// An Action is what an order runs.
type Action struct {
	Takes []string // the arguments, each of which is required exactly once
	May   []string // further arguments, each of which may be there once
	// Do runs the action. It returns a message for the operator, or why the action
	// is not possible.
	Do func(context.Context, url.Values) (string, error)
}

// check returns an error for missing, empty or repeated arguments.
func (a Action) check(arguments url.Values) error {
	for _, name := range a.Takes {
		if n := len(arguments[name]); n != 1 || arguments.Get(name) == "" {
			return fmt.Errorf("it requires %s, each once; %s is missing, empty or repeated",
				strings.Join(a.Takes, " and "), name)
		}
	}
	all := slices.Concat(a.Takes, a.May)
	for name, values := range arguments {
		switch {
		case slices.Contains(all, name) && len(values) == 1:
		case len(all) == 0:
			return fmt.Errorf("it takes no arguments, but was given %q", name)
		default:
			return fmt.Errorf("it takes %s, each once, but was given %q", strings.Join(all, " and "), name)
		}
	}
	return nil
}

// controlRetry is the time from one attempt to create the socket to the next.
const controlRetry = 5 * time.Second

// Run serves until ctx ends. If it cannot create the socket, it logs that and
// tries again: an agent that cannot be controlled still reads.
func (c *Control) Run(ctx context.Context) error {
	l, err := c.listen()
	for said := false; err != nil; l, err = c.listen() {
		if !said {
			c.Log.Warn("no control socket: orders do not reach this agent until it can be created", "socket", c.Path,
				"err", host.Explain(err, host.Reads|host.Writes))
		}
		said = true
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(controlRetry):
		}
	}
	server := &http.Server{Handler: c, ReadHeaderTimeout: controlTime, IdleTimeout: controlTime,
		WriteTimeout:   2 * controlTime,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, peerOf(conn))
		}}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err = <-ended:
		return fmt.Errorf("serve the control socket: %w", err)
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if server.Shutdown(last) != nil {
			return server.Close()
		}
		return nil
	}
}

// listen creates the socket. It replaces a socket that nobody listens at any
// more.
func (c *Control) listen() (net.Listener, error) {
	path := c.Path
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the control socket's directory: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("%s exists and is not a socket", path)
		}
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("another agent listens at %s; --runtime.dir takes another directory", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove an ended agent's socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	mode := fs.FileMode(0o600)
	if c.Anyone {
		mode = 0o666
		err = os.Chmod(filepath.Dir(path), 0o755) // whatever the umask is
		var failed error
		if l, failed = share(l.(*net.UnixListener)); failed != nil {
			return nil, failed
		}
	}
	if err := errors.Join(err, os.Chmod(path, mode)); err != nil { // a client that connected before this is identified too
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Bounds of a shared socket. Root's are not bounded.
const (
	maxOfUser      = 4                // connections of one user that may be open,
	maxOfUsers     = 64               // and of all users
	requestsOfUser = 64               // a second, and at once: further ones wait. As many connections: further ones are closed
	workOnRefusals = time.Millisecond // until it rests
	restOnRefusals = 19               // times as long as it worked
	whoseFor       = time.Second      // until it is looked again whose a process is
	mostWhose      = 1024             // processes of which that is remembered
)

// A shared listener closes connections of users who have too many, without reading. That takes some 5 us, because it
// remembers for a moment whose a process is. It then rests, so that refusals take a twentieth of a processor. Others wait
// behind connections that are to be refused: 0.4 s for the 4096 that the kernel keeps.
type shared struct {
	net.Listener
	door   *os.File      // a duplicate, at which connections are accepted before they cost anything
	worked time.Duration // on refusals since it rested
	users  Users
	calls  requests
	known  map[unix.Ucred]string // the users of processes,
	since  time.Time             // as they were then
	whose  func(procfs string, pid int, uid uint32) string
	rest   func(time.Duration)
}

// share returns a listener that is shared by users.
func share(l *net.UnixListener) (*shared, error) {
	door, err := l.File()
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &shared{Listener: l, door: door, users: Users{Each: maxOfUser, All: maxOfUsers}, whose: procs.Peer, rest: time.Sleep}, nil
}

// Close ends the listener.
func (s *shared) Close() error { return errors.Join(s.door.Close(), s.Listener.Close()) }

// Accept waits for the next connection that is not too many.
func (s *shared) Accept() (net.Conn, error) {
	raw, err := s.door.SyscallConn()
	if err != nil {
		return nil, err
	}
	for {
		fd, err := procs.Accept(raw, func() {})
		if err != nil {
			return nil, err // http.Server waits and tries again if it is a lack of descriptors
		}
		began := time.Now()
		if conn := s.take(fd, began); conn != nil {
			return conn, nil
		}
		s.worked += min(time.Since(began), workOnRefusals) // of more, it waited for a processor most of the time
		if s.worked >= workOnRefusals {
			s.rest(restOnRefusals * s.worked)
			s.worked = 0
		}
	}
}

// take returns the connection, or closes it because its user has too many.
func (s *shared) take(fd int, at time.Time) net.Conn {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	user := ""
	if err == nil && cred.Uid != 0 {
		user = s.userOf(*cred, at)
	}
	if err != nil || !s.calls.by(user).Allow() || !s.users.take(user) {
		_ = unix.Close(fd)
		return nil
	}
	file := os.NewFile(uintptr(fd), "connection")
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		s.users.leave(user)
		return nil
	}
	return &counted{UnixConn: conn.(*net.UnixConn), user: user, end: sync.OnceFunc(func() { s.users.leave(user) })}
}

// userOf returns the user as whom a process counts. It reads files of /proc, so it remembers that for a moment.
func (s *shared) userOf(process unix.Ucred, at time.Time) string {
	if at.Sub(s.since) >= whoseFor || len(s.known) >= mostWhose {
		s.known, s.since = map[unix.Ucred]string{}, at
	}
	user, known := s.known[process]
	if !known {
		user = s.whose("/proc", int(process.Pid), process.Uid)
		s.known[process] = user
	}
	return user
}

// Users bound what users have at a time. Root's is not bounded. A user is a party of package procs, whatever UIDs,
// cgroups and namespaces his processes have. The methods are safe for concurrent use.
type Users struct {
	Each, All int // that one user may have, and all of them

	mu   sync.Mutex
	of   map[string]int
	many int
}

// take reports whether a user may have one more, and counts that.
func (u *Users) take(user string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case user == "":
		return true
	case u.of[user] >= u.Each || u.many >= u.All:
		return false
	case u.of == nil:
		u.of = map[string]int{}
	}
	u.of[user]++
	u.many++
	return true
}

// leave takes one back.
func (u *Users) leave(user string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if user == "" {
		return
	}
	if u.many--; u.of[user] > 1 {
		u.of[user]--
	} else {
		delete(u.of, user)
	}
}

// Limit answers with next, and refuses users who have too many answers on the way: one that nobody reads may be megabytes.
func (u *Users) Limit(next http.Handler, refusal error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, _ := r.Context().Value(peerKey{}).(peer)
		if !u.take(who.user) {
			http.Error(w, refusal.Error(), http.StatusTooManyRequests)
			return
		}
		defer u.leave(who.user)
		next.ServeHTTP(w, r)
	})
}

// requests bounds how often users ask. Root is not bounded. The methods are safe for concurrent use.
type requests struct {
	mu sync.Mutex
	of map[string]*rate.Limiter
}

// by returns the limiter of a user's requests.
func (q *requests) by(user string) *rate.Limiter {
	if user == "" {
		return rate.NewLimiter(rate.Inf, 0)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = map[string]*rate.Limiter{}
	}
	if len(q.of) > maxOfUsers { // those who asked for nothing in the last second have nothing to remember
		maps.DeleteFunc(q.of, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= requestsOfUser })
	}
	if q.of[user] == nil {
		q.of[user] = rate.NewLimiter(requestsOfUser, requestsOfUser)
	}
	return q.of[user]
}

// A counted connection calls end when it is closed.
type counted struct {
	*net.UnixConn
	user string
	end  func()
}

// Close closes the connection.
func (c *counted) Close() error {
	c.end()
	return c.UnixConn.Close()
}

// A peer is the process at the other end of a connection, as the kernel
// identifies it.
type peer struct {
	pid, uid int
	user     string // as which it counts at a shared socket; empty: root
	err      error
}

type peerKey struct{}

func peerOf(conn net.Conn) peer {
	p := peer{err: errors.New("not a unix socket")}
	if c, is := conn.(*counted); is {
		p.user = c.user
	}
	u, ok := conn.(syscall.Conn)
	if !ok {
		return p
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	if err := raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if p.err = err; err == nil {
			p.pid, p.uid = int(cred.Pid), int(cred.Uid)
		}
	}); err != nil {
		p.err = err
	}
	return p
}

// may reports whether the peer may give orders to an agent of the given user.
func (p peer) may(own int) bool { return p.err == nil && (p.uid == 0 || p.uid == own) }

// OrderedBy returns who gave the order that a context of Action.Do belongs to:
// "uid 0, pid 4711".
func OrderedBy(ctx context.Context) string {
	who, _ := ctx.Value(peerKey{}).(peer)
	return fmt.Sprintf("uid %d, pid %d", who.uid, who.pid)
}

// UIDOf returns the user whose request a context belongs to; false if it is not known.
func UIDOf(ctx context.Context) (uid int, ok bool) {
	who, ok := ctx.Value(peerKey{}).(peer)
	return who.uid, ok && who.err == nil
}

// ServeHTTP runs one action, or answers one read.
func (c *Control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, _ := r.Context().Value(peerKey{}).(peer)
	if c.requests.by(who.user).Wait(r.Context()) != nil {
		return // its client has left
	}
	if !who.may(os.Geteuid()) && !(c.Anyone && who.err == nil && r.Method == http.MethodGet) {
		http.Error(w, "only root and the agent's own user may use this socket", http.StatusForbidden)
		return
	}
	if r.Method == http.MethodGet && c.Reads != nil {
		c.Reads.ServeHTTP(w, r)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	action, ok := c.Actions[name]
	switch {
	case !ok:
		known := strings.Join(slices.Sorted(maps.Keys(c.Actions)), ", ")
		http.Error(w, fmt.Sprintf("this agent has no order %q; its orders are %s", name, known), http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, name+" is done by POST", http.StatusMethodNotAllowed)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxArguments)
	err := r.ParseForm()
	if err == nil {
		err = action.check(r.Form)
	}
	if err != nil {
		http.Error(w, name+": "+err.Error(), http.StatusBadRequest)
		return
	}
	c.do(w, r, who, name, action)
}

// do runs the action and answers with 200 and its message, with 204 if there is
// no message, or with 409 and the reason why the action is not possible.
func (c *Control) do(w http.ResponseWriter, r *http.Request, who peer, name string, action Action) {
	ctx, cancel := context.WithTimeout(r.Context(), controlTime)
	defer cancel()
	began := time.Now()
	said, err := action.Do(ctx, r.Form)
	c.Done()
	log := c.Log.With("action", name, "pid", who.pid, "uid", who.uid, "took", time.Since(began).String())
	for _, argument := range slices.Concat(action.Takes, action.May) {
		log = log.With(argument, r.Form.Get(argument))
	}
	switch {
	case err != nil:
		log.Warn("control", "err", err)
		http.Error(w, err.Error(), http.StatusConflict)
	case said == "":
		log.Info("control")
		w.WriteHeader(http.StatusNoContent)
	default:
		log.Info("control")
		fmt.Fprintln(w, said)
	}
}

// Order has the agent at a control socket run an action, and returns its
// message, which is safe to print on a terminal. Its errors say what an operator
// can do.
func Order(ctx context.Context, path, action string, arguments url.Values) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*controlTime)
	defer cancel()
	answer, err := order(ctx, path, action, arguments)
	for renewed := false; ; renewed = true {
		// The agent may replace its process to load a new library while the order
		// waits. Every order may be given twice.
		cut := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
		absent := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
		if again := cut || renewed && absent; !again || ctx.Err() != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
		answer, err = order(ctx, path, action, arguments)
	}
	if said := new(unreached); errors.As(atSocket(err, path, action), said) {
		return "", said
	} else if err != nil {
		return "", fmt.Errorf("%s: %w", action, err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 16<<10))
	if err != nil {
		return "", fmt.Errorf("%s: %w", action, err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, line := range lines {
		lines[i] = printable(line)
	}
	said := strings.Join(lines, "\n")
	if answer.StatusCode/100 != 2 {
		return "", errors.New(said)
	}
	return said, nil
}

func order(ctx context.Context, path, action string, arguments url.Values) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/"+action,
		strings.NewReader(arguments.Encode()))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return overSocket(path).Do(r)
}

// overSocket returns a client that sends every request to a Unix socket. It asks again while others fill the queue there.
func overSocket(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			for end := time.Now().Add(controlTime); ; time.Sleep(10 * time.Millisecond) {
				conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
				if !errors.Is(err, syscall.EAGAIN) || ctx.Err() != nil || time.Now().After(end) {
					return conn, err
				}
			}
		}}}
}
