package exporter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	"github.com/prometheus/common/model"
)

// A refusal is an answer of a server that is no result: its kind is that of
// Prometheus's API or, without one, "server" or "client", as the status says.
type refusal struct{ kind, said, detail string }

func (r *refusal) Error() string { return strings.TrimSpace(r.said + " " + r.detail) }

// queried returns the result of an instant query, and the server's warnings. An
// answer that is none is a *refusal. It decodes by encoding/json: client_golang's
// api/prometheus/v1 decodes by json-iterator, which is larger.
func queried(ctx context.Context, client api.Client, query string, timeout time.Duration) (model.Vector, []string, error) {
	u, args := client.URL("/api/v1/query", nil), url.Values{"query": {query}, "timeout": {timeout.String()}}.Encode()
	r, err := http.NewRequest(http.MethodPost, u.String(), strings.NewReader(args))
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, text, err := client.Do(ctx, r) //nolint:bodyclose // it reads the body and closes it
	if err == nil && slices.Contains([]int{http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented},
		response.StatusCode) { // a proxy may allow GET alone
		u.RawQuery = args
		if r, err = http.NewRequest(http.MethodGet, u.String(), nil); err != nil {
			return nil, nil, err
		}
		response, text, err = client.Do(ctx, r) //nolint:bodyclose // likewise
	}
	if err != nil {
		return nil, nil, err
	}
	var answer struct {
		Status, ErrorType, Error string
		Warnings                 []string
		Data                     struct {
			ResultType string
			Result     model.Vector
		}
	}
	code, wrong := response.StatusCode, json.Unmarshal(text, &answer)
	explained := []int{http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusServiceUnavailable}
	switch {
	case wrong == nil && answer.Status == "error" && slices.Contains(explained, code):
		return nil, nil, &refusal{kind: answer.ErrorType, said: cmp.Or(answer.Error, fmt.Sprintf("error: %d", code))}
	case code/100 != 2:
		kind := map[bool]string{true: "server", false: "client"}[code/100 == 5]
		return nil, nil, &refusal{kind, fmt.Sprintf("%s error: %d", kind, code), string(text)}
	case wrong != nil:
		return nil, nil, &refusal{said: wrong.Error()}
	case answer.Data.ResultType != "vector":
		return nil, nil, &refusal{said: "no vector"}
	}
	return answer.Data.Result, answer.Warnings, nil
}

// A scrapeTarget is one of a Prometheus.
type scrapeTarget struct {
	Labels    map[string]string
	ScrapeURL string
}

// activeTargets returns the targets of the server; nil if it has none, as Mimir.
func activeTargets(ctx context.Context, client api.Client) []scrapeTarget {
	u := client.URL("/api/v1/targets", nil)
	u.RawQuery = "state=active"
	r, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		return nil
	}
	_, text, err := client.Do(ctx, r) //nolint:bodyclose // it reads the body and closes it
	var answer struct {
		Data struct{ ActiveTargets []scrapeTarget }
	}
	if err != nil || json.Unmarshal(text, &answer) != nil {
		return nil
	}
	return answer.Data.ActiveTargets
}
