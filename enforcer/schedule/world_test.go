package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const (
	us = time.Microsecond
	ms = time.Millisecond

	tick     = 10 * us  // of the world's clock
	notice   = 60 * us  // from a page's change until the program notices it, and from its message to the broker
	slice    = 2 * ms   // the driver's slice for one program beside others
	switch_  = 60 * us  // lost by a switch between two programs
	inflight = 750 * us // least work that a program queues, and
	widest   = 10 * ms  // most, if it loses by less
)

// A program is a tenant with one process on each of some GPUs, as the hook
// presents it: its queue, and the hook's reports.
type program struct {
	name string
	Share
	kernel time.Duration // GPU time of one launch
	cpu    time.Duration // processor time of one launch
	count  int           // launches of a step
	ahead  bool          // it queues steps ahead instead of waiting for each
	gap    time.Duration // processor time between two steps
	jitter float64       // part of gap
	meets  bool          // a step ends with a kernel that waits for the program's other GPUs
	spread time.Duration // largest difference of its processes' processor times for a step
	from   time.Duration // when it starts
	stuck  bool          // its hook never reports a drain
	mute   bool          // its hook reports no launches
	lie    func(l *liar) // it has no hook, and lies
	stops  time.Duration // when it is stopped, 0: never, and
	goes   time.Duration // when it continues
	cycle  time.Duration // so long after that it is stopped again; 0: never
	deep   int           // launches that it may queue however long they take: one on each stream
	seats  int           // its processes on each GPU beyond the first, which do the same
	phases []phase       // of a step, in place of kernel, cpu and count
	drift  float64       // part by which processor times vary, for some 0.3 s each
	every  int           // of so many launches only one is a kernel, the others take 10 us
	cold   float64       // part by which its kernels take longer in turns

	ranks []*rank1
	steps []time.Duration // when each step ended, on its first GPU
	took  []time.Duration // duration of each step
}

// A phase is a part of a program's step.
type phase struct {
	count       int
	kernel, cpu time.Duration
}

// launch returns the times of a launch of a step.
func (p *program) launch(i int) (kernel, cpu time.Duration) {
	for _, f := range p.phases {
		if i < f.count {
			return f.kernel, f.cpu
		}
		i -= f.count
	}
	return p.kernel, p.cpu
}

// A rank1 is a program's process on one GPU.
type rank1 struct {
	p   *program
	gpu *simGPU
	at  int

	here, told bool // told: the broker knows that it is idle
	queue      []time.Duration
	queued     time.Duration // sum of queue
	met        int           // collectives that it has begun, and
	passed     int           // collectives that ended
	left       int           // launches left in this step
	era        int
	slow       float64
	begun      time.Duration
	ready      time.Duration // when its processor is free
	waits      bool          // for the step's last kernel
	pages      []shown
	seen       State
	holds      bool // a launch waits at the gate
	bounded    bool // a launch waited because so much was queued
	bound      time.Duration
	boundSet   time.Duration
	yielded    uint64
	late       uint64        // the turn after which it said that it had not drained
	seenAt     time.Duration // when the page changed
	busy       time.Duration // when it last had work
	launched   uint64
	said       uint64        // reported launches, of those that ended
	solo       uint64        // lone launches that ended
	soloTime   time.Duration // their time
	soloAt     time.Duration // when the last of them ended
	reported   time.Duration
	outstand   time.Duration
	done       time.Duration // GPU time
	completed  int
	line       time.Duration // when its launches will have taken their time, at its pace
	liar       liar
}

type shown struct {
	at    time.Duration
	state State
}

const meet = -1 // a kernel that waits for its partners

// A simGPU is one GPU.
type simGPU struct {
	g     *GPU
	ranks []*rank1
	cur   int
	slice time.Duration
	sw    time.Duration
	busy  time.Duration
}

// A world is a host in virtual time.
type world struct {
	t         testing.TB
	scheduler *Scheduler
	plain     bool // without the hook
	now       time.Duration
	wake      time.Duration
	gpus      []*simGPU
	programs  []*program
	random    *rand.Rand
	decides   int
}

// newWorld puts programs on GPUs: on[i] are the GPUs of programs[i]; nil is GPU 0.
func newWorld(t testing.TB, plain bool, on [][]int, programs ...*program) *world {
	w := &world{t: t, scheduler: New(Config{Slices: true}), plain: plain, programs: programs, random: rand.New(rand.NewPCG(1, 5))}
	for i, p := range programs {
		p.ranks, p.steps, p.took = nil, nil, nil
		gpus := []int{0}
		if on != nil && on[i] != nil {
			gpus = on[i]
		}
		for at, n := range gpus {
			for len(w.gpus) <= n {
				w.gpus = append(w.gpus, &simGPU{g: w.scheduler.Add()})
			}
			m := w.gpus[n]
			r := &rank1{p: p, gpu: m, at: at, told: true, ready: p.from}
			m.ranks, p.ranks = append(m.ranks, r), append(p.ranks, r)
		}
	}
	return w
}

