package derived

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// TestTrafficOfKnownCounters checks the sum of both directions of both kinds.
func TestTrafficOfKnownCounters(t *testing.T) {
	r := newRig(3)
	r.step(time.Minute, func() {
		for _, i := range []int{nvlinkRX, nvlinkTX} {
			r.gpus[1].values[i] = math.NaN()
		}
		for _, i := range []int{pcieRX, pcieTX, nvlinkRX, nvlinkTX} {
			r.gpus[2].values[i] = math.NaN()
		}
		r.gpus[0].values[nvlinkTX] += 3e9
	})
	if all, without, none := r.get(Traffic, 0), r.get(Traffic, 1), r.get(Traffic, 2); all != 7e8 ||
		without != 2e8 || usable(none) {
		t.Errorf("traffic is %g, %g without NVLinks and %g where nothing is known", all, without, none)
	}
}

// TestLinkIsJudgedUnderLoad has a link that is narrow or slow in every n-th pass, on a GPU with a given load.
func TestLinkIsJudgedUnderLoad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		utilization       float64
		every, looks      int // it works in each every-th of so many passes
		lanes, generation float64
		narrow, slow      float64
		recovers          bool // within the last passes
		state             float64
	}{
		{utilization: .5, every: 1, looks: 12, lanes: 8, generation: 3, narrow: 8, slow: 2},
		{utilization: .5, every: 1, looks: 12, lanes: 16, generation: 5, narrow: 0, slow: 0},
		{utilization: .5, every: 1, looks: 12, lanes: 8, generation: 3, narrow: 8, slow: 2, state: 2},
		{utilization: .5, every: 1, looks: 12, lanes: 8, generation: 3, narrow: 8, slow: -1, state: 3},
		{utilization: .5, every: 1, looks: 11, lanes: 8, generation: 3, narrow: -1, slow: -1},
		{utilization: .11, every: 1, looks: 12, lanes: 8, generation: 3, narrow: 8, slow: 2},
		{utilization: .10, every: 1, looks: 12, lanes: 8, generation: 3, narrow: 8, slow: -1},
		{utilization: .03, every: 1, looks: 12, lanes: 8, generation: 3, narrow: 8, slow: -1},
		{utilization: .02, every: 1, looks: 12, lanes: 8, generation: 3, narrow: -1, slow: -1},
		{utilization: .5, every: 2, looks: 23, lanes: 8, generation: 3, narrow: 8, slow: 2},
		{utilization: .5, every: 3, looks: 34, lanes: 8, generation: 3, narrow: -1, slow: -1}, // too long ago
		{utilization: .5, every: 1, looks: 30, lanes: 8, generation: 3, narrow: 0, slow: 0, recovers: true},
	} {
		r := newRig(1)
		v := &r.gpus[0].values
		for n := range c.looks {
			v[utilization], v[pcieLanes], v[pcieGeneration] = 0, 1, 1 // the values of an idle GPU
			v[performance] = c.state
			if n%c.every == 0 {
				v[utilization], v[pcieLanes], v[pcieGeneration] = c.utilization, c.lanes, c.generation
			}
			if c.recovers && n == c.looks-12 {
				v[pcieLanes], v[pcieGeneration] = 16, 5
			}
			r.step(step, nil)
		}
		narrow, slow := r.get(PCIeShortfall, 0, "lanes"), r.get(PCIeShortfall, 0, "generation")
		fixture.If(t, !same(narrow, c.narrow) || !same(slow, c.slow),
			"%+v: %g lanes and %g generations fewer", c, narrow, slow)
	}
}

// TestDegradedLinkStaysDegradedWhileIdle lets a GPU find its link short and then rest for an hour. The finding stays
// until the link has its full width.
func TestDegradedLinkStaysDegradedWhileIdle(t *testing.T) {
	t.Parallel()
	r := newRig(1)
	v := &r.gpus[0].values
	look := func(works, lanes float64, n int) float64 {
		for range n {
			v[utilization], v[pcieLanes], v[pcieGeneration] = works, lanes, 5
			r.step(step, nil)
		}
		return r.get(PCIeShortfall, 0, "lanes")
	}
	fixture.Need(t, look(.5, 8, worksLeast), 8, "… lanes fewer while it works")
	fixture.Equal(t, look(0, 8, 360), 8, "… lanes fewer after an hour's rest")
	fixture.Equal(t, usable(look(0, 16, 1)), false, "it has all lanes, and fewer")
	fixture.Equal(t, usable(look(0, 8, 1)), false, "only a rest shows that it has fewer, and it has")
}

// same compares with a value; -1 stands for none.
func same(got, want float64) bool { return got == want || want == -1 && !usable(got) }

// TestStoppedFansAreCounted has boards with fans, some of which stand still, and a board without fans.
func TestStoppedFansAreCounted(t *testing.T) {
	r := newRig(4)
	for gpu, speeds := range [][]float64{{.3, .3}, {0, .3, 0}, {.001}} {
		for fan, v := range speeds {
			r.extra = append(r.extra, collectors.Sample{Metric: device.FanSpeed, Labels: []string{r.gpus[gpu].gpu,
				r.gpus[gpu].uuid, strconv.Itoa(fan)}, Value: v})
		}
	}
	r.step(step, nil)
	for gpu, want := range []float64{0, 2, 0, -1} {
		got := r.get(FansStopped, gpu)
		fixture.If(t, !same(got, want), "GPU %d: %g fans stand, want %g", gpu, got, want)
	}
}

