package jobs

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/ras"
	"gpusteward/enforcer/steps"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
	"gpusteward/internal/wire"
)

// TestLimits reads the table of all numbers: each one has a meaning and a test, or says that it has none, and no other
// file has one.
func TestLimits(t *testing.T) {
	names, err := filepath.Glob("*.go")
	fixture.Must(t, err)
	tests, all := map[string]bool{}, map[string]*ast.File{}
	for _, name := range names {
		all[name] = fixture.Value(parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments))(t)
		for _, d := range all[name].Decls {
			if f, is := d.(*ast.FuncDecl); is && strings.HasSuffix(name, "_test.go") {
				tests[f.Name.Name] = true
			}
		}
	}
	for name, file := range all {
		for _, d := range file.Decls {
			g, is := d.(*ast.GenDecl)
			if !is || g.Tok != token.CONST || strings.HasSuffix(name, "_test.go") {
				continue
			}
			for _, s := range g.Specs {
				c := s.(*ast.ValueSpec)
				if name != "limits.go" {
					for _, v := range c.Values {
						ast.Inspect(v, func(n ast.Node) bool {
							l, is := n.(*ast.BasicLit)
							fixture.If(t, is && l.Kind != token.STRING, "%s: %s belongs into limits.go", name, c.Names[0])
							return true
						})
					}
					continue
				}
				held := regexp.MustCompile(`\w,? \((no test|Test\w+)\)$`).FindStringSubmatch(strings.TrimSpace(c.Comment.Text()))
				fixture.If(t, held == nil || held[1] != "no test" && !tests[held[1]], "%s: %q names no test of this package", c.Names[0], c.Comment.Text())
			}
		}
	}
}

