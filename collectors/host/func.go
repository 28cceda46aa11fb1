package host

import "context"

// A ProcFunc is a Proc of processes without files: it returns the facts of a
// process and its environment.
type ProcFunc func(pid int) (f Facts, environ map[string]string, ok bool)

// Open returns the process that has the PID now.
func (p ProcFunc) Open(pid int) (Handle, error) {
	f, _, ok := p(pid)
	if !ok {
		return nil, ErrGone
	}
	return &funcHandle{p, pid, f.Start}, nil
}

type funcHandle struct {
	proc  ProcFunc
	pid   int
	start uint64
}

func (h *funcHandle) Facts() (Facts, error) {
	f, _, ok := h.proc(h.pid)
	if !ok || f.Start != h.start {
		return f, ErrGone
	}
	return f, nil
}

func (h *funcHandle) Environ(names ...string) (map[string]string, error) {
	f, environ, ok := h.proc(h.pid)
	if !ok || f.Start != h.start {
		return nil, ErrGone
	}
	found := map[string]string{}
	for _, n := range names {
		if v, ok := environ[n]; ok {
			found[n] = v
		}
	}
	return found, nil
}

func (h *funcHandle) Title() (string, error) { return "", nil }

func (h *funcHandle) Alive() bool {
	f, _, ok := h.proc(h.pid)
	return ok && f.Start == h.start
}

func (h *funcHandle) Close() {}

// A NamesMap is a fixed source of names.
type NamesMap map[string]ContainerName

// Source returns "simulation".
func (NamesMap) Source() string { return "simulation" }

// Containers returns the map.
func (n NamesMap) Containers(context.Context) (map[string]ContainerName, error) { return n, nil }
