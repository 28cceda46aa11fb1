package notifier

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

func TestNotifierRetriesByStatus(t *testing.T) {
	for code, insists := range map[int]bool{401: false, 404: false, 301: false, 308: false, 408: true, 429: true,
		500: true, 202: true, 204: true} {
		synctest.Test(t, func(t *testing.T) {
			n := notify(t, 1)
			n.ams[0].answers(always(code))
			n.Tell([]health.Alert{firing("A", "critical")})
			after(500 * time.Millisecond)
			if posts := n.ams[0].took(); insists && len(posts) != 3 || !insists && len(posts) != 1 {
				t.Errorf("%d: %d tries", code, len(posts))
			}
			n.ams[0].answers(nil)
			after(66 * time.Second)
			fixture.Equal(t, len(n.ams[0].fires()), 1, "%d: it was not sent in the next round", code)
		})
	}
}

func TestNotifierFindsTheBadAlert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 1)
		bad := firing("Bad", "critical")
		n.ams[0].answers(func(_ *http.Request, all models.PostableAlerts) int {
			if slices.ContainsFunc(all, func(a *models.PostableAlert) bool {
				return a.Labels["alertname"] == "Bad" && a.Annotations["summary"] == "It is."
			}) {
				return 400
			}
			return 0
		})
		all := []health.Alert{bad}
		for i := range 99 {
			all = append(all, firing(fmt.Sprint("A", i), "warning"))
		}
		n.Tell(all)
		after(30 * time.Second)
		fixture.Equal(t, len(n.ams[0].fires()), 99, "alerts that fire")
		if n.value(AlertNotifications, amURL(0), "rejected") != 1 ||
			n.value(AlertNotifications, amURL(0), "sent") != 99 {
			t.Errorf("%v", n.Samples())
		}
		fixture.Equal(t, len(n.ams[0].took()), 1+64+1, "requests")
		after(10 * time.Minute)
		fixture.Equal(t, strings.Count(n.log.String(), "rejects an alert"), 1, "it was logged … times")
		for _, p := range n.ams[0].took() {
			if p.code != 200 && len(p.all) > 1 {
				t.Errorf("the bad one went with %d others", len(p.all)-1)
			}
		}
		bad.Annotations = map[string]string{"summary": "It is well."}
		n.Tell([]health.Alert{bad})
		after(66 * time.Second)
		fixture.Equal(t, len(n.ams[0].fires()), 100, "alerts that fire")
	})
}

func TestNotifierForgetsTheBadAlert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 1)
		n.ams[0].answers(always(400))
		n.Tell([]health.Alert{resolved(firing("Bad", "critical"))})
		after(20 * time.Minute)
		if q := n.queues[0]; len(q.suspects)+len(q.has)+len(n.held) != 0 {
			t.Errorf("it holds %v, %v, %v", q.suspects, q.has, n.held)
		}
	})
}

func TestNotifierIsNotBlockedByADeadAlertmanager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 2)
		n.ams[0].answers(hangs)
		a := firing("A", "critical")
		n.Tell([]health.Alert{a})
		after(time.Second)
		n.Tell([]health.Alert{resolved(a)})
		after(time.Second)
		if len(n.ams[1].took()) != 2 || len(n.ams[1].fires()) != 0 {
			t.Error("the other waited for the one that hangs")
		}
		after(7900 * time.Millisecond)
		fixture.Equal(t, n.value(AlertNotifications, amURL(0), "failed"), 0, "it gave up before 10 s")
		n.ams[0].answers(nil)
		after(time.Second)
		if posts := n.ams[0].took(); len(posts) != 1 || len(posts[0].all) != 1 ||
			!time.Time(posts[0].all[0].EndsAt).Before(time.Now()) {
			t.Errorf("after 10 s: %+v, want what is resolved, and nothing older", posts)
		}
	})
}

// Ten minutes of outage at the notifier's own times. TestNothingIsLost does the
// same to real Alertmanagers, with shorter times.
func TestNotifierLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 3)
		r := rand.New(rand.NewPCG(1, 2))
		faulty := func(r *http.Request, _ models.PostableAlerts) int {
			switch rand.N(20) {
			case 0:
				return 400
			case 1:
				return 500
			case 2:
				<-r.Context().Done()
			}
			return 0
		}
		n.ams[0].answers(faulty)
		n.ams[1].answers(faulty)
		n.ams[2].answers(hangs)
		fires := map[string]health.Alert{}
		for i := range 4_000 {
			switch i {
			case 1_500:
				n.ams[1].answers(always(502))
			case 2_500:
				clear(n.ams[1].alerts)
				n.ams[1].answers(faulty)
			}
			name := fmt.Sprint("A", r.IntN(200))
			a := turned(fires, name, firing(name, "critical"))
			n.Tell([]health.Alert{a})
			after(600 * time.Millisecond)
		}
		n.ams[0].answers(nil)
		n.ams[1].answers(nil)
		after(16 * time.Second) // a hanging request, and a wait
		want := slices.Sorted(maps.Keys(fires))
		for i := range 2 {
			fixture.EqualSlices(t, n.ams[i].fires(), want, "on %d fire", i)
		}
		fixture.Equal(t, len(n.ams[2].took()), 0, "the dead one is not dead")
	})
}
