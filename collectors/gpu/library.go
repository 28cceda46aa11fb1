package gpu

//go:generate go run generate.go

import (
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A Library is an opened NVML, for one driver generation. The library and its
// devices belong to one goroutine: see As.
type Library struct {
	guard
	nv nvml.Interface
}

// Open initialises NVML. The error tells an operator what to do about it. After
// an error there is nothing to close: Shutdown after a failed Init would end
// the process.
func Open(nv nvml.Interface, c *Calls, caller *Caller) (*Library, error) {
	l := &Library{nv: nv, guard: guard{calls: c, missing: make([]bool, len(calls)), turns: newTurns(), caller: caller}}
	l.begin("nvmlInit")
	ret := nv.Init()
	l.end("nvmlInit", ret)
	if ret != nvml.SUCCESS {
		return nil, Err("nvmlInit", ret)
	}
	symbols := nv.Extensions()
	for i, call := range calls {
		for all := range strings.SplitSeq(call.symbols, "&") {
			found := false
			for any := range strings.SplitSeq(all, "|") {
				found = found || symbols.LookupSymbol(any) == nil
			}
			l.missing[i] = l.missing[i] || !found
		}
	}
	return l, nil
}

// Close shuts NVML down. Every Device of this library is invalid afterwards.
func (l *Library) Close() error {
	l.begin("nvmlShutdown")
	ret := l.nv.Shutdown()
	l.end("nvmlShutdown", ret)
	return Err("nvmlShutdown", ret)
}

// As returns the library for one goroutine.
func (l *Library) As(c *Caller) *Library {
	own := *l
	own.caller = c
	return &own
}

// Count returns the number of GPUs that the driver manages.
func (l *Library) Count() (int, error) {
	n, ret := l.DeviceGetCount()
	return n, Err("nvmlDeviceGetCount", ret)
}
