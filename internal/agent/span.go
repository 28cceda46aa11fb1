package agent

import (
	"net/http"
	"os"

	"gpusteward/exporter"
	"gpusteward/internal/span"
)

// spanReads answers root and the agent's users with spans, and passes other requests on.
func (f flags) spanReads(spans *span.Recorder, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch uid, known := exporter.UIDOf(r.Context()); {
		case r.URL.Path != span.Path:
			next.ServeHTTP(w, r)
		case known && (uid == 0 || uid == os.Geteuid() || f.isObserver(uint32(uid))):
			spans.ServeHTTP(w, r)
		default:
			http.Error(w, "only root and the agent's own user may read spans", http.StatusForbidden)
		}
	})
}
