//go:build timed

package notifier

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/internal/fixture"
)

// TestXIDsArriveWithinASecond measures the whole path of an XID: from the kernel's line, through the judgement, to a
// real Alertmanager's API. Four monitors with fifty GPUs each share a notifier.
func TestXIDsArriveWithinASecond(t *testing.T) {
	const hosts, gpus = 4, 50
	before := fixture.Stolen(t)
	am := startAlertmanager(t, configured(t, "http://127.0.0.1:5001", "http://127.0.0.1:1"))
	n := runNotifier(t, defaultTimings, am.url.String())
	var all []*logged
	for i := range hosts {
		all = append(all, logHost(t, fmt.Sprint("host", i), gpus, n.Tell))
	}
	query := "?filter=" + url.QueryEscape(`alertname="GPULost"`)
	waiting := map[string]time.Time{}
	var delays []time.Duration
	// look removes the GPUs with an alert in the API from waiting.
	look := func() bool {
		for _, a := range am.alerts(query) {
			key := a.Labels["node"] + "/" + a.Labels["gpu"]
			if at, waits := waiting[key]; waits {
				delays = append(delays, time.Since(at))
				delete(waiting, key)
			}
		}
		return len(waiting) == 0
	}
	sequence := uint64(0)
	for i := range gpus {
		for _, h := range all {
			sequence++
			text := fmt.Sprintf("NVRM: Xid (PCI:0000:%02x:00): 79, pid=1, name=a, GPU has fallen off the bus.", i)
			waiting[fmt.Sprint(h.node, "/", i)] = time.Now()
			h.kernel <- host.Record{Priority: 4, Sequence: sequence, Time: time.Now(), Text: text}
		}
		look()
	}
	fixture.Eventually(t, "all GPUs that were lost are in the API", look)
	slices.Sort(delays)
	p50, p99 := delays[len(delays)/2], delays[len(delays)*99/100]
	t.Logf("%d XIDs: p50 %v, p99 %v, most %v", len(delays), p50, p99, delays[len(delays)-1])
	limit := time.Second + fixture.Stolen(t) - before
	fixture.If(t, len(delays) != hosts*gpus || p99 > limit,
		"p99 of %d is %v; want %d, and less than %v", len(delays), p99, hosts*gpus, limit)
}
