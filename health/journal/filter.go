package journal

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/health/incident"
)

// A Filter selects events. An empty field matches all.
type Filter struct {
	Since, Until time.Time // by the record's time; Until is exclusive
	Kind         incident.Kind
	Check        string
	Severity     incident.Severity // the least one
	GPU          string            // index or UUID
	Tenant       string            // of the event or its workload
	Workload     string            // of the process or the event
	Class        incident.Class
	Limit        int // 0: 100; at most 4096
}

// defaultLimit is the number of events in an answer by default.
const defaultLimit = 100

func (f Filter) limit() int { return min(cmp.Or(f.Limit, defaultLimit), maxRecent) }

func (f Filter) match(e *incident.Event) bool {
	return !e.Time.Before(f.Since) && (f.Until.IsZero() || e.Time.Before(f.Until)) &&
		(f.Kind == "" || e.Kind == f.Kind) && (f.Check == "" || e.Check == f.Check) && e.Severity >= f.Severity &&
		(f.GPU == "" || e.Entity.GPU == f.GPU || e.Entity.UUID == f.GPU) &&
		(f.Tenant == "" || e.Entity.Tenant == f.Tenant) &&
		(f.Workload == "" || e.Workload == f.Workload || e.Entity.Workload == f.Workload) &&
		(f.Class == "" || e.Class == f.Class)
}

var kinds = []incident.Kind{incident.KindIncident, incident.KindTransition, incident.KindAck, incident.KindAgent,
	incident.KindEnforcement, incident.KindCrash}

// parameters are the parameters of a query. Each sets its field from a text, or
// returns the values that it accepts.
var parameters = map[string]func(f *Filter, text string) string{
	"since": func(f *Filter, s string) string { return setTime(&f.Since, s) },
	"until": func(f *Filter, s string) string { return setTime(&f.Until, s) },
	"kind":  func(f *Filter, s string) string { return setName(&f.Kind, s, kinds) },
	"class": func(f *Filter, s string) string { return setName(&f.Class, s, incident.Classes) },
	"severity": func(f *Filter, s string) string {
		if f.Severity.UnmarshalText([]byte(s)) != nil {
			return oneOf([]incident.Severity{incident.None, incident.Info, incident.Warning, incident.Critical,
				incident.Emergency})
		}
		return ""
	},
	"check":    func(f *Filter, s string) string { return setText(&f.Check, s, "the name of a check") },
	"gpu":      func(f *Filter, s string) string { return setText(&f.GPU, s, "a GPU's index or UUID") },
	"tenant":   func(f *Filter, s string) string { return setText(&f.Tenant, s, "the name of a tenant") },
	"workload": func(f *Filter, s string) string { return setText(&f.Workload, s, "the name of a workload") },
	"limit": func(f *Filter, s string) string {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxRecent {
			return fmt.Sprintf("a number from 1 to %d", maxRecent)
		}
		f.Limit = n
		return ""
	},
}

// parseFilter parses the query of /api/v1/events. Its errors name the parameter
// and the values that it accepts.
func parseFilter(query url.Values) (f Filter, err error) {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		set, ok := parameters[name]
		if !ok {
			all := append(slices.Sorted(maps.Keys(parameters)), "follow") // parseRequest reads that one
			slices.Sort(all)
			return Filter{}, fmt.Errorf("there is no parameter %q; the parameters are %s", name, strings.Join(all, ", "))
		}
		if len(query[name]) > 1 {
			return Filter{}, fmt.Errorf("%s is given %d times", name, len(query[name]))
		}
		if want := set(&f, query.Get(name)); want != "" {
			return Filter{}, fmt.Errorf("%s: %q is not %s", name, query.Get(name), want)
		}
	}
	return f, nil
}

func setTime(t *time.Time, s string) string {
	if at, err := time.Parse(time.RFC3339, s); err == nil {
		*t = at
		return ""
	}
	if ago, err := time.ParseDuration(s); err == nil && ago > 0 {
		*t = time.Now().Add(-ago)
		return ""
	}
	if seconds, err := strconv.ParseFloat(s, 64); err == nil && seconds > 0 && seconds < 1e10 {
		*t = time.UnixMicro(int64(seconds * 1e6))
		return ""
	}
	return "a time such as 2026-01-31T12:00:00Z, a Unix time in seconds, or how long ago, such as 15m"
}

// oneOf says that a value is one of several names.
func oneOf[T any](names []T) string {
	return "one of " + strings.ReplaceAll(strings.Trim(fmt.Sprint(names), "[]"), " ", ", ")
}

func setName[T ~string](v *T, s string, names []T) string {
	if !slices.Contains(names, T(s)) {
		return oneOf(names)
	}
	*v = T(s)
	return ""
}

func setText(v *string, s, what string) string {
	if s == "" {
		return what
	}
	*v = s
	return ""
}