func (w *world) run(d time.Duration) {
	for end := w.now + d; w.now < end; w.now += tick {
		input := false
		for _, p := range w.programs {
			for _, r := range p.ranks {
				input = w.play(r) || input
			}
		}
		if !w.plain && (input || w.wake != 0 && w.now >= w.wake) {
			w.decide()
		}
		for _, m := range w.gpus {
			w.execute(m)
		}
	}
}

// link declares that the processes of programs wait for one another.
func (w *world) link(programs ...*program) {
	for _, p := range programs {
		for _, r := range p.ranks[1:] {
			p.ranks[0].gpu.g.Link(w.now, r.gpu.g, p.name)
		}
	}
}

func (w *world) decide() {
	w.decides++
	w.wake = w.scheduler.Decide(w.now)
	if w.wake != 0 && w.wake <= w.now {
		w.t.Fatalf("at %v: to be called again at %v", w.now, w.wake)
	}
	for _, m := range w.gpus {
		for _, r := range m.ranks {
			s := m.g.State(r.p.name)
			s.End = 0
			if n := len(r.pages); r.here && (n == 0 || r.pages[n-1].state != s) {
				r.pages = append(r.pages, shown{w.now, s})
			}
		}
	}
}

// play is a step of a process and its hook; it reports whether the broker received a message.
func (w *world) play(r *rank1) (told bool) {
	p := r.p
	if p.cycle > 0 && w.now == p.goes+p.cycle && r == p.ranks[0] {
		p.stops, p.goes = w.now, w.now+p.goes-p.stops
	}
	if w.now < p.from || p.stops != 0 && w.now >= p.stops && w.now < p.goes {
		return false
	}
	if p.stops != 0 && w.now == p.goes { // the hook has missed its turns
		r.gpu.g.Hear(w.now, r.p.name) // PING
		told = true
	}
	if w.plain {
		r.seen.Mode = Open
		w.launch(r)
		return false
	}
	g, name := r.gpu.g, r.p.name
	if !r.here {
		r.here = true
		for range 1 + p.seats {
			g.Join(w.now, name, p.Share)
		}
		r.seen = State{Mode: Pause}
		return true
	}
	for len(r.pages) > 0 && r.pages[0].at+notice <= w.now {
		was := r.seen
		r.seen = r.pages[0].state
		if was.Mode != r.seen.Mode || was.Turn != r.seen.Turn || was.Beside != r.seen.Beside {
			if r.soloAt, r.seenAt = w.now, w.now; len(r.queue) == 0 {
				r.soloAt = 0
			}
		}
		r.pages = r.pages[1:]
		if was.Mode == Run && !r.told && (r.seen.Mode == Open ||
			r.seen.Mode == Run && (was.Beside != r.seen.Beside || was.Haste != r.seen.Haste)) {
			g.Report(w.now, name, r.usage(w))
			told = true
		}
		if was.Mode == Open && r.seen.Mode != Open {
			if r.outstand > 0 {
				g.Report(w.now, name, r.usage(w))
				told = true
			}
			// the broker assumes that it has work
			r.told, r.busy, r.said, r.reported = false, w.now, r.launched-uint64(len(r.queue)), w.now
		}
	}
	if r.p.lie != nil {
		return w.lies(r)
	}
	w.launch(r)
	if len(r.queue) > 0 {
		r.busy = w.now
	}
	switch r.seen.Mode {
	case Open:
		if w.now-r.busy < 300*us {
			r.outstand += tick
		}
		often := time.Second
		if r.seen.Haste {
			often /= 10
		}
		if w.now-r.reported >= often && r.outstand > 0 {
			g.Report(w.now, name, r.usage(w))
			told = true
		}
	case Run:
		if r.told && len(r.queue) > 0 {
			r.told = false
			g.Want(w.now, name)
			return true
		}
		patience := 2 * ms
		if r.seen.Haste {
			patience = 300 * us
		}
		switch {
		case r.told:
		case w.now-r.busy >= patience:
			r.told, told = true, true
			u := r.usage(w)
			u.Ago = w.now - r.busy
			g.Rest(w.now, name, u)
		case r.seen.Beside && w.now-r.reported >= 10*ms && w.now-r.busy < 50*us:
			// otherwise it may be idle, and soon reports that
			g.Report(w.now, name, r.usage(w))
			told = true
		}
	case Pause:
		if r.holds && r.told {
			r.told, told = false, true
			g.Want(w.now, name)
		}
		switch {
		case r.yielded != r.seen.Turn && len(r.queue) == 0 && !r.p.stuck && w.now-r.busy >= 50*us:
			r.yielded, told = r.seen.Turn, true
			u := r.usage(w)
			u.Ago = w.now - r.busy
			if !r.holds && !r.told && w.now-r.busy >= 300*us {
				r.told = true
				g.Rest(w.now, name, u)
			} else {
				g.Drained(w.now, name, u)
			}
		case !r.told && !r.holds && len(r.queue) == 0 && w.now-r.busy >= 300*us && r.yielded == r.seen.Turn:
			r.told, told = true, true
			g.Rest(w.now, name, Usage{Ago: w.now - r.busy})
		case r.late != r.seen.Turn && len(r.queue) > 0 && w.now-r.seenAt >= 50*ms:
			r.late, told = r.seen.Turn, true
			g.Report(w.now, name, r.usage(w))
		}
	}
	return told
}

