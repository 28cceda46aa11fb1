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

	"gpusteward/health/incident"
)

// ShortestSilence and LongestSilence bound a silence.
const (
	ShortestSilence = time.Minute
	LongestSilence  = 30 * 24 * time.Hour
)

// silenceTimeout is how long all Alertmanagers together may take for a silence.
const silenceTimeout = 5 * time.Second

// A Maintenance is the host or the GPU whose alerts are silenced.
type Maintenance struct {
	Node      string            // its name
	GPU       incident.Entity   // whose alerts alone are silenced; those of the host if it is zero
	Job       string            // label of its alerts
	Instances []string          // its names and addresses in their label instance; a port may follow there
	Labels    map[string]string // that they may have besides
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

// String returns what is silenced, in words.
func (m Maintenance) String() string {
	if m.GPU != (incident.Entity{}) {
		return m.GPU.Name() + " of " + m.Node
	}
	return m.Node
}

// why begins the comment of each silence.
const why = "Maintenance (gpusteward drain)"

// silence returns the silence for the alerts that the host's agent sends and for those
// that Prometheus makes of its metrics. Who created it, and why, identifies it, also
// for the next agent.
func (m Maintenance) silence() (silence, error) {
	s := silence{CreatedBy: "gpusteward on " + m.Node, Comment: why + "."}
	if m.Node == "" {
		return s, errors.New("the name of this host is not known")
	}
	match := func(how labels.MatchType, name, value string) error {
		one, err := labels.NewMatcher(how, name, value)
		s.Matchers = append(s.Matchers, one)
		return err
	}
	names := make([]string, len(m.Instances))
	for i, name := range m.Instances {
		names[i] = regexp.QuoteMeta(name)
	}
	err := cmp.Or(match(labels.MatchEqual, "job", m.Job),
		match(labels.MatchRegexp, "instance", "("+strings.Join(names, "|")+")(:[0-9]+)?"))
	if m.GPU != (incident.Entity{}) {
		s.Comment = fmt.Sprintf("%s: %s, %s.", why, m.GPU.Name(), m.GPU.UUID)
		err = cmp.Or(err, match(labels.MatchEqual, "uuid", m.GPU.UUID))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) { // an alert may lack such a label, but not have another value
		s.CreatedBy += fmt.Sprintf(", %s %s", name, m.Labels[name])
		err = cmp.Or(err, match(labels.MatchRegexp, name, regexp.QuoteMeta(m.Labels[name])+"|"))
	}
	return s, err
}

// Silence silences the alerts of m at every Alertmanager for a time. It returns,
// after silenceTimeout at the latest, where it did and where it did not, in words.
func (n *Notifier) Silence(ctx context.Context, m Maintenance, d time.Duration) string {
	s, err := m.silence()
	if err != nil {
		return fmt.Sprintf("Nothing is silenced: %v.", err)
	}
	now := time.Now()
	done, failed := n.everywhere(ctx, func(ctx context.Context, p *poster) (bool, error) {
		set, err := p.silences(ctx, s.CreatedBy)
		if err != nil {
			return false, err
		}
		s := s
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
		return err == nil, err
	})
	var said []string
	if done != nil {
		said = append(said, fmt.Sprintf("The alerts of %s are silenced until %s at %s.", m,
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

// EndSilence ends every silence of the host and of its GPUs, also those of another
// process. It returns, after silenceTimeout at the latest, where it did and where it may
// not have; "" if there was no silence.
func (n *Notifier) EndSilence(ctx context.Context, m Maintenance) string {
	our, err := m.silence()
	if err != nil {
		return "" // there is none
	}
	done, failed := n.everywhere(ctx, func(ctx context.Context, p *poster) (bool, error) {
		set, err := p.silences(ctx, our.CreatedBy)
		if len(set) == 0 {
			return false, err
		}
		for _, s := range set { // another member of a cluster may have ended it meanwhile
			_, wrong := p.ask(ctx, http.MethodDelete, p.api.JoinPath("silence", s.ID), nil)
			err = cmp.Or(wrong, err)
		}
		left, wrong := p.silences(ctx, our.CreatedBy)
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

// silences returns the silences that are set there for the maintenance of a host.
func (p *poster) silences(ctx context.Context, by string) ([]setSilence, error) {
	text, err := p.ask(ctx, http.MethodGet, p.api.JoinPath("silences"), nil)
	if err != nil {
		return nil, err
	}
	var all []setSilence
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read its silences: %w", err)
	}
	return slices.DeleteFunc(all, func(s setSilence) bool {
		return s.Status.State == "expired" || s.CreatedBy != by || !strings.HasPrefix(s.Comment, why)
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
