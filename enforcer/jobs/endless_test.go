package jobs

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// by notes an event of a thread.
func (r *rank) by(thread int, at int64, kind wire.EventKind, id uint32) {
	r.note(at, kind, id)
	place := 128 + wire.Communicators*128 + int((r.head-1)%wire.EventsKept)*16
	r.put32(place+12, uint32(kind)|uint32(thread)<<20)
}

// TestEndlessWork tells work that does not end in a program without steps, and no work that takes as long as it may.
func TestEndlessWork(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	const stream = 0x3a7f2c<<8 | uint32(wire.WaitStream)
	type program struct {
		waits   int           // before
		longest time.Duration // of them
		last    func(h *host, r *rank)
		always  func(r *rank, at int64) // each second meanwhile
		after   int                     // seconds until it is told; 0: never
		where   string
	}
	stands := func(kind wire.EventKind, id uint32) func(*host, *rank) {
		return func(h *host, r *rank) {
			r.by(1, h.at, wire.EventGraph, 7)
			r.by(1, h.at, kind, id)
		}
	}
	waits := stands(wire.EventWait, stream)
	for name, c := range map[string]program{
		"a graph":         {40, time.Second, waits, nil, 14, "a wait for the stream at ...3a7f2c0, in flight: graph 00000007"},
		"an event":        {40, time.Second, stands(wire.EventWait, uint32(wire.WaitEvent)), nil, 14, "in flight: graph 00000007"},
		"a small copy":    {40, time.Second, stands(wire.EventCopying, 1), nil, 14, "in flight: graph 00000007"},
		"after long ones": {40, 8 * time.Second, waits, nil, 28, "a wait for the stream at ...3a7f2c0, in flight: graph 00000007"},
		"a second stream, while another thread goes on": {40, time.Second, waits, func(r *rank, at int64) {
			r.by(0, at, wire.EventLaunch, 3)
			r.by(0, at+1e6, wire.EventWait, 0)
			r.by(0, at+2e6, wire.EventWaited, 0)
		}, 14, "a wait for the stream at ...3a7f2c0, in flight: graph 00000007"},
		"beside others": {40, time.Second, func(h *host, r *rank) {
			h.Observer.Evidence = func(string, int) Evidence { return Evidence{Neighbours: 0.5} }
			waits(h, r)
		}, nil, 34, "a wait for the stream at ...3a7f2c0, in flight: graph 00000007"},
		"beside others, after long ones": {40, 4 * time.Second, func(h *host, r *rank) {
			h.Observer.Evidence = func(string, int) Evidence { return Evidence{Neighbours: 0.5} }
			waits(h, r)
		}, nil, 44, "a wait for the stream at ...3a7f2c0, in flight: graph 00000007"},
		"a launch that does not return": {40, time.Second, func(h *host, r *rank) {
			r.silent = true
			r.by(1, h.at, wire.EventLaunch, 8)
		}, nil, 14, "in flight: kernel 00000008"},
		"a copy that does not return": {40, time.Second, func(h *host, r *rank) {
			r.silent = true
			r.by(1, h.at, wire.EventCopy, 8)
		}, nil, 14, ""},

		"a launch, and the program computes": {40, time.Second, func(h *host, r *rank) {
			r.silent = true
			r.by(1, h.at, wire.EventLaunch, 8)
		}, func(r *rank, _ int64) { r.proc('R', 50) }, 0, ""},
		"a launch, long before the driver holds the hook": {40, time.Second, func(h *host, r *rank) {
			r.by(1, h.at-3e9, wire.EventLaunch, 8)
			h.look()
			r.silent = true
		}, nil, 0, ""},
		"a kernel for ever by design":       {0, 0, waits, nil, 0, ""},
		"for which a new thread waits":      {40, time.Second, func(h *host, r *rank) { r.by(2, h.at, wire.EventWait, stream) }, nil, 0, ""},
		"for which nobody waits":            {40, time.Second, stands(wire.EventLaunch, 8), nil, 0, ""},
		"a large copy":                      {40, time.Second, stands(wire.EventCopying, 15<<26), nil, 0, ""},
		"another thread is held by a quota": {40, time.Second, func(h *host, r *rank) { r.by(0, h.at, wire.EventHeld, 0); waits(h, r) }, nil, 0, ""},
		"frozen by somebody else": {40, time.Second, func(h *host, r *rank) {
			fixture.Rewrite(h.t, filepath.Join(h.Observer.Procfs, fmt.Sprint(r.pid), "wchan"), "do_freezer_trap")
			waits(h, r)
		}, nil, 0, ""},
		"a launch, while another thread's calls are long": {40, time.Second, func(h *host, r *rank) {
			for range 2 {
				r.by(2, h.at, wire.EventWait, stream)
				h.at += 400e9
				r.by(2, h.at, wire.EventWaited, stream)
				h.look()
			}
			r.silent = true
			r.by(1, h.at, wire.EventLaunch, 8)
		}, nil, 0, ""},
		"a debugger": {40, time.Second, func(h *host, r *rank) { r.proc('t', 0); waits(h, r) }, nil, 0, ""},
		"stopped":    {40, time.Second, func(h *host, r *rank) { r.proc('T', 0); waits(h, r) }, nil, 0, ""},
		"we have it stand still": {40, time.Second, func(h *host, r *rank) {
			h.Observer.Held = func(string, string) bool { return true }
			waits(h, r)
		}, nil, 0, ""},
		"a rank, whose peer saves": {40, time.Second, func(h *host, r *rank) {
			r.put64(128, 77)
			r.put64(136, 2<<32)
			waits(h, r)
		}, nil, 0, ""},
		"the end of the wait was lost": {40, time.Second, func(h *host, r *rank) {
			waits(h, r)
			h.look()
			r.head += 2 * wire.EventsKept
			r.put64(0, r.head)
		}, nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, 1)
			r := h.ranks[0]
			for i := range c.waits {
				r.by(1, h.at, wire.EventGraph, uint32(i))
				r.by(1, h.at, wire.EventWait, stream)
				h.at += int64(c.longest) / int64(1+i%3)
				r.by(1, h.at, wire.EventWaited, stream)
				h.look()
			}
			c.last(h, r)
			told := 0
			for s := 1; s <= max(600*truth(c.after == 0), c.after+5) && told == 0; s++ {
				if c.always != nil {
					c.always(r, h.at)
				}
				hangs := h.wait(1)
				if len(hangs) > 0 && c.where != "" {
					fixture.Until(t, time.Minute, "it is told: "+c.where, func() bool {
						_, hangs = h.look()
						return len(hangs) == 0 || hangs[0].Where == c.where
					})
				}
				for _, hang := range hangs {
					if told = s; hang.Reason != "kernel" || hang.Rank != -1 || hang.Where != c.where || hang.Seconds < float64(s)-1 {
						t.Errorf("%+v, want a kernel at %q", hang, c.where)
					}
				}
			}
			if told > c.after || told < c.after-4 {
				t.Errorf("it is told after %d s, want at most %d", told, c.after)
			}
		})
	}
}
