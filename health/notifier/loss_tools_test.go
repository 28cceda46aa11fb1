//go:build tools

package notifier

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

// Of two real Alertmanagers, one is killed during 4,000 transitions, and restarts without memory
// five minutes later. All times are a sixtieth of the real ones, because Alertmanager's clock
// cannot be set: five minutes are 5 s. TestNotifierLosesNothing has the faults of a network.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	scaled := timings{gather: time.Millisecond, resend: time.Second, lapse: 4 * time.Second, keep: 15 * time.Second,
		first: 2 * time.Millisecond, most: 83 * time.Millisecond, timeout: 250 * time.Millisecond,
		flush: 33 * time.Millisecond}
	const transitions, outage, pace = 4_000, 5 * time.Second, 1800 * time.Microsecond
	config := configured(t, "http://127.0.0.1:5001", "http://127.0.0.1:1")
	ams := []*server{startAlertmanager(t, config), startAlertmanager(t, config)}
	urls := []string{ams[0].url.String(), ams[1].url.String()}
	n := runNotifier(t, scaled, urls...)

	r := rand.New(rand.NewPCG(3, 4))
	fires := map[string]health.Alert{}
	var back time.Time
	began := time.Now()
	for i := range transitions {
		if i == transitions/4 {
			ams[1].kill()
			back = time.Now().Add(outage)
		}
		if !back.IsZero() && time.Now().After(back) {
			ams[1].start()
			back = time.Time{}
			t.Logf("it is back at transition %d", i)
		}
		name := fmt.Sprint("A", r.IntN(200))
		a := turned(fires, name, pushed(name, "warning", "check", "GPU-"+name))
		n.Tell([]health.Alert{a})
		time.Sleep(time.Until(began.Add(time.Duration(i) * pace)))
	}
	fixture.Stop(t, !back.IsZero(), "it was down until the end: the transitions took no time")

	want := slices.Sorted(maps.Keys(fires))
	equal := func() bool {
		return slices.Equal(ams[0].firing(), want) && slices.Equal(ams[1].firing(), want)
	}
	ended := time.Now()
	fixture.Eventually(t, "what fires here fires there, and nothing else", equal)
	t.Logf("%d transitions in %v; %d alerts fire on both %v after the last", transitions, ended.Sub(began), len(want),
		time.Since(ended))
	for time.Since(ended) < scaled.lapse+2*scaled.resend {
		if !equal() {
			t.Fatalf("%v after the end fire\n%q and\n%q, want\n%q", time.Since(ended), ams[0].firing(),
				ams[1].firing(), want)
		}
		time.Sleep(scaled.resend / 10)
	}
	for i, url := range urls {
		t.Logf("instance %d: %v sent, %v failed, %v rejected, %v queued", i,
			valueOf(t, n, AlertNotifications, url, "sent"), valueOf(t, n, AlertNotifications, url, "failed"),
			valueOf(t, n, AlertNotifications, url, "rejected"), valueOf(t, n, AlertQueueLength, url))
	}
}

// firing returns the names of the alerts that fire there, in order.
func (s *server) firing() (names []string) {
	for _, a := range s.alerts("") {
		names = append(names, a.Labels["alertname"])
	}
	slices.Sort(names)
	return names
}
