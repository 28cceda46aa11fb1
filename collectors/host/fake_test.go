package host

import (
	"errors"
	"sync"
)

// A fakeProc holds processes by PID.
type fakeProc struct {
	mu        sync.Mutex
	processes map[int]*fakeProcess
	opened    int // open handles
	titles    int // that were read
}

// A fakeProcess is a process of a fakeProc. Change it through set.
type fakeProcess struct {
	Facts
	environ map[string]string
	title   string
	err     error         // returned by Facts
	block   chan struct{} // blocks Environ and Title until closed
}

type fakeHandle struct {
	proc    *fakeProc
	process *fakeProcess
	pid     int
}

func (p *fakeProc) set(pid int, process *fakeProcess) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.processes == nil {
		p.processes = map[int]*fakeProcess{}
	}
	p.processes[pid] = process
	if process == nil {
		delete(p.processes, pid)
	}
}

func (p *fakeProc) handles() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

func (p *fakeProc) Open(pid int) (Handle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.processes[pid] == nil {
		return nil, ErrGone
	}
	p.opened++
	return &fakeHandle{p, p.processes[pid], pid}, nil
}

func (h *fakeHandle) Facts() (Facts, error) {
	if !h.Alive() {
		return Facts{}, ErrGone
	}
	return h.process.Facts, h.process.err
}

func (h *fakeHandle) Environ(names ...string) (map[string]string, error) {
	if h.process.block != nil {
		<-h.process.block
	}
	if !h.Alive() {
		return nil, ErrGone
	}
	if h.process.environ == nil {
		return nil, errors.New("permission denied")
	}
	found := map[string]string{}
	for _, n := range names {
		if v, ok := h.process.environ[n]; ok {
			found[n] = v
		}
	}
	return found, nil
}

func (h *fakeHandle) Title() (string, error) {
	if h.process.block != nil {
		<-h.process.block
	}
	h.proc.mu.Lock()
	defer h.proc.mu.Unlock()
	h.proc.titles++
	return h.process.title, nil
}

func (h *fakeHandle) Alive() bool {
	h.proc.mu.Lock()
	defer h.proc.mu.Unlock()
	return h.proc.processes[h.pid] == h.process
}

func (h *fakeHandle) Close() {
	h.proc.mu.Lock()
	defer h.proc.mu.Unlock()
	h.proc.opened--
}