func (r *rank1) usage(w *world) Usage {
	ended := r.launched - uint64(len(r.queue)) // all its launches so far
	u := Usage{Launched: ended - r.said, Solo: r.solo, SoloTime: r.soloTime, Busy: r.outstand, Longest: r.p.kernel}
	if r.p.mute {
		u.Launched, u.Solo = 0, 0
	}
	r.said, r.solo, r.soloTime, r.outstand, r.reported = ended, 0, 0, 0, w.now
	return u
}

// paces records that a launch ended, which measures the program's lone pace.
func (r *rank1) paces(now time.Duration) {
	if r.seen.Mode != Run || r.seen.Beside {
		return
	}
	if r.soloAt == 0 {
		r.soloAt = now - r.p.kernel
	}
	r.solo++
	r.soloTime += now - r.soloAt
	r.soloAt = now
}

// push queues a kernel.
func (r *rank1) push(kernel time.Duration) {
	r.queue = append(r.queue, kernel)
	r.queued += timeOf(kernel)
}

// timeOf returns about how long a kernel takes.
func timeOf(kernel time.Duration) time.Duration {
	if kernel == meet {
		return 50 * us
	}
	return kernel
}

// launch queues as many launches as the processor manages and the gate permits.
func (w *world) launch(r *rank1) {
	p := r.p
	for n := 0; w.now >= r.ready && n < 64; n++ {
		if r.left == 0 {
			if r.begun != 0 && r.waits {
				if len(r.queue) > 0 {
					return
				}
				r.waits = false
				w.ended(r)
				r.ready = w.now + p.gap
				if p.jitter > 0 {
					r.ready += time.Duration(float64(p.gap) * p.jitter * (w.random.Float64() - 0.5))
				}
				if p.spread > 0 {
					r.ready += time.Duration(w.random.Int64N(int64(p.spread)))
				}
				r.begun = 0
				continue
			}
			r.left, r.begun = p.count, w.now
			if p.meets {
				r.left++
			}
			r.waits = !p.ahead
		}
		most := 50 * ms
		if r.seen.Mode == Run {
			most = min(max(r.bound, inflight), widest)
			if r.bounded && len(r.queue) == 0 {
				r.bounded, r.bound, r.boundSet = false, 2*most, w.now
			}
		}
		if r.seen.Mode == Pause {
			r.holds, r.bounded = true, false
			return
		}
		r.holds = false
		if r.queued > most && len(r.queue) >= p.deep {
			if r.bounded = true; w.now-r.boundSet >= time.Second {
				r.bound, r.boundSet = r.bound/2, w.now
			}
			return
		}
		kernel, cpu := p.launch(p.count - r.left)
		if r.seen.Mode == Run {
			kernel += time.Duration(p.cold * float64(kernel))
		}
		if r.seen.Pace > 0 {
			if r.line > w.now {
				r.holds, r.busy = true, w.now
				return
			}
			r.line = max(r.line, w.now-300*us) + time.Duration(float64(kernel)/r.seen.Pace)
		}
		if p.drift > 0 {
			if k := int(w.now / (300 * ms)); k != r.era || r.slow == 0 {
				r.era, r.slow = k, 1+p.drift*(2*w.random.Float64()-1)
			}
			cpu = time.Duration(float64(cpu) * r.slow)
		}
		if p.meets && r.left == 1 {
			r.push(meet)
		} else {
			if p.every > 1 && r.launched%uint64(p.every) != 0 {
				r.push(10 * us)
			} else {
				r.push(kernel)
			}
		}
		r.launched++
		r.left--
		r.ready = max(r.ready, w.now-tick) + cpu
	}
}