// TestLinkComparedWithOtherGPUs compares GPUs with the links and speeds of a row. The first one is checked.
func TestLinkComparedWithOtherGPUs(t *testing.T) {
	t.Parallel()
	const full = 25e9
	type gpu struct {
		up, speed float64 // up: sum over its links; speed: of each
		model     string
	}
	sound := gpu{18, full, ""}
	for name, c := range map[string]struct {
		gpus       []gpu
		pace, gone float64 // -1: none
	}{
		"all are well":            {[]gpu{sound, sound, sound, sound}, 1, 0},
		"slower":                  {[]gpu{{18, full / 2, ""}, sound, sound, sound}, .5, 0},
		"slower, beside one":      {[]gpu{{18, full / 2, ""}, sound}, .5, -1},
		"faster than most":        {[]gpu{sound, {18, full / 2, ""}, {18, full / 2, ""}, {18, full / 2, ""}}, 1, 0},
		"two are down":            {[]gpu{{16, full, ""}, sound, sound, sound}, 1, 2},
		"two more are up":         {[]gpu{{20, full, ""}, sound, sound, sound}, 1, 0},
		"two are down beside two": {[]gpu{{16, full, ""}, sound, sound}, 1, -1},
		"two of six disagree":     {[]gpu{{16, full, ""}, {17, full, ""}, sound, sound, sound, sound}, 1, -1},
		"two of seven disagree":   {[]gpu{{16, full, ""}, {17, full, ""}, sound, sound, sound, sound, sound}, 1, 2},
		"another model":           {[]gpu{{16, full / 2, "other"}, sound, sound, sound}, 1, -1},
		"among others of another model": {[]gpu{{16, full / 2, ""}, {18, full, "other"}, {18, full, "other"},
			{18, full, "other"}}, 1, -1},
		"none is up: it has no bridge":    {[]gpu{{0, math.NaN(), ""}, sound, sound, sound}, -1, -1},
		"its speed is not known":          {[]gpu{{18, math.NaN(), ""}, sound, sound, sound}, -1, 0},
		"whether they are up is not told": {[]gpu{{math.NaN(), full, ""}, sound, sound, sound}, -1, -1},
	} {
		for _, each := range []bool{false, true} { // whether links have their own series
			r := newRig(len(c.gpus))
			for i, g := range c.gpus {
				if g.model != "" {
					r.gpus[i].model = g.model
				}
				put := func(link string, up, speed float64) {
					labels := []string{r.gpus[i].gpu, r.gpus[i].uuid, link}
					if usable(up) {
						r.extra = append(r.extra, collectors.Sample{Metric: links.NVLinkUp, Labels: labels, Value: up})
					}
					if usable(speed) {
						r.extra = append(r.extra, collectors.Sample{Metric: links.NVLinkSpeed,
							Labels: labels, Value: speed})
					}
				}
				if !each {
					put(allLinks, g.up, g.up*g.speed)
					continue
				}
				for n := range 20 {
					up, speed := collectors.Bool(float64(n) < g.up), math.NaN()
					if up == 1 {
						speed = g.speed
					}
					if !usable(g.up) {
						up = math.NaN()
					}
					put(strconv.Itoa(n), up, speed)
				}
			}
			r.step(2*time.Minute, nil)
			first, last, want := allLinks, allLinks, c.gone
			if each {
				first, last, want = "0", "17", min(want, 1) // of the links that healthy GPUs have up
			}
			if pace, gone := r.get(PeerLinkSpeedRatio, 0, first), r.get(PeerLinksMissing, 0, last); !same(pace,
				c.pace) || !same(gone, want) {
				t.Errorf("%s, each by itself %v: pace %g, want %g; %g are missing, want %g", name, each, pace,
					c.pace, gone, want)
			}
		}
	}
}

// TestAbsentWorkloadsAreForgotten holds that an absent link, workload or
// tenant is forgotten after ten minutes, and not before.
func TestAbsentWorkloadsAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(1)
	tenant := collectors.Sample{Metric: workloads.QuotaMemoryUsed, Labels: []string{r.gpus[0].gpu, r.gpus[0].uuid,
		"ml"}, Value: 1e9}
	r.extra = append(linkSamples(r.gpus[0], 4, 0, 0), residing(r.gpus[0], "a", 1e9), tenant)
	r.step(2*time.Minute, nil)
	stays := linkSamples(r.gpus[0], 1, 0, 0)
	r.extra = slices.Concat(stays, []collectors.Sample{residing(r.gpus[0], "b", 1e9)})
	r.step(9*time.Minute, nil)
	c := r.cards[0]
	fixture.If(t, len(c.links) != 4 || len(c.residents) != 2 || len(c.tenancies) != 1 || !r.Resides("a"),
		"after 9 minutes: %d links, %d workloads, %d tenants", len(c.links), len(c.residents), len(c.tenancies))
	r.step(2*time.Minute, nil)
	c = r.cards[0]
	fixture.If(t, len(c.links) != 1 || len(c.residents) != 1 || len(c.tenancies) != 0 ||
		r.Resides("a") || !r.Resides("b"),
		"after 11 minutes: %d links, %d workloads, %d tenants", len(c.links), len(c.residents), len(c.tenancies))
}
