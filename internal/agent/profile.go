package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/collectors/host"
	"gpusteward/enforcer"
	"gpusteward/enforcer/profile"
	"gpusteward/exporter"
)

// profileFlags are the arguments of gpusteward profile.
type profileFlags struct {
	target         profileTarget
	seconds        profileSeconds
	format, output string
}

func profileCommand(app *kingpin.Application, f *flags) (*kingpin.CmdClause, *profileFlags) {
	p := new(profileFlags)
	cmd := app.Command("profile", "Show which kernels take the GPU time of a live program under the hook. The program "+
		"continues meanwhile: one launch in many is timed, and all are counted. Users see their own programs, and root "+
		"sees all.")
	cmd.Flag("seconds", fmt.Sprintf("Time for which the program is observed, 1 to %d.", mostSeconds)).Default("10").
		SetValue(&p.seconds)
	cmd.Flag("format", "Format: table; pprof, for go tool pprof and its like; trace, for Perfetto and Chrome, with each "+
		"launch and wait; or json.").Default("table").EnumVar(&p.format, "table", "pprof", "trace", "json")
	cmd.Flag("output", "File to replace in one step. The default is standard output.").PlaceHolder("FILE").
		StringVar(&p.output)
	cmd.Arg("WORKLOAD", "Workload as status shows it, such as slurm:4711, or the PID of a process.").Required().
		HintAction(f.workloadNames).SetValue(&p.target)
	return cmd, p
}

// mostSeconds bounds the time for which a program is observed.
const mostSeconds = int(profile.Longest / time.Second)

// profileSeconds is the value of --seconds.
type profileSeconds int

// Set takes a number of seconds.
func (s *profileSeconds) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostSeconds {
		return fmt.Errorf("%q is not a whole number from 1 to %d", text, mostSeconds)
	}
	*s = profileSeconds(n)
	return nil
}

func (s *profileSeconds) String() string { return strconv.Itoa(int(*s)) }

// profileTarget is the program to observe: a PID or, if that is 0, a workload.
type profileTarget struct {
	pid      int
	workload string
}

// Set takes a PID, which has only digits, or the name of a workload.
func (t *profileTarget) Set(text string) error {
	*t = profileTarget{workload: text}
	switch {
	case strings.TrimSpace(text) == "":
		return errors.New("it is empty: name a workload, as status shows it, or a PID")
	case strings.Trim(text, "0123456789") != "":
		return nil
	}
	pid, err := strconv.ParseInt(text, 10, 32)
	if err != nil || pid == 0 {
		return fmt.Errorf("%q is no PID, and the name of a workload does not consist of digits", text)
	}
	t.pid, t.workload = int(pid), ""
	return nil
}

func (t *profileTarget) String() string {
	if t.pid != 0 {
		return strconv.Itoa(t.pid)
	}
	return t.workload
}

// run observes a program and writes what it did.
func (p *profileFlags) run(ctx context.Context, runtimeDir string, stdout io.Writer) error {
	if p.output == "" {
		if p.format == "pprof" && isTerminal(stdout) {
			return errors.New("profile: the format pprof is binary, and this is a terminal: write a file with --output=FILE")
		}
		return p.write(ctx, runtimeDir, stdout)
	}
	if info, err := os.Stat(p.output); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("profile: --output: %s is not a file", p.output)
	}
	if err := hasDirectory(p.output); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	const ownerReads = 0o600
	var observed error
	// A file that cannot be written says so before the program is observed.
	err := host.ReplaceFile(p.output, ownerReads, func(w io.Writer) error {
		observed = p.write(ctx, runtimeDir, w)
		return observed
	})
	switch {
	case observed != nil:
		return observed
	case err != nil:
		return fmt.Errorf("profile: --output: %w", err)
	}
	return nil
}

// write asks for a profile and writes it.
func (p *profileFlags) write(ctx context.Context, runtimeDir string, w io.Writer) error {
	text, err := exporter.AskProfile(ctx, runtimeDir, exporter.ProfileRequest{PID: p.target.pid, Workload: p.target.workload,
		Seconds: int(p.seconds), Spans: p.format == "trace"})
	var one profile.Profile
	if err == nil {
		err = json.Unmarshal(text, &one)
	}
	if err == nil {
		switch p.format {
		case "pprof":
			err = one.Pprof(w)
		case "trace":
			err = one.Trace(w)
		case "json":
			_, err = fmt.Fprintf(w, "%s\n", strings.TrimSpace(string(text)))
		default:
			err = one.Table(w)
		}
	}
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}

// answerTime is how long an answer may take beyond the profile.
const answerTime = 10 * time.Second

// userReads answers what a user may read of his own programs.
func userReads(e *enforcer.Enforcer) http.Handler {
	busy := exporter.Users{Each: profile.MostOfUser, All: profile.MostAtOnce} // their profiles are made, or written
	profiles, crashes := busy.Limit(profileReads(e.Profile), profile.ErrTooMany), crashReads(e)
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
		case errors.Is(err, profile.ErrRuns):
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
