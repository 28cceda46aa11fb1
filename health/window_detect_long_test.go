//go:build long

package health

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestLongWindows has the engine judge hours and weeks of artificial samples. A
// week of the whole chain would take half an hour.
func TestLongWindows(t *testing.T) {
	t.Parallel()
	const hours, days = time.Hour, 24 * time.Hour
	up := on("0", collectors.Up, 1)
	pages := func(single, double float64) []collectors.Sample {
		return []collectors.Sample{up, on("0", faults.RetiredPages, single, "single_bit"),
			on("0", faults.RetiredPages, double, "double_bit")}
	}
	rows := func(n int) []collectors.Sample {
		return []collectors.Sample{up, on("0", faults.RemappedRows, float64(n), "uncorrectable", "active")}
	}
	downs := func(n int) []collectors.Sample {
		return []collectors.Sample{up, {Metric: links.IBPortDowned, Labels: []string{"mlx5_0/1"}, Value: float64(n)}}
	}
	// every returns a function of time: the number of events so far, one per d, at most n
	every := func(d time.Duration, n int) func(at time.Duration) int {
		return func(at time.Duration) int { return min(int(at/d)+1, n) }
	}
	pending := func(time.Duration) []collectors.Sample {
		return []collectors.Sample{up, on("0", faults.RowRemapPending, 1)}
	}
	for _, c := range []struct {
		name, check string
		step        time.Duration
		samples     func(at time.Duration) []collectors.Sample
		xid         int           // the XID of the events
		each        time.Duration // time between them
		times       int
		least, most time.Duration // when it is found; 0: never
		severity    incident.Severity
		length      time.Duration
		over        bool // in the end
	}{
		{name: "63 pages", check: "retired_pages", step: time.Minute,
			samples: func(at time.Duration) []collectors.Sample {
				return pages(float64(min(60+int(at/hours), 63)-10), 10)
			},
			least: 3 * hours, most: 3*hours + time.Minute, severity: incident.Critical, length: 5 * hours},
		{name: "62 pages", check: "retired_pages", step: time.Minute,
			samples: func(time.Duration) []collectors.Sample { return pages(47, 15) }, length: 5 * hours},
		{name: "double bit errors week by week", check: "retired_pages", step: hours,
			samples: func(at time.Duration) []collectors.Sample {
				return pages(0, float64(14+int(at/(8*days))))
			}, length: 40 * days},
		{name: "many old ones", check: "retired_pages", step: hours,
			samples: func(time.Duration) []collectors.Sample { return pages(0, 30) }, length: 10 * days},
		{name: "two of them in a week", check: "retired_pages", step: hours,
			samples: func(at time.Duration) []collectors.Sample { return pages(0, float64(14+int(at/(3*days)))) },
			least:   6 * days, most: 6*days + hours, severity: incident.Critical, length: 8 * days},

		{name: "rows that wait for hours", check: "remap_pending", step: time.Minute, samples: pending,
			most: time.Minute, severity: incident.Info, length: 23 * hours},
		{name: "rows that wait for a day", check: "remap_pending", step: time.Minute, samples: pending,
			least: 24*hours - time.Minute, most: 25 * hours, severity: incident.Warning, length: 26 * hours},
		{name: "five rows in a week", check: "remap_count", step: hours,
			samples: func(at time.Duration) []collectors.Sample { return rows(every(days, 6)(at)) },
			least:   4 * days, most: 5*days + hours, severity: incident.Warning, length: 30 * days, over: true},
		{name: "four rows in a week", check: "remap_count", step: hours,
			samples: func(at time.Duration) []collectors.Sample {
				return rows(every(2*days, 100)(at))
			}, length: 40 * days},
		{name: "all rows", check: "remap_count", step: hours,
			samples: func(at time.Duration) []collectors.Sample { return rows(500 + every(2*days, 100)(at)) },
			least:   22 * days, most: 22*days + hours, severity: incident.Warning, length: 30 * days},

		{name: "twice in a day", check: "xid_repeat", step: time.Minute, xid: 92, each: 20 * hours, times: 2,
			least: 20 * hours, most: 20*hours + time.Minute, severity: incident.Critical,
			length: 46 * hours, over: true},
		{name: "once a day", check: "xid_repeat", step: time.Minute, xid: 92, each: 25 * hours, times: 2,
			length: 60 * hours},
		{name: "four of an application", check: "xid_repeat", step: time.Minute, xid: 31, each: hours, times: 4,
			length: 20 * hours},

		{name: "a port three times in half a day", check: "ib_port_flap", step: time.Minute,
			samples: func(at time.Duration) []collectors.Sample { return downs(every(5*hours, 4)(at)) },
			least:   15 * hours, most: 15*hours + time.Minute, severity: incident.Warning,
			length: 30 * hours, over: true},
		{name: "a port now and then", check: "ib_port_flap", step: time.Minute,
			samples: func(at time.Duration) []collectors.Sample {
				return downs(every(7*hours, 10)(at))
			}, length: 60 * hours},

		{name: "a critical fault every other day", check: "gpu_lemon", step: hours, xid: 119, each: 2 * days, times: 10,
			least: 12 * days, most: 17 * days, severity: incident.Warning, length: 60 * days, over: true},
		{name: "a critical fault in five days", check: "gpu_lemon", step: hours, xid: 119, each: 5 * days, times: 10,
			length: 60 * days},
		{name: "an application's fault each hour", check: "gpu_lemon", step: hours, xid: 31, each: hours, times: 500,
			length: 30 * days},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, found, at, worst := newWorld(t, Checks()...), time.Duration(-1), -c.step, incident.None
			for happenings := 0; at < c.length; {
				at += c.step
				samples, events := []collectors.Sample{up}, []incident.Event(nil)
				if c.samples != nil {
					samples = c.samples(at)
				}
				if happenings < c.times && at >= time.Duration(happenings)*c.each {
					events = append(events, happened(fmt.Sprint(happenings), incident.WhatXID, c.xid, "0",
						w.now.Add(c.step)))
					happenings++
				}
				for _, e := range w.step(c.step, events, samples...) {
					if e.Check == c.check && e.Severity > worst {
						found, worst = at, e.Severity
					}
				}
			}
			fixture.Stop(t, worst != c.severity, "%s: %v after %v, want %v", c.check, worst, found, c.severity)
			fixture.If(t, worst != incident.None && (found < c.least || found > c.most),
				"found after %v, want from %v to %v", found, c.least, c.most)
			fixture.Equal(t, (w.state(c.check) == incident.OK), c.over || worst == incident.None, "in the end it is")
		})
	}
}
