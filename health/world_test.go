package health

import (
	"bytes"
	"os"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/internal/fixture"
)

// notInSites are the families that checks read and that no healthy site shows, with reasons. If a check reads another
// absent family, add it to the sites.
var notInSites = map[*collectors.Metric]string{
	device.VGPUMemoryUsed: "of hosts that give out virtual GPUs", faults.RetiredPages: "of boards before Ampere",
	workloads.UnknownMemory: "of a process that has ended", workloads.JobHang: "of a job that hangs",
	workloads.JobSlowdown: "of a slow job", workloads.JobStraggler: "of a job with a straggler",
	workloads.SuspendedSeconds: "of a suspended workload", workloads.SuspendBroken: "as SuspendedSeconds",
	workloads.OvercommitWait: "of an overcommitted GPU",
}

// TestSitesCoverEveryCheck holds that no check is quiet because no site shows its input.
func TestSitesCoverEveryCheck(t *testing.T) {
	t.Parallel()
	shown := map[*collectors.Metric]bool{}
	for _, style := range worldTable("styles")[1:] {
		w := guard(newSite(style, 1))
		w.site.silence("late", 4*time.Second, w.site.boards[0])
		for range 6 {
			w.pass()
			for _, s := range w.samples {
				shown[s.Metric] = true
			}
		}
	}
	read := derived.Inputs()
	for _, c := range Checks() {
		read = append(read, c.Metrics()...)
	}
	own := fixture.Value(os.ReadFile("METRICS.md"))(t) // of the engine
	for _, m := range read {
		if reason := notInSites[m]; !bytes.Contains(own, []byte("`"+m.Name+"`")) && shown[m] == (reason != "") {
			t.Errorf("%s is shown by sites: %v; reason why not: %q", m.Name, shown[m], reason)
		}
	}
}
