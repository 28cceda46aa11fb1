package notifier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	openapi "github.com/go-openapi/runtime/client"
	"github.com/go-openapi/strfmt"
	"github.com/prometheus/alertmanager/api/v2/client/alert"
	"github.com/prometheus/alertmanager/api/v2/models"
	"github.com/prometheus/common/config"

	"gpusteward/health"
)

// A poster posts alerts to one Alertmanager. Safe for concurrent use.
type poster struct {
	url    string // without credentials, for display
	alerts alert.ClientService
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
		return nil, errors.New("not a URL")
	}
	user := u.User
	u.User = nil
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is not like http://host:9093", u)
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
	p := &poster{url: strings.TrimSuffix(u.String(), "/")}
	t := openapi.NewWithClient(u.Host, path.Join("/", u.Path, "api/v2"), []string{u.Scheme},
		&http.Client{Transport: only200{transport, &p.ahead}})
	p.alerts = alert.New(t, strfmt.Default)
	return p, nil
}

// post posts the alerts as of now. Firing alerts end at lapse unless they are
// posted again. An answer other than 200 is a *statusError. Times follow the
// Alertmanager's clock, which its answers show: if it is years ahead, as after
// this host's own clock began again, the Alertmanager would take firing alerts
// for long over.
func (p *poster) post(ctx context.Context, batch []entry, now, lapse time.Time) (err error) {
	for range 2 {
		ahead := p.ahead.Load()
		all := make(models.PostableAlerts, len(batch))
		for i, e := range batch {
			all[i] = postable(e.Alert, now, lapse, time.Duration(ahead))
		}
		_, err = p.alerts.PostAlerts(alert.NewPostAlertsParamsWithContext(ctx).WithAlerts(all))
		if p.ahead.Load() == ahead {
			break
		}
	}
	return err
}

// postable returns a in a form that Alertmanager accepts: it refuses an alert
// that ends before it starts, as one may seem to after the clock was set back.
func postable(a health.Alert, now, lapse time.Time, ahead time.Duration) *models.PostableAlert {
	starts, ends := a.Starts, a.Ends
	if ends.IsZero() {
		ends = lapse
		if starts.After(now) {
			starts = now
		}
	} else if starts.After(ends) {
		starts = ends
	}
	return &models.PostableAlert{Alert: models.Alert{Labels: a.Labels}, Annotations: a.Annotations,
		StartsAt: strfmt.DateTime(starts.Add(ahead)), EndsAt: strfmt.DateTime(ends.Add(ahead))}
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

// only200 turns every other answer into an error before the generated client
// sees it. That client panics at an unknown success, loses the code of an error
// with an unexpected body, and follows a redirect by asking for the alerts
// instead of posting them. only200 also records the clock of an answer.
type only200 struct {
	http.RoundTripper
	ahead *atomic.Int64
}

func (t only200) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			if ahead := time.Until(date); (ahead - time.Duration(t.ahead.Load())).Abs() > clocksDiffer {
				t.ahead.Store(int64(ahead))
			}
		}
	}
	if err != nil || answer.StatusCode == http.StatusOK {
		return answer, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 256))
	return nil, &statusError{answer.StatusCode, strings.ToValidUTF8(strings.TrimSpace(string(text)), "")}
}
