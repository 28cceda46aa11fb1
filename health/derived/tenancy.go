package derived

import (
	"math"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// Forecasts of tenants' trends: towards their caps, or towards the loss of
// their guarantees.
var (
	QuotaMemoryExhaustion = collectors.Gauge("nvgpu_quota_memory_exhaustion_seconds",
		"Time until the tenant's memory reaches its cap, by the trend of a quarter of an hour.", "tenant")
	QuotaGuaranteeExhaustion = collectors.Gauge("nvgpu_quota_guarantee_exhaustion_seconds",
		"Time until the tenant cannot have its guarantee, by the trend of a quarter of an hour.",
		"tenant", "objective")
)

// Limits of tenants.
const (
	mostTenants = 64              // a GPU
	pause       = 5 * time.Minute // without demand for the GPU, after which a trend of shares begins again
	leastLoss   = 0.03            // of the GPU's time: least loss of a share in a quarter of an hour that is a trend
)

// Inputs of a tenant on a GPU.
const (
	tenantUsed = iota // bytes
	tenantCap
	tenantKept      // guaranteed bytes
	tenantGuarantee // of the GPU's time
	tenantShare
	tenantTarget
	tenantInputs
)

var ofTenants = [tenantInputs]struct {
	metric *collectors.Metric
	window string // the label's value, if it has it
}{
	tenantUsed:      {workloads.QuotaMemoryUsed, ""},
	tenantCap:       {workloads.QuotaMemoryLimit, ""},
	tenantKept:      {workloads.QuotaMemoryGuarantee, ""},
	tenantGuarantee: {workloads.QuotaGuarantee, ""},
	tenantShare:     {workloads.QuotaShare, "10s"},
	tenantTarget:    {workloads.QuotaTarget, "10s"},
}

// A tenancy is a tenant on a GPU.
type tenancy struct {
	name   string
	seen   time.Time
	turn   int // the one of six calls that makes its forecasts
	now    [tenantInputs]float64
	memory trend
	// deficit is the gap between its share and its due. The share alone means
	// nothing: it also falls if the tenant wants less.
	deficit trend

	full, starved               forecast
	labels                      []string // gpu, uuid and tenant
	memoryLabels, computeLabels []string // of QuotaGuaranteeExhaustion
	headroomLabels              []string // of ForecastConfidence
}

// readTenants reads the inputs of tenants.
func (d *Metrics) readTenants(s *Snapshot, now time.Time) {
	for _, c := range d.cards {
		for _, t := range c.tenancies {
			t.now = noTenant
		}
	}
	for i, of := range ofTenants {
		for _, sample := range s.Of(of.metric) {
			if of.window != "" && sample.Labels[3] != of.window || !usable(sample.Value) {
				continue
			}
			if c := d.known(sample.Labels); c != nil {
				if t := c.tenancy(sample.Labels[2], now); t != nil {
					t.now[i] = sample.Value
				}
			}
		}
	}
}

// noTenant is the inputs of an absent tenant.
var noTenant = func() (all [tenantInputs]float64) {
	for i := range all {
		all[i] = math.NaN()
	}
	return all
}()

// tenancy returns a tenant by its name; nil if there are too many.
func (c *card) tenancy(name string, now time.Time) *tenancy {
	i, ok := slices.BinarySearchFunc(c.tenancies, name,
		func(t *tenancy, name string) int { return strings.Compare(t.name, name) })
	if !ok {
		if len(c.tenancies) >= mostTenants {
			return nil
		}
		t := &tenancy{name: name, turn: len(c.tenancies), now: noTenant, memory: trend{every: memoryEvery},
			deficit: trend{every: memoryEvery}, labels: []string{c.gpu, c.uuid, name}}
		t.memoryLabels, t.computeLabels = []string{c.gpu, c.uuid, name, "memory"},
			[]string{c.gpu, c.uuid, name, "compute"}
		t.headroomLabels = []string{c.gpu, c.uuid, "guarantee_memory", "", name}
		t.full = forecast{least: trendSize, rows: inRow, labels: []string{c.gpu, c.uuid, "quota_memory", "", name}}
		t.starved = forecast{least: trendSize, rows: inRow, labels: []string{c.gpu, c.uuid,
			"guarantee_compute", "", name}}
		c.tenancies = slices.Insert(c.tenancies, i, t)
	}
	c.tenancies[i].seen = now
	return c.tenancies[i]
}

// tenantForecasts computes the forecasts of the GPU's tenants, and of the
// memory that remains when all of them have their guarantees.
func (d *Metrics) tenantForecasts(c *card, now time.Time) {
	headroom, promised := c.now[memoryFree], false
	for _, t := range c.tenancies {
		t.note(now)
		if (d.calls+t.turn)%turns == 0 {
			t.full.look(&t.memory, t.now[tenantCap]-t.now[tenantUsed], d.room)
			t.starve(d.room)
		}
		if t.seen.Equal(now) {
			d.foretell(QuotaMemoryExhaustion, t.labels, &t.full)
			d.foretell(QuotaGuaranteeExhaustion, t.computeLabels, &t.starved)
		}
		promised = promised || t.now[tenantKept] > 0
		headroom -= t.unmet()
	}
	if !promised {
		return
	}
	c.headroom.add(now, -headroom)
	if f := &c.headroomForecast; d.calls%turns == 0 {
		f.look(&c.headroom, headroom, d.room)
	}
	for _, t := range c.tenancies {
		if t.unmet() > 0 {
			f := c.headroomForecast
			f.labels = t.headroomLabels
			d.foretell(QuotaGuaranteeExhaustion, t.memoryLabels, &f)
		}
	}
}

// note adds the present inputs to the trends. A share counts only while the
// tenant wants at least its guarantee.
func (t *tenancy) note(now time.Time) {
	t.memory.add(now, t.now[tenantUsed])
	if !t.wants() {
		t.starved.ok = false
		return
	}
	at, d := float64(now.UnixMilli())/1000, &t.deficit
	if n := len(d.Times); n > 0 && at-d.Times[n-1] > pause.Seconds() {
		d.Times, d.Values, t.starved.row = d.Times[:0], d.Values[:0], 0
	}
	d.add(now, t.now[tenantTarget]-t.now[tenantShare])
}

// wants reports whether at least the guarantee was due to the tenant, as it is
// while the tenant wants the GPU.
func (t *tenancy) wants() bool {
	return t.now[tenantGuarantee] > 0 && t.now[tenantTarget] >= t.now[tenantGuarantee] && usable(t.now[tenantShare])
}

// starve computes the time until the share has fallen to the guarantee.
func (t *tenancy) starve(room []float64) {
	if !t.wants() {
		return // a pause says nothing
	}
	values := t.deficit.Values
	if n := len(values); n < trendSize || values[n-1]-values[0] < leastLoss {
		t.starved.ok, t.starved.row = false, 0
		return
	}
	t.starved.look(&t.deficit, t.now[tenantShare]-t.now[tenantGuarantee], room)
}

// unmet returns the guaranteed bytes that the tenant does not have yet.
func (t *tenancy) unmet() float64 {
	if kept, used := t.now[tenantKept], t.now[tenantUsed]; usable(kept) {
		if !usable(used) {
			used = 0 // it has no session
		}
		return max(kept-used, 0)
	}
	return 0
}
