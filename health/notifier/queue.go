package notifier

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/health"
	"gpusteward/health/incident"
)

// quickTries is the number of attempts before a queue only checks now and then
// whether its Alertmanager is back.
const quickTries = 3

// A queue is the news for one Alertmanager: the held alerts that are not in
// has. It has one entry per alert, always the latest. One goroutine sends
// requests in turn, each with the states of that moment, so no older state
// overtakes a newer one. (The Alertmanager may still read an abandoned request
// late; the next round corrects that.)
type queue struct {
	n    *Notifier
	wake chan struct{}

	ahead time.Duration // by which the Alertmanager's clock is ahead; belongs to run

	// n.mu guards the fields below.
	to  *poster
	has map[string]uint64 // versions that can wait for the next round, by identity
	// alerts of a batch that had a 400, which are sent alone; true: the alert
	// had a 400 of its own, and the log says so
	suspects map[string]bool
	round    time.Time // time of the next one
	silent   bool      // nothing was accepted in this round
	failures int       // successive failed requests
	down     bool      // the log says so
	up       bool
	took     time.Duration // duration of the last request

	sent, failed, rejected, dropped float64
}

// An entry is an alert as it is sent.
type entry struct {
	health.Alert
	severity incident.Severity
	id       string
	version  uint64
}

// nudge wakes the queue. It never waits.
func (q *queue) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run sends until ctx ends, and then the rest of the queue for at most n.flush.
func (q *queue) run(ctx context.Context) {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(q.n.flush, stop) })()
	for sending.Err() == nil {
		batch, to, wait := q.next(time.Now())
		switch {
		case len(batch) == 0 && ctx.Err() != nil:
			return
		case to == nil:
			q.await(ctx, sending, wait, q.wake)
		default:
			began := time.Now()
			request, cancel := context.WithTimeout(sending, q.n.timeout)
			err := to.post(request, batch, began, began.Add(q.n.lapse))
			cancel()
			if ahead := time.Duration(to.ahead.Load()); ahead != q.ahead {
				q.ahead = ahead
				q.n.log.Warn("alertmanager's clock and this host's differ: alerts use alertmanager's", "url",
					to.url, "ahead", ahead.Round(time.Second).String())
			}
			if wait := q.conclude(batch, err, began); wait > 0 {
				q.await(ctx, sending, wait, nil)
			}
		}
	}
}

// await waits for a time, for the end or, if wake is not nil, for a transition
// and its companions.
func (q *queue) await(ctx, sending context.Context, wait time.Duration, wake <-chan struct{}) {
	ended := ctx.Done()
	if ctx.Err() != nil {
		ended = nil // the rest is being sent
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended:
	case <-sending.Done():
	case <-wake:
		q.await(ctx, sending, q.n.gather, nil)
	}
}

// next returns the next alerts to send and their destination, or the time
// without anything to send. A round without alerts sends an empty list, which
// finds an unreachable Alertmanager before it is needed.
func (q *queue) next(now time.Time) (batch []entry, to *poster, wait time.Duration) {
	q.n.mu.Lock()
	defer q.n.mu.Unlock()
	if !now.Before(q.round) {
		q.n.forget(now)
		q.round = now.Add(jitter(q.n.resend))
		q.silent = true
		clear(q.has)
		maps.DeleteFunc(q.suspects, func(id string, _ bool) bool { return q.n.held[id] == nil })
	}
	for id, h := range q.n.held {
		if q.has[id] != h.version {
			batch = append(batch, entry{h.Alert, h.severity, id, h.version})
		}
	}
	if len(batch) == 0 && !q.silent {
		return nil, nil, q.round.Sub(now)
	}
	slices.SortFunc(batch, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.severity, a.severity), cmp.Compare(a.version, b.version))
	})
	together := slices.DeleteFunc(slices.Clone(batch),
		func(e entry) bool { _, alone := q.suspects[e.id]; return alone })
	if len(together) == 0 {
		together = batch[:min(1, len(batch))]
	}
	return together[:min(maxBatch, len(together))], q.to, 0
}

