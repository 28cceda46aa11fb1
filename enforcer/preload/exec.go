// Package preload starts programs under the hook (Exec), and puts the hook where containers find it
// (Install). Both set LD_PRELOAD: the loader then puts the hook before the driver's library. Exec asks the
// broker for the tenant and its quota first. Begin with Exec in exec.go.
package preload

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// Library is the file name of the hook.
const Library = "libgpusteward.so"

// Environment variables of the hook.
const (
	envTenant  = "GPUSTEWARD_TENANT"
	envSocket  = "GPUSTEWARD_SOCKET"
	envLibrary = "GPUSTEWARD_LIBRARY" // read here: which hook
	envFail    = "GPUSTEWARD_FAIL"    // read here too: what to do without a broker
	envPreload = "LD_PRELOAD"
)

// Exit statuses of Exec if no program runs, as in env(1).
const (
	exitOurs     = 125 // no usable hook, or no broker although one is required
	exitUnusable = 126 // the program exists and cannot be executed
	exitNotFound = 127
)

// ExecOptions configure the start of a program under the hook.
type ExecOptions struct {
	Tenant  string // to ask for; empty: the policy's choice
	Observe bool   // ask to be held to no terms, and fail unless the broker grants it
	Socket  string // of the broker
	Library string // the hook; empty: search for it
	Require bool   // fail without a broker that accepts the program
	Tell    bool   // say on stderr which quota holds
	Command []string
}

// Exec replaces this process by the program, under the hook: same PID, parent,
// files and terminal. Signals and the exit status are the program's own, and
// nothing of this program remains. Exec only returns if that fails, with the
// exit status and the reason; output on stderr is a warning.
func Exec(o ExecOptions, stderr io.Writer) (status int, err error) {
	if len(o.Command) == 0 {
		return exitOurs, errors.New("exec: no command given: gpusteward exec -- COMMAND [ARG...]")
	}
	if o.Observe && o.Tenant != "" {
		return exitOurs, errors.New("exec: --observe is for programs without terms: leave out --tenant")
	}
	if o.Observe {
		o.Tenant = policy.Unbound
	}
	library, err := findLibrary(o.Library)
	if err != nil {
		return exitOurs, err
	}
	path, status, err := findCommand(o.Command[0])
	if err != nil {
		return status, err
	}
	why, fatal := unhookable(path, library)
	switch {
	case fatal: // it would end at once, or print an error and end
		library = ""
		fmt.Fprintf(stderr, "gpusteward: %s %s: the hook cannot be loaded, so it and all that it starts run without a quota\n",
			path, why)
	case why != "":
		fmt.Fprintf(stderr, "gpusteward: %s %s: the hook cannot see it, so it runs without a quota\n", path, why)
	}
	asks := cmp.Or(o.Tenant, os.Getenv(envTenant))
	welcome, err := taken(o.Socket, asks, o.Require || o.Observe)
	switch {
	case err != nil && o.Observe:
		return exitOurs, fmt.Errorf("%w; --observe needs a broker that holds the program to no terms: leave it out to "+
			"run the program under its terms", err)
	case err != nil && o.Require:
		return exitOurs, fmt.Errorf("%w; --require-broker needs it: start the broker, or correct --socket and --tenant",
			err)
	case err != nil && os.Getenv(envFail) == "closed":
		fmt.Fprintf(stderr, "gpusteward: %v: the program's launches wait until that changes\n", err)
	case err != nil:
		fmt.Fprintf(stderr, "gpusteward: %v: no quota applies until that changes\n", err)
	case o.Tell && why == "":
		fmt.Fprintf(stderr, "gpusteward: %s\n", heldTo(welcome, o.Observe))
	}
	env := environment(os.Environ(), library, o.Tenant, o.Socket)
	signal.Reset() // signals ignored at our start stay ignored in the program
	err = syscall.Exec(path, o.Command, env)
	if errors.Is(err, syscall.ENOEXEC) { // a script without #!, which the shell can run
		err = syscall.Exec("/bin/sh", append([]string{"/bin/sh", path}, o.Command[1:]...), env)
	}
	if errors.Is(err, fs.ErrNotExist) { // the interpreter is missing, not the file
		return exitNotFound, fmt.Errorf("execute %s: its interpreter: %w", path, err)
	}
	return exitUnusable, fmt.Errorf("execute %s: %w", path, err)
}

