package integration

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// together runs tests that mostly wait, all at once, on any number of processors.
func together(t *testing.T, tests map[string]func(t *testing.T)) {
	var running sync.WaitGroup
	for name, test := range tests {
		running.Go(func() { t.Run(name, test) })
	}
	running.Wait()
}

// label is the label that all series of a GPU have.
func label(gpu int) string { return fmt.Sprintf(`gpu="%d"`, gpu) }

// down reports whether the GPUs do not answer, each for that reason.
func (s series) down(reason string, gpus ...int) bool {
	return !slices.ContainsFunc(gpus, func(gpu int) bool {
		up := s.family("nvgpu_up", label(gpu))
		why := s.family("gpusteward_worker_stuck", label(gpu))
		because := s.family("gpusteward_worker_stuck", label(gpu), `reason="`+reason+`"`)
		return !slices.Equal(up, []float64{0}) || len(why) != 1 || !slices.Equal(because, []float64{1})
	})
}

// ill returns the faults of GPUs that should be well.
func (s series) ill(gpus ...int) string {
	for _, gpu := range gpus {
		up := s.family("nvgpu_up", label(gpu))
		age := s.family("gpusteward_snapshot_age_seconds", label(gpu))
		celsius := s.family("nvgpu_temperature_celsius", label(gpu))
		if !slices.Equal(up, []float64{1}) || len(age) != 1 || age[0] > 2 || !slices.Equal(celsius, []float64{42}) {
			return fmt.Sprintf("gpu %d: up %v, %v s old, %v degrees", gpu, up, age, celsius)
		}
	}
	return ""
}

// families returns the names of a GPU's series.
func (s series) families(gpu int) []string {
	names := map[string]bool{}
	for key := range s {
		if name, rest, _ := strings.Cut(key, "{"); strings.Contains(rest, label(gpu)) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// sees waits for a scrape that satisfies check.
func (a *agent) sees(what string, is func(s series) bool) {
	a.t.Helper()
	eventually(a.t, what, func() bool {
		defer time.Sleep(pace / 2) // expensive enough with many other agents
		return is(a.scrape())
	})
}

// well waits until the GPUs are well.
func (a *agent) well(gpus ...int) {
	a.t.Helper()
	a.sees(fmt.Sprintf("GPUs %v are well", gpus), func(s series) bool { return s.ill(gpus...) == "" })
}

// turns waits until every GPU that is up has been read n more times.
func (a *agent) turns(n float64) {
	a.t.Helper()
	const calls = `gpusteward_nvml_calls_total{call="nvmlDeviceGetTemperature",return="success"}`
	from := a.scrape()
	gpus := sum(from.family("nvgpu_up"))
	a.sees(fmt.Sprintf("%v turns", n), func(s series) bool { return s[calls] >= from[calls]+n*gpus })
}

// threads returns the number of threads of a child process.
func (a *agent) threads() int {
	a.t.Helper()
	tasks := fixture.Value(os.ReadDir(fmt.Sprintf("/proc/%d/task", a.pid)))(a.t)
	return len(tasks)
}

// pace is the interval of a witness's scrapes.
const pace = 100 * time.Millisecond

// slack is the number of threads that Go may start at any time.
const slack = 4

// A witness scrapes repeatedly in parallel, and remembers faults.
type witness struct {
	stop func()

	mu      sync.Mutex
	scrapes int
	faults  []fault
	busy    []time.Time // when the agent had long waited for a processor, which makes its readings late
}

type fault struct {
	at   time.Time
	what string
}

// observe starts to compare scrapes of a with check, which returns the faults.
func observe(a *agent, scrapers int, check func(s series) string) *witness {
	w := new(witness)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	w.stop = func() { cancel(); running.Wait() }
	waited, took := a.waited(), fixture.Stolen(a.t)
	scrape := func() {
		status, body, err := a.fetch("/metrics")
		wrong := fmt.Sprintf("status %d, %v", status, err)
		if err == nil && status == http.StatusOK {
			wrong = check(parse(body))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.scrapes++
		if wrong != "" {
			w.faults = append(w.faults, fault{time.Now(), wrong})
		}
		was := took
		if took = fixture.Stolen(a.t); max(waited(), took-was) > pace {
			w.busy = append(w.busy, time.Now())
		}
	}
	for range scrapers {
		running.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for ctx.Err() == nil {
				scrape()
				<-tick.C
			}
		})
	}
	return w
}

// saw ends the observation, which must have found no fault while the agent had a processor.
func (w *witness) saw(t *testing.T) {
	t.Helper()
	eventually(t, "five scrapes", func() bool { // a loaded machine may have made fewer so far
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.scrapes >= 5
	})
	w.stop()
	for _, f := range w.faults {
		if !slices.ContainsFunc(w.busy, func(at time.Time) bool { return f.at.Sub(at).Abs() < 2*time.Second }) {
			t.Errorf("one of %d scrapes: %s", w.scrapes, f.what)
		}
	}
}

func TestHungGPUDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	f := newDriver(t)
	f.set("gpus", "4")
	a := f.spawn().ready()
	a.well(0, 1, 2, 3)
	before := a.threads()
	w := observe(a, 16, func(s series) string {
		if n := len(s.family("nvgpu_up")); n != 4 {
			return fmt.Sprintf("nvgpu_up of %d GPUs", n)
		}
		return s.ill(0, 1, 3)
	})
	f.set("hang.2", "")
	a.sees("the call that hangs is named", func(s series) bool { return s.down("nvmlDeviceGetTemperature", 2) })
	// and its history
	about := []string{"gpusteward_snapshot_age_seconds", "gpusteward_worker_stuck", "nvgpu_up", "nvgpu_away",
		"nvgpu_fault_score", "nvgpu_health_check_failing", "nvgpu_health_checks_unknown", "nvgpu_incidents_total",
		"nvgpu_lemon_score", "nvgpu_recent_incidents"}
	a.sees("nothing is left that was read of the GPU", func(s series) bool {
		return !slices.ContainsFunc(s.families(2), func(name string) bool { return !slices.Contains(about, name) })
	})

	at := a.threads()
	a.reloads()
	a.turns(8)
	t.Logf("threads: %d before, %d while a call hangs, %d after a while", before, at, a.threads())
	now, stuck := a.threads(), f.number("stuck")
	fixture.If(t, now > at+slack || stuck != 1, "%d threads grew to %d, %d of them stuck", at, now, stuck)

	f.clear("hang.2")
	a.well(0, 1, 2, 3)
	w.saw(t)
	fixture.AtMost(t, a.threads(), before+slack, "… threads after the call returned, %d before it hung", before)
	a.endsWell()
}

