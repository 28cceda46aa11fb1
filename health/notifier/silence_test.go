package notifier

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-openapi/strfmt"
	"github.com/prometheus/alertmanager/api/v2/models"
	"github.com/prometheus/alertmanager/pkg/labels"
	"github.com/prometheus/common/model"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

var node7 = Maintenance{Node: "node7", Instances: []string{"10.0.0.7", "node7", "node7.example.com", "gpus:7"},
	Labels: map[string]string{"cluster": "a.b"}, Job: "gpusteward"}

func TestSilencesAreOfTheHost(t *testing.T) {
	t.Parallel()
	host, gpu := fixture.Value(node7.silence())(t), node7
	gpu.GPU = incident.Entity{GPU: "1", UUID: "GPU-1"}
	one := fixture.Value(gpu.silence())(t)
	for text, want := range map[string]bool{
		`{job="gpusteward",instance="gpus:7"}`:                   true,
		`{job="gpusteward",instance="node7:9836"}`:               true,
		`{job="gpusteward",instance="node7",cluster="a.b"}`:      true,
		`{job="gpusteward",instance="node7",cluster="axb"}`:      false,
		`{job="gpusteward",instance="node7.example.com"}`:        true,
		`{job="gpusteward",instance="10.0.0.7:80",uuid="GPU-1"}`: true,
		`{job="gpusteward",instance="10.0.0.70:9836"}`:           false,
		`{job="gpusteward",instance="node7:9836",cluster="c"}`:   false,
		`{job="node",instance="node7:9100"}`:                     false,
		`{job="gpusteward",cluster="a.b"}`:                       false, // of the fleet
	} {
		is := model.LabelSet{}
		for _, m := range fixture.Value(labels.ParseMatchers(text))(t) {
			is[model.LabelName(m.Name)] = model.LabelValue(m.Value)
		}
		fixture.Equal(t, host.Matchers.Matches(is), want, "%s is silenced", text)
		fixture.Equal(t, one.Matchers.Matches(is), want && is["uuid"] == "GPU-1", "%s is silenced with the GPU", text)
	}
	_, err := Maintenance{Instances: []string{"x"}}.silence()
	fixture.Equal(t, err == nil, false, "a host without a name has silences")
}

// silencer is a transport to Alertmanagers: am0 answers, am1 refuses, am2 hangs. It has what was posted. Their
// clocks are a year ahead: this host's was just set back.
type silencer struct{ posted []models.PostableSilence }

const year = 365 * 24 * time.Hour

func (s *silencer) RoundTrip(r *http.Request) (*http.Response, error) {
	code, text := http.StatusOK, `[{"id": "x", "createdBy": "somebody", "comment": "", "status": {"state": "active"}}]`
	switch {
	case strings.HasPrefix(r.URL.Host, "am1"):
		code, text = http.StatusForbidden, "no"
	case strings.HasPrefix(r.URL.Host, "am2"):
		<-r.Context().Done()
		return nil, r.Context().Err()
	case r.Method == http.MethodPost:
		var p models.PostableSilence
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			return nil, err
		}
		s.posted = append(s.posted, p)
	}
	clock := http.Header{"Date": {time.Now().Add(year).UTC().Format(http.TimeFormat)}}
	return &http.Response{StatusCode: code, Header: clock, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

func TestSilenceSaysWhereItIsNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, began := new(silencer), time.Now()
		o := Options{Log: slog.New(slog.DiscardHandler), transport: s}
		n := fixture.Value(New(o))(t)
		fixture.Equal(t, n.Silence(t.Context(), node7, time.Hour),
			"Nothing is silenced: health.alertmanagers names no Alertmanager.", "it says")
		fixture.Equal(t, n.EndSilence(t.Context(), node7), "", "it says at the end")
		o.URLs = []string{"http://am0", "http://u:secret@am1", "http://am2"}
		fixture.Must(t, n.Reconfigure(o))
		fixture.Equal(t, n.Silence(t.Context(), node7, time.Hour), "The alerts of node7 are silenced until "+
			"2000-01-01 01:00 UTC at http://am0.\nThey are not silenced at http://am1: answered 403: no.\n"+
			"They are not silenced at http://am2: no answer within 5s.", "it says")
		fixture.Equal(t, time.Since(began), silenceTimeout, "it takes")
		fixture.Need(t, len(s.posted), 1, "silences")
		for _, p := range s.posted {
			fixture.Must(t, p.Validate(strfmt.Default))
			fixture.Equal(t, time.Time(*p.EndsAt).Sub(time.Time(*p.StartsAt)), time.Hour, "it holds")
			fixture.Equal(t, time.Time(*p.StartsAt).Sub(began), year, "it begins after")
			fixture.Equal(t, *p.CreatedBy, "gpusteward on node7, cluster a.b", "by")
		}
		fixture.Equal(t, n.EndSilence(t.Context(), node7), "A silence may remain until its end at http://am1: answered 403: "+
			"no.\nA silence may remain until its end at http://am2: no answer within 5s.", "it says at the end")
	})
}
