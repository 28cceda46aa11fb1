package response

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/schedule"
	"gpusteward/internal/quota"
)

const (
	dayGPUs    = 8
	dayTenants = 100
	dayUser    = 20000 // user of the first tenant; those of the others follow
	dayActions = 60
)

// A dayTenant is a tenant on its GPU.
type dayTenant struct {
	dayTurn
	name      string
	uid       int
	gpu       *dayGPU
	quota     policy.Quota
	steps     policy.Steps
	governed  bool
	share     schedule.Share
	workloads []*dayWorkload

	truth   dayTruth // of this second
	past    [64]dayTruth
	unclear time.Duration // until then an audit may not know enough of it
	charged float64       // as of the last second
	steals  int           // seconds in a row with much unreported time
	pauses  int           // seconds since it last paused its demand for the GPU
	wanted  int           // seconds in a row in which its guarantee is owed
}

// A dayTruth is the true use of a tenant in one second, in seconds.
type dayTruth struct {
	sm      float64 // time of its kernels
	inside  float64 // part of sm inside its turns
	outside float64 // part of sm outside of them
	stolen  float64 // part of outside, by processes with a session
	charged float64 // charged by the broker
	busy    float64 // time in which the memory was busy
	over    bool    // more memory than its cap
}

// A dayDemand is the load of a workload.
type dayDemand int

const (
	dayRests dayDemand = iota
	dayBursts
	dayAlways
)

// A dayFault is a workload's misbehaviour.
type dayFault int

const (
	dayObeys     dayFault = iota
	dayBypasses           // a process goes around the hook
	dayOverloads          // a process goes around the hook and runs a lot
	dayHoards             // a process goes around the hook and takes memory
	dayLies               // its hook reports too little memory
	daySteals             // its hook reports too little time
	dayFloods             // its kernels take too much bandwidth
	dayFaults
)

var dayFaultNames = [dayFaults]string{"", "bypass", "bypass with load", "bypass with memory", "memory not told",
	"time not told", "bandwidth"}

// A dayWorkload is a workload of a tenant.
type dayWorkload struct {
	tenant    *dayTenant
	key       string
	processes []*dayProcess
	comes     time.Duration // or leaves
	turns     time.Duration // when its demand changes
	demand    dayDemand
	intensity float64 // part of its kernels' time in which the memory is busy
	still     bool    // it is paused
	fault     dayFault
	ends      time.Duration // the fault's end

	// time since the last step in which each audit could see that its processes lie or go around the hook
	known      time.Duration
	bad        int           // audits in a row with a finding since the last step, without those that did not know
	retry      time.Duration // when the escalation retries an action that missed
	lying      time.Duration // since when a process has constant memory and hides some
	innocent   time.Duration // time since its last guilt, without the time in which nobody could know
	lied       uint64        // hidden bytes at the last lie
	lastLie    time.Duration // when a process last had more memory than reported
	lastBypass time.Duration
}

// A dayProcess is a process on a GPU.
type dayProcess struct {
	host.Process
	workload   *dayWorkload
	hooked     bool
	session    uint64        // in the ledger; 0: none
	ended      uint64        // a lost session, which stays charged until the process is back
	back       time.Duration // when it reconnects; 0: it need not
	lapsed     time.Duration // when it last lost its session
	context    uint64
	memory     uint64 // beyond the context
	told       uint64 // reported by the hook
	lies       uint64 // hidden by the hook
	load       float64
	fresh      [2]float64 // SM and busy seconds that the driver was not asked for yet
	sm, busy   float64
	born, died time.Duration
}

// outside returns the part of the GPU that the process uses outside of turns.
func (p *dayProcess) outside() float64 {
	if p.workload.still {
		return 0
	}
	return p.load
}

// working returns the number of processes that work in the tenant's turns.
func (w *dayWorkload) working() (n int) {
	if w.still || w.demand == dayRests || w.demand == dayBursts && w.tenant.always {
		return 0
	}
	for _, p := range w.processes {
		if p.session != 0 {
			n++
		}
	}
	return n
}

