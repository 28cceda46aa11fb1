package sim

import (
	"log/slog"

	"gpusteward/collectors/host"
)

// Table returns a table of h's processes and the names of their containers.
func (h *Host) Table(log *slog.Logger) *host.Table {
	proc := func(pid int) (host.Facts, map[string]string, bool) {
		p, ok := h.Process(pid)
		if !ok && pid == 2 {
			return host.Facts{Comm: "kthreadd"}, nil, true
		}
		return host.Facts{Start: p.Start, Began: p.Began, UID: p.UID, Comm: p.Comm, Cgroup: p.Cgroup}, p.Environ, ok
	}
	names := host.NamesMap{}
	for id, n := range h.ContainerNames() {
		names[id] = host.ContainerName(n)
	}
	return host.NewTable(host.Options{Proc: host.ProcFunc(proc), Names: []host.Names{names}, Log: log})
}
