//go:build gpu

package enforcer_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/schedule"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// GS_MATRIX_OUT names a file that receives one JSON object for each cell as
// soon as the cell is measured. The table is written beside it, with the suffix
// .md.
var (
	matrixSeconds = flag.Float64("matrix.seconds", 10, "`seconds` that programs are measured for beside each other")
	matrixPlain   = flag.Float64("matrix.plain", 0,
		"the same without the hook; 0 is half of -matrix.seconds, 3 at least")
	matrixLone = flag.Float64("matrix.lone", 2.5, "`seconds` that a program is measured for alone")
	matrixOnly = flag.String("matrix.only", "", "`regexp` of the cells to measure; empty is all")
)

const (
	// matrixSettle passes before each measurement, as in hook/bench/report.py.
	matrixSettle = 500 * time.Millisecond
	// prepareLimit bounds the time in which all workers load and compile, side
	// by side.
	prepareLimit = 4 * time.Minute
	// runLimit is a run's allowance beyond its seconds.
	runLimit = 15 * time.Second
	starts   = 3 // attempts to start a worker before its program counts as broken
)

// TestGPUMatrix measures pairs and triples of programs on one GPU, each without
// the hook and with it.
func TestGPUMatrix(t *testing.T) { measureMatrix(t, onOne) }

// TestGPUMatrixTwo does the same with programs that have a process on each of
// two GPUs.
func TestGPUMatrixTwo(t *testing.T) {
	if n := len(products()); n < 2 {
		fmt.Printf("SKIPPED %s: it needs two GPUs, here is %d\n", t.Name(), n)
		t.Skip("needs two GPUs")
	}
	measureMatrix(t, onTwo)
}

// products returns the names of this machine's GPUs.
func products() []string {
	out, _ := exec.Command("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").Output()
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}

func measureMatrix(t *testing.T, specs []string) {
	only, err := regexp.Compile(*matrixOnly)
	if err != nil {
		t.Fatal(err)
	}
	specs = slices.DeleteFunc(slices.Clone(specs), func(spec string) bool { return !only.MatchString(spec) })
	if len(specs) == 0 {
		t.Skip("no cell is named so")
	}
	cells := make([][]member, len(specs))
	for i, spec := range specs {
		if cells[i], err = parseCell(spec); err != nil {
			t.Fatal(err)
		}
	}
	m := newMatrix(t, slices.Concat(cells...))
	m.prepare(m.postsOf(slices.Concat(cells...))...)
	m.progress("%d workers are ready", len(m.workers))
	for i, members := range cells {
		v := m.measureCell(specs[i], members)
		m.verdicts = append(m.verdicts, v)
		m.progress("%d of %d, %s: %s", i+1, len(specs), specs[i], v.word())
		m.show(v)
		m.write(v)
	}
	m.finish()
	if !slices.ContainsFunc(m.verdicts, func(v *verdict) bool { return v.Skipped == "" }) {
		t.Skip("no cell could be measured here")
	}
}

// program names a member's program and its GPUs: its lone throughput depends on
// nothing else.
func (m member) program() string { return fmt.Sprint(m.Kind, m.GPUs) }

// A post is the purpose of a worker: a tenant, with the hook or without.
type post struct {
	tenant string
	plain  bool
}

// A matrix keeps its workers from cell to cell. An idle worker is connected and
// silent, which must cost the others nothing.
type matrix struct {
	host
	t        *testing.T
	began    time.Time
	gpu      string
	members  map[string]member // of all cells, by tenant
	workers  map[post]*worker
	started  map[post]int
	broken   map[string]string            // kinds that cannot run here, and the reasons
	lone     map[string]course            // by program
	plain    map[string]map[string]course // by all tenants of a cell, by tenant
	out      *os.File
	verdicts []*verdict
}

func newMatrix(t *testing.T, all []member) *matrix {
	m := &matrix{t: t, began: time.Now(), members: map[string]member{}, workers: map[post]*worker{},
		started: map[post]int{},
		broken:  map[string]string{}, lone: map[string]course{}, plain: map[string]map[string]course{}}
	if names := products(); len(names) > 0 {
		m.gpu = names[0]
	}
	for _, a := range all {
		m.members[a.Tenant] = a
	}
	m.govern(t, m.terms(nil)...)
	if name := os.Getenv("GS_MATRIX_OUT"); name != "" {
		var err error
		if m.out, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.out.Close() })
	}
	return m
}

