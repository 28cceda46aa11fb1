package journal

import (
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

func TestFilters(t *testing.T) {
	j, _, err := Open(Options{})
	fixture.Must(t, err)
	at := func(n int) time.Time { return time.Unix(1e9+int64(n), 0) }
	for n, e := range []incident.Event{
		{Kind: incident.KindAgent, Severity: incident.Info},
		{Kind: incident.KindIncident, Severity: incident.Critical, Entity: incident.Entity{GPU: "3", UUID: "GPU-c"},
			Class: incident.HardwareFault},
		{Kind: incident.KindIncident, Severity: incident.Warning, Entity: incident.Entity{GPU: "3", UUID: "GPU-c"},
			Class: incident.ApplicationFault, Workload: "pod/a"},
		{Kind: incident.KindTransition, Severity: incident.Warning, Entity: incident.Entity{GPU: "13",
			Workload: "pod/a"}, Check: "memory_pressure"},
		{Kind: incident.KindAck, Severity: incident.Emergency, Check: "gpu_lost"},
		{Kind: incident.KindEnforcement, Entity: incident.Entity{Tenant: "batch", Workload: "pod/b"}, Was: "warn",
			Now: "throttle", Result: "done"},
	} {
		e.Code, e.Time = n, at(n)
		j.Append(e)
	}
	for _, c := range []struct {
		filter Filter
		want   []int
	}{
		{Filter{}, []int{5, 4, 3, 2, 1, 0}},
		{Filter{Limit: 2}, []int{5, 4}},
		{Filter{Since: at(3)}, []int{5, 4, 3}},
		{Filter{Until: at(2)}, []int{1, 0}},
		{Filter{Since: at(1), Until: at(2)}, []int{1}},
		{Filter{Kind: incident.KindIncident}, []int{2, 1}},
		{Filter{Check: "gpu_lost"}, []int{4}},
		{Filter{Severity: incident.Critical}, []int{4, 1}},
		{Filter{GPU: "3"}, []int{2, 1}},
		{Filter{GPU: "GPU-c", Severity: incident.Critical}, []int{1}},
		{Filter{Workload: "pod/a"}, []int{3, 2}},
		{Filter{Kind: incident.KindEnforcement}, []int{5}},
		{Filter{Tenant: "batch"}, []int{5}},
		{Filter{Tenant: "batch", Workload: "pod/a"}, []int{}},
		{Filter{Class: incident.HardwareFault}, []int{1}},
		{Filter{Class: incident.MemoryFault}, []int{}},
	} {
		wantCodes(t, j, c.filter, c.want...)
	}
	for range 2 * defaultLimit {
		j.Append(incident.Event{Kind: incident.KindAgent})
	}
	fixture.Equal(t, len(j.Events(Filter{})), defaultLimit, "events unless asked for more")
	fixture.Equal(t, len(j.Events(Filter{Limit: 1 << 40})), 2*defaultLimit+6, "events of all")
}

func TestFiltersAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
		for query, want := range map[string]Filter{
			"": {},
			"since=2026-01-31T12:00:00Z&until=2026-01-31T13:00:00%2B01:00": {Since: noon, Until: noon},
			"limit=1":            {Limit: 1},
			"since=1769860800.5": {Since: noon.Add(time.Second / 2)},
			"since=15m":          {Since: time.Now().Add(-15 * time.Minute)},
			"kind=ack&check=gpu_lost&severity=warning&gpu=3&tenant=batch&workload=pod/a&class=memory-fault" +
				"&limit=4096": {
				Kind: incident.KindAck, Check: "gpu_lost", Severity: incident.Warning, GPU: "3", Tenant: "batch",
				Workload: "pod/a", Class: incident.MemoryFault, Limit: 4096},
		} {
			values := fixture.Value(url.ParseQuery(query))(t)
			got, err := parseFilter(values)
			fixture.If(t, !got.Since.Equal(want.Since) || !got.Until.Equal(want.Until),
				"%s: from %v to %v, want %v to %v", query, got.Since, got.Until, want.Since, want.Until)
			got.Since, got.Until = want.Since, want.Until
			fixture.Equal(t, err != nil || got != want, false, "%s: %+v, %v; want %+v", query, got, err, want)
		}
	})
	for query, want := range map[string]string{
		"since=yesterday": `since: "yesterday" is not a time such as 2026-01-31T12:00:00Z`,
		"since=-15m":      "how long ago, such as 15m",
		"until=":          `until: "" is not a time`,
		"until=NaN":       `until: "NaN" is not a time`,
		"until=1e300":     `until: "1e300" is not a time`,
		"kind=xid":        `kind: "xid" is not one of incident, transition, ack, agent, enforcement, crash`,
		"severity=bad":    `severity: "bad" is not one of none, info, warning, critical, emergency`,
		"class=memory":    `class: "memory" is not one of memory-fault, `,
		"gpu=":            `gpu: "" is not a GPU's index or UUID`,
		"check=":          "the name of a check",
		"tenant=":         "the name of a tenant",
		"workload=":       "the name of a workload",
		"limit=0":         `limit: "0" is not a number from 1 to 4096`,
		"limit=4097":      "a number from 1 to 4096",
		"limit=ten":       "a number from 1 to 4096",
		"gpu=1&gpu=2":     "gpu is given 2 times",
		"sevrity=warning": `there is no parameter "sevrity"; the parameters are ` +
			"check, class, follow, gpu, kind, limit, severity, since, tenant, until, workload",
	} {
		values := fixture.Value(url.ParseQuery(query))(t)
		fixture.Fails(t, fixture.Error(parseFilter(values)), want, "%s", query)
	}
}
