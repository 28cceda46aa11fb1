package sim

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/host"
)

// maxLines bounds the kernel's lines that a GPU keeps.
const maxLines = 1024

// kernelWarning is the priority of the driver's lines: facility kernel,
// severity warning.
const kernelWarning = 4

// A line is a line of the kernel's log about a GPU.
type line struct {
	at   time.Duration
	text string
}

//go:embed kernellog.tsv
var kernelLog string

// phrases are the kernel's messages, by occasion.
var phrases = sync.OnceValue(func() map[string][]string {
	all := map[string][]string{}
	for row := range strings.Lines(kernelLog) {
		occasion, text, _ := strings.Cut(strings.TrimSuffix(row, "\n"), "\t")
		all[occasion] = append(all[occasion], text)
	}
	return all
})

// say logs the message for an occasion, if there is one. In MIG mode gi is the
// GPU instance concerned.
func (g *gpu) say(occasion string, code uint64, gi *uint32) {
	mig := ""
	if gi != nil {
		mig = fmt.Sprintf(" GPU-I:%02d", *gi)
	}
	pid, name := g.culprit(gi)
	action := "0x0"
	if p := phrases()["action "+strconv.Itoa(int(g.action))]; len(p) > 0 {
		action = p[0]
	}
	fill := strings.NewReplacer("{mig}", mig, "{code}", strconv.FormatUint(code, 10), "{pid}", pid, "{name}", name,
		"{action}", action)
	for _, phrase := range phrases()[occasion] {
		g.log(fill.Replace(phrase))
	}
}

// culprit returns the process that the driver blames, in its notation: the one
// with the largest part of the work.
func (g *gpu) culprit(gi *uint32) (pid, name string) {
	var found *process
	for i := range g.procs {
		if p := &g.procs[i]; (gi == nil || p.gi == *gi) && (found == nil || p.Share > found.Share) {
			found = p
		}
	}
	if found == nil {
		return "'<unknown>'", "<unknown>"
	}
	return strconv.Itoa(found.PID), found.comm()
}

// log adds a line to the kernel's log, and drops the oldest if there are too
// many.
func (g *gpu) log(text string) {
	bus, slot := g.address()
	if len(g.lines) == maxLines {
		g.lines = slices.Delete(g.lines, 0, 1)
		g.dropped++
	}
	g.lines = append(g.lines,
		line{g.time(), strings.ReplaceAll(text, "{pci}", fmt.Sprintf("%04x:%02x:%02x", 0, bus, slot))})
}

func (g *gpu) logLine(f *scenarios.Fault) { g.log(f.Line) }

// logged returns the lines from a number on, up to now, and the number of the
// first line kept.
func (g *gpu) logged(from int, now time.Duration) (all []line, first int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.advance(now)
	first = max(from, g.dropped)
	for _, l := range g.lines[first-g.dropped:] {
		if l.at <= now { // the GPU may have advanced further meanwhile
			all = append(all, l)
		}
	}
	return all, first
}

// Follow calls each for every present and future record of the kernel's log
// until ctx ends, as host.KernelLog.Follow does. Every call starts at the
// beginning of the log. Only messages about GPUs are simulated.
func (h *Host) Follow(ctx context.Context, each func(host.Record)) error {
	next, sequence := make([]int, len(h.gpus)), uint64(0)
	for ctx.Err() == nil {
		now := h.now()
		var lines []line
		for i, g := range h.gpus {
			more, first := g.logged(next[i], now)
			sequence += uint64(first - next[i])
			next[i] = first + len(more)
			lines = append(lines, more...)
		}
		slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
		for _, l := range lines {
			each(host.Record{Priority: kernelWarning, Sequence: sequence, Time: h.start.Add(l.at),
				Text: l.text})
			sequence++
		}
		timer := time.NewTimer(h.following(now) - now)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// following returns the first time after t at which a fault begins or ends.
func (h *Host) following(t time.Duration) time.Duration {
	first := scenarios.Forever
	for i := range h.scenario.Faults {
		first = min(first, h.scenario.Faults[i].Next(t))
	}
	return first
}