func TestHungCalls(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, c := range map[string]struct {
		define string
		files  []string
		call   string // its name in the files
		reason string
		hang   []int
		first  bool // from the start
		last   bool // to the end
	}{
		"handle, to the end": {files: []string{"hang.2"}, call: "nvmlDeviceGetHandleByIndex_v2",
			reason: "nvmlDeviceGetHandleByIndex", hang: []int{2}, first: true, last: true},
		"handle, for the peer": {files: []string{"hang.2"}, call: "nvmlDeviceGetHandleByIndex_v2",
			reason: "nvmlDeviceGetHandleByIndex", hang: []int{2}, first: true, define: "-DTOPOLOGY"},
		"uuid": {files: []string{"hang.2"}, call: "nvmlDeviceGetUUID", reason: "nvmlDeviceGetUUID",
			hang: []int{2}, first: true},
		"two": {files: []string{"hang.1", "hang.3"}, reason: "nvmlDeviceGetTemperature", hang: []int{1, 3}},
		"all, to the end": {files: []string{"hang"}, reason: "nvmlDeviceGetTemperature",
			hang: []int{0, 1, 2, 3}, last: true},
	} {
		tests[name] = func(t *testing.T) {
			f := newDriver(t, strings.Fields(c.define)...)
			f.set("gpus", "4")
			if c.define != "" {
				f.set("config.yml", strings.Replace(quickly, "{fast", "{enable: [topology], fast", 1))
			}
			hang := func() {
				for _, file := range c.files {
					f.set(file, c.call)
				}
			}
			if c.first {
				hang()
			}
			a := f.spawn().ready()
			others := slices.DeleteFunc([]int{0, 1, 2, 3}, func(gpu int) bool { return slices.Contains(c.hang, gpu) })
			a.well(others...)
			w := observe(a, 1, func(s series) string { return s.ill(others...) })
			if !c.first {
				a.well(c.hang...)
				hang()
			}
			a.sees("the calls that hang are named", func(s series) bool { return s.down(c.reason, c.hang...) })
			if len(others) > 0 {
				a.turns(3)
			}
			fixture.Equal(t, f.number("stuck"), len(c.hang), "the calls that hang are")
			if !c.last {
				f.clear(c.files...)
				a.well(0, 1, 2, 3)
				fixture.Equal(t, len(a.scrape().family("nvgpu_up")), 4, "nvgpu_up of … GPUs")
			}
			w.saw(t)
			a.endsWell()
		}
	}
	together(t, tests)
}

func TestHungHostCalls(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for _, call := range []string{"nvmlInit_v2", "nvmlDeviceGetCount_v2"} {
		name := strings.TrimSuffix(call, "_v2")
		opening := func(t *testing.T) (fakeDriver, *agent) {
			f := newDriver(t)
			f.set("gpus", "2")
			f.set("hang", call)
			a := f.spawn().listening()
			a.unready(name)
			up, known := a.scrape()["gpusteward_driver_up"]
			fixture.If(t, up != 0 || !known, "gpusteward_driver_up %v (%v), want 0", up, known)
			return f, a
		}
		tests[name] = func(t *testing.T) {
			f, a := opening(t)
			at := a.threads()
			f.clear("hang")
			a.ready().well(0, 1)
			fixture.AtMost(t, a.threads(), at+2+slack, "… threads after the call returned, %d while it hung", at)
		}
		tests[name+", to the end"] = func(t *testing.T) {
			_, a := opening(t)
			a.endsWell()
		}
	}
	for _, call := range []string{"nvmlInit_v2", "nvmlShutdown"} {
		name := strings.TrimSuffix(call, "_v2")
		tests[name+", when the driver is opened again"] = func(t *testing.T) {
			f := newDriver(t)
			f.has(2)
			a := f.spawn().ready()
			a.well(0, 1)
			f.set("hang", call)
			f.has(3)
			a.unready(name)
			a.sees("no driver", noDriverUp)
			a.sees("why no GPU answers", func(s series) bool { return s.down(name, 0, 1) })
			f.clear("hang")
			a.back(time.Now(), 0, 1, 2)
		}
	}
	tests["nvmlDeviceGetCount, later"] = func(t *testing.T) {
		f := newDriver(t)
		f.set("gpus", "2")
		a := f.spawn().ready()
		a.well(0, 1)
		w := observe(a, 1, func(s series) string { return s.ill(0, 1) })
		f.set("hang", "nvmlDeviceGetCount_v2")
		eventually(t, "it hangs", func() bool { return f.number("stuck") == 1 })
		a.turns(4)
		w.saw(t)
		a.endsWell()
	}
	tests["nvmlShutdown, to the end"] = func(t *testing.T) {
		f := newDriver(t)
		a := f.spawn().ready()
		f.set("hang", "nvmlShutdown")
		a.endsWell()
	}
	together(t, tests)
}
