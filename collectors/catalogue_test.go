package collectors_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/hosttest"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

func TestCatalogue(t *testing.T) {
	name := regexp.MustCompile(`^(nvgpu|gpusteward)_[a-z0-9]+(_[a-z0-9]+)*$`)
	seen := map[string]bool{}
	for _, m := range collectors.Metrics() {
		fixture.Equal(t, seen[m.Name], false, "%s is declared twice", m)
		seen[m.Name] = true
		fixture.If(t, !name.MatchString(m.Name), "%s: a name consists of nvgpu_ or gpusteward_ and lower-case words", m)
		fixture.Equal(t, m.Type == collectors.CounterType, strings.HasSuffix(m.Name, "_total"),
			"%s is a %v: counters, and only counters, end in _total", m, m.Type)
		fixture.If(t, !strings.HasSuffix(m.Help, ".") || len(strings.Fields(m.Help)) < 5,
			"%s: help %q is not a sentence", m, m.Help)
		fixture.If(t, !strings.HasSuffix(m.Name, "_info") && m != workloads.JobHang && len(m.Labels) > 6,
			"%s has %d labels; only _info, and a hang, which its labels explain, have more than six", m, len(m.Labels))
		fixture.Equal(t, strings.Join(m.Labels, ""), strings.ToLower(strings.Join(m.Labels, "")),
			"%s: labels %v are not lower case", m, m.Labels)
	}
}

// TestGoldenNames freezes what is published: a name, type or label that is
// removed or changed breaks dashboards. If the change is intended: make generate.
func TestGoldenNames(t *testing.T) {
	var b strings.Builder
	for _, m := range collectors.Metrics() {
		fmt.Fprintf(&b, "%s %v %s\n", m, m.Type, strings.Join(m.Labels, ","))
	}
	fixture.Golden(t, "testdata/names.txt", b.String())
}

func TestEveryMetricHasOneCollector(t *testing.T) {
	owners := map[*collectors.Metric][]string{}
	for _, c := range collectors.All() {
		reads := 0
		for _, set := range []bool{c.Read != nil, c.Open != nil, c.Host != nil, c.Kernel != nil} {
			if set {
				reads++
			}
		}
		fixture.Equal(t, reads, 1, "collector %s has … of Read, Open, Host and Kernel", c.Name)
		fixture.If(t, !strings.HasSuffix(c.Doc, ".") || len(c.Metrics) == 0,
			"collector %s: doc %q and %d metrics; want a sentence and some", c.Name, c.Doc, len(c.Metrics))
		for _, m := range c.Metrics {
			owners[m] = append(owners[m], c.Name)
		}
	}
	for _, m := range collectors.Metrics() {
		if own := slices.Contains(collectors.SelfMetrics, m); own == (len(owners[m]) == 1) {
			t.Errorf("%s: put by the agent itself: %v, by collectors %v; want exactly one", m, own, owners[m])
		}
	}
}

// notSimulated are metrics that no simulated model has.
var notSimulated = []*collectors.Metric{
	device.EDPPMultiplier, device.PowerSmoothing, activity.MMAStall, device.CCReady,
	device.CCKeyRotation, faults.RetiredPages, faults.RetiredPagesPending, faults.KernelXIDMessages, faults.NVSwitchSXIDs, links.PCIPort, links.PCIPortLanes, links.PCIDevicesWithheld, workloads.AllocationInfo, workloads.AllocationClaimInfo, workloads.AllocationsKnown, workloads.AllocatedIdle,
	workloads.HAMiMemoryLimit, workloads.HAMiMemoryUsed, workloads.HAMiSMLimit, workloads.AttributionErrors, workloads.UnknownMemory,
	workloads.WorkloadUnread,
}

// TestCollectorsPutWhatTheyDeclare runs everything, including opt-ins, on every model: each metric that is put is
// declared, and each declared metric is put somewhere.
func TestCollectorsPutWhatTheyDeclare(t *testing.T) {
	t.Parallel()
	put := map[*collectors.Metric]bool{}
	for _, perLink := range []bool{false, true} {
		for _, name := range []string{"models", "mig", "vgpu", "faults", "workloads"} {
			c := collectors.DefaultConfig()
			c.PerLink, c.PerProcess = perLink, perLink
			c.XIDs = []int{79}
			for _, r := range collectors.All() {
				if r.OptIn {
					c.Enable = append(c.Enable, r.Name)
				}
			}
			hosttest.In(t, name, c, func(t *testing.T, h *collectors.Host) {
				for range 7 {
					hosttest.Advance(10 * time.Second)
					for _, p := range h.Passes() {
						for _, s := range p.Samples {
							put[s.Metric] = true
							fixture.Stop(t, !slices.Contains(p.Collector.Metrics, s.Metric),
								"collector %s puts %v without declaring it", p.Collector.Name, s.Metric)
							if len(s.Labels) != len(s.Metric.Labels) {
								t.Fatalf("%v has labels %v, collector %s puts %v", s.Metric, s.Metric.Labels,
									p.Collector.Name, s.Labels)
							}
						}
					}
				}
			})
		}
	}
	for _, c := range collectors.All() {
		for _, m := range c.Metrics {
			if c.Name == "broker" { // its own test puts them all
				continue
			}
			if put[m] == slices.Contains(notSimulated, m) {
				t.Errorf("%v of %s: put in a simulation: %v; in notSimulated: %v; want exactly one", m, c.Name, put[m],
					put[m])
			}
		}
	}
}