// TestBoundaries tries values below and above a number: something is true of one of them only.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	const at = int64(1e12)
	usual := mean{shape: shape{wall: 0.1, waiting: 0.045, away: 0.005, launching: 0.005, copying: 0.045, busy: 0.05, copied: 23e6}}
	usual.around[clock], usual.around[pcie], usual.around[computing] = 0.9, 10e9, 0.5
	// slow is whether a change of usual steps has a cause, with what is around them.
	slow := func(cause string, change shape, around map[int]float64) bool {
		u, now := usual, usual
		for i, v := range change {
			now.shape[i] += v
		}
		for i, v := range around {
			now.around[i] = v
			if i == cpu && cause == "" { // it is usually so
				u.around[i], cause = 0.11, "cpu"
			}
		}
		return causeOf(&u, &now) == cause
	}
	step := func(usual, wall float64) bool {
		p := pace{usual: settled(usual)}
		p.step(&steps.Step{Begin: at, End: at + int64(wall*1e9), Pattern: p.usual.pattern}, 1)
		return p.span.slow.steps > 0
	}
	looks := func(w watch, of map[string]string) bool {
		h := newHost(t, 1)
		h.ranks[0].proc(w.state, 0)
		for name, text := range of {
			fixture.Rewrite(t, filepath.Join(h.Observer.Procfs, fmt.Sprint(h.ranks[0].pid), name), text)
		}
		w.looks, w.idle = 1, 4
		w.saw(usesOf(h.Observer.Procfs, []reader{{pid: h.ranks[0].pid}}, 99)[h.ranks[0].pid])
		return w.computes()
	}
	uses := func(share float64, seconds int) bool {
		m := member{watch: &watch{idle: 9}}
		m.use.add(sample{0, time.Unix(0, 0)})
		m.use.add(sample{share * float64(seconds), time.Unix(int64(seconds), 0)})
		return m.reason(ras.Rank{}, time.Minute) == "absent"
	}
	all := func(p *process) *process {
		for i := range p.communicators {
			p.communicators[i] = communicator{there: true, Communicator: wire.Communicator{ID: uint64(i + 1), Measured: 1}}
		}
		p.record.steps = 1
		return p
	}
	// forgets is whether a race begins again, so long after the last lap, which took so long.
	forgets := func(ago, length int64) bool {
		ranks := []*process{all(&process{pid: 1}), all(&process{pid: 2})}
		of := communicatorOf{id: 1}
		r := newRace(of, ranks, at-ago)
		r.length = length
		o := Observer{Now: func() int64 { return at }, processes: map[uint64]*process{1: ranks[0], 2: ranks[1]},
			races: map[communicatorOf]*race{of: r}}
		o.Stragglers()
		return o.races[of] != r
	}
	for name, c := range map[string]struct {
		not, is float64
		of      func(v float64) bool
	}{
		"slowFactor": {0.119, 0.121, func(v float64) bool { return step(0.1, v) }},
		"slowLeast":  {0.0069, 0.0071, func(v float64) bool { return step(0.005, v) }},
		"usualFrom":  {2, 3, func(v float64) bool { u := settled(1); u.spans = v; return u.known() }},
		"usualSteps": {15, 16, func(v float64) bool { u := settled(1); u.steps = v; return u.known() }},
		"usualMost":  {2881, 2880, func(v float64) bool { u := settled(1); u.spans = 2880; u.learn(&u.mean); return u.spans == v }},
		"moreUsed": {0.04, 0.06, func(v float64) bool {
			return slow("neighbour", shape{wall: .1, waiting: .1, busy: .1}, map[int]float64{neighbours: v})
		}},
		"moreOften": {0.29, 0.31, func(v float64) bool {
			return slow("thermal", shape{wall: .1, waiting: .1, busy: .1}, map[int]float64{thermal: v, clock: 0})
		}},
		"slowerLink": {9.1e9, 8.9e9, func(v float64) bool { return slow("link", shape{wall: .1, copying: .1}, map[int]float64{pcie: v}) }},
		"pressureFrom": {0.14, 0.16, func(v float64) bool {
			return slow("cpu", shape{wall: .1, away: .1}, map[int]float64{cpu: v, computing: 0})
		}},
		"pressureMore": {0.16, 0.17, func(v float64) bool {
			return slow("", shape{wall: .1, away: .1}, map[int]float64{cpu: v, computing: 0})
		}},
		"moreCode": {0.54, 0.56, func(v float64) bool {
			return slow("code", shape{wall: .1, launching: .1}, map[int]float64{computing: v})
		}},
		"slowestCopy": {0, 0.9e6, func(v float64) bool { return slow("copy", shape{wall: .1, copying: .1, busy: .1, copied: v}, nil) }},
		"busyFor":     {2.1e9, 1.9e9, func(v float64) bool { p := process{busy: at - int64(v)}; return p.blocked(at) }},
		"someBytes": {1e6, 1.1e6, func(v float64) bool {
			return looks(watch{use: use{state: 'S'}}, map[string]string{"io": fmt.Sprintf("rchar: %.0f\n", v)})
		}},
		"idleLooks":    {5, 4, func(v float64) bool { w := watch{idle: int(v)}; return w.computes() }},
		"mostBlocked":  {600, 599, func(v float64) bool { return looks(watch{use: use{state: 'D'}, blocked: int(v)}, nil) }},
		"idleShare":    {0.51, 0.49, func(v float64) bool { return uses(v, 60) }},
		"sampledFor":   {7, 8, func(v float64) bool { return uses(0, int(v)) }},
		"trustedSteps": {39, 40, func(v float64) bool { return new(process).trusts(make([]steps.Step, int(v))) }},
		"trustedTime":  {59, 60, func(v float64) bool { return new(process).trusts([]steps.Step{{End: int64(v * 1e9)}}) }},
		"standsSteps": {14.9e9, 15.1e9, func(v float64) bool {
			p := stepping(t, 1).Observer.processes[1]
			p.sums.Seconds = wire.Exponential{Count: 1, Sum: 5}
			return p.stands(p.stepped+int64(v)) > 0
		}},
		"pauseLeast": {99e3, 101e3, func(v float64) bool {
			p := stepping(t, 1).Observer.processes[1]
			p.collected(wire.Event{At: p.stepped, ID: uint32(v)})
			return p.communicators[0].paused > 0
		}},
		"kernelFor": {29e9, 31e9, func(v float64) bool {
			h := stepping(t, 1)
			h.step(map[int]func(*rank, int64){0: (*rank).hangs})
			h.look()
			p := h.Observer.processes[1]
			p.communicators, p.waiters = [wire.Communicators]communicator{}, waiters{} // no thread's longest wait is known
			_, is := p.endless(p.last + int64(v))
			return is
		}},
		"lookFrom": {2.9e9, 3.1e9, func(v float64) bool {
			p := &process{pid: 1000, last: at - int64(v)}
			o := Observer{Procfs: newHost(t, 1).Observer.Procfs, processes: map[uint64]*process{1: p}}
			return o.groups(at, o.reads(at)) != nil && p.watch.looks > 0
		}},
		"lapForgotten": {59e9, 61e9, func(v float64) bool { return forgets(int64(v), 0) }},
		"lapsAway":     {299e9, 301e9, func(v float64) bool { return forgets(int64(v), 100e9) }},
		"keepEnded": {599e9, 601e9, func(v float64) bool {
			o := Observer{Now: func() int64 { return at }, processes: map[uint64]*process{1: {ended: at - int64(v)}}, shares: map[string]share{"": {1, 1}}}
			o.Look(func(int) string { return "" })
			return len(o.processes) == 0
		}},
		"maxProcesses":     {1024, 1023, func(v float64) bool { o := Observer{shares: map[string]share{"a": {int(v), 0}}}; return o.room("a") }},
		"maxCommunicators": {5, 4, func(v float64) bool { p := process{}; all(&p); return len(p.largest()) == int(v) }},
		"maxRefusals": {65, 64, func(v float64) bool {
			o := Observer{version: func(pid int) string { return fmt.Sprintf("2.%d.1", pid) }}
			for pid := range 70 {
				o.refuses(pid)
			}
			return len(o.nccl.refusals) == int(v)
		}},
		"lostFactor": {0.61, 0.59, func(v float64) bool {
			r := &race{}
			for _, seconds := range []float64{v, 0.9, 1, 1.1} {
				r.runners = append(r.runners, &runner{race: r, stride: stride{collecting: seconds}})
			}
			r.runners[0].judge(1)
			return r.runners[0].found()
		}},
	} {
		fixture.If(t, c.of(c.not), "%s: %v is on the other side", name, c.not)
		fixture.If(t, !c.of(c.is), "%s: %v is on the other side", name, c.is)
	}
}