// Timeouts of the broker's answer, if the program starts in any case, and if it
// does not. Tests have more of them.
var (
	patience         = time.Second
	patienceRequired = 10 * time.Second
)

// heldTo says which quota holds a program.
func heldTo(w wire.Welcome, observed bool) string {
	if observed {
		return "it is only observed"
	}
	q := quota.Quota{Guarantee: float64(w.Guarantee) / 1000, Limit: float64(w.Limit) / 1000, Memory: w.Memory,
		MemoryPart: float64(w.MemoryPart) / 1000}
	free := quota.Free()
	var said []string
	for _, key := range []string{"guarantee", "limit", "memory"} {
		if at := quota.Find(key).At; at(&q).String() != at(&free).String() {
			said = append(said, key+" "+at(&q).String())
		}
	}
	text := "tenant " + wire.Text(w.Tenant[:])
	switch {
	case w.Limit == 0: // a broker before 3.9
		return text
	case said == nil:
		text += ": no quota"
	default:
		text += ": " + strings.Join(said, ", ")
	}
	if w.Elsewhere != 0 {
		text += "; other terms on some GPUs"
	}
	return text
}

// taken returns why the hook would have no session in a program of this
// process, or the broker's answer if it would. It asks for a session without
// GPUs, which ends at once.
func taken(socket, tenant string, required bool) (w wire.Welcome, _ error) {
	end := time.Now().Add(patience)
	if required {
		end = time.Now().Add(patienceRequired)
	}
	conn, err := net.DialTimeout("unixpacket", socket, time.Until(end))
	for errors.Is(err, syscall.EAGAIN) && time.Now().Before(end) { // many processes connect
		time.Sleep(10 * time.Millisecond)
		conn, err = net.DialTimeout("unixpacket", socket, time.Until(end))
	}
	if err != nil {
		return w, fmt.Errorf("no broker at %s: %w", socket, root(err))
	}
	defer func() { _ = conn.Close() }()
	hello := wire.Hello{PID: uint32(os.Getpid())}
	copy(hello.Tenant[:len(hello.Tenant)-1], tenant)
	frame := make([]byte, wire.FrameMax)
	_ = conn.SetDeadline(end) // of an open connection
	_, err = conn.Write(hello.Append(wire.Header{Type: wire.TypeHello}.Append(nil)))
	n := 0
	if err == nil {
		n, err = conn.Read(frame) // the page's descriptor is not taken
	}
	if err != nil {
		return w, fmt.Errorf("no broker at %s: no answer: %w", socket, root(err))
	}
	h, payload, err := wire.Decode(frame[:n])
	switch {
	case err != nil:
		return w, fmt.Errorf("no broker at %s: its answer: %w", socket, err)
	case h.Type == wire.TypeErr:
		var refused wire.Err
		refused.Decode(payload)
		return w, fmt.Errorf("the broker at %s refuses: %s", socket, wire.Text(refused.Text[:]))
	case h.Type != wire.TypeWelcome:
		return w, fmt.Errorf("no broker at %s: something else answers there", socket)
	}
	w.Decode(payload)
	return w, nil
}

// root returns an error of a connection without operation and address.
func root(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	return err
}

