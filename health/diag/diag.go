package diag

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpusteward/health"
	"gpusteward/health/incident"
	"gpusteward/internal/worker"
)

// Options say what to test, and how.
type Options struct {
	Level    int           // of levels
	GPUs     []string      // indices or UUIDs; none is all
	Busy     bool          // test GPUs that are in use, too
	Node     string        // name of the host
	Patience time.Duration // time that a step may take beyond its plan; 0 is enough for a slow host
	Fault    Fault         // to inject into the first GPU

	after       after // nil is time.After
	children    *worker.Kind
	environment []string   // of a child, besides this process's
	files       []*os.File // that a child gets
}

// An after ends the waiting for an order after a time, like time.After.
type after func(Order, time.Duration) <-chan time.Time

func really(_ Order, d time.Duration) <-chan time.Time { return time.After(d) }

// A test is a run of diag.
type test struct {
	Options
	Plan
	begun time.Time
	cards []*card
	pairs []pair
}

// A card is a GPU under test, with its readings.
type card struct {
	GPU
	child    *child
	skipped  string // why it was not tested
	failed   error  // why the test could not go on
	in       Step
	readings map[Step]Reading
}

// A pair is a copy from one GPU to another.
type pair struct {
	from, to *card
	Reading
	err error
}

// Run tests the GPUs and returns the report. It also returns when ctx ends.
func Run(ctx context.Context, o Options) *Report {
	t := &test{Options: o, Plan: levels[o.Level], begun: time.Now()}
	if t.Patience == 0 {
		t.Patience = patience
	}
	if t.after == nil {
		t.after = really
	}
	if t.children == nil {
		t.children = &children
	}
	defer t.close()
	if err := t.survey(ctx); err != nil {
		return t.Unknown(err)
	}
	peers := t.peers(ctx)
	t.together(ctx, Open, 0, 0)
	opened := <-peers
	defer opened.close()
	t.together(ctx, Memory, t.Memory, t.Memory)
	t.together(ctx, Compute, t.Unit, t.Unit*time.Duration(len(Units)))
	t.together(ctx, Load, t.Load, t.Load)
	t.together(ctx, Bandwidth, t.Copy, t.Copy)
	for _, c := range t.working() {
		t.step(ctx, c, Copies, t.Copy, 2*t.Copy)
	}
	t.across(ctx, opened)
	t.together(ctx, Close, 0, 0)
	return t.report()
}

// close ends the children.
func (t *test) close() {
	var all sync.WaitGroup
	for _, c := range t.cards {
		if c.child != nil {
			all.Go(c.child.close)
		}
	}
	all.Wait()
}

// survey finds the GPUs to test, and starts a child for each.
func (t *test) survey(ctx context.Context) error {
	gpus, err := t.look(ctx)
	if err != nil {
		return err
	}
	for _, name := range t.Options.GPUs {
		if !slices.ContainsFunc(gpus, func(g GPU) bool { return g.named(name) }) {
			return fmt.Errorf("GPU %s is not on this host", name)
		}
	}
	for _, g := range gpus {
		c := &card{GPU: g, readings: map[Step]Reading{}}
		t.cards = append(t.cards, c)
		switch {
		case g.Fault != "":
			c.failed, c.in = errors.New(g.Fault), Survey
		case g.Unfit != "":
			c.skipped = g.Unfit
		case g.use() != "" && !t.Busy:
			c.skipped = g.use()
		default:
			if c.child, err = t.spawn(); err != nil {
				return err
			}
		}
	}
	if len(t.cards) == 0 {
		return errors.New("there is no GPU")
	}
	return nil
}

// settle is the time for which the driver may still list a process that has ended, and its memory.
const settle = 3 * time.Second

// look returns the selected GPUs. It waits a little for processes on them to end.
func (t *test) look(ctx context.Context) ([]GPU, error) {
	c, err := t.spawn()
	if err != nil {
		return nil, err
	}
	defer c.close()
	for again := 10; ; again-- {
		r, err := c.do(ctx, Order{Step: Survey}, t.Patience)
		if err = cmp.Or(err, r.failure()); err != nil {
			return nil, err
		}
		gpus := slices.DeleteFunc(r.GPUs, func(g GPU) bool {
			return len(t.Options.GPUs) > 0 && !slices.ContainsFunc(t.Options.GPUs, g.named)
		})
		if t.Busy || again == 0 || !slices.ContainsFunc(gpus, func(g GPU) bool { return g.use() != "" }) {
			return gpus, nil
		}
		select {
		case <-ctx.Done():
		case <-t.after(Order{}, settle/10):
		}
	}
}

