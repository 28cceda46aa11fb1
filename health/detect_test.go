package health

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim"
)

// A detection is a fault of a simulated host, and what must be found of it: an
// element of testdata/detect.
type detection struct {
	Row          string `yaml:"row"` // of testdata/health-checks.tsv
	sim.Scenario `yaml:",inline"`
	Enable       []string `yaml:"enable"`   // collectors that are off by default
	PerLink      bool     `yaml:"per_link"` // series of each NVLink
	Inject       string   `yaml:"inject"`   // a key of injections: what no simulated GPU can do
	Find         finding  `yaml:"find"`
	Also         []string `yaml:"also"` // checks that may find something too, because it is true
}

// A finding is what is to be found: by which check, of what, how bad and how
// soon. No severity is that nothing may be found at all.
type finding struct {
	Check    string       `yaml:"check"` // the row's, unless it is another
	On       string       `yaml:"on"`
	Severity Severity     `yaml:"severity"`
	Within   sim.Duration `yaml:"within"` // since the first fault began
	Over     sim.Duration `yaml:"over"`   // since then too: when all is well again
	Stays    sim.Duration `yaml:"stays"`  // since then too: until when it is not
}

// begin returns when the first fault begins.
func (d *detection) begin() time.Duration {
	first := injected
	for i, f := range d.Faults {
		if at := time.Duration(f.At); i == 0 || at < first {
			first = at
		}
	}
	return first
}

// detections reads testdata/detect.
func detections(t *testing.T) (all []*detection) {
	t.Helper()
	files, err := filepath.Glob("testdata/detect/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var these []*detection
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		if err := d.Decode(&these); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, d := range these {
			if d.Find.Check == "" {
				d.Find.Check = d.Row
			}
			all = append(all, d)
		}
	}
	return all
}

// A chain is all that is between a GPU and an alert: the readers, the kernel's
// log, the monitor.
type chain struct {
	start   time.Time
	sim     *sim.Host
	host    *collectors.Host
	monitor *Monitor
	options Options
	events  func(collectors.Event)

	mu   sync.Mutex
	told []Event
}

// run runs a detection's host for d of its time, and returns what it told of.
func (d *detection) run(t *testing.T, length time.Duration) []Event {
	nv, err := sim.New(d.Scenario, sim.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := &chain{start: time.Now(), sim: nv}
	log := slog.New(slog.DiscardHandler)
	table, config := nv.Table(log), collectors.DefaultConfig()
	config.Enable, config.PerLink, config.XIDs = d.Enable, d.PerLink, AlertableXIDs()
	boot, err := nv.Kernel().BootID()
	if err != nil {
		t.Fatal(err)
	}
	c.events = func(e collectors.Event) { c.monitor.Event(e) }
	c.options = Options{
		Samples: func() []collectors.Sample { return c.host.Samples() },
		Kernel:  nv.Follow,
		Process: func(pid int, at time.Time) (comm, workload string) {
			p, ok := table.Recall(pid, at)
			if ok && p.Workload != nil {
				workload = p.Workload.Key
			}
			return p.Comm, workload
		},
		Record: c.record,
		Load:   idle,
		Boot:   boot, Node: "host", Log: log,
	}
	if d.Inject != "" {
		injections[d.Inject](c)
	}
	c.host = collectors.NewHost(collectors.Options{NVML: nv, Kernel: nv.Kernel(), Config: config, Processes: table, Log: log,
		Events: func(e collectors.Event) { c.events(e) }})
	c.monitor = NewMonitor(c.options, Settings{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{table.Run, c.host.Run, c.monitor.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	time.Sleep(length)
	synctest.Wait()
	cancel()
	nv.Close()
	running.Wait()
	return c.told
}

func (c *chain) record(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, e)
}

// idle is the load of an agent of its own process: this one runs many, and
// their minutes take milliseconds.
func idle() map[string]float64 {
	return map[string]float64{"memory": .3, "processor": .1, "goroutines": .1}
}

// TestDetection has each fault found in time, by the check that is for it, and
// by no other.
func TestDetection(t *testing.T) {
	t.Parallel()
	for _, d := range detections(t) {
		t.Run(d.Row+"/"+strings.ReplaceAll(d.Name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, d.test)
		})
	}
}

func (d *detection) test(t *testing.T) {
	f, begin, start := d.Find, d.begin(), time.Now()
	length := begin + time.Duration(max(f.Within, f.Over, f.Stays)) + 2*beat
	also := map[string]bool{}
	found, over, worst, told := time.Duration(-1), time.Duration(-1), None, map[string]bool{}
	for _, e := range d.run(t, length) {
		at := e.Time.Sub(start) - begin
		if e.Kind != KindTransition {
			continue
		}
		text := fmt.Sprintf("%7v %s of %s: %v, %v: %s", at, e.Check, e.Entity, e.Severity, e.To, e.Message)
		if os.Getenv("DETECT") != "" {
			t.Log(text)
		}
		also[e.Check] = also[e.Check] || e.Severity >= Warning
		switch own := e.Check == f.Check && e.Entity.String() == f.On && f.Severity != None; {
		case own && e.Severity > worst:
			found, worst, over = at, e.Severity, -1
		case own && e.To == OK:
			over = at
		case own && e.Severity != None:
			over = -1
		case !own && e.Severity >= Warning && !slices.Contains(d.Also, e.Check) && !told[e.Check+e.Entity.String()]:
			told[e.Check+e.Entity.String()] = true
			t.Errorf("found as well: %s", text)
		}
	}
	for _, check := range d.Also {
		if !also[check] && check != f.Check {
			t.Errorf("%s finds nothing, although it may", check)
		}
	}
	switch {
	case worst != f.Severity:
		t.Errorf("%s of %s: %v, want %v", f.Check, f.On, worst, f.Severity)
	case worst == None:
	case found < 0 || found > time.Duration(f.Within):
		t.Errorf("found after %v, want at most %v", found, time.Duration(f.Within))
	}
	switch {
	case f.Stays > 0 && over >= 0:
		t.Errorf("over after %v, and it should stay", over)
	case f.Over > 0 && (over < 0 || over > time.Duration(f.Over)):
		t.Errorf("over after %v, want within %v", over, time.Duration(f.Over))
	}
	if worst != None {
		t.Logf("found after %v of %v, over after %v", found, time.Duration(f.Within), over)
	}
}

// TestEveryRowIsDetected holds that no row of the table of checks is without a
// scenario, and says which are tested through the whole chain.
func TestEveryRowIsDetected(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/health-checks.tsv")
	if err != nil {
		t.Fatal(err)
	}
	whole := map[string]bool{}
	finds := map[string]bool{}
	for _, d := range detections(t) {
		whole[d.Row], finds[d.Find.Check] = true, true
	}
	rows := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")[1:]
	for _, row := range rows {
		id, _, _ := strings.Cut(row, "\t")
		if !whole[id] && byHand[id] == "" {
			t.Errorf("%s has no scenario", id)
		}
	}
	for _, c := range Checks() {
		if !finds[c.ID] && byHand[c.ID] == "" {
			t.Errorf("no scenario is found by %s", c.ID)
		}
	}
	if len(whole) < 40 {
		t.Errorf("%d of %d rows are tested through the whole chain: %v", len(whole), len(rows), slices.Sorted(maps.Keys(whole)))
	}
}
