package exporter

import "sync"

// boards remembers what is constant of the GPUs: without a driver, only their
// UUIDs are known. It is safe for concurrent use.
type boards struct {
	mu    sync.Mutex
	known map[string]board // by UUID; at most historyGPUs
}

// A board is what is constant of a GPU.
type board struct{ name, pci string }

// remind remembers the boards of those GPUs that have names, and gives the
// others theirs.
func (b *boards) remind(gpus []GPU) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known == nil {
		b.known = map[string]board{}
	}
	for i := range gpus {
		g := &gpus[i]
		was, is := b.known[g.UUID]
		switch {
		case g.Name == "":
			g.Name, g.PCI = was.name, was.pci
		case is || len(b.known) < historyGPUs:
			b.known[g.UUID] = board{g.Name, g.PCI}
		}
	}
}