func (m *matrix) progress(format string, args ...any) {
	fmt.Printf("[%4.0f s] %s\n", time.Since(m.began).Seconds(), fmt.Sprintf(format, args...))
}

// terms returns the terms for a cell. All other tenants are present with
// negligible ones.
func (m *matrix) terms(cell []member) (all []terms) {
	for name := range m.members {
		quota := broker.Quota{Quota: quota.Quota{Limit: 1}, Weight: 1}
		for _, a := range cell {
			if a.Tenant == name {
				quota.Weight = a.Weight
				if a.Realtime { // realtime requires a limit
					quota.Class, quota.Limit = schedule.Realtime, 0.9
				}
			}
		}
		all = append(all, terms{name, quota})
	}
	return all
}

// postsOf returns the posts that members need, each once.
func (m *matrix) postsOf(members []member) (posts []post) {
	for _, a := range members {
		for _, plain := range []bool{false, true} {
			if p := (post{a.Tenant, plain}); !slices.Contains(posts, p) {
				posts = append(posts, p)
			}
		}
	}
	return posts
}

// prepare starts the missing workers, side by side.
func (m *matrix) prepare(posts ...post) {
	m.t.Helper()
	var asked []post
	for _, p := range posts {
		kind := m.members[p.tenant].Kind
		if m.workers[p] != nil || m.broken[kind] != "" {
			continue
		}
		if m.started[p]++; m.started[p] > starts {
			m.breaks(kind, fmt.Sprintf("its worker was lost %d times", starts))
			continue
		}
		m.workers[p] = m.employ(p)
		m.workers[p].tell("prepare " + kind)
		asked = append(asked, p)
	}
	deadline := time.Now().Add(prepareLimit)
	for _, p := range asked {
		kind := m.members[p.tenant].Kind
		line, err := m.workers[p].listen(max(time.Second, time.Until(deadline)), "ready", "skip")
		if err != nil {
			m.breaks(kind, err.Error())
			m.lose(p)
		} else if why, skipped := strings.CutPrefix(line, "skip "+kind+" "); skipped {
			m.breaks(kind, why)
			m.lose(p)
		}
	}
	for _, p := range asked {
		// A program that runs here without the hook must also run with it.
		if !p.plain && m.workers[p] == nil && m.workers[post{p.tenant, true}] != nil {
			m.t.Errorf("%s cannot be prepared under the hook: %s", p.tenant, m.broken[m.members[p.tenant].Kind])
		}
	}
}

// employ starts a post's worker.
func (m *matrix) employ(p post) *worker {
	m.t.Helper()
	a := m.members[p.tenant]
	given := strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ",") // those of this test
	var visible []string
	for _, gpu := range a.GPUs {
		name := strconv.Itoa(gpu)
		if gpu < len(given) && given[gpu] != "" {
			name = given[gpu]
		}
		visible = append(visible, name)
	}
	h := m.host
	h.driver = append(slices.Clone(h.driver), "CUDA_VISIBLE_DEVICES="+strings.Join(visible, ","))
	name := p.tenant
	if p.plain {
		name = ""
	}
	return h.start(m.t, name, "python3", filepath.Join(path(m.t, "GS_BENCH", "hook/bench"), "worker.py"),
		fmt.Sprint(len(a.GPUs)))
}

func (m *matrix) breaks(kind, why string) {
	if m.broken[kind] == "" {
		m.broken[kind] = why
		fmt.Printf("SKIPPED all cells with %s: %s\n", kind, why)
	}
}

// lose ends a worker that failed or hangs.
func (m *matrix) lose(p post) {
	if w := m.workers[p]; w != nil {
		w.kill()
		delete(m.workers, p)
	}
}

// measureCell measures the unknown figures of a cell, and judges it.
func (m *matrix) measureCell(spec string, members []member) *verdict {
	m.t.Helper()
	v := &verdict{Cell: spec, GPU: m.gpu, Seconds: *matrixSeconds}
	m.prepare(m.postsOf(members)...)
	for _, a := range members {
		if why := m.broken[a.Kind]; why != "" {
			v.Skipped = a.Kind + ": " + why
			return v
		}
	}
	if err := m.fill(v, members); err != nil {
		v.Failed = err.Error()
		m.t.Errorf("%s: %v", spec, err)
		return v
	}
	v.Goals = judge(v.Subjects)
	if !v.tightest().met() {
		m.t.Errorf("%s: %v", spec, v.tightest())
	}
	return v
}

