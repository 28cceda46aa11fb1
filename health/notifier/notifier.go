// Package notifier sends alerts to Alertmanagers. It holds one state for each
// alert, and remembers what each Alertmanager has received: one that is down
// delays no other, and receives everything that it missed. Alerts expire four
// minutes after an agent dies. For the maintenance of a host it sets and ends
// silences.
package notifier

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/common/config"

	"gpusteward/collectors"
	"gpusteward/health"
	"gpusteward/health/incident"
	"gpusteward/internal/span"
)

// Metrics of the notifier. The url has no credentials.
var (
	AlertmanagerUp = collectors.HostGauge("nvgpu_alertmanager_up",
		"Whether the Alertmanager accepted the last request, which is at most a minute old.", "url")
	AlertNotifications = collectors.HostCounter("nvgpu_alert_notifications_total",
		"Alerts by the result of sending them: failed ones are sent again, rejected ones had a 400 of their own, "+
			"dropped ones were too many to hold.", "url", "result")
	AlertQueueLength = collectors.HostGauge("nvgpu_alert_queue_length",
		"Alerts whose latest state the Alertmanager has yet to accept.", "url")
	AlertNotificationSeconds = collectors.HostGauge("gpusteward_alert_notification_duration_seconds",
		"Duration of the last request to the Alertmanager.", "url")
)

// maxAlerts bounds the held alerts, maxBatch those in one request.
const maxAlerts, maxBatch = 4096, 64

// timings are the notifier's times; tests with a real Alertmanager scale them.
type timings struct {
	gather  time.Duration // wait of a transition for others in the same request
	resend  time.Duration // between rounds that send everything again
	lapse   time.Duration // an alert ends after this time without news
	keep    time.Duration // time for which a resolved alert is still sent
	first   time.Duration // wait after a failure, doubled with the next
	most    time.Duration // wait between tries after the third
	timeout time.Duration // of a request
	flush   time.Duration // time to send the queue at the end
}

var defaultTimings = timings{gather: 5 * time.Millisecond, resend: time.Minute, lapse: 4 * time.Minute,
	keep:  15 * time.Minute,
	first: 100 * time.Millisecond, most: 5 * time.Second, timeout: 10 * time.Second, flush: time.Second}

// Options are the settings of a Notifier.
type Options struct {
	// addresses of all Alertmanagers of the cluster, not of a load balancer:
	// "http://am0:9093", with a path if there is a prefix
	URLs []string
	HTTP config.HTTPClientConfig // TLS and credentials, the same for all
	Page string                  // URL of the agent's page, to which alerts link; "" if nobody knows it
	Log  *slog.Logger
	// spans of alerts, from detection to the answer; nil: there are none
	Spans *span.Recorder

	transport http.RoundTripper // in place of HTTP, for tests; otherwise nil
}

// A Notifier sends the latest state of every alert to every Alertmanager:
// transitions at once, and everything again each minute, because an
// Alertmanager forgets alerts in a restart and ends those without news. The
// Notifier holds one state per alert, and remembers what each Alertmanager has
// received. A dead Alertmanager therefore delays no other, uses no more memory,
// and receives everything that it missed once it is back. All methods are safe
// for concurrent use.
type Notifier struct {
	timings
	log   *slog.Logger
	spans *span.Recorder

	mu      sync.Mutex // guards the fields below and their content
	held    map[string]*held
	version uint64 // of the latest transition
	full    bool   // alerts were dropped, and the log says so
	queues  []*queue
	changed chan struct{} // closed when queues change
}

// held is one held alert.
type held struct {
	health.Alert
	severity incident.Severity
	version  uint64     // of its last transition
	since    time.Time  // time of that; unlike Ends, setting the clock does not change it
	span     *span.Span // of that, until the first Alertmanager has answered
}

func (h *held) firing() bool { return h.Ends.IsZero() }

// New returns a notifier; its Run sends. The error names the key of the
// configuration: alertmanagers[0], alertmanager_http_config.
func New(o Options) (*Notifier, error) {
	n := &Notifier{timings: defaultTimings, log: o.Log, spans: o.Spans, held: map[string]*held{}, changed: make(chan struct{})}
	return n, n.Reconfigure(o)
}

