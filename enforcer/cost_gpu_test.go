//go:build gpu

package enforcer_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

var costSeconds = flag.Float64("cost.seconds", 60, "`seconds` for which each program is measured")

// costNanoseconds is the most that an event cost on the hosts of H100s: see docs/benchmarks.md.
const costNanoseconds = 27

// TestGPUTraceCost measures what its trace costs a program that trains. Processes
// differ by more than that: on a virtual machine two runs of GPT-2 by up to a
// tenth. So the trace of one running process is taken away and given back, each
// time for a block of a few steps, in a random order within a pair of blocks: the pace of a
// processor changes within a second. The figure is by how much a step with the trace is longer
// than its neighbours without it. What the events of a step cost is printed beside it: that is
// the most by which they can lengthen it.
func TestGPUTraceCost(t *testing.T) {
	for kind, beat := range map[string]time.Duration{"gpt2": 100 * time.Millisecond,
		"gpt2_large": 150 * time.Millisecond, "ddp": 250 * time.Millisecond} {
		t.Run(kind, func(t *testing.T) { traceCost(t, kind, beat) })
	}
}

func traceCost(t *testing.T, kind string, beat time.Duration) {
	r := record(t)
	file := filepath.Join(t.TempDir(), "times")
	cmd := exec.Command("python3", filepath.Join(fixture.Given(t, "GS_BENCH", "hook/bench"), "jobs.py"), kind,
		fmt.Sprint(*costSeconds), file)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+r.hook, "GPUSTEWARD_SOCKET="+r.socket)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	fixture.Must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	blocks, err := alternate(cmd.Process.Pid, r.hook, beat, ended)
	if err != nil {
		t.Fatalf("%v: %s", err, log.Bytes()[max(0, log.Len()-1500):])
	}
	files, _ := filepath.Glob(file + "*")
	if len(files) == 0 {
		t.Fatalf("no times: %s", log.Bytes()[max(0, log.Len()-1500):])
	}
	slices.Sort(files)
	var times struct{ Ends []int64 }
	text, err := os.ReadFile(files[0])
	if err == nil {
		err = json.Unmarshal(text, &times)
	}
	fixture.Must(t, err)
	slower, ms, traced := costsOf(times.Ends, blocks)
	if len(slower) < 10 {
		t.Fatalf("%d spans", len(slower))
	}
	low, middle, high := medianWithin(slower)
	events := float64(len(r.of(t, cmd.Process.Pid))) / traced
	fmt.Printf("the trace of %s, %.2f ms a step: %.3f %% longer (%.3f to %.3f %%, 95 %%, %d spans of %d steps, blocks of %v); "+
		"about %.3f %% by %.0f events a step\n", kind, ms, middle, low, high, len(slower), costSpan, beat,
		100*events*costNanoseconds/1e6/ms, events)
	if low > 0.1 {
		t.Errorf("%s: a step is %.3f %% longer (%.3f to %.3f %%), goal 0.1 %%", kind, middle, low, high)
	}
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

// A block is a time in which a program wrote its trace, or not.
type block struct {
	from, to int64 // of CLOCK_MONOTONIC, ns
	traced   bool
}

// costSpan is the steps that are compared with each other.
const costSpan = 24

// costsOf returns, in percent and for each span, how much longer a step with the trace is than
// one without it; the median of the steps in ms; and how many steps had the trace. Of a step in
// which the trace came or went, a part had it.
func costsOf(ends []int64, blocks []block) (slower []float64, ms, traced float64) {
	var times, parts, logs []float64
	for n, b := 1, 0; n < len(ends); n++ {
		begin, end := ends[n-1], ends[n]
		for b < len(blocks) && blocks[b].to <= begin {
			b++
		}
		if b == len(blocks) {
			break
		}
		if begin < blocks[b].from || end <= begin {
			continue
		}
		with, known := int64(0), int64(0)
		for _, one := range blocks[b:] {
			if one.from >= end {
				break
			}
			within := min(end, one.to) - max(begin, one.from)
			if known += within; one.traced {
				with += within
			}
		}
		part := float64(with) / float64(known)
		traced += part
		times, parts, logs = append(times, float64(end-begin)), append(parts, part), append(logs, math.Log(float64(end-begin)))
	}
	for ; len(parts) >= costSpan; parts, logs = parts[costSpan:], logs[costSpan:] {
		if slope := slope(parts[:costSpan], logs[:costSpan]); !math.IsNaN(slope) {
			slower = append(slower, 100*math.Expm1(slope))
		}
	}
	return slower, percentile(times, 0.5) / 1e6, traced
}

// slope returns by how much y grows with x, by least squares, beside what both do steadily;
// NaN: x does nothing else.
func slope(x, y []float64) float64 {
	var xx, xy float64
	x, y = unsteady(x), unsteady(y)
	for i := range x {
		xx, xy = xx+x[i]*x[i], xy+x[i]*y[i]
	}
	return xy / xx
}

// unsteady returns what x has beside a straight line.
func unsteady(x []float64) []float64 {
	middle := float64(len(x)-1) / 2
	var sum, turn, squares float64
	for i, v := range x {
		sum, turn, squares = sum+v, turn+v*(float64(i)-middle), squares+(float64(i)-middle)*(float64(i)-middle)
	}
	rest := make([]float64, len(x))
	for i, v := range x {
		rest[i] = v - sum/float64(len(x)) - turn/squares*(float64(i)-middle)
	}
	return rest
}

// medianWithin returns the median of x between the ends of its 95 % confidence interval. It
// is by ranks, so that a few values far away do not matter.
func medianWithin(x []float64) (low, middle, high float64) {
	if len(x) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	x = slices.Clone(x)
	slices.Sort(x)
	n := float64(len(x))
	first := max(0, int((n-1.96*math.Sqrt(n))/2))
	return x[first], percentile(x, 0.5), x[len(x)-1-first]
}
