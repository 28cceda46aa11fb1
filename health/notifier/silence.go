package notifier

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/alertmanager/pkg/labels"
)

// ShortestSilence and LongestSilence bound a silence.
const (
	ShortestSilence = time.Minute
	LongestSilence  = 30 * 24 * time.Hour
)

// silenceTimeout is how long all Alertmanagers together may take for a silence.
const silenceTimeout = 5 * time.Second

// A Maintenance is the host whose alerts are silenced.
type Maintenance struct {
	Node      string            // label node of the alerts that the agent sends
	Instances []string          // its names and addresses in Prometheus's label instance, without a port
	Labels    map[string]string // that its alerts may have besides
	Job       string            // of the agents in Prometheus
}

// A silence is one of Alertmanager, as its API has it.
type silence struct {
	ID        string          `json:"id,omitempty"`
	Matchers  labels.Matchers `json:"matchers"`
	StartsAt  time.Time       `json:"startsAt"`
	EndsAt    time.Time       `json:"endsAt"`
	CreatedBy string          `json:"createdBy"`
	Comment   string          `json:"comment"`
}

// A setSilence is the part of a silence that tells whose it is.
type setSilence struct {
	ID        string `json:"id"`
	CreatedBy string `json:"createdBy"`
	Comment   string `json:"comment"`
	Status    struct {
		State string `json:"state"`
	} `json:"status"`
}

// silences returns the silences of the host: one for the alerts that its agent
// sends, one for those that Prometheus makes of its metrics. Who created them, and
// why, identifies them, also for the next agent.
func (m Maintenance) silences() ([]silence, error) {
	if m.Node == "" {
		return nil, errors.New("the name of this host is not known")
	}
	names := make([]string, len(m.Instances))
	for i, name := range m.Instances {
		names[i] = regexp.QuoteMeta(name)
	}
	by := "gpusteward on " + m.Node
	var scope labels.Matchers // an alert may lack such a label, but not have another value
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		one, err := labels.NewMatcher(labels.MatchRegexp, name, regexp.QuoteMeta(m.Labels[name])+"|")
		if err != nil {
			return nil, err
		}
		scope = append(scope, one)
		by += fmt.Sprintf(", %s %s", name, m.Labels[name])
	}
	var all []silence
	for _, s := range []struct {
		comment, source, value, host string
		how                          labels.MatchType
		names                        string
	}{
		{"Maintenance (gpusteward drain): alerts of the agent.", "source", "gpusteward", "node", labels.MatchEqual, m.Node},
		{"Maintenance (gpusteward drain): alerts of Prometheus.", "job", m.Job, "instance", labels.MatchRegexp,
			"(" + strings.Join(names, "|") + ")(:[0-9]+)?"},
	} {
		source, err := labels.NewMatcher(labels.MatchEqual, s.source, s.value)
		host, wrong := labels.NewMatcher(s.how, s.host, s.names)
		if err = cmp.Or(err, wrong); err != nil {
			return nil, err
		}
		all = append(all, silence{Matchers: append(labels.Matchers{source, host}, scope...), CreatedBy: by,
			Comment: s.comment})
	}
	return all, nil
}