// conclude records the result of a batch, and returns the time to wait. A
// failed batch stays queued. After a 400 Alertmanager has stored the valid
// alerts of a batch, but does not say which: each alert is then sent alone. An
// alert with a 400 of its own is tried again in the next round, because the
// answer may have come from something other than Alertmanager.
func (q *queue) conclude(batch []entry, err error, began time.Time) time.Duration {
	q.n.mu.Lock()
	defer q.n.mu.Unlock()
	now, count := time.Now(), float64(len(batch))
	q.took = now.Sub(began)
	var answer *statusError
	errors.As(err, &answer)
	switch {
	case err == nil:
		q.accepted(batch)
		q.sent += count
		return 0
	case answer.ofContent() && len(batch) > 0:
		q.failures = 0
		if len(batch) > 1 {
			for _, e := range batch {
				q.suspects[e.id] = false
			}
			return 0
		}
		q.reject(batch[0], err)
		return 0
	}
	q.failed += count
	q.failures++
	q.up = false
	if answer.final() {
		q.complain(err)
		return q.round.Sub(now)
	}
	if q.failures < quickTries {
		return rand.N(min(q.n.first<<(q.failures-1), q.n.most))
	}
	q.complain(err)
	clear(q.has) // it may have restarted, and then knows nothing
	return jitter(q.n.most)
}

// accepted records that the Alertmanager has the batch. The caller holds
// q.n.mu.
func (q *queue) accepted(batch []entry) {
	for _, e := range batch {
		q.has[e.id] = e.version
		delete(q.suspects, e.id)
		q.answered(e, "")
	}
	if q.down {
		q.n.log.Info("alertmanager accepts alerts again", "url", q.to.url)
	}
	q.up, q.silent, q.failures, q.down = true, false, 0, false
}

// answered ends the span of an alert's transition, if this Alertmanager is the first. The caller holds q.n.mu.
func (q *queue) answered(e entry, failed string) {
	if h := q.n.held[e.id]; h != nil && h.version == e.version {
		state := "firing"
		if !h.firing() {
			state = "resolved"
		}
		h.span.End(failed, "alertname", e.Labels["alertname"], "severity", e.Labels["severity"], "state", state,
			"uuid", e.Labels["uuid"], "alertmanager", q.to.url, "failures", q.failures)
	}
}

// reject records an alert that had a 400 of its own, until the next round. The
// caller holds q.n.mu.
func (q *queue) reject(e entry, err error) {
	q.rejected++
	q.silent = false
	q.answered(e, "rejected")
	q.has[e.id] = e.version
	if !q.suspects[e.id] {
		q.suspects[e.id] = true
		q.n.log.Error("alertmanager rejects an alert", "url", q.to.url, "labels", e.Labels, "err", err)
	}
}

// complain logs once that the Alertmanager accepts nothing. The caller holds
// q.n.mu.
func (q *queue) complain(err error) {
	if !q.down {
		q.down = true
		q.n.log.Error("alertmanager does not accept alerts, retrying", "url", q.to.url, "err", err)
	}
}

// samples returns the metrics of the queue. The caller holds q.n.mu.
func (q *queue) samples() []collectors.Sample {
	length, up := 0., 0.
	for id, h := range q.n.held {
		if q.has[id] != h.version {
			length++
		}
	}
	if q.up {
		up = 1
	}
	url := []string{q.to.url}
	all := []collectors.Sample{{Metric: AlertmanagerUp, Labels: url, Value: up}, {Metric: AlertQueueLength,
		Labels: url, Value: length},
		{Metric: AlertNotificationSeconds, Labels: url, Value: q.took.Seconds()}}
	for _, r := range []struct {
		result string
		count  float64
	}{{"sent", q.sent}, {"failed", q.failed}, {"rejected", q.rejected}, {"dropped", q.dropped}} {
		all = append(all, collectors.Sample{Metric: AlertNotifications, Labels: []string{q.to.url,
			r.result}, Value: r.count})
	}
	return all
}

// jitter returns d, give or take 10 %.
func jitter(d time.Duration) time.Duration { return d*9/10 + rand.N(d/5) }
