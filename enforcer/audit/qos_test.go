package audit

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// change adds to the books the values of testdata/qos.tsv.
func change(words string) func(r *wire.TenantStats) {
	return func(r *wire.TenantStats) {
		for word := range strings.FieldsSeq(words) {
			key, value, _ := strings.Cut(word, "=")
			v, _ := strconv.ParseFloat(value, 64)
			if f := map[string]*float64{"served": &r.ServedSeconds, "wanted": &r.WantedSeconds, "charged": &r.ChargedSeconds,
				"wait": &r.WaitSeconds}[key]; f != nil {
				*f += v
				continue
			}
			*map[string]*uint64{"waits": &r.Waits, "late": &r.LateWaits, "asked": &r.MemoryAsked,
				"missed": &r.MemoryMissed}[key] += uint64(v)
		}
	}
}

// TestQoSWindows holds the counts in testdata/qos.tsv.
func TestQoSWindows(t *testing.T) {
	promises := map[string]policy.Quota{"all": {Guarantee: .3, Reserved: gib, LaunchWait: quota.Wait(time.Millisecond)},
		"guarantee": {Guarantee: .3}, "none": {}}
	for _, row := range fixture.Rows(t, "testdata/qos.tsv") {
		s := newService(promises[row[1]])
		s.run(10, change(row[2]))
		fixture.Equal(t, s.counts(), "0/0 0/0 0/0", "%s: before the window's end", row[0])
		s.run(1, change(row[2]))
		fixture.Equal(t, s.counts(), row[3], "%s", row[0])
	}
}

// A service is a tenant on a GPU as the broker's books describe it.
type service struct {
	now    time.Time
	row    wire.TenantStats
	quota  policy.Quota
	hold   Hold
	absent bool
	qos    QoS
	rows   []wire.QuotaStats
}

func newService(q policy.Quota) *service {
	return &service{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), quota: q,
		row: wire.TenantStats{Tenant: "a", GPU: gpuA, Sessions: 1}}
}

// run audits once a second after a change of the books.
func (s *service) run(seconds int, add func(r *wire.TenantStats)) {
	for range seconds {
		b := Books{Now: s.now, Quota: func(string, string) policy.Quota { return s.quota },
			Holds: Holds{Tenants: map[string]Hold{"a": s.hold}}}
		if !s.absent {
			b.Tenants = []wire.TenantStats{s.row}
		}
		s.rows = []wire.QuotaStats{{Tenant: "a", GPU: gpuA, Quota: s.quota}}
		s.qos.Look(b, s.rows)
		s.now = s.now.Add(time.Second)
		add(&s.row)
	}
}

func (s *service) counts() string {
	windows, violations := map[string]uint64{}, map[string]uint64{}
	for _, o := range s.rows[0].QoS {
		windows[o.Objective], violations[o.Objective] = o.Windows, o.Violations
	}
	text := ""
	for o := range quota.Objectives {
		text += fmt.Sprintf(" %d/%d", windows[o.String()], violations[o.String()])
	}
	return text[1:]
}

// starve is a second in which the tenant gets nothing.
func starve(r *wire.TenantStats) { r.WantedSeconds++ }

func TestQoSRowsAreOfWhatIsPromised(t *testing.T) {
	s := newService(policy.Quota{Guarantee: .3})
	s.run(1, starve)
	if n := len(s.rows[0].QoS); n != 1 || s.rows[0].QoS[0].Objective != "compute" {
		t.Errorf("%+v", s.rows[0].QoS)
	}
	s.run(60, starve)
	s.quota = policy.Quota{}
	s.run(1, starve)
	fixture.Equal(t, s.counts(), "6/6 0/0 0/0", "a count is gone with its promise")
}

func TestQoSWindowsThatCountForNothing(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *service)
		back   func(s *service)
	}{
		{"the escalation holds it", func(s *service) { s.hold = Throttled }, func(s *service) { s.hold = Suspended }},
		{"it has only come", func(s *service) { s.row.Sessions = 0 }, func(s *service) { s.row.Sessions = 1 }},
		{"the broker has no books of it", func(s *service) { s.absent = true }, func(s *service) { s.absent = false }},
		{"the broker was started again", func(s *service) {
			s.row = wire.TenantStats{Tenant: "a", GPU: gpuA, Sessions: 1}
		}, func(*service) {}},
		{"its quota was changed", func(s *service) { s.quota.Guarantee = .4 }, func(*service) {}},
		{"the clock was set", func(s *service) { s.now = s.now.Add(-time.Hour) }, func(*service) {}},
		{"nobody looked", func(s *service) { s.now = s.now.Add(time.Hour) }, func(*service) {}},
	} {
		s := newService(policy.Quota{Guarantee: .3})
		s.run(6, starve)
		c.change(s)
		s.run(1, starve)
		c.back(s)
		s.run(9, starve)
		fixture.Equal(t, s.counts(), "0/0 0/0 0/0", "%s", c.name)
		s.run(3, starve)
		fixture.Equal(t, s.counts(), "1/1 0/0 0/0", "%s, and a window later", c.name)
	}
}

func TestQoSResetsWithinAWindow(t *testing.T) {
	s := newService(policy.Quota{Guarantee: .3})
	s.run(5, func(*wire.TenantStats) {})
	s.row.ServedSeconds = 0 // and above it again by the window's end
	s.row.WantedSeconds = 0
	s.run(3, starve)
	s.row.WantedSeconds = 1
	s.run(4, func(r *wire.TenantStats) { r.WantedSeconds += 5 })
	fixture.Equal(t, s.counts(), "0/0 0/0 0/0", "counts")
}

func TestQoSForgets(t *testing.T) {
	s := newService(policy.Quota{Guarantee: .3})
	s.run(11, starve)
	b := Books{Now: s.now.Add(auditForget - time.Minute), Names: []string{s.row.Tenant}}
	s.qos.Look(b, nil)
	fixture.Equal(t, len(s.qos.tenants), 1, "forgotten too early")
	if s.qos.Look(b, s.rows); len(s.qos.tenants) != 1 || s.counts() != "1/1 0/0 0/0" {
		t.Errorf("a tenant in the policy is forgotten: %s", s.counts())
	}
	b.Now = b.Now.Add(auditForget + time.Second)
	s.qos.Look(b, nil)
	fixture.Equal(t, len(s.qos.tenants), 0, "a tenant that left is not forgotten")
	s.run(11, starve)
	s.qos.Look(Books{Now: s.now.Add(time.Second)}, nil)
	fixture.Equal(t, len(s.qos.tenants), 0, "a tenant that is no longer in the policy is not forgotten")
}
