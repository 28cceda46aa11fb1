// Command matrix runs real programs beside each other on the GPUs of this machine, in each of
// several ways to share a GPU, and prints the pace of each program as a part of the pace that it
// has alone. See docs/matrix.md.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpusteward/bench/worker"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/jobs"
)

const usage = `Usage: matrix [FLAG]...

Runs programs beside each other on this machine's GPUs: alone, then together in each mode, in
blocks that alternate. A part is a program's pace divided by its pace alone, without anything; ±
is the half width of its 95 %% interval over the blocks. A verdict holds the hook against the
other modes, if plain is measured, and names the goal that is missed or met most narrowly.

Modes, of -modes:
  plain       the driver's time slices
  hooked      the hook, and a broker that runs in this program
  mps         clients of a daemon of CUDA MPS, which this program starts and ends
  mps-parts   the same, with a client's weight as its percentage of active threads
  mps-hooked  clients of MPS under the hook, with sharing: concurrent

A cell is "KIND[@GPU] [realtime] WEIGHT + ...", for example "decode realtime 30 + gpt2 70". The
kinds are those of kinds.py. The sets of -set: %s.

Examples, in the root of the repository:
  go run ./bench/matrix -only '^gpt2 70' -modes plain,hooked,mps,mps-parts,mps-hooked
  go run ./bench/matrix -cells 'steps 70 + jax 30; jax 50 + jax 50' -blocks 6
  go run ./bench/matrix -set lone -blocks 12 -cores 4      what the hook costs a program alone
  go run ./bench/matrix -set memory -memory 40 -blocks 12  what a cap costs an allocation
On a machine without Go, build it elsewhere (CGO_ENABLED=0 go build ./bench/matrix), take along
enforcer/hook/build and enforcer/hook/bench, and name them by -hook, -load and -bench.

`

var (
	setName   = flag.String("set", "one", "`set` of cells")
	cellList  = flag.String("cells", "", "`cells` to measure in place of a set, with ; between them")
	only      = flag.String("only", "", "`regexp` of the cells to measure; empty is all")
	modeList  = flag.String("modes", "plain,hooked", "`modes` with , between them")
	blocks    = flag.Int("blocks", 3, "`number` of blocks of each mode")
	seconds   = flag.Float64("seconds", 3, "`seconds` of a block")
	aloneFor  = flag.Float64("alone", 1.5, "`seconds` of a block of a program alone")
	first     = flag.Float64("first", 0, "`seconds` that each program runs alone first, in each mode with the hook")
	cores     = flag.Int("cores", 0, "pin each program to as many processors of its own as this `number`; 0: none is pinned")
	keep      = flag.Int("workers", 32, "`number` of programs that are kept loaded from cell to cell")
	memoryCap = flag.Float64("memory", 0, "cap of each tenant's memory under the hook, in `GiB`; 0 is none")
	hookPath  = flag.String("hook", "enforcer/hook/build/libgpusteward.so", "`path` of the hook")
	loadPath  = flag.String("load", "enforcer/hook/build/stub/load", "`path` of the program of empty launches")
	benchPath = flag.String("bench", "enforcer/hook/bench", "`path` of the folder of worker.py")
	python    = flag.String("python", "python3", "`program` that runs worker.py")
	outPath   = flag.String("out", "", "`file` that receives a line of JSON for each cell; the table is written to FILE.md")
)

const (
	settle       = 500 * time.Millisecond // passes before a block counts, as in report.py
	prepareLimit = 4 * time.Minute        // in which all workers load and compile, side by side
	runLimit     = 30 * time.Second       // a block's allowance beyond its seconds
)