// fill measures the members alone, then all without the hook, then all with it.
func (m *matrix) fill(v *verdict, members []member) error {
	m.t.Helper()
	for _, a := range members {
		if err := m.alone(a); err != nil {
			return fmt.Errorf("alone: %w", err)
		}
	}
	plain, err := m.ungoverned(members)
	if err != nil {
		return fmt.Errorf("plain: %w", err)
	}
	m.rule(m.t, m.terms(members)...)
	before, books, began := m.charged(), m.books(), time.Now()
	hooked, err := m.side(*matrixSeconds, members, false)
	if err != nil {
		return fmt.Errorf("hooked: %w", err)
	}
	after, took := m.charged(), time.Since(began)
	showBooks(books, m.books(), took.Seconds())
	for _, a := range members {
		s := &subject{member: a, Lone: m.lone[a.program()], Plain: plain[a.Tenant], Hooked: hooked[a.Tenant],
			Charged: map[string]float64{}}
		for gpu, seconds := range after[a.Tenant] {
			s.Charged[gpu] = (seconds - before[a.Tenant][gpu]) / took.Seconds()
		}
		v.Subjects = append(v.Subjects, s)
	}
	return nil
}

// alone measures a program under the hook by itself, once.
func (m *matrix) alone(a member) error {
	m.t.Helper()
	if _, known := m.lone[a.program()]; known || a.silent() {
		return nil
	}
	m.rule(m.t, m.terms(nil)...)
	found, err := m.side(*matrixLone, []member{a}, false)
	if err == nil && found[a.Tenant].Rate <= 0 {
		err = fmt.Errorf("%s completed nothing", a.Tenant)
	}
	if err == nil {
		m.lone[a.program()] = found[a.Tenant]
	}
	return err
}

// ungoverned measures the same programs without the hook, once: their weights
// make no difference there.
func (m *matrix) ungoverned(members []member) (map[string]course, error) {
	m.t.Helper()
	var names []string
	for _, a := range members {
		names = append(names, a.Tenant)
	}
	slices.Sort(names)
	key := strings.Join(names, " ")
	if m.plain[key] == nil {
		seconds := *matrixPlain
		if seconds == 0 {
			seconds = min(*matrixSeconds, max(3, *matrixSeconds/2))
		}
		found, err := m.side(seconds, members, true)
		if err != nil {
			return nil, err
		}
		m.plain[key] = found
	}
	return m.plain[key], nil
}

// charged returns the charged seconds in the broker's books, by tenant and GPU.
func (m *matrix) charged() map[string]map[string]float64 {
	m.t.Helper()
	all := map[string]map[string]float64{}
	for _, b := range stats(m.t, m.broker).Tenants {
		if all[b.Tenant] == nil {
			all[b.Tenant] = map[string]float64{}
		}
		all[b.Tenant][b.GPU] = b.ChargedSeconds
	}
	return all
}

// books returns the broker's books, by tenant and GPU.
func (m *matrix) books() map[string]wire.TenantStats {
	m.t.Helper()
	all := map[string]wire.TenantStats{}
	for _, b := range stats(m.t, m.broker).Tenants {
		all[b.Tenant+" "+b.GPU] = b
	}
	return all
}

// showBooks prints the changes of the broker's books.
func showBooks(before, after map[string]wire.TenantStats, seconds float64) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		a, b := after[name], before[name]
		if a.WantedSeconds == b.WantedSeconds {
			continue
		}
		fmt.Printf("    %-60s charged %.3f served %.3f wanted %.3f waited %.3f, %d turns, %d launches, %d passed, %d "+
			"errors, %d overruns, longest %.2f ms, lag %.1f ms, convoy %.2f s\n",
			name, (a.ChargedSeconds-b.ChargedSeconds)/seconds, (a.ServedSeconds-b.ServedSeconds)/seconds,
			(a.WantedSeconds-b.WantedSeconds)/seconds,
			(a.WaitSeconds-b.WaitSeconds)/seconds, a.Turns-b.Turns, a.Launches-b.Launches, a.GatePassed-b.GatePassed,
			a.GateErrors-b.GateErrors,
			a.Overruns-b.Overruns, 1000*a.LongestSeconds, 1000*a.LagSeconds, a.ConvoySeconds-b.ConvoySeconds)
	}
}

