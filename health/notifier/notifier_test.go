package notifier

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"

	"gpusteward/health"
	"gpusteward/internal/fixture"
	"gpusteward/internal/span"
)

func TestNotifierSendsAtOnceAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 1)
		a, began := firing("A", "critical"), time.Now()
		n.Tell([]health.Alert{a})
		after(10 * time.Minute)
		last := began
		for i, p := range n.ams[0].took() {
			fixture.Stop(t, len(p.all) != 1 || p.all[0].Annotations["summary"] != "It is." ||
				!time.Time(p.all[0].StartsAt).Equal(began),
				"post %d: %+v", i, p.all)
			if lasts := time.Time(p.all[0].EndsAt).Sub(p.at); (lasts - 4*time.Minute).Abs() > time.Millisecond {
				t.Errorf("post %d ends after %v, want 4m", i, lasts)
			}
			gap := p.at.Sub(last)
			if i == 0 && gap > 10*time.Millisecond || i > 0 && gap > 66*time.Second || i > 1 && gap < 54*time.Second {
				t.Errorf("post %d came after %v", i, gap)
			}
			last = p.at
		}
		fixture.AtMost(t, time.Since(last), 66*time.Second, "no post for")

		a = resolved(a)
		n.Tell([]health.Alert{a})
		after(20 * time.Minute)
		posts := n.ams[0].took()
		if p := posts[0]; p.at.Sub(a.Ends) > 10*time.Millisecond || !time.Time(p.all[0].EndsAt).Equal(a.Ends) {
			t.Errorf("resolved: %+v", p)
		}
		for _, p := range posts[:13] {
			fixture.If(t, len(p.all) != 1 || !time.Time(p.all[0].EndsAt).Equal(a.Ends),
				"resolved, %v later: %+v", p.at.Sub(a.Ends), p.all)
		}
		if p := posts[len(posts)-1]; len(p.all) != 0 || time.Since(p.at) > 66*time.Second {
			t.Errorf("%v ago: %+v, want an empty list", time.Since(p.at), p.all)
		}
		fixture.Equal(t, len(n.held), 0, "alerts still held")
	})
}

func TestNotifierSendsTransitionsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 1)
		a := firing("A", "critical")
		n.Tell([]health.Alert{a})
		after(2 * time.Millisecond)
		n.Tell([]health.Alert{firing("B", "info"), firing("C", "warning")})
		after(time.Second)
		if posts := n.ams[0].took(); len(posts) != 1 || len(posts[0].all) != 3 {
			t.Fatalf("%d posts, want one: what comes together goes together", len(posts))
		} else if got := posts[0].all[0].Labels["alertname"] + posts[0].all[1].Labels["alertname"]; got != "AC" {
			t.Errorf("%s come first, want the most severe", got)
		}
		a.Annotations = map[string]string{"summary": "It is more."}
		n.Tell([]health.Alert{a})
		after(time.Second)
		fixture.If(t, len(n.ams[0].took()) != 0, "another annotation was sent at once")
		after(time.Minute + 6*time.Second)
		fixture.Equal(t, n.ams[0].alerts["A"].Annotations["summary"], "It is more.", "a round later the summary is")
		n.ams[0].took()
		a.Starts = time.Now()
		n.Tell([]health.Alert{a})
		after(time.Second)
		if posts := n.ams[0].took(); len(posts) != 1 || !time.Time(posts[0].all[0].StartsAt).Equal(a.Starts) {
			t.Errorf("one that began anew: %+v", posts)
		}
		a.Starts = time.Now()
		n.Tell([]health.Alert{resolved(a), a})
		after(time.Second)
		if posts := n.ams[0].took(); len(posts) != 1 || len(posts[0].all) != 1 ||
			!slices.Contains(n.ams[0].fires(), "A") {
			t.Errorf("one that ended and began again: %+v", posts)
		}
	})
}

func TestNotifierTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 2)
		down := n.ams[0]
		down.answers(always(503))
		began := time.Now()
		n.Tell([]health.Alert{firing("A", "critical"), firing("B", "critical")})
		after(10 * time.Minute)
		posts := down.took()
		most := []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond}
		for i, p := range posts {
			gap := p.at.Sub(began)
			if i < 3 && gap > most[i] || i >= 3 && (gap > 5500*time.Millisecond || gap < 4500*time.Millisecond) {
				t.Errorf("try %d came after %v", i+1, gap)
			}
			began = p.at
		}
		up := n.value(AlertmanagerUp, amURL(0))
		fixture.If(t, up != 0 || n.value(AlertQueueLength, amURL(0)) != 2, "up is %v", up)
		fixture.Equal(t, n.value(AlertNotifications, amURL(0), "failed"), float64(2*len(posts)), "failed")
		n.Tell([]health.Alert{resolved(n.held[firing("A", "critical").Identity()].Alert), firing("C", "info")})
		after(time.Second)
		fixture.Equal(t, fmt.Sprint(n.ams[1].fires()), "[B C]",
			"on the other, which waits for the one that is down, fire")
		down.answers(nil)
		after(5500 * time.Millisecond)
		fixture.Equal(t, fmt.Sprint(down.fires()), "[B C]", "5.5 s after it came back, alerts that fire")
		fixture.If(t, down.alerts["A"] == nil, "it was never told that A was resolved")
		if n.value(AlertmanagerUp, amURL(0)) != 1 || n.value(AlertQueueLength, amURL(0)) != 0 {
			t.Errorf("samples after it came back: %v", n.Samples())
		}
		if log := n.log.String(); strings.Count(log, "does not accept alerts") != 1 ||
			strings.Count(log, "accepts alerts again") != 1 {
			t.Errorf("log:\n%s", log)
		}
	})
}

// An Alertmanager that was away may have been restarted, and Alertmanager keeps no alerts over a restart.
func TestNotifierTellsARestartedOneAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 1)
		n.Tell([]health.Alert{firing("A", "critical")})
		after(30 * time.Second)
		n.ams[0].answers(always(502))
		n.Tell([]health.Alert{firing("B", "critical")})
		after(time.Second)
		clear(n.ams[0].alerts)
		n.ams[0].answers(nil)
		after(5500 * time.Millisecond)
		fixture.Equal(t, fmt.Sprint(n.ams[0].fires()), "[A B]", "alerts that fire")
	})
}

func TestNotifierHoldsTheMostSevere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 1)
		var all []health.Alert
		for i := range maxAlerts - 1 {
			all = append(all, firing(fmt.Sprint("A", i), "warning"))
		}
		old := firing("Old", "emergency")
		n.Tell(append(all, resolved(old)))
		after(time.Second)
		n.Tell([]health.Alert{firing("Info", "info")})
		fixture.If(t, n.held[old.Identity()] != nil || n.value(AlertNotifications, amURL(0), "dropped") != 1,
			"resolved alerts did not make room")
		n.Tell([]health.Alert{firing("Worst", "emergency"), firing("Also", "critical"), firing("Not", "info"),
			firing("Late", "warning")})
		after(time.Second)
		fixture.Equal(t, len(n.held), maxAlerts, "… are held")
		fixture.Equal(t, n.value(AlertNotifications, amURL(0), "dropped"), 5, "… were dropped")
		fires := n.ams[0].fires()
		if !slices.Contains(fires, "Worst") || !slices.Contains(fires, "Also") || slices.Contains(fires, "Not") ||
			slices.Contains(fires, "Late") {
			t.Error("not the least severe were dropped, and of those the latest")
		}
		fixture.Equal(t, strings.Count(n.log.String(), "too many alerts"), 1, "log:\n%s", n.log.String())
		for _, p := range n.ams[0].took() {
			fixture.AtMost(t, len(p.all), maxBatch, "… alerts in a request")
		}
	})
}

func TestNotifierFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 3)
		n.ams[1].answers(hangs)
		n.ams[2].answers(always(500))
		all := make([]health.Alert, 200)
		for i := range all {
			all[i] = firing(fmt.Sprint("A", i), "critical")
		}
		n.Tell(all)
		began := time.Now()
		n.stop()
		fixture.Equal(t, time.Since(began), time.Second, "the end took")
		fixture.Equal(t, len(n.ams[0].fires()), 200, "alerts that fire")
		after(time.Hour)
		posts := n.ams[0].took()
		fixture.If(t, time.Since(posts[len(posts)-1].at) < time.Hour, "it sent after its end")
	})
}

func TestNotifierIsReconfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 2)
		n.Tell([]health.Alert{firing("A", "critical")})
		after(time.Second)
		n.ams[0].took()
		n.ams[1].took()
		if err := n.Reconfigure(Options{URLs: []string{amURL(2), "ftp://am2"}}); err == nil || len(n.queues) != 2 {
			t.Errorf("a bad one: %v, %d queues", err, len(n.queues))
		}
		fixture.Must(t, n.Reconfigure(n.options(2, 1)))
		after(time.Second)
		got := n.ams[2].fires()
		fixture.If(t, len(got) != 1, "on the new one fire %q", got)
		fixture.Equal(t, len(n.ams[1].took()), 0, "the one that stayed was told again")
		n.Tell([]health.Alert{firing("B", "critical")})
		after(time.Second)
		fixture.If(t, len(n.ams[0].took()) != 0 || len(n.ams[1].took()) != 1 || len(n.ams[2].took()) != 2,
			"it does not send where it should")
		fixture.Equal(t, len(n.Samples()), 2*7, "samples")
	})
}

func TestNotifierIsSafeForConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 2)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for j := range 100 {
					n.Tell([]health.Alert{firing(fmt.Sprint("A", i, "-", j), "info")})
					n.Samples()
				}
			})
		}
		all.Wait()
		after(time.Second)
		fixture.Equal(t, len(n.ams[1].fires()), 800, "alerts that fire")
	})
}

// TestAlertsFireByTheAlertmanagersClock runs on a host with a clock that is far
// in the past, or years ahead, until it is set.
func TestAlertsFireByTheAlertmanagersClock(t *testing.T) {
	const years = 365 * 24 * time.Hour
	for _, ahead := range []time.Duration{56 * years, -26 * years, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			n := notify(t, 2)
			n.ams[0].runs(ahead)
			a := firing("A", "critical")
			n.Tell([]health.Alert{a})
			after(time.Second)
			for range 3 { // rounds
				fixture.EqualSlices(t, n.ams[0].fires(), []string{"A"},
					"an Alertmanager that is %v ahead has … firing", ahead)
				after(time.Minute)
			}
			if p := n.ams[0].took(); len(p) < 4 || time.Time(p[len(p)-1].all[0].StartsAt).Sub(a.Starts.Add(ahead)).
				Abs() > clocksDiffer {
				t.Errorf("it began at %v there, %v here", p[len(p)-1].all[0].StartsAt, a.Starts)
			}
			if p := n.ams[1].took(); !time.Time(p[len(p)-1].all[0].StartsAt).Equal(a.Starts) {
				t.Errorf("the Alertmanager with this host's clock got %v, want %v", p[len(p)-1].all[0].StartsAt, a.Starts)
			}
			fixture.Equal(t, strings.Count(n.log.String(), "clock and this host's differ"), 1,
				"that the clocks differ is logged … times")
			n.ams[0].runs(0) // this host's clock is set
			after(2 * time.Minute)
			fixture.EqualSlices(t, n.ams[0].fires(), []string{"A"}, "once the clock is set … fires")
			n.Tell([]health.Alert{resolved(a)})
			after(time.Second)
			fixture.EqualSlices(t, n.ams[0].fires(), nil, "… fires on")
		})
	}
}

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
			if n.ams[0].took(); insists { // a success makes it try as often again
				n.ams[0].answers(always(code))
				n.Tell([]health.Alert{firing("B", "critical")})
				after(500 * time.Millisecond)
				fixture.Equal(t, len(n.ams[0].took()), 3, "%d: tries after a success", code)
			}
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
				if len(all) > 1 {
					return 413
				}
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
			fixture.Equal(t, p.code != 200 && len(p.all) > 1, false, "the bad one went with %d others", len(p.all)-1)
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
		after(10 * time.Minute)
		for _, p := range n.ams[0].took() {
			fixture.Equal(t, len(p.all), 1, "a refused alert makes up its round: alerts in a request")
		}
		after(10 * time.Minute)
		q := n.queues[0]
		fixture.If(t, len(q.suspects)+len(q.has)+len(n.held) != 0, "it holds %v, %v, %v", q.suspects, q.has, n.held)
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
		fixture.If(t, len(n.ams[1].took()) != 2 || len(n.ams[1].fires()) != 0,
			"the other waited for the one that hangs")
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

// TestAnAlertIsASpan from its detection until an Alertmanager has answered, once for each transition.
func TestAnAlertIsASpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := notify(t, 2)
		n.spans = span.New()
		n.spans.Set(1e-9)
		old, found := firing("Old", "warning"), firing("A", "critical")
		old.Starts = old.Starts.Add(-time.Hour) // the last process told it
		after(3 * time.Second)
		n.ams[0].answers(always(http.StatusServiceUnavailable))
		n.Tell([]health.Alert{found})
		after(10 * time.Minute)
		n.ams[0].answers(always(http.StatusBadRequest))
		n.ams[1].answers(always(http.StatusBadRequest))
		n.Tell([]health.Alert{resolved(found), old})
		after(10 * time.Minute)
		text := ""
		for _, s := range n.spans.Read(0).Spans {
			text += fmt.Sprintln(s.Tags["alertname"], s.Tags["state"], s.Took.Round(time.Second), s.Failed)
		}
		fixture.Equal(t, strings.Count(text, "\n"), 3, "spans: %s:", text)
		for _, want := range []string{"A firing 3s ", "A resolved 0s rejected", "Old firing 0s rejected"} {
			fixture.Contains(t, text, want+"\n", "the spans")
		}
		fixture.Equal(t, n.spans.Read(0).Spans[0].Tags["alertmanager"], any(amURL(1)), "the first answer is of")
	})
}
