package derived

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// A tenantRig is one tenant on a GPU, changed by a test.
type tenantRig struct {
	*rig
	now [tenantInputs]float64
}

func newTenantRig() *tenantRig { return &tenantRig{newRig(1), noTenant} }

// step advances the time. each is called before each step with the minutes since the beginning.
func (r *tenantRig) step(d time.Duration, each func(minutes float64)) {
	at := 0.0
	r.rig.step(d, func() {
		each(at)
		at += step.Minutes()
		r.extra = nil
		for i, of := range ofTenants {
			labels := []string{r.gpus[0].gpu, r.gpus[0].uuid, "ml"}
			if of.window != "" {
				r.extra = append(r.extra, collectors.Sample{Metric: of.metric,
					Labels: append(labels[:3:3], "1s"), Value: .5})
				labels = append(labels, of.window)
			}
			if usable(r.now[i]) {
				r.extra = append(r.extra, collectors.Sample{Metric: of.metric, Labels: labels, Value: r.now[i]})
			}
		}
	})
}

func TestTenantsTrends(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		name      string
		each      func(r *tenantRig, minutes float64)
		metric    *collectors.Metric
		objective string
		forecast  string
		want      float64 // seconds after 40 minutes; 0: no forecast at any time
	}{
		{"a cap that comes near",
			func(r *tenantRig, at float64) { r.now[tenantUsed], r.now[tenantCap] = 10*gib+at*gib/10, 20*gib },
			QuotaMemoryExhaustion, "", "quota_memory", 60 * 60},
		{"no cap", func(r *tenantRig, at float64) { r.now[tenantUsed] = 10*gib + at*gib/10 }, QuotaMemoryExhaustion, "",
			"quota_memory", 0},
		{"memory that is as it was", func(r *tenantRig, _ float64) {
			r.now[tenantUsed], r.now[tenantCap] = 19*gib*(1+.02*rnd.NormFloat64()), 20*gib
		}, QuotaMemoryExhaustion, "", "quota_memory", 0},
		{"others take what is guaranteed", func(r *tenantRig, at float64) {
			r.now[tenantKept], r.now[tenantUsed], r.gpus[0].values[memoryFree] = 30*gib, 10*gib, (60-at/2)*gib
		}, QuotaGuaranteeExhaustion, "memory", "guarantee_memory", 40 * 60},
		{"it takes what it is guaranteed", func(r *tenantRig, at float64) {
			r.now[tenantKept], r.now[tenantUsed], r.gpus[0].values[memoryFree] = 30*gib, at/2*gib, (60-at/2)*gib
		}, QuotaGuaranteeExhaustion, "memory", "guarantee_memory", 0},
		{"it has all that it is guaranteed", func(r *tenantRig, at float64) {
			r.now[tenantKept], r.now[tenantUsed], r.gpus[0].values[memoryFree] = 10*gib, 10*gib, (60-at/2)*gib
		}, QuotaGuaranteeExhaustion, "memory", "guarantee_memory", 0},
		{"nothing is guaranteed", func(r *tenantRig, at float64) {
			r.now[tenantUsed], r.gpus[0].values[memoryFree] = 10*gib, (60-at/2)*gib
		}, QuotaGuaranteeExhaustion, "memory", "guarantee_memory", 0},
		{"it falls behind what is due", func(r *tenantRig, at float64) {
			r.now[tenantGuarantee], r.now[tenantTarget], r.now[tenantShare] = .3, .9, .9-.01*at
		}, QuotaGuaranteeExhaustion, "compute", "guarantee_compute", 20 * 60},
		{"it falls behind, and pauses now and then", func(r *tenantRig, at float64) {
			r.now[tenantGuarantee], r.now[tenantTarget], r.now[tenantShare] = .3, .9, .9-.01*at
			if math.Mod(at, 5) > 4 && at < 39 {
				r.now[tenantTarget], r.now[tenantShare] = 0, 0
			}
		}, QuotaGuaranteeExhaustion, "compute", "guarantee_compute", 20 * 60},
		{"it wants less and less", func(r *tenantRig, at float64) {
			r.now[tenantGuarantee], r.now[tenantTarget], r.now[tenantShare] = .3, .9-.01*at, .9-.01*at
		}, QuotaGuaranteeExhaustion, "compute", "guarantee_compute", 0},
		{"it gets exactly what it is guaranteed", func(r *tenantRig, _ float64) {
			r.now[tenantGuarantee], r.now[tenantTarget], r.now[tenantShare] = .5, .5, .5+.005*rnd.NormFloat64()
		}, QuotaGuaranteeExhaustion, "compute", "guarantee_compute", 0},
		{"it falls behind by a point", func(r *tenantRig, at float64) {
			r.now[tenantGuarantee], r.now[tenantTarget], r.now[tenantShare] = .48, .5, .5-.0005*at
		}, QuotaGuaranteeExhaustion, "compute", "guarantee_compute", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTenantRig()
			labels, seen := []string{"ml"}, 0
			if c.objective != "" {
				labels = append(labels, c.objective)
			}
			r.step(40*time.Minute+step, func(at float64) {
				if r.last != nil && usable(r.get(c.metric, 0, labels...)) {
					seen++
				}
				c.each(r, at)
			})
			whole(t, r.last)
			eta, confidence := r.get(c.metric, 0, labels...), r.get(ForecastConfidence, 0, c.forecast, "", "ml")
			switch {
			case c.want == 0 && (seen > 0 || usable(eta)):
				t.Errorf("foreseen %d times, in the end in %g s", seen, eta)
			case c.want > 0 && (far(eta, c.want, c.want/10) || !(confidence > .5 && confidence <= 1)):
				t.Errorf("in %g s, confidence %g; want %g s", eta, confidence, c.want)
			}
		})
	}
}

