package schedule

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	us = time.Microsecond
	ms = time.Millisecond

	step    = 20 * us  // of the world's clock
	notice  = 60 * us  // from a page's change to the client's doing
	switch_ = 100 * us // that the GPU loses between two clients' kernels
	cap_    = 1500 * us
)

// A world is a GPU, its scheduler and the clients' hooks, in virtual time. Its
// clock ticks in steps; the scheduler is called for inputs and for its wakes
// only. The GPU gives clients that have queued work at the same moment equal
// parts, as time slicing does.
type world struct {
	t       testing.TB
	g       *GPU
	now     time.Duration
	wake    time.Duration
	random  *rand.Rand
	clients []*client
	last    *client       // whose kernels ran
	lost    time.Duration // what is left of a switch
	busy    time.Duration // of the GPU
	mixed   time.Duration // while clients with queued work were two or more
}

// A client is a tenant with one session.
type client struct {
	name string
	Share
	kernel time.Duration // GPU time of one launch
	cpu    time.Duration // processor time of one launch; 0: it is never held up
	burst  time.Duration // GPU time until it sleeps; 0: it never does
	think  time.Duration // how long it sleeps
	lies   bool          // it says that it was not busy and its queue was empty
	stuck  bool          // it never yields
	from   time.Duration // when it comes
	hints  bool          // it predicts its bursts
	sync   bool          // it waits for each kernel

	here, asked, mine bool // mine: launched in the turn it sees
	pages             [4]struct {
		at    time.Duration
		state State
	}
	seen                      State
	over                      uint64 // the turn that it has yielded
	queue, part, todo, budget time.Duration
	until, idle, reported     time.Duration
	begun, first, final       time.Duration
	use                       Usage
	done                      time.Duration
	launched                  uint64
	latency                   []time.Duration
	longest, waits            time.Duration
}

func newWorld(t testing.TB, seed uint64, clients ...*client) *world {
	return &world{t: t, g: New(Config{}), random: rand.New(rand.NewPCG(seed, 5)), clients: clients}
}

// run lets d pass.
func (w *world) run(d time.Duration) {
	for end := w.now + d; w.now < end; w.now += step {
		input := false
		for _, c := range w.clients {
			input = w.play(c) || input
		}
		if input || w.wake != 0 && w.now >= w.wake {
			w.decide()
		}
		w.execute()
	}
}

func (w *world) decide() {
	w.wake = decide(w.t, w.g, w.now)
	for _, c := range w.clients {
		if s := w.g.State(c.name); c.here && s != c.pages[0].state {
			copy(c.pages[1:], c.pages[:])
			c.pages[0].at, c.pages[0].state = w.now, s
		}
	}
}

// play is a step of the client's hook; it says whether the scheduler was told
// something.
func (w *world) play(c *client) bool {
	if w.now < c.from {
		return false
	}
	if !c.here {
		c.here, c.todo = true, c.burst
		w.g.Join(w.now, c.name, c.Share)
		c.seen = State{Mode: Pause}
		c.until = w.now + time.Duration(w.random.Int64N(int64(c.think)+1))
		return true
	}
	for i := range c.pages { // the newest that it has had the time to see
		if p := &c.pages[i]; p.at+notice <= w.now && p.state.Turn != 0 {
			w.see(c, p.state)
			break
		}
	}
	wants := w.now >= c.until && (c.burst == 0 || c.todo > 0)
	switch c.seen.Mode {
	case Open:
		w.launch(c, wants, 20*ms)
		if c.seen.Watch && w.now-c.reported >= 100*ms {
			return w.tell(c, false, false)
		}
	case Run:
		w.launch(c, wants, cap_)
		if c.queue > 0 || wants {
			c.idle = w.now
		} else if w.now-c.idle > 200*us {
			return w.tell(c, true, true)
		}
	case Pause:
		if c.mine && !c.stuck && c.queue == 0 {
			return w.tell(c, true, false)
		}
		if wants && !c.asked {
			c.asked = true
			var burst time.Duration
			if c.hints {
				burst = c.todo
			}
			w.g.Ask(w.now, c.name, burst, c.think)
			return true
		}
		if c.asked {
			c.waits += step
			c.longest = max(c.longest, c.waits)
		}
	}
	return false
}

func (w *world) see(c *client, s State) {
	if s == c.seen || s.Turn == c.over {
		return
	}
	if s.Turn != c.seen.Turn || s.Mode != c.seen.Mode && s.Mode != Pause {
		c.idle, c.reported, c.asked, c.waits = w.now, w.now, false, 0
		if s.Turn != c.seen.Turn {
			c.mine = s.Mode != Pause
		}
	}
	c.seen = s
}

