//go:build timed

package notifier

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestXIDsArriveWithinASecond measures the whole path of an XID: from the
// kernel's line, through the judgement, to a real Alertmanager's API. Four
// monitors with fifty GPUs each share a notifier.
func TestXIDsArriveWithinASecond(t *testing.T) {
	const hosts, gpus, rounds = 4, 50, 5
	before := fixture.Stolen(t)
	const apart = 5*time.Second + 500*time.Millisecond // the same XID before that is the same incident
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
	for range rounds {
		for i := range gpus {
			for _, h := range all {
				sequence++
				text := fmt.Sprintf("NVRM: Xid (PCI:0000:%02x:00): 79, pid=1, name=a, GPU has fallen off the bus.", i)
				waiting[fmt.Sprint(h.node, "/", i)] = time.Now()
				h.kernel <- host.Record{Priority: 4, Sequence: sequence, Time: time.Now(), Text: text}
			}
			look()
		}
		next := time.NewTimer(apart)
		eventually(t, "all GPUs that were lost are in the API", 10*time.Second, look)
		for _, h := range all {
			for i := range gpus {
				if err := h.Ack(t.Context(), "gpu_lost", incident.Entity{GPU: strconv.Itoa(i)},
					"the test"); err != nil {
					t.Fatal(err)
				}
			}
		}
		eventually(t, "the alerts are resolved", 10*time.Second, func() bool { return len(am.alerts(query)) == 0 })
		<-next.C
	}
	slices.Sort(delays)
	p50, p99 := delays[len(delays)/2], delays[len(delays)*99/100]
	t.Logf("%d XIDs: p50 %v, p99 %v, most %v", len(delays), p50, p99, delays[len(delays)-1])
	limit := time.Second + fixture.Stolen(t) - before
	if len(delays) != hosts*gpus*rounds || p99 > limit {
		t.Errorf("p99 of %d is %v; want %d, and less than %v", len(delays), p99, hosts*gpus*rounds, limit)
	}
}
