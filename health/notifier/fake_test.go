package notifier

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"

	"gpusteward/collectors"
	"gpusteward/health"
	"gpusteward/internal/fixture"
)

// fakeAlertmanager receives a Notifier's posts in a test on synctest's clock.
// It keeps the last state of each alert, as Alertmanager does.
type fakeAlertmanager struct {
	mu     sync.Mutex
	alerts map[string]*models.PostableAlert // by name
	posts  []post
	answer func(r *http.Request, all models.PostableAlerts) int // nil answers 200
	ahead  time.Duration                                        // its clock minus the notifier's
}

type post struct {
	at   time.Time
	all  models.PostableAlerts
	code int
}

func (f *fakeAlertmanager) RoundTrip(r *http.Request) (*http.Response, error) {
	var all models.PostableAlerts
	if err := json.NewDecoder(r.Body).Decode(&all); err != nil || r.Method != http.MethodPost ||
		r.Header.Get("Content-Type") != "application/json" || r.URL.Path != "/prefix/api/v2/alerts" {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL, err)
	}
	f.mu.Lock()
	answer := f.answer
	f.mu.Unlock()
	code := http.StatusOK
	if answer != nil {
		if c := answer(r, all); c != 0 {
			code = c
		}
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.posts = append(f.posts, post{time.Now(), all, code})
	if code == http.StatusOK || code == http.StatusBadRequest {
		for _, a := range all {
			if code == http.StatusOK || a.Labels["alertname"] != "Bad" {
				f.alerts[a.Labels["alertname"]] = a
			}
		}
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader("{}")), Request: r,
		Header: http.Header{"Date": {time.Now().Add(f.ahead).UTC().Format(http.TimeFormat)}}}, nil
}

func (f *fakeAlertmanager) answers(answer func(*http.Request, models.PostableAlerts) int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// took returns the posts since the last call.
func (f *fakeAlertmanager) took() []post {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.posts = nil }()
	return f.posts
}

// fires returns the names of the alerts that fire there now, in order.
func (f *fakeAlertmanager) fires() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, a := range f.alerts {
		if time.Time(a.EndsAt).After(time.Now().Add(f.ahead)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// runs sets the lead of its clock.
func (f *fakeAlertmanager) runs(ahead time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ahead = ahead
}

func always(code int) func(*http.Request, models.PostableAlerts) int {
	return func(*http.Request, models.PostableAlerts) int { return code }
}

func hangs(r *http.Request, _ models.PostableAlerts) int {
	<-r.Context().Done()
	return 0
}

// notifierTest is a running Notifier and the Alertmanagers am0, am1, ... that receive its posts.
type notifierTest struct {
	*Notifier
	t    *testing.T
	ams  []*fakeAlertmanager
	log  strings.Builder
	stop func()
}

func amURL(i int) string { return fmt.Sprintf("http://am%d:9093/prefix", i) }

// RoundTrip passes a request to its Alertmanager.
func (n *notifierTest) RoundTrip(r *http.Request) (*http.Response, error) {
	var i int
	if _, err := fmt.Sscanf(r.URL.Host, "am%d:", &i); err != nil {
		return nil, err
	}
	return n.ams[i].RoundTrip(r)
}

// options returns the options for some of its Alertmanagers.
func (n *notifierTest) options(ams ...int) Options {
	o := Options{Log: slog.New(slog.NewTextHandler(&n.log, nil)), transport: n}
	for _, i := range ams {
		o.URLs = append(o.URLs, amURL(i))
	}
	return o
}

// notify runs a Notifier for the first of three Alertmanagers.
func notify(t *testing.T, count int) *notifierTest {
	n := &notifierTest{t: t}
	for range 3 {
		n.ams = append(n.ams, &fakeAlertmanager{alerts: map[string]*models.PostableAlert{}})
	}
	n.Notifier = fixture.Value(New(n.options([]int{0, 1, 2}[:count]...)))(t)
	n.stop = fixture.Running(t, n.Run)
	synctest.Wait()
	for _, am := range n.ams[:count] {
		if posts := am.took(); len(posts) != 1 || len(posts[0].all) != 0 {
			t.Errorf("%d posts at the start, want an empty one: whoever cannot be reached is to be known", len(posts))
		}
	}
	return n
}

// after lets time pass.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (n *notifierTest) value(m *collectors.Metric, labels ...string) float64 {
	n.t.Helper()
	return valueOf(n.t, n.Notifier, m, labels...)
}

func valueOf(t testing.TB, n *Notifier, m *collectors.Metric, labels ...string) float64 {
	t.Helper()
	for _, s := range n.Samples() {
		if s.Metric == m && slices.Equal(s.Labels, labels) {
			return s.Value
		}
	}
	t.Fatalf("no %s of %q", m, labels)
	return 0
}

func firing(name, severity string) health.Alert {
	return health.Alert{Labels: map[string]string{"alertname": name, "severity": severity},
		Annotations: map[string]string{"summary": "It is."}, Starts: time.Now()}
}

func resolved(a health.Alert) health.Alert {
	a.Ends = time.Now()
	return a
}
