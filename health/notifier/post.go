package notifier

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/alertmanager/alert"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"

	"gpusteward/health"
)

// A poster posts alerts to one Alertmanager. Safe for concurrent use.
type poster struct {
	url    string   // without credentials, for display
	api    *url.URL // of version 2, without credentials
	page   string   // the agent's own page; "" if nobody knows it
	client *http.Client
	ahead  atomic.Int64 // nanoseconds by which its clock is ahead of this host's, to within clocksDiffer
}

// clocksDiffer is the smallest difference between two clocks that counts.
const clocksDiffer = time.Minute

// newPoster returns a poster to the Alertmanager at address. A user and
// password in the address override those of o.
func newPoster(address string, o Options) (*poster, error) {
	u, err := url.Parse(address)
	if err != nil {
		// The error of Parse repeats the address, and with it a password.
		return nil, errors.New("this is not one URL such as http://host:9093")
	}
	user := u.User
	u.User = nil
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is not an address such as http://host:9093", u)
	}
	if before, _, more := strings.Cut(u.String(), "/api/v"); more {
		return nil, fmt.Errorf("%q is an address of the API, which is found below: write %s", u, before)
	}
	c, transport := o.HTTP, o.transport
	if user != nil {
		password, _ := user.Password()
		c.BasicAuth, c.Authorization, c.OAuth2 = &config.BasicAuth{Username: user.Username(),
			Password: config.Secret(password)}, nil, nil
	}
	if transport == nil {
		if transport, err = config.NewRoundTripperFromConfig(c, "alertmanager"); err != nil {
			return nil, err
		}
	}
	// To follow a redirect would ask for the alerts instead of posting them.
	client := &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &poster{url: strings.TrimSuffix(u.String(), "/"), api: u.JoinPath("api/v2"), page: o.Page,
		client: client}, nil
}

// post posts the alerts as of now. Firing alerts end at lapse unless they are
// posted again. An answer other than 200 is a *statusError. Times follow the
// Alertmanager's clock, which its answers show: if it is years ahead, as after
// this host's own clock began again, the Alertmanager would take firing alerts
// for long over.
func (p *poster) post(ctx context.Context, batch []entry, now, lapse time.Time) error {
	for first := true; ; first = false {
		ahead := p.ahead.Load()
		all := make([]model.Alert, len(batch))
		for i, e := range batch {
			a := postable(e.Alert, now, lapse, time.Duration(ahead), p.page)
			if err := a.Validate(); err != nil { // as it would answer
				return &statusError{http.StatusBadRequest, err.Error()}
			}
			all[i] = a.Alert
		}
		body, err := json.Marshal(all)
		if err == nil {
			_, err = p.ask(ctx, http.MethodPost, p.api.JoinPath("alerts"), body)
		}
		if !first || p.ahead.Load() == ahead {
			return err
		}
	}
}

// postable returns a in a form that Alertmanager accepts: it refuses an alert
// that ends before it starts, as one may seem to after the clock was set back.
// Its type is that with which Alertmanager checks what it receives; the models of
// its API would bring 1.7 MB to the program, and the tests decode with them.
func postable(a health.Alert, now, lapse time.Time, ahead time.Duration, page string) *alert.Alert {
	starts, ends := a.Starts, a.Ends
	if ends.IsZero() {
		ends = lapse
		if starts.After(now) {
			starts = now
		}
	} else if starts.After(ends) {
		starts = ends
	}
	return &alert.Alert{Alert: model.Alert{Labels: labelSet(a.Labels), Annotations: labelSet(a.Annotations),
		StartsAt: starts.Add(ahead), EndsAt: ends.Add(ahead), GeneratorURL: pageOf(a.Labels, page)}}
}

func labelSet(m map[string]string) model.LabelSet {
	s := make(model.LabelSet, len(m))
	for name, value := range m {
		s[model.LabelName(name)] = model.LabelValue(value)
	}
	return s
}

// pageOf returns the URL of the page about an alert's workload, tenant, GPU or
// host; "" if that of the host is not known.
func pageOf(labels map[string]string, page string) string {
	if page == "" {
		return ""
	}
	for _, of := range [][2]string{{"workload", "workload"}, {"tenant", "tenant"}, {"gpu", "uuid"}} {
		if id := labels[of[1]]; id != "" {
			return page + "/#" + of[0] + "=" + url.PathEscape(id)
		}
	}
	return page
}

// A statusError is an answer other than 200.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("answered %d: %s", e.code, e.text) }

// ofContent reports whether there was an answer that blames the alerts.
func (e *statusError) ofContent() bool {
	return e != nil &&
		slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity},
			e.code)
}

// final reports whether the answer would be the same in a second: the
// configuration, the path or a password is wrong.
func (e *statusError) final() bool {
	return e != nil && e.code >= 300 && e.code < 500 && e.code != http.StatusRequestTimeout &&
		e.code != http.StatusTooManyRequests
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 4 << 20

// ask sends a request and returns the answer. It notes the Alertmanager's clock.
func (p *poster) ask(ctx context.Context, method string, at *url.URL, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, at.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := p.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		if ahead := time.Until(date); (ahead - time.Duration(p.ahead.Load())).Abs() > clocksDiffer {
			p.ahead.Store(int64(ahead))
		}
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer)) // of an answer cut short, the status counts
	if answer.StatusCode != http.StatusOK {
		text = text[:min(len(text), 256)]
		return nil, &statusError{answer.StatusCode, strings.ToValidUTF8(strings.TrimSpace(string(text)), "")}
	}
	return text, nil
}