// environment returns env with the hook's variables; library is empty if the hook is not to be
// loaded.
func environment(env []string, library, tenant, socket string) []string {
	old := ""
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, value, _ := strings.Cut(entry, "=")
		if name == envPreload {
			old = value
		}
		return name == envPreload || name == envSocket || name == envTenant && tenant != ""
	})
	// First: if two libraries wrap a call, the first one gets it. Only the runtime of a sanitizer
	// ends a program in which it is not the first.
	var before, preload []string
	if library != "" {
		preload = append(preload, library)
	}
	for _, other := range strings.FieldsFunc(old, func(r rune) bool { return r == ':' || r == ' ' }) {
		switch {
		case filepath.Base(other) == Library:
		case comesFirst(filepath.Base(other)):
			before = append(before, other)
		default:
			preload = append(preload, other)
		}
	}
	env = append(env, envSocket+"="+socket)
	if preload = append(before, preload...); len(preload) > 0 {
		env = append(env, envPreload+"="+strings.Join(preload, ":"))
	}
	if tenant != "" && tenant != policy.Unbound { // or terms that the program gets later would not apply
		env = append(env, envTenant+"="+tenant)
	}
	return env
}

// machine is the kernel's name of this machine's architecture, as uname -m prints
// it.
var machine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]

// findLibrary returns the absolute path of the hook.
func findLibrary(given string) (string, error) {
	places := []string{cmp.Or(given, os.Getenv(envLibrary))}
	if places[0] == "" {
		places = []string{"/usr/lib/" + machine + "-linux-gnu/gpusteward/" + Library,
			"/usr/local/lib/gpusteward/" + Library}
		if exe, err := os.Executable(); err == nil {
			dir := filepath.Dir(exe) // an installation in one directory, and the source tree
			places = append([]string{filepath.Join(dir, Library), filepath.Join(dir, "enforcer/hook/build", Library)},
				places...)
		}
	}
	for _, place := range places {
		if _, err := os.Stat(place); err != nil {
			continue
		}
		path, err := filepath.Abs(place)
		if err != nil {
			return "", fmt.Errorf("find the hook: %w", err)
		}
		return path, loadable(path)
	}
	return "", fmt.Errorf("the hook was not found at %s: give its path with --library or %s; in a source tree, make "+
		"hook builds it", strings.Join(places, ", "), envLibrary)
}

// loadable returns why a library cannot be preloaded: the loader would only
// print that and run the program without it.
func loadable(path string) error {
	if strings.ContainsAny(path, ": ") {
		return fmt.Errorf("the hook %q: the loader would split this path at its colon or space: use another path", path)
	}
	library, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("the hook %s is not a library: %w", path, err)
	}
	defer func() { _ = library.Close() }()
	self, err := elf.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find this machine's architecture: %w", err)
	}
	defer func() { _ = self.Close() }()
	if library.Type != elf.ET_DYN || library.Machine != self.Machine || library.Class != self.Class {
		return fmt.Errorf("the hook %s is not a library for this machine: %v of %v", path, library.Type,
			library.Machine)
	}
	return nil
}

// findCommand returns the file of a command, as execvp finds it, or the exit
// status of the reason that there is none.
func findCommand(name string) (path string, status int, err error) {
	places := []string{name}
	if !strings.Contains(name, "/") {
		places = nil
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			places = append(places, filepath.Join(cmp.Or(dir, "."), name))
		}
	}
	status, err = exitNotFound, fs.ErrNotExist
	for _, place := range places {
		info, statErr := os.Stat(place)
		switch {
		case errors.Is(statErr, fs.ErrNotExist) || errors.Is(statErr, syscall.ENOTDIR):
		case statErr != nil:
			status, err = exitUnusable, statErr
		case info.IsDir() || info.Mode()&0o111 == 0:
			status, err = exitUnusable, fs.ErrPermission
		default:
			return place, 0, nil
		}
	}
	return "", status, fmt.Errorf("execute %s: %w", name, err)
}

// comesFirst reports whether a library is the runtime of AddressSanitizer, by its base name with
// GCC or Clang.
func comesFirst(base string) bool {
	return strings.HasPrefix(base, "libasan.") || strings.HasPrefix(base, "libclang_rt.asan")
}

