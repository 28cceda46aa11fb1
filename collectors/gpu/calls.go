package gpu

import (
	"strings"
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
// symbol, has calls wait that may not overlap, counts return codes, and records
// the call in progress, so that a call that never returns can be named.
type guard struct {
	calls   *Calls
	missing []bool // by index into calls; shared and constant
	turns   []turn // the same; nil: the call needs no turn
	caller  *Caller
}

// alone lists families of calls, by the beginning of their names. NVML promises
// that any two calls may overlap. But this agent crashed on hosts with two H100s:
// once in nvmlGpmMetricsGet, and once while another thread was in
// nvmlGpmSampleGet (driver 580). Authors of other agents saw wrong answers where
// nvmlDeviceGetFieldValues overlapped. So one call of a family is made after the
// other.
var alone = []string{"nvmlGpm", "nvmlDeviceGetFieldValues"}

// newTurns returns the turns of one library, by index into calls.
func newTurns() []turn {
	turns := make([]turn, len(calls))
	for _, family := range alone {
		t, none := make(turn, 1), make(chan struct{})
		close(none)
		t <- none
		for i, call := range calls {
			if strings.HasPrefix(call.name, family) {
				turns[i] = t
			}
		}
	}
	return turns
}

// A turn lets one call of a family follow the other. It holds what the latest
// call closes when it returns.
type turn chan chan struct{}

// patience is how long a call waits for one that does not return. That one is in
// the kernel, and may stay there: a wedged GPU must not silence the others.
const patience = 250 * time.Millisecond

// take waits for the turn, and returns what ends it.
func (t turn) take() (done chan struct{}) {
	latest := <-t
	select {
	case <-latest:
	case <-time.After(patience):
	}
	done = make(chan struct{})
	t <- done
	return done
}

// A Caller is the record of one goroutine's calls to the driver. The zero value
// is ready.
type Caller struct {
	busy atomic.Pointer[Busy]
	done chan struct{} // ends the turn of the call in progress; nil: it has none

	Good   int // calls that succeeded; belongs to the goroutine
	Barred int // calls that failed as they do without device nodes; belongs to the goroutine
}

// Busy returns the call in progress, or nil. Safe for concurrent use.
func (c *Caller) Busy() *Busy { return c.busy.Load() }

// Recover records that the call in progress ended in a panic: go-nvml trusts
// every count that the library returns.
func (c *Caller) Recover() { c.returned() }

func (c *Caller) returned() {
	c.busy.Store(nil)
	if c.done != nil {
		close(c.done)
		c.done = nil
	}
}

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
	if t := g.turns[i]; t != nil {
		g.caller.done = t.take()
	}
	g.begin(calls[i].name)
	return nvml.SUCCESS
}

func (g guard) leave(i int, ret nvml.Return) { g.end(calls[i].name, ret) }

func (g guard) begin(call string) { g.caller.busy.Store(&Busy{call, time.Now()}) }

func (g guard) end(call string, ret nvml.Return) {
	g.caller.returned()
	if ret == nvml.SUCCESS {
		g.caller.Good++
	} else if Barred(ret) {
		g.caller.Barred++
	}
	g.calls.count(call, ret)
}
