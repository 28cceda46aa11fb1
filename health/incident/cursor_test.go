package incident

import (
	"encoding/json"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/internal/fixture"
)

func TestRestartNeitherRepeatsNorMisses(t *testing.T) {
	t.Parallel()
	var ring []host.Record
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	log := func(seconds int) {
		ring = append(ring, host.Record{Priority: 4, Sequence: uint64(len(ring)),
			Time: at.Add(time.Duration(seconds) * second), Text: "NVRM: Xid (PCI:0000:00:06): 48, x"})
	}
	c := Cursor{}
	read := func(boot string) (ids []string) {
		text := fixture.Value(json.Marshal(c))(t)
		c = Cursor{}
		fixture.Must(t, json.Unmarshal(text, &c))
		now := at.Add(time.Hour)
		book := NewCorrelator(CorrelatorOptions{Boot: boot}, now)
		for _, r := range ring {
			if s, ok := ParseLine(r, nil); ok && c.Pass(boot, r) {
				for _, e := range book.Add(s, now) {
					if e.Count == 1 {
						ids = append(ids, e.ID)
					}
					if e.First.After(at.Add(time.Minute)) {
						t.Errorf("%+v is not of its time", e)
					}
				}
				if left := len(book.Tick(now)); left > 0 { // the incident stays whole
					t.Errorf("%d told again", left)
				}
			}
		}
		return ids
	}
	log(0)
	log(1)
	log(20)
	fixture.EqualSlices(t, read("boot-one"), []string{"boot-one-0", "boot-one-2"}, "at the first start")
	log(40)
	fixture.EqualSlices(t, read("boot-one"), []string{"boot-one-3"}, "the lines logged while the agent was down gave")
	if ids := read("boot-one"); ids != nil {
		t.Errorf("again: %q", ids)
	}
	ring = ring[:0]
	log(50)
	fixture.EqualSlices(t, read("boot-two"), []string{"boot-two-0"}, "after a reboot")
}
