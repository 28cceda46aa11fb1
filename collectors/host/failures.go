package host

import (
	"log/slog"
	"maps"
	"sync"
)

// failures counts failures by their source, and logs the first of each.
type failures struct {
	log *slog.Logger
	mu  sync.Mutex
	n   map[string]uint64
}

func (f *failures) add(source string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == nil {
		f.n = map[string]uint64{}
	}
	if f.n[source]++; f.n[source] == 1 {
		f.log.Warn("cannot read facts about processes", "source", source, "err", err)
	}
}

func (f *failures) each(call func(source string, n uint64)) {
	f.mu.Lock()
	n := maps.Clone(f.n)
	f.mu.Unlock()
	for source, n := range n {
		call(source, n)
	}
}
