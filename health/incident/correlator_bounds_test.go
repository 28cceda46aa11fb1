package incident

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestConflictingSources(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
	d.nvml(1, "xid", 48)
	d.to(disagreed - second)
	fixture.Equal(t, d.Losses(), Losses{}, "…, before the other source had its time")
	d.to(disagreed)
	fixture.Equal(t, d.Losses(), Losses{MissedByNVML: 1, MissedByKernel: 1}, "…, after it")
	d.to(4 * time.Minute)
	if l := d.Losses(); l != (Losses{MissedByNVML: 1, MissedByKernel: 1}) || len(d.open) != 0 {
		t.Errorf("%+v, %d open", l, len(d.open))
	}
	// An XID of history, or of a source that does not work, is not missed.
	for _, works := range []func(string, Entity) bool{nil,
		func(source string, _ Entity) bool { return source != SourceNVML }} {
		d := newDesk(t)
		if works != nil {
			d.Works = works
		} else {
			d.since = d.start.Add(second)
		}
		d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
		if works != nil {
			d.Works = func(string, Entity) bool { return true } // the driver was reloaded, and its event is lost
		}
		if d.to(time.Minute); d.Losses() != (Losses{}) {
			t.Errorf("%+v", d.Losses())
		}
	}
}

// TestObservationsOutOfOrder has the lines of a fault arrive in another
// order than that of their times.
func TestObservationsOutOfOrder(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at := d.start.Add(time.Minute)
	for i, after := range []time.Duration{0, -4 * second, 3 * second, -8 * second, second} {
		d.hear(d.Add(Observation{Time: at.Add(after), Source: SourceKernel, Entity: gpu0, What: WhatXID, Code: 48,
			Sequence: uint64(i)}, at))
	}
	d.now = at
	d.to(5 * time.Minute)
	if all := d.incidents(); len(all) != 1 || all[0].Count != 5 || !all[0].First.Equal(at.Add(-8*second)) ||
		!all[0].Last.Equal(at.Add(3*second)) {
		t.Errorf("%+v", all)
	}
}

func TestFloodIsOneIncident(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const n = 100_000
	for i := range uint64(n) {
		d.kernel(i, "NVRM: Xid (PCI:0000:00:06): 31, pid=5, name=x, Ch")
		d.now = d.now.Add(time.Millisecond)
	}
	d.to(n*time.Millisecond + 3*time.Minute)
	if all := d.incidents(); len(all) != 1 || all[0].Count != n || d.tellings > 20 {
		t.Errorf("%d incidents, %d tellings, %+v", len(all), d.tellings, all[0])
	}
}

func TestLongHistoryIsNotALoss(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for i := range uint64(2 * mostOpen) {
		d.hear(d.Add(Observation{Time: d.start.Add(time.Duration(i)*time.Minute - 100*time.Hour), Source: SourceKernel,
			Entity: gpu0, What: WhatXID, Code: 48, Sequence: i}, d.now))
	}
	d.to(5 * time.Minute)
	if len(d.ids) != 2*mostOpen || d.Losses() != (Losses{}) || len(d.open) != 0 {
		t.Errorf("%d incidents, %+v, %d open", len(d.ids), d.Losses(), len(d.open))
	}
}

func TestClockSetBack(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
	d.now = d.start.Add(-time.Hour)
	d.kernel(2, "NVRM: Xid (PCI:0000:00:06): 79, x")
	d.start = d.now
	d.to(10 * time.Minute)
	if all := d.incidents(); len(all) != 2 || all[1].First != d.start || len(d.open) != 0 {
		t.Errorf("%d open, %+v", len(d.open), all)
	}
}

func BenchmarkCorrelator(b *testing.B) {
	now := time.Unix(1e9, 0)
	book := NewCorrelator(CorrelatorOptions{}, now)
	for i := range mostOpen {
		book.Add(Observation{Time: now, Source: SourceKernel, What: WhatSXid, Code: i}, now)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		book.Add(Observation{Time: now, Source: SourceKernel, Entity: gpu0, What: WhatXID, Code: i & 255}, now)
	}
}

func TestUnknownSourcesMissNothing(t *testing.T) {
	t.Parallel()
	start := time.Unix(1e9, 0)
	c := NewCorrelator(CorrelatorOptions{}, start)
	for i := range 3 {
		c.Add(Observation{Time: start, Source: SourceNVML, What: WhatXID, Code: 79 + i, Entity: gpu0}, start)
	}
	for passed := time.Duration(0); passed < 5*time.Minute; passed += time.Second {
		c.Tick(start.Add(passed))
	}
	if l := c.Losses(); l != (Losses{}) || len(c.open) != 0 {
		t.Errorf("%+v, %d open", l, len(c.open))
	}
}
