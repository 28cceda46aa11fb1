package derived

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

func TestAbsentGPUsAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(2)
	r.extra = linkSamples(r.gpus[0], 4, 0, 0)
	r.extra = append(r.extra, residing(r.gpus[0], "a", 1e9))
	r.step(12*time.Minute, nil)
	gone := r.gpus[0]
	r.extra, r.gpus = nil, r.gpus[1:]
	r.step(9*time.Minute, nil)
	if len(r.cards) != 2 || usable(r.get(AnomalyRobustZScore, 0, "power")) {
		t.Errorf("%d GPUs after 9 minutes, with scores %g", len(r.cards), r.get(AnomalyRobustZScore, 0, "power"))
	}
	before := r.Size()
	r.step(2*time.Minute, nil)
	if len(r.cards) != 1 || r.Size() >= before || r.histories[gone.uuid] == nil {
		t.Errorf("after 11 minutes %d GPUs, %d bytes of %d, its history: %v", len(r.cards), r.Size(), before,
			r.histories[gone.uuid] != nil)
	}
	r.gpus[0].gpu = "7" // the driver renumbered them
	r.step(step, nil)
	if len(r.cards) != 1 || usable(r.get(AnomalyRobustZScore, 7, "power")) ||
		usable(r.get(FaultScore, 1, "hardware-fault")) || r.get(FaultScore, 7, "hardware-fault") != 0 {
		t.Errorf("a GPU with another index: %d GPUs, %v", len(r.cards), r.last.Of(FaultScore))
	}
	r.gpus[0].uuid = "GPU-new" // another one in its place
	r.step(step, nil)
	fixture.Equal(t, r.known([]string{"7", "GPU-new"}).began, r.now, "it begins")
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(100)
	for i := range 200 {
		r.extra = append(r.extra, residing(r.gpus[0], fmt.Sprint("w", i), 1e9))
	}
	r.extra = append(r.extra, linkSamples(r.gpus[0], 100, 0, 0)...)
	r.step(time.Minute, nil)
	c := r.cards[0]
	fixture.If(t, len(r.cards) != mostCards || len(c.residents) != mostWorkloads || len(c.links) != mostLinks,
		"%d GPUs, %d workloads, %d links", len(r.cards), len(c.residents), len(c.links))
	for i := range 5000 {
		r.Fault(incident.Event{Kind: incident.KindIncident, ID: fmt.Sprint(i), Class: incident.HardwareFault,
			Severity: incident.Info, Entity: incident.Entity{UUID: fmt.Sprint("GPU-", i)}}, r.now)
	}
	fixture.Equal(t, len(r.told), MostGPUs-len(r.cards), "… incidents of GPUs that there is room for")
	for i := range 2 * mostTold {
		r.Fault(incident.Event{Kind: incident.KindIncident, ID: fmt.Sprint("own-", i), Class: incident.HardwareFault,
			Severity: incident.Info, Entity: incident.Entity{UUID: c.uuid}}, r.now)
	}
	if last := fmt.Sprint("own-", 2*mostTold-1); len(r.told) != mostTold || r.told[mostTold-1] != last {
		t.Errorf("%d incidents, the last %s", len(r.told), r.told[len(r.told)-1])
	}
	fixture.Equal(t, len(r.histories), MostGPUs, "… histories")
}