// Reconfigure replaces the Alertmanagers and the options of their connections;
// Log and Spans stay. An Alertmanager that stays gets no alerts again that it has, a new
// one gets all. After an error everything is unchanged.
func (n *Notifier) Reconfigure(o Options) error {
	if err := o.HTTP.Validate(); err != nil {
		return fmt.Errorf("alertmanager_http_config: %w", err)
	}
	var posters []*poster
	for i, url := range o.URLs {
		p, err := newPoster(url, o)
		if err == nil && slices.ContainsFunc(posters, func(other *poster) bool { return other.url == p.url }) {
			err = fmt.Errorf("%s is listed twice", p.url)
		}
		if err != nil {
			return fmt.Errorf("alertmanagers[%d]: %w", i, err)
		}
		posters = append(posters, p)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	queues := make([]*queue, len(posters))
	for i, p := range posters {
		if j := slices.IndexFunc(n.queues, func(q *queue) bool { return q.to.url == p.url }); j >= 0 {
			queues[i] = n.queues[j]
			queues[i].to = p
		} else {
			queues[i] = &queue{n: n, to: p, wake: make(chan struct{}, 1), has: map[string]uint64{},
				suspects: map[string]bool{}}
		}
	}
	n.queues = queues
	close(n.changed)
	n.changed = make(chan struct{})
	return nil
}

// Run sends until ctx ends, and then for at most a second the rest of the queue. It
// resolves nothing: firing alerts continue in the next process, or lapse. It
// returns nil.
func (n *Notifier) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	stops := map[*queue]context.CancelFunc{}
	for {
		n.mu.Lock()
		queues, changed := n.queues, n.changed
		n.mu.Unlock()
		for q, stop := range stops {
			if !slices.Contains(queues, q) {
				stop()
				delete(stops, q)
			}
		}
		for _, q := range queues {
			if stops[q] == nil {
				sub, stop := context.WithCancel(ctx)
				stops[q] = stop
				running.Go(func() { q.run(sub) })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Tell takes the latest state of alerts, and never waits. New, beginning and
// ending alerts are sent at once; changed annotations alone go with the next
// round. After a start the caller must pass all firing alerts. It must not
// change the alerts' maps any more.
func (n *Notifier) Tell(alerts []health.Alert) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, transitions := time.Now(), false
	for _, a := range alerts {
		id := a.Identity()
		h := n.held[id]
		if h == nil {
			h = &held{severity: severityOf(a)}
		} else if h.Starts.Equal(a.Starts) && h.Ends.Equal(a.Ends) {
			h.Alert = a
			continue
		}
		n.version++
		h.Alert, h.version, h.since = a, n.version, now
		detected := a.Starts
		if !h.firing() {
			detected = a.Ends
		}
		h.span = n.spans.Begin("notifier.alert", span.Parent{})
		if age := now.Sub(detected); h.span != nil && age > 0 && age < time.Minute { // else another process detected it
			h.span.Began = detected
		}
		n.held[id] = h
		transitions = true
		n.bound()
	}
	if transitions {
		for _, q := range n.queues {
			q.nudge()
		}
	}
}

// bound drops the least severe alert if there are too many, a resolved one
// first, because that one lapses without news as well. The caller holds n.mu.
func (n *Notifier) bound() {
	if len(n.held) <= maxAlerts {
		return
	}
	least, weight := "", math.Inf(1)
	for id, h := range n.held {
		w := float64(h.severity)
		if !h.firing() {
			w = -1
		}
		if w < weight || w == weight && h.version > n.held[least].version {
			least, weight = id, w
		}
	}
	delete(n.held, least)
	for _, q := range n.queues {
		q.dropped++
	}
	if !n.full {
		n.full = true
		n.log.Error("too many alerts, the least severe are dropped", "held", maxAlerts)
	}
}

// forget drops alerts that were resolved long ago. An Alertmanager that was
// away for so long has ended them by itself. The caller holds n.mu.
func (n *Notifier) forget(now time.Time) {
	maps.DeleteFunc(n.held, func(_ string, h *held) bool { return !h.firing() && now.Sub(h.since) > n.keep })
	n.full = n.full && len(n.held) >= maxAlerts
}

// Samples returns the notifier's own metrics.
func (n *Notifier) Samples() []collectors.Sample {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []collectors.Sample
	for _, q := range n.queues {
		all = append(all, q.samples()...)
	}
	return all
}

// severityOf returns the severity in the alert's labels; None if it is unknown.
func severityOf(a health.Alert) (s incident.Severity) {
	_ = s.UnmarshalText([]byte(a.Labels["severity"]))
	return s
}