// Silence silences the host's alerts at every Alertmanager for a time. It returns,
// after silenceTimeout at the latest, where it did and where it did not, in words.
func (n *Notifier) Silence(ctx context.Context, m Maintenance, d time.Duration) string {
	all, err := m.silences()
	if err != nil {
		return fmt.Sprintf("Nothing is silenced: %v.", err)
	}
	now := time.Now()
	done, failed := n.everywhere(ctx, func(ctx context.Context, p *poster) (bool, error) {
		set, err := p.silences(ctx, all)
		if err != nil {
			return false, err
		}
		for _, s := range all {
			for _, old := range set {
				if old.Comment == s.Comment {
					s.ID = old.ID // Alertmanager replaces it
				}
			}
			ahead := time.Duration(p.ahead.Load())
			s.StartsAt, s.EndsAt = now.Add(ahead), now.Add(d+ahead)
			body, err := json.Marshal(s)
			if err == nil {
				_, err = p.ask(ctx, http.MethodPost, p.api.JoinPath("silences"), body)
			}
			if err != nil {
				return false, err
			}
		}
		return true, nil
	})
	var said []string
	if done != nil {
		said = append(said, fmt.Sprintf("The alerts of %s are silenced until %s at %s.", m.Node,
			now.Add(d).UTC().Format("2006-01-02 15:04 MST"), strings.Join(done, ", ")))
	}
	for _, f := range failed {
		said = append(said, "They are not silenced at "+f+".")
	}
	if said == nil {
		return "Nothing is silenced: health.alertmanagers names no Alertmanager."
	}
	return strings.Join(said, "\n")
}

// EndSilence ends what Silence did, also in another process. It returns, after
// silenceTimeout at the latest, where it did and where it may not have; "" if there
// was no silence.
func (n *Notifier) EndSilence(ctx context.Context, m Maintenance) string {
	all, err := m.silences()
	if err != nil {
		return "" // there is none
	}
	done, failed := n.everywhere(ctx, func(ctx context.Context, p *poster) (bool, error) {
		set, err := p.silences(ctx, all)
		if len(set) == 0 {
			return false, err
		}
		for _, s := range set { // another member of a cluster may have ended it meanwhile
			_, wrong := p.ask(ctx, http.MethodDelete, p.api.JoinPath("silence", s.ID), nil)
			err = cmp.Or(wrong, err)
		}
		left, wrong := p.silences(ctx, all)
		if len(left) == 0 {
			err = wrong
		}
		return true, err
	})
	var said []string
	if done != nil {
		said = append(said, fmt.Sprintf("The silence of %s is ended at %s.", m.Node, strings.Join(done, ", ")))
	}
	for _, f := range failed {
		said = append(said, "A silence may remain until its end at "+f+".")
	}
	return strings.Join(said, "\n")
}

// silences returns those of the given silences that are set there.
func (p *poster) silences(ctx context.Context, of []silence) ([]setSilence, error) {
	text, err := p.ask(ctx, http.MethodGet, p.api.JoinPath("silences"), nil)
	if err != nil {
		return nil, err
	}
	var all []setSilence
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read its silences: %w", err)
	}
	return slices.DeleteFunc(all, func(s setSilence) bool {
		return s.Status.State == "expired" || !slices.ContainsFunc(of, func(our silence) bool {
			return s.CreatedBy == our.CreatedBy && s.Comment == our.Comment
		})
	}), nil
}

// everywhere does something at all Alertmanagers at once. It returns the URLs at
// which do did something, and those at which it failed, each with the reason.
func (n *Notifier) everywhere(ctx context.Context, do func(context.Context, *poster) (bool, error)) (done, failed []string) {
	ctx, cancel := context.WithTimeout(ctx, silenceTimeout)
	defer cancel()
	n.mu.Lock()
	posters := make([]*poster, len(n.queues))
	for i, q := range n.queues {
		posters[i] = q.to
	}
	n.mu.Unlock()
	did, errs := make([]bool, len(posters)), make([]error, len(posters))
	var all sync.WaitGroup
	for i, p := range posters {
		all.Go(func() { did[i], errs[i] = do(ctx, p) })
	}
	all.Wait()
	for i, p := range posters {
		var wrapped *url.Error
		if errors.As(errs[i], &wrapped) {
			errs[i] = wrapped.Err // the message has the URL
		}
		switch {
		case errors.Is(errs[i], context.DeadlineExceeded):
			failed = append(failed, fmt.Sprintf("%s: no answer within %v", p.url, silenceTimeout))
		case errs[i] != nil:
			failed = append(failed, fmt.Sprintf("%s: %v", p.url, errs[i]))
		case did[i]:
			done = append(done, p.url)
		}
	}
	return done, failed
}