// unseen is the memory, in bytes, that may be in use without a process: less than the smallest CUDA
// context.
const unseen = 64 << 20

// use names the users of the GPU. It is empty if there are none.
func (g GPU) use() string {
	switch {
	case len(g.Users) > 0:
		return "it is in use by " + processes(g.Users)
	case g.Taken > unseen:
		return fmt.Sprintf("it is in use: a process that is not visible here has %d MiB of its memory", g.Taken>>20)
	}
	return ""
}

// named reports whether name is the GPU's index or UUID.
func (g GPU) named(name string) bool { return name == strconv.Itoa(g.Index) || name == g.UUID }

// processes lists some of the processes.
func processes(pids []int) string {
	text := make([]string, 0, 4)
	for i, pid := range pids {
		if i == 3 {
			text = append(text, fmt.Sprintf("%d more", len(pids)-i))
			break
		}
		text = append(text, strconv.Itoa(pid))
	}
	if len(pids) == 1 {
		return "process " + text[0]
	}
	return "processes " + strings.Join(text, ", ")
}

// working returns the cards that are still under test.
func (t *test) working() (all []*card) {
	for _, c := range t.cards {
		if c.child != nil && c.failed == nil {
			all = append(all, c)
		}
	}
	return all
}

// together lets all GPUs take a step at the same time.
func (t *test) together(ctx context.Context, s Step, most, planned time.Duration) {
	var all sync.WaitGroup
	for _, c := range t.working() {
		all.Go(func() { t.step(ctx, c, s, most, planned) })
	}
	all.Wait()
}

// step lets one GPU take a step.
func (t *test) step(ctx context.Context, c *card, s Step, most, planned time.Duration) {
	o := Order{Step: s, GPU: c.UUID, For: most}
	if c == t.cards[0] && (t.Fault != Hang || s == Compute) {
		o.Fault = t.Fault
	}
	r, err := c.child.do(ctx, o, deadline(planned, t.Patience))
	c.readings[s], err = r, cmp.Or(err, r.failure())
	if r.Skipped != "" {
		c.child.close()
		c.child, c.skipped = nil, r.Skipped
	}
	if err != nil {
		c.failed, c.in = err, s
	}
}

// opened is a child that has a context on each GPU, for copies between them.
type opened struct {
	*child
	Reading // says why there is none, if that is no fault
	err     error
}

func (o opened) close() {
	if o.child != nil {
		o.child.close()
	}
}

// peers starts such a child if there are several GPUs.
func (t *test) peers(ctx context.Context) <-chan opened {
	told := make(chan opened, 1)
	cards := t.working()
	if len(cards) < 2 {
		told <- opened{}
		return told
	}
	if slices.ContainsFunc(cards, func(c *card) bool { return c.Alone }) {
		told <- opened{Reading: Reading{Skipped: "the exclusive compute mode keeps the copying process out"}}
		return told
	}
	go func() {
		var o opened
		o.child, o.err = t.spawn()
		for _, c := range cards {
			if o.err == nil && o.Skipped == "" {
				o.Reading, o.err = o.do(ctx, Order{Step: Open, GPU: c.UUID}, deadline(0, t.Patience))
				o.err = cmp.Or(o.err, o.failure())
			}
		}
		told <- o
	}()
	return told
}

// across copies from each GPU to each other GPU, one pair at a time.
func (t *test) across(ctx context.Context, o opened) {
	cards := t.working()
	most := t.Plan.pair(len(cards) * (len(cards) - 1) / 2)
	for _, from := range cards {
		for _, to := range cards {
			if from == to {
				continue
			}
			p := pair{from: from, to: to, Reading: o.Reading, err: o.err}
			if p.err == nil && p.Skipped == "" {
				order := Order{Step: Pairs, GPU: from.UUID, Peer: to.UUID, For: most}
				p.Reading, p.err = o.do(ctx, order, deadline(most, t.Patience))
				p.err = cmp.Or(p.err, p.failure())
			}
			t.pairs = append(t.pairs, p)
		}
	}
}

// Unknown returns the report of a test that could not begin.
func (o Options) Unknown(why error) *Report {
	r := &Report{Level: o.Level, Judgement: health.NoVerdict(Source, o.Node, why), Results: []Result{}}
	if errors.Is(why, errHangs) {
		r.Status = incident.Unhealthy
	}
	return r
}
