package health

import (
	"fmt"
	"testing"
	"time"
)

func TestSourcesThatDisagree(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
	d.nvml(1, "xid", 48)
	d.to(29 * second)
	if l := d.Losses(); l != (Losses{}) {
		t.Errorf("%+v, before the other source had its time", l)
	}
	d.to(4 * time.Minute)
	if l := d.Losses(); l != (Losses{MissedByNVML: 1, MissedByKernel: 1}) || len(d.open) != 0 {
		t.Errorf("%+v, %d open", l, len(d.open))
	}
	// History, and where one of them does not work.
	for _, works := range []func(string, Entity) bool{nil, func(source string, _ Entity) bool { return source != SourceNVML }} {
		d := newDesk(t)
		if works != nil {
			d.Works = works
		} else {
			d.since = d.start.Add(second)
		}
		d.kernel(1, "NVRM: Xid (PCI:0000:00:06): 79, x")
		if works != nil {
			d.Works = func(string, Entity) bool { return true } // the driver was loaded again: its event is lost
		}
		if d.to(time.Minute); d.Losses() != (Losses{}) {
			t.Errorf("%+v", d.Losses())
		}
	}
}

func TestAFloodIsOneIncident(t *testing.T) {
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

func TestACasebookIsBounded(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const n = mostOpen + 50
	for i := range uint64(n) {
		d.kernel(i, fmt.Sprintf("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): %d, x", 30_000+i))
		d.kernel(i+n, fmt.Sprintf("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): %d, x", 30_000+i))
	}
	if len(d.open) != mostOpen || d.Losses().ClosedEarly != 50 || len(d.ids) != n {
		t.Errorf("%d open, %+v, %d told", len(d.open), d.Losses(), len(d.ids))
	}
	for _, e := range d.incidents() {
		if e.Count != 2 {
			t.Errorf("%+v was not counted", e)
		}
	}
}

func TestALongHistoryIsNoLoss(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for i := range uint64(2 * mostOpen) {
		d.hear(d.Add(Sighting{Time: d.start.Add(time.Duration(i)*time.Minute - 100*time.Hour), Source: SourceKernel, Entity: gpu0, What: xidName, Code: 48, Sequence: i}, d.now))
	}
	d.to(5 * time.Minute)
	if len(d.ids) != 2*mostOpen || d.Losses() != (Losses{}) || len(d.open) != 0 {
		t.Errorf("%d incidents, %+v, %d open", len(d.ids), d.Losses(), len(d.open))
	}
}

func TestTheClockIsSetBack(t *testing.T) {
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

func BenchmarkCasebook(b *testing.B) {
	now := time.Unix(1e9, 0)
	book := NewCasebook(CasebookOptions{}, now)
	for i := range mostOpen {
		book.Add(Sighting{Time: now, Source: SourceKernel, What: sxidName, Code: i}, now)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		book.Add(Sighting{Time: now, Source: SourceKernel, Entity: gpu0, What: xidName, Code: i & 255}, now)
	}
}

func TestWhereNobodyKnowsWhoSeesNothingIsMissed(t *testing.T) {
	t.Parallel()
	c := NewCasebook(CasebookOptions{}, birth)
	for i := range 3 {
		c.Add(Sighting{Time: birth, Source: SourceNVML, What: xidName, Code: 79 + i, Entity: gpuEntity("0")}, birth)
	}
	for passed := time.Duration(0); passed < 5*time.Minute; passed += time.Second {
		c.Tick(birth.Add(passed))
	}
	if l := c.Losses(); l != (Losses{}) || len(c.open) != 0 {
		t.Errorf("%+v, %d open", l, len(c.open))
	}
}