// launch queues what the processor manages in a step and the gate lets in.
func (w *world) launch(c *client, wants bool, most time.Duration) {
	c.budget += step
	for wants && (c.burst == 0 || c.todo > 0) && c.budget >= c.cpu && (c.queue == 0 || !c.sync && c.queue+c.kernel <= most) {
		c.budget -= max(c.cpu, 1*us)
		if c.first == 0 {
			c.first = w.now
		}
		if c.burst > 0 && c.todo == c.burst {
			c.begun = max(c.until, c.from)
		}
		c.todo -= c.kernel
		c.queue += c.kernel
		c.use.Launched++
		c.launched++
		if c.part += c.kernel; c.part >= 500*us || c.use.Marks == 0 || c.kernel < 100*us && c.use.Launched%64 == 0 {
			c.part = 0
			c.use.Marks++
			if w.ahead(c) > 500*us && !c.lies {
				c.use.Behind++
			}
		}
	}
	c.budget = min(c.budget, max(c.cpu, step))
}

// ahead returns how long the GPU takes to reach a marker behind a new launch.
func (w *world) ahead(c *client) time.Duration {
	d := c.queue
	for _, o := range w.clients {
		if o != c {
			d += min(o.queue, c.queue)
		}
	}
	return d
}

func (w *world) tell(c *client, yield, idle bool) bool {
	u := c.use
	u.Turn = c.seen.Turn
	if c.first != 0 && !c.lies {
		u.Busy = max(c.final, c.first) - c.first
	}
	c.use, c.first, c.reported = Usage{}, 0, w.now
	if !yield {
		w.g.Report(w.now, c.name, u)
		return true
	}
	c.mine, c.seen.Mode, c.over = false, Pause, u.Turn
	w.g.Yield(w.now, c.name, u, idle)
	return true
}

// execute is a step of the GPU.
func (w *world) execute() {
	n := 0
	for _, c := range w.clients {
		if c.queue > 0 {
			n++
			if w.last != c && n == 1 && (w.last == nil || w.last.queue == 0) {
				w.last, w.lost = c, switch_
			}
		}
	}
	if w.lost > 0 || n == 0 {
		w.lost -= step
		return
	}
	w.busy += step
	if n > 1 {
		w.mixed += step
	}
	left := step
	for range 3 { // what one does not need is the others'
		for _, c := range w.clients {
			if c.queue > 0 {
				d := min(step/time.Duration(n), c.queue, left)
				c.queue -= d
				c.done += d
				left -= d
				w.completed(c)
			}
		}
	}
}

func (w *world) completed(c *client) {
	if c.queue > 0 {
		return
	}
	c.final = w.now + step
	if c.burst > 0 && c.todo <= 0 {
		c.latency = append(c.latency, c.final-c.begun)
		c.todo = c.burst
		c.until = c.final + time.Duration(float64(c.think)*(0.5+w.random.Float64()))
	}
}

// decide calls Decide and holds what it says against the invariants.
func decide(t testing.TB, g *GPU, now time.Duration) time.Duration {
	t.Helper()
	wake := g.Decide(now)
	if wake != 0 && wake <= g.now {
		t.Fatalf("at %v: to be called again at %v, which is past", now, wake)
	}
	running, open, watched, sessions := 0, 0, 0, 0
	for _, o := range g.tenants {
		sessions += o.sessions
		switch s := o.state; {
		case s.Mode == Run:
			running++
			if s.End != 0 && s.End < g.now {
				t.Fatalf("at %v: the turn of %s ended at %v", now, o.name, s.End)
			}
		case s.Mode == Open && s.Watch:
			watched++
		case s.Mode == Open:
			open++
		}
		if o.share.Held && o.state.Mode != Pause {
			t.Fatalf("at %v: %s, which is held, has %+v", now, o.name, o.state)
		}
		if o.dry && o.state.Mode != Pause {
			t.Fatalf("at %v: %s runs beyond its limit", now, o.name)
		}
		if o.sessions == 0 && (o.state.Mode != Pause || o.wants) {
			t.Fatalf("at %v: %s, which is gone, has %+v", now, o.name, o.state)
		}
	}
	switch {
	case sessions != g.sessions:
		t.Fatalf("at %v: %d sessions, counted %d", now, sessions, g.sessions)
	case running > 1 || running == 1 && open+watched > 0:
		t.Fatalf("at %v: %d run, %d open, %d watched", now, running, open, watched)
	case open > 0 && sessions != 1, watched == 1:
		t.Fatalf("at %v: %d open, %d watched, %d sessions", now, open, watched, sessions)
	case len(g.on) == 0 && g.next() != nil:
		t.Fatalf("at %v: nobody has the GPU and %s could", now, g.next().name)
	}
	return wake
}
