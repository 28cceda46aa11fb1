package notifier

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/config"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

func TestNotifierRefusesBadOptions(t *testing.T) {
	for _, c := range []struct {
		urls []string
		http config.HTTPClientConfig
		want string
	}{
		{urls: []string{"http://am0:9093", "am1:9093"},
			want: `alertmanagers[1]: "am1:9093" is not an address such as http://host:9093`},
		{urls: []string{""}, want: "alertmanagers[0]: "},
		{urls: []string{"http://am0?x=1"}, want: "alertmanagers[0]: "},
		{urls: []string{"http://am0#x"}, want: "alertmanagers[0]: "},
		{urls: []string{"http://u:secret@am0:port"}, want: "alertmanagers[0]: this is not one URL such as http://host:9093"},
		{urls: []string{"ftp://u:secret@am0"}, want: `alertmanagers[0]: "ftp://am0" is not`},
		{urls: []string{"http://am0", "http://u:secret@am0/"}, want: "alertmanagers[1]: http://am0 is listed twice"},
		{http: config.HTTPClientConfig{BasicAuth: &config.BasicAuth{Password: "secret", PasswordFile: "f"}},
			want: "alertmanager_http_config: "},
		{urls: []string{"http://am0"},
			http: config.HTTPClientConfig{TLSConfig: config.TLSConfig{CAFile: "no such file"}},
			want: "alertmanagers[0]: "},
	} {
		_, err := New(Options{URLs: c.urls, HTTP: c.http, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %s", c.urls, err, c.want)
		}
	}
}

// The password reaches Alertmanager, and no output.
func TestPosterKeepsThePasswordToItself(t *testing.T) {
	var user, password string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ = r.BasicAuth()
		w.Header().Set("Content-Type", "application/problem+json")
		http.Error(w, `{"code": 601, "message": "no"}`, http.StatusBadRequest)
	}))
	defer server.Close()
	at := strings.Replace(server.URL, "://", "://steward:secret@", 1) + "/"
	p, err := newPoster(at,
		Options{HTTP: config.HTTPClientConfig{TLSConfig: config.TLSConfig{InsecureSkipVerify: true}}})
	fixture.Must(t, err)
	err = p.post(t.Context(), nil, time.Now(), time.Now())
	fixture.Equal(t, user != "steward" || password != "secret", false, "it was given %q, %q", user, password)
	fixture.If(t, p.url != server.URL || err == nil || !strings.Contains(err.Error(), "answered 400: {") ||
		strings.Contains(err.Error(), "secret"),
		"%s: %v", p.url, err)
	server.Close()
	if err := p.post(t.Context(), nil, time.Now(), time.Now()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// A redirect must not turn the post into a request for the alerts, which answers 200 and stores nothing.
func TestPosterIsNotRedirected(t *testing.T) {
	gets := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			gets++
			return
		}
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
	}))
	defer server.Close()
	p := fixture.Value(newPoster(server.URL, Options{HTTP: config.HTTPClientConfig{FollowRedirects: true}}))(t)
	err := p.post(t.Context(), nil, time.Now(), time.Now())
	fixture.If(t, err == nil || gets > 0, "%v, %d requests for the alerts", err, gets)
}

func TestAlertIsValidAfterClockJumps(t *testing.T) {
	now := time.Unix(1e9, 0)
	lapse := now.Add(4 * time.Minute)
	for _, ahead := range []time.Duration{0, 56 * 365 * 24 * time.Hour} {
		for _, c := range []struct{ starts, ends, wantStarts, wantEnds time.Time }{
			{now.Add(-time.Hour), time.Time{}, now.Add(-time.Hour), lapse},
			{now.Add(time.Hour), time.Time{}, now, lapse},
			{now.Add(-time.Hour), now, now.Add(-time.Hour), now},
			{now.Add(time.Hour), now, now, now},
		} {
			p := postable(health.Alert{Starts: c.starts, Ends: c.ends}, now, lapse, ahead, "")
			if !p.StartsAt.Equal(c.wantStarts.Add(ahead)) || !p.EndsAt.Equal(c.wantEnds.Add(ahead)) {
				t.Errorf("%v to %v: %v to %v", c.starts, c.ends, p.StartsAt, p.EndsAt)
			}
		}
	}
}

// TestPostedAlerts: what Alertmanager would refuse is not sent, and each alert leads to its page.
func TestPostedAlerts(t *testing.T) {
	p := fixture.Value(newPoster("http://127.0.0.1:1", Options{}))(t)
	bad := []entry{{Alert: health.Alert{Labels: map[string]string{"not-a-name": "x"}, Starts: time.Now()}}}
	var refused *statusError
	if err := p.post(t.Context(), bad, time.Now(), time.Now().Add(time.Minute)); !errors.As(err, &refused) ||
		!refused.ofContent() {
		t.Errorf("%v", err)
	}
	for _, c := range [][3]string{{"", "uuid", ""}, {"http://n:1", "node", ""}, {"http://n:1", "uuid", "/#gpu=a%20b"},
		{"http://n:1", "tenant", "/#tenant=a%20b"}, {"http://n:1", "workload", "/#workload=a%20b"}} {
		a := postable(health.Alert{Labels: map[string]string{c[1]: "a b"}}, time.Now(), time.Now(), 0, c[0])
		fixture.Equal(t, a.GeneratorURL, c[0]+c[2], "the page of a %s", c[1])
	}
}

// TestReloadReplacesThePassword holds that an Alertmanager with only new connection settings is contacted with them.
func TestReloadReplacesThePassword(t *testing.T) {
	t.Parallel()
	users := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		users <- user
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	as := func(user string) string { return strings.Replace(server.URL, "://", "://"+user+":secret@", 1) }
	n := runNotifier(t, defaultTimings, as("one"))
	for _, user := range []string{"one", "two"} {
		fixture.Must(t, n.Reconfigure(Options{URLs: []string{as(user)}}))
		n.Tell([]health.Alert{firing("Of"+user, "critical")})
		for got := ""; got != user; {
			select {
			case got = <-users:
			case <-time.After(30 * time.Second):
				t.Fatalf("nothing is sent as %s", user)
			}
		}
	}
}
