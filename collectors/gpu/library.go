// Package gpu opens NVIDIA's management library (NVML) and hands out its GPUs.
// It is the only package that calls Init and Shutdown, the only one that knows
// return codes, and it guards every call: a symbol that the installed library
// lacks is answered with FUNCTION_NOT_FOUND instead of ending the process.
package gpu

//go:generate go run generate.go

import (
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A Library is an opened NVML, for one driver generation, as one goroutine
// calls it: see As. So do its devices.
type Library struct {
	guard
	nv nvml.Interface
}

// Open initialises NVML. The error says what an operator can do about it.
// After an error there is nothing to close: Shutdown after a failed Init ends
// the process.
func Open(nv nvml.Interface, c *Calls, caller *Caller) (*Library, error) {
	l := &Library{nv: nv, guard: guard{calls: c, missing: make([]bool, len(calls)), caller: caller}}
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

// Count returns how many GPUs the driver manages.
func (l *Library) Count() (int, error) {
	n, ret := l.DeviceGetCount()
	return n, Err("nvmlDeviceGetCount", ret)
}
