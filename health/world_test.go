package health

import (
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
)

// TestSitesAreTheirSeeds holds that two sites of a style and seed are equal,
// and that another seed makes another site.
func TestSitesAreTheirSeeds(t *testing.T) {
	t.Parallel()
	print := func(style worldRow, seed uint64) uint64 {
		s, sum := newSite(style, seed), fnv.New64()
		var last []collectors.Sample
		for range 60 {
			last = s.pass()
		}
		for _, o := range last {
			_, _ = sum.Write([]byte(o.Metric.Name + strings.Join(o.Labels, ",") +
				strconv.FormatFloat(o.Value, 'g', -1, 64)))
		}
		return sum.Sum64()
	}
	for _, style := range worldTable("styles")[1:] {
		one := print(style, 3)
		if one != print(style, 3) {
			t.Errorf("%s is not the same again", style["style"])
		}
		if one == print(style, 4) {
			t.Errorf("%s is the same with another seed", style["style"])
		}
	}
}

// notInSites are the families that health reads and that no site shows, by
// variable, with reasons. If a check reads another absent family, add it to the
// sites.
var notInSites = map[string]string{
	"RetiredPages": "of boards before Ampere", "VGPUMemoryUsed": "of hosts that give out virtual GPUs",
	"NVLinkBER": "of each link", "NVLinkInfo": "of each link", "SRAMAddresses": "off by default",
	"C2CUp":         "the addressing mode says the same",
	"UnknownMemory": "of processes that the kernel does not know, which no healthy host has",
	"JobHang":       "of jobs that hang, which no healthy host has",
	"JobSlowdown":   "of jobs that are slow, which no healthy host has",
	"JobStraggler":  "of jobs with a straggler, which no healthy host has",
}

// ofEnforcer are the prefixes of the enforcer's families. The other healthy
// hosts have tenants.
var ofEnforcer = []string{"Quota", "QoS", "Broker", "Unhooked", "Underreporting", "Suspend", "Overcommit"}

// TestSitesCoverEveryCheck holds that no check is quiet because no site
// shows its input.
func TestSitesCoverEveryCheck(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, style := range worldTable("styles")[1:] {
		s := newSite(style, 1)
		s.silence("late", 4*time.Second, s.boards[0])
		for range 30 {
			for _, o := range s.pass() {
				if len(o.Labels) != len(o.Metric.Labels) {
					t.Fatalf("%s has labels %q", o.Metric, o.Labels)
				}
				shown[o.Metric.Name] = true
			}
		}
	}
	names := familyNames(t)
	for _, variable := range judgedFamilies(t) {
		name, is := names[variable]
		if slices.ContainsFunc(ofEnforcer, func(s string) bool { return strings.HasPrefix(variable, s) }) {
			continue
		}
		if reason := notInSites[variable]; is && shown[name] == (reason != "") {
			t.Errorf("%s (%s) is shown by sites: %v; reason why not: %q", variable, name,
				shown[name], reason)
		}
	}
}

// TestBoardsAreTheRecordings compares boards, idle and loaded, with the values
// of a real H100.
func TestBoardsAreTheRecordings(t *testing.T) {
	t.Parallel()
	recorded := recordedLevels(t)
	for loaded, wants := range []need{{}, {busy: 1, heat: 1, sm: 0.95, tensor: 0.92, dram: 0.256}} {
		s := newSite(worldRow{"style": "recording", "boards": "h100"}, 1)
		var watts, mhz, celsius, n float64
		for i := range 90 {
			for _, b := range s.boards {
				b.want, b.place, b.draws = wants, 0, 1
				b.residents = float64(loaded)
				b.advance(s, step)
				if i >= 60 {
					watts, mhz, celsius, n = watts+b.v.average, mhz+b.v.clock/1e6, celsius+b.v.core, n+1
				}
			}
			s.clock += step
		}
		for _, c := range []struct {
			what, call   string
			got, per, by float64
		}{{"W", "PowerUsage", 1000 * watts / n, 0.04, 0}, {"MHz", "ClockSM", mhz / n,
			0.05, 600 * float64(1-loaded)}, {"C", "Temperature", celsius / n, 0, 5}} {
			if want := recorded[c.call][loaded]; want == 0 || math.Abs(c.got-want) > c.per*want+c.by {
				t.Errorf("loaded %d: %g %s, a real one has %g", loaded, c.got, c.what, want)
			}
		}
	}
}

// TestWorldTables holds that all names in the tables of the world exist, and
// that no row is unused.
func TestWorldTables(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, style := range worldTable("styles") {
		for habit := range strings.FieldsSeq(style["habits"]) {
			name, _, _ := strings.Cut(habit, "=")
			used["habit "+name] = true
		}
		for board := range strings.FieldsSeq(style["boards"]) {
			used["board "+board] = true
		}
		for work := range strings.FieldsSeq(style["work"]) {
			kind, _, _ := strings.Cut(work, ":")
			if n, rest, many := strings.Cut(kind, "x"); many && len(n) < 3 {
				kind = rest
			}
			used["kind "+kind] = true
			used["program "+worldRowOf("kinds", "kind", kind)["program"]] = true
		}
		if style["boards"] != "" {
			newSite(style, 1)
		}
	}
	for name := range habitsOf {
		if !used["habit "+name] {
			t.Errorf("no style has the habit %s", name)
		}
	}
	for _, table := range []string{"board", "kind"} {
		for _, row := range worldTable(table + "s") {
			if !used[table+" "+row[table]] {
				t.Errorf("no style has the %s %s", table, row[table])
			}
		}
	}
}

// TestLinksTrainAfterAReload lets links come up one after the other, after the
// driver has returned.
func TestLinksTrainAfterAReload(t *testing.T) {
	t.Parallel()
	s := newSite(worldRowOf("styles", "style", "dense training"), 1)
	s.later = nil
	s.reload(true, 30*time.Second)
	seen := map[float64]bool{}
	for s.pass(); s.clock < s.boards[0].trained || !s.driver; s.pass() {
		if s.driver {
			seen[s.boards[0].v.links] = true
		}
	}
	if len(seen) < 4 || s.boards[0].v.links != s.boards[0].number("links") {
		t.Errorf("%v links were seen, and then %g", seen, s.boards[0].v.links)
	}
}
