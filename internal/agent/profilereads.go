package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"gpusteward/enforcer"
	"gpusteward/enforcer/profile"
	"gpusteward/exporter"
)

// answerTime is how long an answer may take beyond the profile.
const answerTime = 10 * time.Second

// userReads answers what a user may read of his own programs.
func userReads(e *enforcer.Enforcer) http.Handler {
	profiles, crashes := profileReads(e.Profile), crashReads(e)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == exporter.ProfilePath {
			profiles.ServeHTTP(w, r)
		} else {
			crashes.ServeHTTP(w, r)
		}
	})
}

// A profiler makes a profile: see Enforcer.Profile.
type profiler func(ctx context.Context, uid uint32, pid int, workload string, d time.Duration, spans bool) (profile.Profile, error)

// profileReads answers with a profile, once it is made.
func profileReads(made profiler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid, known := exporter.UIDOf(r.Context())
		pid, workload, d, spans, err := profileOf(r.URL.Query())
		if err != nil || !known {
			http.Error(w, fmt.Sprintf("a profile takes pid or workload, seconds and spans: %v", err), http.StatusBadRequest)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + answerTime))
		p, err := made(r.Context(), uint32(uid), pid, workload, d, spans)
		switch {
		case errors.Is(err, enforcer.ErrNoProgram):
			http.Error(w, err.Error(), http.StatusNotFound)
		case errors.Is(err, profile.ErrRuns), errors.Is(err, profile.ErrTooMany):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		case err != nil:
			http.Error(w, err.Error(), http.StatusConflict)
		default:
			w.Header().Set("Content-Type", "application/json")
			encoder := json.NewEncoder(w)
			encoder.SetEscapeHTML(false) // templates in names would take six times as long
			_ = encoder.Encode(p)
		}
	})
}

// profileOf parses the query of a profile.
func profileOf(q url.Values) (pid int, workload string, d time.Duration, spans bool, err error) {
	workload = q.Get("workload")
	if text := q.Get("pid"); text != "" {
		if pid, err = strconv.Atoi(text); err != nil || pid < 1 {
			return 0, "", 0, false, fmt.Errorf("pid: %q is no process", text)
		}
	}
	seconds, err := strconv.ParseFloat(q.Get("seconds"), 64)
	switch {
	case (pid == 0) == (workload == ""):
		err = errors.New("it takes one of the two, pid or workload")
	case err != nil || !(seconds >= 1 && seconds <= profile.Longest.Seconds()):
		err = fmt.Errorf("seconds: %q is not from 1 to %.0f", q.Get("seconds"), profile.Longest.Seconds())
	}
	return pid, workload, time.Duration(seconds * float64(time.Second)), q.Get("spans") == "1", err
}