func (w *world) ended(r *rank1) {
	if r.at == 0 {
		r.p.steps = append(r.p.steps, w.now)
		r.p.took = append(r.p.took, w.now-r.begun)
	}
}

// execute is a tick of a GPU: one process at a time, in slices, or the next kernel of each in turn,
// as under MPS where kernels fill the GPU.
func (w *world) execute(m *simGPU) {
	atOnce := w.scheduler.config.Concurrent
	if m.sw > 0 {
		m.sw -= tick
		return
	}
	if len(m.ranks) == 0 {
		return
	}
	c := m.ranks[m.cur]
	if len(c.queue) == 0 || m.slice <= 0 {
		for k := 1; k <= len(m.ranks); k++ {
			i := (m.cur + k) % len(m.ranks)
			if len(m.ranks[i].queue) > 0 {
				if i != m.cur && !atOnce {
					m.sw = switch_
				}
				if m.cur, m.slice = i, slice; m.ranks[i].seen.Slice > 0 {
					m.slice = m.ranks[i].seen.Slice
				}
				break
			}
		}
		if m.sw > 0 {
			m.sw -= tick
			return
		}
		c = m.ranks[m.cur]
	}
	if len(c.queue) == 0 {
		return
	}
	if m.busy += tick; !atOnce {
		m.slice -= tick
	}
	c.done += tick
	for left := tick; left > 0 && len(c.queue) > 0; {
		if c.queue[0] == meet {
			if c.met == c.passed {
				c.met++
			}
			for _, o := range c.p.ranks {
				if o.met <= c.passed {
					return // it spins
				}
			}
			c.passed++
			c.queue = c.queue[1:]
			c.queued -= timeOf(meet)
		} else {
			d := min(left, c.queue[0])
			left -= d
			c.queued -= d
			if c.queue[0] -= d; c.queue[0] == 0 {
				if c.queue = c.queue[1:]; atOnce {
					m.slice, left = 0, 0
				}
				c.paces(w.now)
				if c.completed++; c.p.ahead && c.completed%c.p.count == 0 {
					w.ended(c)
				}
			}
		}
	}
}

// rate returns steps per second between two moments.
func (p *program) rate(from, to time.Duration) float64 {
	i, _ := slices.BinarySearch(p.steps, from)
	j, _ := slices.BinarySearch(p.steps, to)
	return float64(j-i) / (to - from).Seconds()
}

// kind returns a program of a kind, with times as on an H200.
func kind(name string, weight float64) *program {
	p := map[string]program{
		"queue":  {kernel: 198 * us, count: 4, cpu: 5 * us, ahead: true},
		"steps":  {kernel: 198 * us, count: 4, cpu: 5 * us, gap: 25 * us},
		"jax":    {kernel: 180 * us, count: 8, cpu: 8 * us, gap: 60 * us},
		"gpt2":   {kernel: 14 * us, count: 1200, cpu: 24 * us, gap: 100 * us},
		"decode": {kernel: 8 * us, count: 200, cpu: 30 * us, gap: 10 * ms},
		"loader": {kernel: 20 * us, count: 800, cpu: 35 * us, gap: 4 * ms},
		"tick":   {kernel: 10 * us, count: 1, cpu: 10 * us, gap: 10 * ms},
		"cupy":   {kernel: 1700 * us, count: 5, cpu: 20 * us, gap: 50 * us},
		"burst":  {kernel: 200 * us, count: 25, cpu: 5 * us, gap: 20 * ms},
		"train":  {phases: []phase{{400, 9 * us, 16 * us}, {6, 900 * us, 10 * us}, {500, 20 * us, 30 * us}, {60, 120 * us, 150 * us}}, gap: 6 * ms, drift: 0.06},
		"resnet": {phases: []phase{{60, 12 * us, 10 * us}, {160, 40 * us, 25 * us}, {300, 6 * us, 9 * us}, {10, 300 * us, 20 * us}}, gap: 9 * ms, jitter: 1.5, drift: 0.05},
		"ddp":    {kernel: 200 * us, count: 40, cpu: 10 * us, gap: 200 * us, meets: true, spread: 200 * us},
	}[name]
	for _, f := range p.phases {
		p.count += f.count
		p.kernel = max(p.kernel, f.kernel)
	}
	p.name, p.Weight = name, weight
	return &p
}