// TestAllMemoryIsCounted holds that Size includes all things that come and go, with the labels of their series.
func TestAllMemoryIsCounted(t *testing.T) {
	points := trend{Times: make([]float64, 30), Values: make([]float64, 30)}
	const ofPoints, labels, name = 2 * 30 * 8, uintptr(labelled), "a name that takes forty-two bytes of memory"
	for what, c := range map[string]struct {
		add   func(d *Metrics, c *card)
		takes uintptr
	}{
		"a GPU": {func(d *Metrics, _ *card) { d.cards = append(d.cards, &card{}) }, unsafe.Sizeof(card{}) +
			labels*uintptr(len(watches)+len(PartnerSignals)+7)},
		"a link": {func(_ *Metrics, c *card) { c.links = append(c.links, &link{}) }, unsafe.Sizeof(link{}) + 3*labels},
		"a workload": {func(_ *Metrics, c *card) {
			c.residents = append(c.residents, &resident{name: name, memory: points})
		}, unsafe.Sizeof(resident{}) + 2*labels + ofPoints + uintptr(len(name))},
		"a tenant": {func(_ *Metrics, c *card) {
			c.tenancies = append(c.tenancies, &tenancy{name: name, memory: points, deficit: points})
		}, unsafe.Sizeof(tenancy{}) + 6*labels + 2*ofPoints + uintptr(len(name))},
		"a trend of heat":     {func(_ *Metrics, c *card) { c.heat = points }, ofPoints},
		"a trend of headroom": {func(_ *Metrics, c *card) { c.headroom = points }, ofPoints},
		"what is learned":     {func(_ *Metrics, c *card) { c.drift.learning = &learning{} }, unsafe.Sizeof(learning{})},
		"a history": {func(d *Metrics, _ *card) { d.histories[name] = &history{Rows: points} },
			unsafe.Sizeof(history{}) + ofPoints + uintptr(len(name))},
		"an incident": {func(d *Metrics, _ *card) { d.told = append(d.told, name) }, uintptr(len(name)) +
			unsafe.Sizeof(name)},
		"samples": {func(d *Metrics, _ *card) { d.out[Traffic] = make([]collectors.Sample, 0, 100) },
			100 * unsafe.Sizeof(collectors.Sample{})},
		"room": {func(d *Metrics, _ *card) { d.room = make([]float64, 2*cap(d.room)) },
			trendSize * (trendSize - 1) / 2 * 8},
		"jobs": {func(_ *Metrics, c *card) { c.jobs = make([]string, 0, 10) }, 10 * unsafe.Sizeof(name)},
	} {
		r := newRig(1)
		n := r.Size()
		fixture.Stop(t, n < int(unsafe.Sizeof(Metrics{})), "nothing takes %d bytes", n)
		r.step(step, nil)
		r.cards[0].heat, r.cards[0].drift.learning = trend{}, nil
		before := r.Size()
		c.add(r.Metrics, r.cards[0])
		if got := r.Size() - before; got < int(c.takes) || got > int(c.takes)+64 { // a slice may have room for some
			t.Errorf("%s takes %d bytes, and Size tells %d", what, c.takes, got)
		}
	}
}

// full returns a host with the maximum number of things on each of eight GPUs.
func full(shared int) *rig {
	r := newRig(8)
	for _, g := range r.gpus {
		for i := range shared {
			r.extra = append(r.extra, residing(g, fmt.Sprintf("kubernetes:team-%d/worker-%d", i%7, i), 1e9),
				collectors.Sample{Metric: workloads.WorkloadUse, Labels: []string{g.gpu, g.uuid, fmt.Sprint("w", i),
					"sm"}, Value: .5})
		}
		r.extra = append(r.extra, linkSamples(g, 18, 0, 0)...)
	}
	return r
}

func TestWindowsAreSmall(t *testing.T) {
	before := inUse()
	r := full(mostWorkloads)
	shake := r.shake(noise())
	r.step(20*time.Minute, shake)
	held := r.Metrics
	r.last, r.extra = nil, nil
	taken := inUse() - before
	t.Logf("8 GPUs with 64 workloads and 18 links each: %d KiB by Size, %d KiB by the runtime",
		held.Size()>>10, taken>>10)
	fixture.AtMost(t, float64(max(held.Size(), taken)), 8<<20, "bytes by Size or by the runtime:")
	fixture.AtLeast(t, float64(held.Size()), .6*float64(taken), "bytes by Size, with most of those by the runtime:")
	runtime.KeepAlive(held)
}

// inUse returns the bytes in use.
func inUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