// settled is a usual step of so many seconds that is known.
func settled(seconds float64) usual {
	return usual{mean: mean{shape: shape{wall: seconds}, steps: 100}, spans: 10}
}

// TestManyThreads: who has more processes and threads than may be read is late, and so is who comes after so many of
// others, until that one comes first. Others observe while files are read.
func TestManyThreads(t *testing.T) {
	h := newHost(t, 2)
	h.ranks[0].proc('S', 0)
	h.ranks[1].proc('S', 0)
	parent, child := h.ranks[0].pid, h.ranks[1].pid
	fixture.Rewrite(t, filepath.Join(h.Observer.Procfs, fmt.Sprint(parent), "task", fmt.Sprint(parent), "children"), fmt.Sprint(child))
	for left, want := range map[int]error{4: procs.ErrLate, 5: nil} {
		_, family, err := useOf(h.Observer.Procfs, parent, &left)
		fixture.If(t, len(family) != 2 || !errors.Is(err, want), "%v: %v", family, err)
	}
	for late, first := range []int{parent, child} {
		uses := usesOf(h.Observer.Procfs, []reader{{child, "b", late}, {parent, "a", 0}}, 3)
		fixture.If(t, uses[first].err != nil && first == child || !errors.Is(uses[parent+child-first].err, procs.ErrLate), "%d comes first: %+v", first, uses)
	}
	open := opensOfAll(h.Observer.Procfs, []reader{{parent, "a", 0}, {parent, "a", 0}}, 4)
	fixture.If(t, open[parent].known, "a party has more than a quarter of the files: %+v", open)
	held := filepath.Join(h.Observer.Procfs, fmt.Sprint(parent), "task", fmt.Sprint(parent), "children")
	fixture.Must(t, errors.Join(os.Remove(held), unix.Mkfifo(held, 0o600)))
	h.Observer.serving.looked = 1 << 62 // no server is looked at
	h.look()
	h.at += 4e9
	looked := make(chan bool)
	go func() { h.Observer.Look(func(int) string { return "" }); close(looked) }()
	f := fixture.Value(os.OpenFile(held, os.O_WRONLY, 0))(t) // once it is read
	h.Observer.Shared(child)
	fixture.Must(t, f.Close())
	<-looked
	w := watch{idle: 1, looks: 2}
	fixture.If(t, !w.saw(used{use{ticks: 9}, procs.ErrLate}) || w != watch{idle: 1, looks: 2}, "a late look changes %+v", w)
}