// unhookable says why the loader would not load the hook into a program, and whether the program
// would end for it; empty: it would be loaded, or that is unknown.
func unhookable(path, library string) (why string, fatal bool) {
	if info, err := os.Stat(path); err == nil {
		owner := info.Sys().(*syscall.Stat_t)
		if info.Mode()&fs.ModeSetuid != 0 && int(owner.Uid) != os.Getuid() ||
			info.Mode()&fs.ModeSetgid != 0 && int(owner.Gid) != os.Getgid() {
			return "runs with another user's rights", false
		}
	}
	path = interpreted(path)
	program, err := elf.Open(path)
	if err != nil {
		return "", false
	}
	defer func() { _ = program.Close() }()
	at := slices.IndexFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if at < 0 {
		return "is linked statically", false
	}
	if hook, err := elf.Open(library); err == nil {
		defer func() { _ = hook.Close() }()
		if hook.Machine != program.Machine || hook.Class != program.Class {
			return "is for another machine than the hook", false // the loader leaves the hook out
		}
	}
	name := make([]byte, min(program.Progs[at].Filesz, 4096))
	if _, err := program.Progs[at].ReadAt(name, 0); err != nil {
		return "", false
	}
	loader := strings.TrimRight(string(name), "\x00")
	if !strings.HasPrefix(filepath.Base(loader), "ld-linux") {
		return fmt.Sprintf("has another C library than glibc (%s)", loader), true
	}
	return linked(loader, path, library)
}

// interpreted returns the program that runs a script, or the path itself.
func interpreted(path string) string {
	for range 4 { // as deep as the kernel goes
		f, err := os.Open(path)
		if err != nil {
			return path
		}
		line := make([]byte, 256)
		n, _ := io.ReadFull(f, line)
		_ = f.Close()
		text, script := strings.CutPrefix(string(line[:n]), "#!")
		switch {
		case strings.HasPrefix(string(line[:n]), elf.ELFMAG) || n == 0:
			return path
		case !script: // the shell runs it
			return "/bin/sh"
		}
		text, _, _ = strings.Cut(text, "\n")
		words := strings.Fields(text)
		if len(words) == 0 {
			return path
		}
		path = words[0]
		if filepath.Base(path) == "env" { // it finds the program, after its options and variables
			i := 1 + slices.IndexFunc(words[1:], func(w string) bool { return !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") })
			if found, _, err := findCommand(words[max(i, 0)]); i > 0 && err == nil {
				path = found
			}
		}
	}
	return path
}

// listWithin is how long the loader may take to list the libraries of a program.
var listWithin = 2 * time.Second

// linked asks the loader which libraries the program has, and whether it can load the hook as
// well. It starts nothing of the program.
func linked(loader, path, library string) (why string, fatal bool) {
	if absolute, err := filepath.Abs(path); err == nil { // the loader would look for a bare name among libraries
		path = absolute
	}
	list := func(preload string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), listWithin)
		defer cancel()
		cmd := exec.CommandContext(ctx, loader, "--list", path)
		cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, envPreload+"=") })
		if preload != "" {
			cmd.Env = append(cmd.Env, envPreload+"="+preload)
		}
		cmd.WaitDelay = listWithin
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := list(library)
	if err != nil {
		if _, without := list(""); without != nil {
			return "", false // it is not the hook
		}
		first, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
		return fmt.Sprintf("has a loader that refuses the hook (%.200s)", first), true
	}
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if comesFirst(filepath.Base(name)) && !preloaded(filepath.Base(name)) {
			return fmt.Sprintf("is linked with AddressSanitizer (%s), which must be the first library", filepath.Base(name)), true
		}
	}
	return "", false
}

// preloaded reports whether the caller preloads a library, before which the hook is not put.
func preloaded(base string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(os.Getenv(envPreload), func(r rune) bool { return r == ':' || r == ' ' }),
		func(p string) bool { return filepath.Base(p) == base })
}
