package notifier

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
)

// A proxy stands before an Alertmanager and simulates faults of the network.
type proxy struct {
	to     string
	down   atomic.Bool // it closes connections
	dead   atomic.Bool // it never answers
	faulty atomic.Bool // it fails now and then
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || p.down.Load() {
		panic(http.ErrAbortHandler)
	}
	if p.dead.Load() {
		<-r.Context().Done()
		return
	}
	if p.faulty.Load() {
		switch rand.N(20) {
		case 0:
			http.Error(w, "bad", http.StatusBadRequest)
			return
		case 1:
			http.Error(w, "error", http.StatusInternalServerError)
			return
		case 2: // a request that was given up still arrives, late
			<-r.Context().Done()
		}
	}
	answer, err := http.Post(p.to+r.URL.Path, "application/json", bytes.NewReader(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}

// firing returns the names of the alerts that fire there, in order.
func (s *server) firing() (names []string) {
	for _, a := range s.alerts("") {
		names = append(names, a.Labels["alertname"])
	}
	slices.Sort(names)
	return names
}