// newDay makes a random host with a random valid policy.
func newDay(random *rand.Rand) (*day, error) {
	d := &day{random: random, start: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), pids: map[int]*dayProcess{},
		pid: 1000}
	steps := policy.Steps{Mode: policy.Warn, Confirm: 3, Of: 5, Hold: 30 * time.Second, Throttle: .5,
		Pause: []string{"broker", "freezer"}}
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal,
		Quota: policy.Quota{Limit: 1, Bandwidth: 1}}, Steps: steps, Actions: dayActions}
	for n := range dayGPUs {
		d.gpus = append(d.gpus, &dayGPU{uuid: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", n)})
	}
	promised := make([]float64, dayGPUs)
	for i := range dayTenants {
		g := d.gpus[i%dayGPUs]
		r, quota := d.rule(i, g.uuid, &promised[i%dayGPUs])
		table.Rules = append(table.Rules, r)
		g.tenants = append(g.tenants, &dayTenant{name: r.Name, uid: dayUser + i, gpu: g, quota: quota, steps: r.Steps,
			governed: true})
	}
	if err := table.Check(); err != nil {
		return nil, err
	}
	d.policy = policy.New(table, policy.HostView{}, nil)
	for n, g := range d.gpus {
		g.tenants = append(g.tenants, &dayTenant{name: policy.DefaultTenant, uid: 1000, gpu: g,
			quota: policy.Quota{Limit: 1, Bandwidth: 1}})
		for _, t := range g.tenants {
			for i := range 1 + random.IntN(4) {
				w := &dayWorkload{tenant: t, key: fmt.Sprintf("pod:%s/%d/%d", t.name, n, i), lastLie: -time.Hour,
					lastBypass: -time.Hour, innocent: time.Hour,
					comes: time.Duration(random.IntN(120)) * time.Second}
				w.intensity = t.quota.Bandwidth * (.1 + .8*random.Float64())
				t.workloads = append(t.workloads, w)
			}
		}
		g.newTurns()
	}
	d.begin()
	return d, nil
}

// rule returns a tenant's terms: something on its GPU, little elsewhere.
func (d *day) rule(i int, gpu string, promised *float64) (policy.Rule, policy.Quota) {
	r := policy.Rule{Name: fmt.Sprintf("team-%02d", i),
		Select: []policy.Selector{{Users: []string{strconv.Itoa(dayUser + i)}}}}
	r.Quota = policy.Quota{Limit: 1, Bandwidth: 1}
	q := policy.Quota{Limit: 1, Bandwidth: 1, Memory: uint64(6+d.random.IntN(12)) << 30,
		Reserved: uint64(d.random.IntN(3)) << 30}
	switch kind := d.random.IntN(10); {
	case i < dayGPUs:
		r.Priority, r.Limit = policy.PriorityRealtime, .01 // on the other GPUs
		q.Limit = .02 + .1*d.random.Float64()
		q.Guarantee = q.Limit
	case kind == 0:
		r.Priority = policy.PriorityIdle
	default:
		r.Priority = policy.PriorityLow + policy.Priority(d.random.IntN(3))
		q.Guarantee = min(.2*d.random.Float64(), .92-*promised)
		if kind < 5 {
			q.Limit = max(.05, q.Guarantee+(.9-q.Guarantee)*d.random.Float64())
		}
		if q.Guarantee > .05 && kind < 7 { // a tenant with almost no guarantee waits for long at times
			q.LaunchWait = quota.Wait(time.Second)
		}
	}
	*promised += q.Guarantee
	if d.random.IntN(4) == 0 {
		q.Bandwidth = .2 + .4*d.random.Float64()
	}
	o := policy.Override{GPUs: []string{gpu}}
	for key, value := range map[string]any{"guarantee": q.Guarantee, "limit": q.Limit, "memory": q.Memory,
		"memory_guarantee": q.Reserved,
		"launch_wait":      q.LaunchWait, "bandwidth": q.Bandwidth} {
		if r.Priority == policy.PriorityRealtime && key == "guarantee" {
			continue
		}
		if err := o.Set(key, fmt.Sprint(value)); err != nil {
			panic(err)
		}
	}
	r.GPUs = []policy.Override{o}
	confirm := 1 + d.random.IntN(5)
	r.Steps = policy.Steps{Mode: policy.Level(d.random.IntN(len(policy.Levels))), Shadow: d.random.IntN(4) == 0,
		Confirm: confirm, Of: confirm + d.random.IntN(6),
		Hold: time.Duration(10+d.random.IntN(50)) * time.Second, Throttle: .2 + .6*d.random.Float64(),
		Pause: []string{"broker", "freezer"}, Grace: time.Duration(d.random.IntN(10)) * time.Second}
	return r, q
}

// chance is true once in so many times.
func (d *day) chance(one int) bool { return d.random.IntN(one) == 0 }

// long returns a random time between the two, with more weight on short ones.
func (d *day) long(least, most time.Duration) time.Duration {
	ratio := float64(most) / float64(least)
	f := d.random.Float64()
	return time.Duration(float64(least) * (1 + (ratio-1)*f*f))
}

// live lets all workloads act.
func (d *day) live() {
	for _, g := range d.gpus {
		for _, t := range g.tenants {
			for _, w := range t.workloads {
				d.stir(w)
			}
			t.plan()
		}
		d.tally(g)
	}
}

// stir lets a workload act.
func (d *day) stir(w *dayWorkload) {
	for _, p := range slices.Clone(w.processes) {
		if p.back > 0 && p.back <= d.now {
			d.connect(p)
		}
	}
	if d.now >= w.comes {
		if len(w.processes) > 0 {
			d.end(w, d.long(time.Minute, 30*time.Minute))
		} else {
			d.come(w)
		}
	}
	if len(w.processes) == 0 || w.still {
		return
	}
	if d.now >= w.turns {
		w.demand, w.turns = dayDemand(d.random.IntN(3)), d.now+d.long(3*time.Second, 10*time.Minute)
	}
	for _, p := range w.processes {
		d.remember(p)
	}
	switch {
	case w.fault != dayObeys && d.now >= w.ends:
		d.repent(w)
	case w.fault == dayObeys && w.tenant.governed && d.chance(6000):
		d.sin(w, dayFault(1+d.random.IntN(int(dayFaults)-1)))
	case !w.tenant.governed && d.chance(300): // nobody judges its programs
		p := w.processes[0]
		if p.load = 0; d.chance(2) {
			p.load = min(.3*d.random.Float64(), max(dayMost-w.tenant.gpu.outside, 0))
		}
	}
}

// come starts a workload.
func (d *day) come(w *dayWorkload) {
	w.comes, w.turns = d.now+d.long(5*time.Minute, 3*time.Hour), d.now
	for range 1 + d.random.IntN(2) {
		d.process(w, w.tenant.governed || d.chance(2))
	}
}

// process starts a process.
func (d *day) process(w *dayWorkload, hooked bool) *dayProcess {
	d.pid++
	p := &dayProcess{workload: w, hooked: hooked, context: uint64(400+d.random.IntN(200)) << 20, born: d.now,
		lapsed: -time.Hour,
		Process: host.Process{PID: d.pid, Start: uint64(d.pid), Began: d.at(d.now), UID: w.tenant.uid,
			Workload: &host.Workload{Key: w.key, Kind: host.KindPod}}}
	d.pids[p.PID] = p
	w.processes = append(w.processes, p)
	if hooked {
		d.connect(p)
	}
	return p
}

// connect gives a process a session.
func (d *day) connect(p *dayProcess) {
	t := p.workload.tenant
	d.session++
	p.session, p.back = d.session, 0
	d.apply(t)
	t.gpu.turns.Join(t.gpu.now, t.name, t.share)
	t.sessions++
	t.gpu.memory.Release(p.ended)
	p.ended = 0
	_ = t.gpu.memory.Adopt(t.name, p.session, p.told)
	t.gpu.memory.Listed(p.told, p.session)
	t.gpu.wake = max(t.gpu.now, 1)
	t.unclear = max(t.unclear, d.now+35*time.Second)
}

// disconnect ends a process's session.
func (d *day) disconnect(p *dayProcess) {
	t := p.workload.tenant
	if p.session == 0 {
		return
	}
	t.gpu.memory.End(p.session)
	p.ended = p.session
	t.gpu.turns.Leave(t.gpu.now, t.name)
	p.session = 0
	if t.sessions--; t.sessions == 0 {
		t.wants, t.has, t.stopped, t.yield = false, false, false, 0
	}
	t.gpu.wake = max(t.gpu.now, 1)
	t.unclear = max(t.unclear, d.now+35*time.Second)
}

// end ends a workload, which comes again after a while.
func (d *day) end(w *dayWorkload, after time.Duration) {
	for _, p := range slices.Clone(w.processes) {
		d.kill(p)
	}
	w.fault, w.lying, w.comes = dayObeys, 0, d.now+after
	w.intensity = w.tenant.quota.Bandwidth * (.1 + .8*d.random.Float64())
}

func (d *day) kill(p *dayProcess) {
	d.disconnect(p)
	p.workload.tenant.gpu.memory.Release(p.ended)
	p.died = d.now
	w := p.workload
	w.processes = slices.DeleteFunc(w.processes, func(o *dayProcess) bool { return o == p })
	d.dead = append(d.dead, p)
}

// remember changes a process's memory.
func (d *day) remember(p *dayProcess) {
	if p.session == 0 {
		return
	}
	t, l, told := p.workload.tenant, p.workload.tenant.gpu.memory, p.told
	defer func() {
		if p.lies > 0 && told != p.told {
			p.workload.lying = d.now // a change hides the lie
		}
	}()
	had := p.told + p.lies
	switch {
	case p.memory < had: // the driver has given all the booked memory
		p.memory = had
	case d.chance(10) && p.told > 0:
		n := uint64(d.random.Int64N(int64(p.told) + 1))
		_ = l.Free(p.session, n)
		p.told -= n
		p.memory = p.told + p.lies
	case d.chance(20):
		n := uint64(d.random.Int64N(4 << 30))
		reservation, ok, _ := l.Reserve(t.name, p.session, n)
		switch {
		case !ok:
		case n > t.gpu.free():
			_ = l.Abort(p.session, reservation)
			d.aborts++
		default:
			_ = l.Commit(p.session, reservation, n)
			p.told += n
			if u := l.Usage(t.name); u.Committed+u.Reserved+u.Dead > u.Cap && u.Cap > 0 {
				d.fail("%s was given %d bytes above its cap", t.name, u.Committed+u.Reserved+u.Dead-u.Cap)
			}
		}
	}
}

// sin starts a workload's misbehaviour for a while.
func (d *day) sin(w *dayWorkload, kind dayFault) {
	t, free := w.tenant, w.tenant.gpu.free()
	capacity := dayMost - t.gpu.outside
	first := w.processes[0]
	switch kind {
	case dayOverloads, daySteals:
		if capacity < .2 {
			return
		}
	case dayHoards, dayLies:
		if free < 4<<30 {
			return
		}
	case dayFloods:
		if t.quota.Bandwidth == 1 {
			return
		}
	}
	w.fault, w.ends = kind, d.now+d.long(5*time.Second, 10*time.Minute)
	d.faults[kind]++
	load := min(.2+.4*d.random.Float64(), capacity)
	switch kind {
	case dayBypasses:
		d.process(w, false)
	case dayOverloads:
		d.process(w, false).load = load
	case dayHoards:
		d.process(w, false).memory = min(uint64(2+d.random.IntN(9))<<30, free-1<<30)
	case dayLies:
		first.lies = min(uint64(2+d.random.IntN(5))<<30, free)
		first.memory += first.lies
		w.lying, w.lied = d.now, first.lies
	case daySteals:
		first.load = load
	case dayFloods:
		w.intensity, w.demand, w.turns = .97, dayAlways, w.ends
	}
	d.tally(t.gpu)
}

// repent ends a workload's misbehaviour.
func (d *day) repent(w *dayWorkload) {
	for _, p := range slices.Clone(w.processes) {
		if !p.hooked {
			d.kill(p)
		}
		p.memory, p.lies, p.load = p.memory-p.lies, 0, 0
	}
	if w.fault == dayFloods {
		w.intensity = w.tenant.quota.Bandwidth * (.1 + .8*d.random.Float64())
	}
	w.fault, w.lying = dayObeys, 0
}

// tally adds up the use by programs outside of turns.
func (d *day) tally(g *dayGPU) {
	g.outside = 0
	for _, t := range g.tenants {
		for _, w := range t.workloads {
			for _, p := range w.processes {
				g.outside += p.outside()
			}
		}
	}
}

// plan chooses one demand for a tenant's workloads.
func (t *dayTenant) plan() {
	t.always, t.burst = false, 0
	for i, w := range t.workloads {
		switch {
		case w.still || len(w.processes) == 0:
		case w.demand == dayAlways:
			t.always = true
		case w.demand == dayBursts && t.burst == 0:
			t.burst, t.think = time.Duration(10+20*i)*time.Millisecond, time.Duration(100+300*i)*time.Millisecond
		}
	}
	if t.burst == 0 {
		t.left = 0
	}
}