func main() {
	flag.Usage = func() {
		var names []string
		for name, cells := range sets {
			names = append(names, fmt.Sprintf("%s (%d cells)", name, strings.Count(cells, ";")+1))
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, usage, strings.Join(names, ", "))
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

// run measures what the flags ask for.
func run() error {
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	specs := cmp.Or(*cellList, sets[*setName])
	if specs == "" {
		return fmt.Errorf("there is no set %q", *setName)
	}
	x := &matrix{began: time.Now(), workers: map[post]*worker.Worker{}, broken: map[string]string{}, lone: map[string]course{}}
	if x.modes, err = parseModes(*modeList); err != nil {
		return err
	}
	var cells [][]member
	var names []string
	for spec := range strings.SplitSeq(specs, ";") {
		if spec = strings.TrimSpace(spec); !pattern.MatchString(spec) {
			continue
		}
		members, err := parseCell(spec)
		if err != nil {
			return err
		}
		cells, names = append(cells, members), append(names, spec)
		for _, a := range members {
			if !slices.Contains(x.tenants, a.Tenant) {
				x.tenants = append(x.tenants, a.Tenant)
			}
		}
	}
	if len(cells) == 0 || *blocks < 1 || flag.NArg() > 0 {
		return fmt.Errorf("%d cells, %d blocks, arguments %q: see -h", len(cells), *blocks, flag.Args())
	}
	end, err := x.begin()
	defer end()
	if err != nil {
		return err
	}
	for i, members := range cells {
		v := x.measure(names[i], members)
		x.verdicts = append(x.verdicts, v)
		x.progress("%d of %d, %s: %s", i+1, len(cells), names[i], v.word())
		for _, m := range x.modes {
			if len(v.Subjects[0].In) > 0 {
				fmt.Printf("    %-10s %s = %.3f\n", m, v.each(func(a *subject) string { return a.figure(m) }), v.sum(m))
			}
		}
		if err := x.write(v); err != nil {
			return err
		}
		if x.ctx.Err() != nil {
			break
		}
	}
	x.progress("%s, %d blocks of %g s, the worst first:", x.gpu, *blocks, *seconds)
	fmt.Println(markdown(x.verdicts, x.modes))
	return nil
}

// A post is the purpose of a worker: a tenant in a mode, with so many percent of the active threads.
type post struct {
	tenant  string
	mode    mode
	percent int
}

// post returns a subject's post in a mode.
func (a *subject) post(m mode) post {
	p := post{tenant: a.Tenant, mode: m}
	if m == mpsParts {
		p.percent = int(100*a.Guarantee + 0.5)
	}
	return p
}

// A matrix keeps its workers from cell to cell. An idle worker is connected and
// silent, which must cost the others nothing.
type matrix struct {
	rig
	ctx      context.Context // done when the user ends the program
	began    time.Time
	gpu      string
	modes    []mode
	tenants  []string // of all cells
	workers  map[post]*worker.Worker
	broken   map[string]string // kinds that cannot run here, and the reasons
	lone     map[string]course // by program
	verdicts []*verdict
}

// begin starts what the modes need. end ends it, and all workers.
func (x *matrix) begin() (end func(), err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	x.ctx = ctx
	var undo []func()
	end = func() {
		for _, w := range x.workers {
			kill(w)
		}
		for _, f := range slices.Backward(undo) {
			f()
		}
		stop()
	}
	out, _ := exec.Command("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").Output()
	x.gpu, _, _ = strings.Cut(string(out), "\n")
	for _, path := range []*string{hookPath, loadPath, benchPath} {
		if *path, err = filepath.Abs(*path); err != nil {
			return end, err
		}
	}
	if _, err := os.Stat(*hookPath); err != nil {
		return end, fmt.Errorf("the hook: %w (make hook builds it)", err)
	}
	if x.dir, err = os.MkdirTemp("", "matrix"); err != nil {
		return end, err
	}
	undo = append(undo, func() { os.RemoveAll(x.dir) })
	x.hook, x.brokers = *hookPath, map[mode]*broker.Broker{}
	serving, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	undo = append(undo, func() { cancel(); running.Wait() })
	for _, m := range x.modes {
		if !m.hooks() {
			continue
		}
		b, err := broker.New(broker.Options{Socket: x.socket(m), Observe: new(jobs.Observer).Observe,
			Policy: terms(x.tenants, nil, x.cap()), Slices: true, Concurrent: m.mps(),
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		if err != nil {
			return end, err
		}
		x.brokers[m] = b
		running.Go(func() {
			if err := b.Run(serving); err != nil {
				x.progress("the broker of %s ended: %v", m, err)
			}
		})
	}
	if slices.ContainsFunc(x.modes, mode.mps) {
		if err := x.startMPS(); err != nil {
			return end, err
		}
		undo = append(undo, x.stopMPS)
	}
	return end, nil
}

func (x *matrix) cap() uint64 { return uint64(*memoryCap * (1 << 30)) }

func (x *matrix) progress(format string, args ...any) {
	fmt.Printf("[%4.0f s] %s\n", time.Since(x.began).Seconds(), fmt.Sprintf(format, args...))
}

// measure measures a cell, and judges it.
func (x *matrix) measure(spec string, members []member) *verdict {
	v := &verdict{Cell: spec, GPU: x.gpu, Blocks: *blocks, Seconds: *seconds, Subjects: subjects(members)}
	x.prepare(v)
	for _, a := range members {
		if v.Skipped = x.broken[a.Kind]; v.Skipped != "" {
			return v
		}
	}
	for _, b := range x.brokers {
		b.Reload(terms(x.tenants, members, x.cap()))
	}
	if err := x.fill(v); err != nil {
		v.Failed = err.Error()
		return v
	}
	for _, m := range x.modes {
		if m.hooks() && slices.Contains(x.modes, plain) {
			v.judge(m, slices.DeleteFunc(slices.Clone(x.modes), func(other mode) bool {
				return other.hooks() || other.mps() && !m.mps() || other == mps
			}))
		}
	}
	return v
}

// prepare starts the missing workers of a cell, side by side. Those of other cells end if there are too many.
func (x *matrix) prepare(v *verdict) {
	needed, asked := map[post]string{}, map[post]string{}
	for _, a := range v.Subjects {
		for _, m := range append([]mode{plain}, x.modes...) { // plain also measures it alone
			needed[a.post(m)] = a.Kind
		}
	}
	for p := range x.workers {
		if needed[p] == "" && len(x.workers)+len(needed) > *keep {
			x.lose(p)
		}
	}
	for _, a := range v.Subjects {
		for _, m := range append([]mode{plain}, x.modes...) {
			p := a.post(m)
			if x.workers[p] != nil || x.broken[a.Kind] != "" {
				continue
			}
			w, err := x.employ(p, a.member)
			if err != nil {
				x.broken[a.Kind] = err.Error()
				continue
			}
			x.workers[p], asked[p] = w, a.Kind
			w.Tell("prepare " + a.Kind)
		}
	}
	deadline := time.Now().Add(prepareLimit)
	for p, kind := range asked {
		line, err := x.workers[p].Listen(time.Until(deadline), "ready", "skip")
		if why, skipped := strings.CutPrefix(line, "skip "); err != nil || skipped {
			if err != nil {
				why = err.Error()
			}
			x.broken[kind] = fmt.Sprintf("%s (%s)", why, p.mode)
			x.lose(p)
		}
	}
}

// employ starts a post's worker.
func (x *matrix) employ(p post, a member) (*worker.Worker, error) {
	given := strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ",") // those of this program
	var visible []string
	for _, gpu := range a.GPUs {
		name := fmt.Sprint(gpu)
		if gpu < len(given) && given[gpu] != "" {
			name = given[gpu]
		}
		visible = append(visible, name)
	}
	env := append(x.environment(p.mode, p.tenant, p.percent), "CUDA_VISIBLE_DEVICES="+strings.Join(visible, ","),
		"GS_LOAD="+*loadPath)
	return startWorker(fmt.Sprintf("%s (%s)", p.tenant, p.mode), env, *python, filepath.Join(*benchPath, "worker.py"),
		fmt.Sprint(len(a.GPUs)))
}

// lose ends a worker that failed, hangs or is not needed.
func (x *matrix) lose(p post) {
	if w := x.workers[p]; w != nil {
		kill(w)
		delete(x.workers, p)
	}
}

// fill measures the members alone, and then beside each other: in each block every mode, in another order.
func (x *matrix) fill(v *verdict) error {
	for _, a := range v.Subjects {
		if _, known := x.lone[a.program()]; !known && !a.silent() {
			var found []course
			for range *blocks {
				one, err := x.side(*aloneFor, []*subject{a}, plain)
				if err != nil {
					return fmt.Errorf("alone: %w", err)
				}
				if one[0].Rate <= 0 {
					return fmt.Errorf("%s completed nothing alone", a.Tenant)
				}
				found = append(found, one...)
			}
			x.lone[a.program()] = mean(found)
		}
		a.Lone = x.lone[a.program()]
		for _, m := range x.modes {
			if m.hooks() && *first > 0 {
				if _, err := x.side(*first, []*subject{a}, m); err != nil {
					return fmt.Errorf("first, %s: %w", m, err)
				}
			}
		}
	}
	found := map[mode][][]course{}
	for block := range *blocks {
		for i := range x.modes {
			m := x.modes[(block+i)%len(x.modes)]
			all, err := x.side(*seconds, v.Subjects, m)
			if err != nil {
				return fmt.Errorf("%s: %w", m, err)
			}
			found[m] = append(found[m], all)
		}
	}
	for i, a := range v.Subjects {
		for m, all := range found {
			var own []course
			for _, block := range all {
				own = append(own, block[i])
			}
			a.In[m] = mean(own)
		}
	}
	return nil
}

// side runs subjects side by side, and returns the course of each while all were
// at work. A worker that does not finish is lost, and no other.
func (x *matrix) side(seconds float64, all []*subject, m mode) ([]course, error) {
	seconds += settle.Seconds()
	var workers []*worker.Worker
	for i, a := range all {
		w := x.workers[a.post(m)]
		if w == nil {
			return nil, fmt.Errorf("the worker of %s is lost", a.Tenant)
		}
		if *cores > 0 {
			if err := pin(w, i**cores, *cores); err != nil {
				return nil, err
			}
		}
		w.Begin()
		workers = append(workers, w)
	}
	for i, a := range all {
		workers[i].Tell(fmt.Sprintf("run %s %g", a.Kind, seconds))
	}
	found := make([]course, len(all))
	deadline := time.Now().Add(time.Duration(seconds*float64(time.Second)) + runLimit)
	from, to := int64(0), int64(1<<63-1) // in which all that have a throughput were at work
	var failed error
	for i, a := range all {
		if err := outcome(workers[i], deadline, &found[i]); err != nil {
			failed = cmp.Or(failed, err)
			x.lose(a.post(m))
			continue
		}
		if s, _ := workers[i].Measured(); !a.silent() && len(s.At) > 0 {
			from, to = max(from, s.At[0]+int64(settle)), min(to, s.At[len(s.At)-1])
		}
	}
	if failed != nil {
		return nil, failed
	}
	if from >= to {
		return nil, fmt.Errorf("the programs were not at work together for more than %v", settle)
	}
	for i := range all {
		s, _ := workers[i].Measured()
		found[i].Rate, found[i].Worst = rates(s, from, to)
	}
	return found, nil
}

// outcome waits until a run has ended, and notes the times of its steps.
func outcome(w *worker.Worker, deadline time.Time, c *course) error {
	// A worker that has already ended is heard even after the deadline.
	left := func() time.Duration { return max(time.Second, time.Until(deadline)) }
	line, err := w.Listen(left(), "times")
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(line, "times %g %g", &c.P50, &c.P99); err != nil {
		return fmt.Errorf("%s said %q: %w", w.Name, line, err)
	}
	c.P50, c.P99 = c.P50/1e3, c.P99/1e3
	_, err = w.Listen(left(), "total")
	return err
}

// write keeps a cell as soon as it is measured.
func (x *matrix) write(v *verdict) error {
	if *outPath == "" {
		return nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(*outPath, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := out.Write(append(raw, '\n')); err != nil {
		return err
	}
	return os.WriteFile(*outPath+".md", []byte(markdown(x.verdicts, x.modes)), 0o644)
}