// side runs members side by side, and returns the course of each while all were
// at work. A member that does not finish is lost, and no other.
func (m *matrix) side(seconds float64, members []member, plain bool) (map[string]course, error) {
	m.t.Helper()
	seconds += matrixSettle.Seconds()
	for _, a := range members {
		w := m.workers[post{a.Tenant, plain}]
		w.begin(1)
	}
	for _, a := range members {
		m.workers[post{a.Tenant, plain}].tell(fmt.Sprintf("run %s %g", a.Kind, seconds))
	}
	deadline := time.Now().Add(time.Duration(seconds*float64(time.Second)) + runLimit)
	found := map[string]course{}
	var failed error
	for _, a := range members {
		p := post{a.Tenant, plain}
		c, err := outcome(m.workers[p], deadline)
		if err != nil {
			failed = cmp.Or(failed, fmt.Errorf("%s: %w", a.Tenant, err))
			m.lose(p)
		}
		found[a.Tenant] = c
	}
	if failed != nil {
		return nil, failed
	}
	from, to := m.window(members, plain)
	if from >= to {
		return nil, fmt.Errorf("%v were not at work together for more than %v", members, matrixSettle)
	}
	for _, a := range members {
		s, _ := m.workers[post{a.Tenant, plain}].measured()
		c := courseOf(s, from, to)
		c.P50, c.P99 = found[a.Tenant].P50, found[a.Tenant].P99
		found[a.Tenant] = c
	}
	return found, nil
}

// outcome waits until a run has ended, and returns the times of its steps.
func outcome(w *worker, deadline time.Time) (c course, err error) {
	// A worker that has already ended is heard even after the deadline.
	left := func() time.Duration { return max(time.Second, time.Until(deadline)) }
	line, err := w.listen(left(), "times")
	if err != nil {
		return c, err
	}
	if _, err := fmt.Sscanf(line, "times %g %g", &c.P50, &c.P99); err != nil {
		return c, fmt.Errorf("%s said %q: %w", w.name, line, err)
	}
	c.P50, c.P99 = c.P50/1e3, c.P99/1e3
	_, err = w.listen(left(), "total")
	return c, err
}

// window returns the time in which all members with a throughput were at work.
func (m *matrix) window(members []member, plain bool) (from, to int64) {
	to = 1<<63 - 1
	for _, a := range members {
		if s, _ := m.workers[post{a.Tenant, plain}].measured(); !a.silent() && len(s.at) > 0 {
			from, to = max(from, s.at[0]+int64(matrixSettle)), min(to, s.at[len(s.at)-1])
		}
	}
	return from, to
}

// show prints the parts of a verdict that the table leaves out.
func (m *matrix) show(v *verdict) {
	for _, s := range v.Subjects {
		if s.silent() {
			continue
		}
		fmt.Printf("    %-12s lone %8.1f/s, plain %.3f, hooked %.3f of it, worst 1 s %.3f, guarantee %.2f; step ms "+
			"p50/p99 alone %.2f/%.2f, plain %.2f/%.2f, hooked %.2f/%.2f; books %s\n",
			s.Tenant, s.Lone.Rate, s.plain(), s.hooked(), s.worst(), s.Guarantee,
			s.Lone.P50, s.Lone.P99, s.Plain.P50, s.Plain.P99, s.Hooked.P50, s.Hooked.P99, parts(s.Charged))
	}
	for _, g := range v.Goals {
		if !g.met() {
			fmt.Printf("    FALL SHORT: %v\n", g)
		}
	}
}

// parts formats parts of GPUs, in the order of their names.
func parts(charged map[string]float64) string {
	var gpus, all []string
	for gpu := range charged {
		gpus = append(gpus, gpu)
	}
	slices.Sort(gpus)
	for _, gpu := range gpus {
		all = append(all, fmt.Sprintf("%.3f", charged[gpu]))
	}
	return strings.Join(all, ", ")
}

// write saves a cell.
func (m *matrix) write(v *verdict) {
	m.t.Helper()
	if m.out == nil {
		return
	}
	raw, err := json.Marshal(v)
	if err == nil {
		_, err = m.out.Write(append(raw, '\n'))
	}
	if err == nil {
		err = os.WriteFile(m.out.Name()+".md", []byte(markdown(m.verdicts)), 0o644)
	}
	if err != nil {
		m.t.Errorf("keep %s: %v", v.Cell, err)
	}
}

// finish prints the table and ends all workers at once, because each takes a
// second to end.
func (m *matrix) finish() {
	m.progress("%s, %g s a cell, the worst first:", m.gpu, *matrixSeconds)
	fmt.Println(markdown(m.verdicts))
	for _, w := range m.workers {
		w.cmd.Process.Kill()
	}
}
