// Command trace measures what its trace costs a program that trains on this machine's GPUs: the
// figures of docs/benchmarks.md.
package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

const usage = `Usage: trace [FLAG]...

Measures what its trace costs a program that trains. Processes differ by more than that: on a
virtual machine two runs of GPT-2 by up to a tenth. So the trace of one running process is taken
away and given back, each time for a block of a few steps, in a random order within a pair of
blocks: the pace of a processor changes within a second. The figure is by how much a step with the
trace is longer than its neighbours without it. What the events of a step cost is printed beside
it: that is the most by which they can lengthen it. It ends with status 1 if a program's figure is
above the goal of 0.1 % beyond chance.

Run it as root in the root of the repository, after make hook: go run ./bench/trace -kinds gpt2

`

var (
	kinds    = flag.String("kinds", "gpt2,gpt2_large,ddp", "`kinds` of programs of jobs.py with , between them")
	seconds  = flag.Float64("seconds", 60, "`seconds` for which each program is measured")
	hookPath = flag.String("hook", "enforcer/hook/build/libgpusteward.so", "`path` of the hook")
	jobsPath = flag.String("jobs", "enforcer/hook/bench/jobs.py", "`path` of the programs")
)

// beats are the lengths of the blocks by kind, a few steps each.
var beats = map[string]time.Duration{"gpt2": 100 * time.Millisecond, "gpt2_large": 150 * time.Millisecond,
	"ddp": 250 * time.Millisecond}

const (
	goal = 0.1 // percent
	// eventCost is the most that an event cost on the hosts of H100s, in ns: see docs/benchmarks.md.
	eventCost = 27
)

func main() {
	flag.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "trace:", err)
		os.Exit(1)
	}
}

// run measures each kind. A missed goal does not keep it from the next one.
func run() (missed error) {
	hook, err := filepath.Abs(*hookPath)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := &counter{counts: map[int]*count{}}
	b, err := broker.New(broker.Options{Socket: filepath.Join(dir, "s"), Policy: free{}, Observe: c.look})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = b.Run(ctx) })
	defer func() { cancel(); serving.Wait() }()
	for kind := range strings.SplitSeq(*kinds, ",") {
		beat, known := beats[kind]
		if !known {
			return fmt.Errorf("there is no kind %q", kind)
		}
		if err := c.measure(kind, beat, hook, dir); err != nil {
			missed = errors.Join(missed, fmt.Errorf("%s: %w", kind, err))
		}
	}
	return missed
}

// free is a policy of one tenant without limits.
type free struct{}

func (free) Tenant(broker.Facts, string) (string, error) { return "", nil }
func (free) Tenants() []string                           { return []string{""} }
func (free) Quota(string, string) broker.Quota {
	return broker.Quota{Quota: quota.Quota{Limit: 1}, Weight: 1}
}

// A counter counts the events of each process. Its methods may be called concurrently.
type counter struct {
	mu     sync.Mutex
	counts map[int]*count // by PID
}

type count struct {
	reader wire.TraceReader
	events int
	ended  bool
}

// look reads a trace.
func (c *counter) look(one broker.Traced) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clock, ok := one.Trace.Clock()
	if !ok {
		return
	}
	if c.counts[one.PID] == nil {
		c.counts[one.PID] = new(count)
	}
	of := c.counts[one.PID]
	events, _ := of.reader.Read(one.Trace, clock, fixture.Monotonic(), nil)
	of.events += len(events)
	of.ended = one.Ends
}

// of returns the events of a process once its session has ended.
func (c *counter) of(pid int) (events int, err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		c.mu.Lock()
		one := c.counts[pid]
		if one != nil && one.ended {
			defer c.mu.Unlock()
			return one.events, nil
		}
		c.mu.Unlock()
	}
	return 0, errors.New("after a minute its session has not ended")
}

// measure prints what its trace costs a program of a kind.
func (c *counter) measure(kind string, beat time.Duration, hook, dir string) error {
	file := filepath.Join(dir, kind)
	cmd := exec.Command("python3", *jobsPath, kind, fmt.Sprint(*seconds), file)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+hook, "GPUSTEWARD_SOCKET="+filepath.Join(dir, "s"))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	blocks, err := alternate(cmd.Process.Pid, hook, beat, ended)
	if err != nil {
		_ = cmd.Process.Kill()
		return fmt.Errorf("%w: %s", err, log.Bytes()[max(0, log.Len()-1500):])
	}
	files, _ := filepath.Glob(file + "*") // a rank's has its number behind the name
	if len(files) == 0 {
		return fmt.Errorf("no times: %s", log.Bytes()[max(0, log.Len()-1500):])
	}
	slices.Sort(files)
	text, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	var times struct{ Ends []int64 }
	if err := json.Unmarshal(text, &times); err != nil {
		return err
	}
	slower, ms, traced := costsOf(times.Ends, blocks)
	if len(slower) < 10 {
		return fmt.Errorf("only %d spans", len(slower))
	}
	n, err := c.of(cmd.Process.Pid)
	if err != nil {
		return err
	}
	low, middle, high := medianWithin(slower)
	events := float64(n) / traced
	fmt.Printf("the trace of %s, %.2f ms a step: %.3f %% longer (%.3f to %.3f %%, 95 %%, %d spans of %d steps, blocks of %v); "+
		"about %.3f %% by %.0f events a step\n", kind, ms, middle, low, high, len(slower), costSpan, beat,
		100*events*eventCost/1e6/ms, events)
	if low > goal {
		return fmt.Errorf("a step is %.3f %% longer (%.3f to %.3f %%), goal %g %%", middle, low, high, goal)
	}
	return nil
}

// alternate gives the process its trace and takes it away, until it ends.
func alternate(pid int, hook string, length time.Duration, ended <-chan error) (blocks []block, err error) {
	at, err := addressOf(pid, hook, "gs_trace", ended)
	if err != nil {
		return nil, err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	trace, none := make([]byte, 8), make([]byte, 8)
	for beat := time.Tick(length); ; {
		first := rand.IntN(2) == 0
		for _, traced := range []bool{first, !first} {
			if binary.NativeEndian.Uint64(trace) == 0 { // the program has no session yet
				_, _ = memory.ReadAt(trace, at)
			} else if _, err := memory.WriteAt(map[bool][]byte{true: trace, false: none}[traced], at); err == nil {
				blocks = append(blocks, block{from: fixture.Monotonic(), traced: traced})
			}
			select {
			case err := <-ended:
				return blocks, err
			case <-beat:
			}
			if n := len(blocks); n > 0 {
				blocks[n-1].to = fixture.Monotonic()
			}
		}
	}
}

// addressOf waits until the process has the hook, and returns where its symbol is.
func addressOf(pid int, hook, symbol string, ended <-chan error) (at int64, err error) {
	f, err := elf.Open(hook)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == symbol })
	if i < 0 {
		return 0, fmt.Errorf("%s has no symbol %s", hook, symbol)
	}
	for {
		maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		for line := range strings.Lines(string(maps)) {
			if strings.HasSuffix(strings.TrimSpace(line), filepath.Base(hook)) {
				base, _ := strconv.ParseInt(line[:strings.IndexByte(line, '-')], 16, 64)
				return base + int64(symbols[i].Value), nil
			}
		}
		select {
		case err := <-ended:
			return 0, fmt.Errorf("it ended: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
