package gpu

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Calls counts NVML calls over the life of the process, across driver
// generations. The zero value is ready. Safe for concurrent use.
type Calls struct {
	mu      sync.Mutex
	counts  map[callReturn]uint64
	missing map[string]bool
}

type callReturn struct {
	call   string
	result nvml.Return
}

// Each calls f for every call and return code so far.
func (c *Calls) Each(f func(call string, ret nvml.Return, n uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, n := range c.counts {
		f(k.call, k.result, n)
	}
}

// Missing calls f for every requested NVML function that the installed library
// lacks.
func (c *Calls) Missing(f func(symbol string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.missing {
		f(s)
	}
}

func (c *Calls) count(call string, ret nvml.Return) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[callReturn]uint64{}
	}
	c.counts[callReturn{call, ret}]++
}

func (c *Calls) miss(symbol string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.missing == nil {
		c.missing = map[string]bool{}
	}
	c.missing[symbol] = true
}

// A guard precedes every NVML call of one owner. It refuses calls without a
// symbol, counts return codes, and records the call in progress, so that a call
// that never returns can be named.
type guard struct {
	calls   *Calls
	missing []bool // by index into calls; shared and constant
	caller  *Caller
}

// A Caller is the record of one goroutine's calls to the driver. The zero value
// is ready.
type Caller struct {
	busy atomic.Pointer[Busy]

	Good   int // calls that succeeded; belongs to the goroutine
	Barred int // calls that failed as they do without device nodes; belongs to the goroutine
}

// Busy returns the call in progress, or nil. Safe for concurrent use.
func (c *Caller) Busy() *Busy { return c.busy.Load() }

// Recover records that the call in progress ended in a panic: go-nvml trusts
// every count that the library returns.
func (c *Caller) Recover() { c.busy.Store(nil) }

// Busy is an NVML call that has not returned yet.
type Busy struct {
	Call  string
	Since time.Time
}

func (g guard) enter(i int) nvml.Return {
	if g.missing[i] {
		g.calls.miss(calls[i].name)
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	g.begin(calls[i].name)
	return nvml.SUCCESS
}

func (g guard) leave(i int, ret nvml.Return) { g.end(calls[i].name, ret) }

func (g guard) begin(call string) { g.caller.busy.Store(&Busy{call, time.Now()}) }

func (g guard) end(call string, ret nvml.Return) {
	g.caller.busy.Store(nil)
	if ret == nvml.SUCCESS {
		g.caller.Good++
	} else if Barred(ret) {
		g.caller.Barred++
	}
	g.calls.count(call, ret)
}
