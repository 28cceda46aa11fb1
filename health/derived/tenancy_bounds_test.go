package derived

import (
	"math"
	"testing"
	"time"
)

// TestDueShareOfATenant checks when a tenant wants its share, and the memory that
// it lacks; NaN is unknown.
func TestDueShareOfATenant(t *testing.T) {
	t.Parallel()
	none := math.NaN()
	for _, c := range []struct {
		guarantee, target, share float64
		wants                    bool
		kept, used, unmet        float64
	}{
		{.3, .3, .1, true, 5, 2, 3}, {.3, .29, .1, false, 5, 5, 0}, {.3, .9, 0, true, 5, 7, 0}, {0, .9, .1, false,
			none, 2, 0},
		{.3, .9, none, false, 5, none, 5}, {none, .9, .1, false, 0, none, 0}, {.3, none, .1, false, .5, 0, .5},
	} {
		tenant := tenancy{now: noTenant}
		tenant.now[tenantGuarantee], tenant.now[tenantTarget], tenant.now[tenantShare] = c.guarantee, c.target, c.share
		tenant.now[tenantKept], tenant.now[tenantUsed] = c.kept, c.used
		if tenant.wants() != c.wants || tenant.unmet() != c.unmet {
			t.Errorf("%+v: it wants %v, and lacks %g", c, tenant.wants(), tenant.unmet())
		}
	}
}

// TestShareTrendSurvivesAPause checks for how long a tenant may want nothing.
func TestShareTrendSurvivesAPause(t *testing.T) {
	t.Parallel()
	for paused, want := range map[time.Duration]int{pause: 3, pause + step: 1} {
		tenant := tenancy{now: noTenant, memory: trend{every: memoryEvery}, deficit: trend{every: memoryEvery}}
		tenant.starved = forecast{ok: true, row: 5}
		tenant.now[tenantGuarantee], tenant.now[tenantTarget], tenant.now[tenantShare] = .3, .9, .5
		now := birth
		tenant.note(now)
		now = now.Add(memoryEvery)
		tenant.note(now)
		tenant.now[tenantTarget] = 0
		if tenant.note(now.Add(memoryEvery)); tenant.starved.ok || tenant.starved.row != 5 {
			t.Errorf("in a pause: %+v", tenant.starved)
		}
		tenant.now[tenantTarget] = .8
		tenant.note(now.Add(paused))
		if n := len(tenant.deficit.Values); n != want || far(tenant.deficit.Values[n-1], .3, 1e-9) ||
			(tenant.starved.row == 0) != (want == 1) {
			t.Errorf("after a pause of %v: %v, %d in a row", paused, tenant.deficit.Values, tenant.starved.row)
		}
	}
}

// TestLossOfShareIsATrend checks the loss of a share, and its duration, that
// a forecast needs.
func TestLossOfShareIsATrend(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		points int
		loss   float64 // from the first to the last
		want   bool
	}{{trendSize, .031, true}, {trendSize, .029, false}, {trendSize - 1, .031, false}, {trendSize, -.031, false}} {
		tenant := tenancy{now: noTenant, starved: forecast{least: trendSize, rows: 1}}
		tenant.now[tenantGuarantee], tenant.now[tenantTarget], tenant.now[tenantShare] = .3, .9, .5
		each := c.loss / float64(c.points-1)
		tenant.deficit = *trending(.1, repeated(c.points-1, each)...)
		if tenant.starve(nil); tenant.starved.ok != c.want || c.want &&
			math.Abs(tenant.starved.seconds*each-.2) > 1e-9 {
			t.Errorf("%+v: %+v", c, tenant.starved)
		}
	}
	tenant := tenancy{now: noTenant, starved: forecast{ok: true, row: 3}}
	if tenant.starve(nil); !tenant.starved.ok || tenant.starved.row != 3 {
		t.Errorf("a pause says something: %+v", tenant.starved)
	}
}
