package agent

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestFleetIsListedByItsScheme lists hosts over TLS with the scheme https.
func TestFleetIsListedByItsScheme(t *testing.T) {
	t.Parallel()
	r, w := httptest.NewRequest(http.MethodGet, "https://fleet.example:9836/sd", nil), httptest.NewRecorder()
	fleet{{hostConfig: &hostConfig{name: "node-001"}}}.targets(w, r)
	want := `[{"targets":["fleet.example:9836"],` +
		`"labels":{"__metrics_path__":"/hosts/node-001/metrics","__scheme__":"https",` +
		`"cluster":"cluster-1","instance":"node-001","rack":"rack-01"}}]` + "\n"
	if got := w.Body.String(); got != want || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%s, want %s", got, want)
	}
}