// TestRemovedTenantHasNoTrend removes a tenant with growing memory.
func TestRemovedTenantHasNoTrend(t *testing.T) {
	t.Parallel()
	r := newTenantRig()
	r.step(40*time.Minute, func(at float64) { r.now[tenantUsed], r.now[tenantCap] = 1e9*at, 1e11 })
	fixture.Stop(t, !usable(r.get(QuotaMemoryExhaustion, 0, "ml")), "nothing is foreseen of what grows")
	r.step(step, func(float64) { r.now = noTenant })
	for _, m := range []*collectors.Metric{QuotaMemoryExhaustion, QuotaGuaranteeExhaustion, ForecastConfidence} {
		fixture.Equal(t, len(r.last.Of(m)), 0, "it has left, and there is")
	}
	r.step(goneAfter+step, func(float64) {})
	fixture.Equal(t, len(r.cards[0].tenancies), 0, "tenants after it left")
}

// TestTenantsAreBounded has more tenants than the maximum, and one on a GPU that is not the host's.
func TestTenantsAreBounded(t *testing.T) {
	r := newRig(1)
	for i := range 2 * mostTenants {
		r.extra = append(r.extra, collectors.Sample{Metric: workloads.QuotaMemoryUsed, Labels: []string{r.gpus[0].gpu,
			r.gpus[0].uuid, fmt.Sprint(i)}, Value: 1e9})
	}
	r.extra = append(r.extra, collectors.Sample{Metric: workloads.QuotaMemoryUsed, Labels: []string{"", "MIG-1",
		"ml"}, Value: 1e9})
	r.step(time.Minute, nil)
	n := len(r.cards[0].tenancies)
	fixture.If(t, n != mostTenants || len(r.cards) != 1, "%d tenants on %d GPUs", n, len(r.cards))
}

// TestDueShareOfATenant checks when a tenant wants its share, and the memory that it lacks; NaN is unknown.
func TestDueShareOfATenant(t *testing.T) {
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
	for paused, want := range map[time.Duration]int{pause: 3, pause + step: 1} {
		tenant := tenancy{now: noTenant, memory: trend{every: memoryEvery}, deficit: trend{every: memoryEvery}}
		tenant.starved = forecast{ok: true, row: 5}
		tenant.now[tenantGuarantee], tenant.now[tenantTarget], tenant.now[tenantShare] = .3, .9, .5
		now := birth
		tenant.note(now)
		now = now.Add(memoryEvery)
		tenant.note(now)
		tenant.now[tenantTarget] = 0
		tenant.note(now.Add(memoryEvery))
		fixture.If(t, tenant.starved.ok || tenant.starved.row != 5, "in a pause: %+v", tenant.starved)
		tenant.now[tenantTarget] = .8
		tenant.note(now.Add(paused))
		if n := len(tenant.deficit.Values); n != want || far(tenant.deficit.Values[n-1], .3, 1e-9) ||
			(tenant.starved.row == 0) != (want == 1) {
			t.Errorf("after a pause of %v: %v, %d in a row", paused, tenant.deficit.Values, tenant.starved.row)
		}
	}
}

// TestLossOfShareIsATrend checks the loss of a share, and its duration, that a forecast needs.
func TestLossOfShareIsATrend(t *testing.T) {
	for _, c := range []struct {
		points int
		loss   float64 // from the first to the last
		want   bool
	}{{trendSize, .031, true}, {trendSize, .029, false}, {trendSize - 1, .031, false}, {trendSize, -.031, false}} {
		tenant := tenancy{now: noTenant, starved: forecast{least: trendSize, rows: 1}}
		tenant.now[tenantGuarantee], tenant.now[tenantTarget], tenant.now[tenantShare] = .3, .9, .5
		each := c.loss / float64(c.points-1)
		tenant.deficit = *trending(.1, repeated(c.points-1, each)...)
		tenant.starve(nil)
		fixture.If(t, tenant.starved.ok != c.want || c.want &&
			math.Abs(tenant.starved.seconds*each-.2) > 1e-9, "%+v: %+v", c, tenant.starved)
	}
	tenant := tenancy{now: noTenant, starved: forecast{ok: true, row: 3}}
	tenant.starve(nil)
	fixture.If(t, !tenant.starved.ok || tenant.starved.row != 3, "a pause says something: %+v", tenant.starved)
}
