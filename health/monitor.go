package health

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/host"
	"gpusteward/collectors/links"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// Options are the parts of the agent that a Monitor needs. The functions must
// not wait, and may be nil.
type Options struct {
	Checks  []*Check                                                // nil: all
	Samples func() []collectors.Sample                              // the readings
	Ready   func() error                                            // why no GPU is read
	Beat    func() time.Duration                                    // the interval of their changes; nil: a second
	Kernel  func(ctx context.Context, each func(host.Record)) error // follows the kernel's log until ctx ends
	// DriverTask reports whether a PID is that of a kernel thread of the driver.
	DriverTask func(pid int) bool
	Process    func(pid int, at time.Time) (host.Process, bool) // the process that had a PID
	// processes on a GPU, now and in the last minutes
	Stays func(uuid string) []collectors.Stay
	Self  int // the agent's own PID
	// the agent is in another PID namespace than the kernel's log
	Foreign   bool
	Record    func(incident.Event)      // takes events, for the journal
	Tell      func([]Alert)             // takes alerts that begin, go on and end
	Lost      func() map[string]float64 // losses of other parts, by place
	Load      func() map[string]float64 // use of other parts, as a share of their limits
	Forget    func(uuid string)         // forgets a GPU that was taken out
	Store     Store                     // of the state that outlives a restart
	Boot      string                    // the kernel's boot id
	Node      string                    // name of the host
	Simulated bool                      // the host is not real
	// number of Monitors, each of another host, that share the process and its
	// resources; 0: one
	Sharing int
	Log     *slog.Logger
}

// Intervals of a Monitor.
const (
	beat      = time.Second           // between judgements without news, at least
	slowest   = 5 * time.Second       // between judgements, at most: two in each step of the engine
	company   = 20 * time.Millisecond // wait for further events after one
	saveEach  = time.Minute           // between saves of the state
	saveAgain = 10 * time.Second      // between attempts after a failed save
	warmUp    = 3 * time.Second       // wait for the first GPU before reading the kernel's log
	mostQueue = 4096                  // observations that wait
	mostAlike = mostQueue / 16        // of them about the same fault of the same entity: programs can cause any number
	mostPorts = 4 * derived.MostGPUs  // above GPUs
)

// A Monitor runs the engine: it takes readings and events, judges them, and
// passes events and alerts on. Its methods are safe for concurrent use, and
// only Run and Ack wait.
type Monitor struct {
	Options
	settings     atomic.Pointer[Settings]
	observations chan incident.Observation
	dropped      atomic.Uint64 // observations for which there was no room
	mu           sync.Mutex
	alike        map[likeness]int // how many observations wait
	following    atomic.Bool      // the kernel's log is read
	acks         chan ack
	view         atomic.Pointer[view]
	faults       atomic.Pointer[map[string]time.Time] // the last faults of the hardware, by UUID; immutable

	// The fields below belong to Run.
	engine     *Engine
	tuned      *Settings // that the engine has
	correlator *incident.Correlator
	cursor     incident.Cursor
	gpus       map[host.PCI]incident.Entity // all GPUs that were ever seen
	ports      map[string]incident.Entity   // the GPU below a PCIe port, by address; none if there are several
	up         map[incident.Entity]bool     // GPUs that answer
	firing     map[string]Alert             // by identity
	usage      usage
	saved      time.Time
	unsaved    bool // the last save failed, and the log says so
	dirty      bool // the state must be saved at once
}

// view is the part of a Monitor that others see. Immutable.
type view struct {
	samples []collectors.Sample
	verdict Verdict
}

// NewMonitor returns a monitor; its Run judges.
func NewMonitor(o Options, s Settings) *Monitor {
	m := &Monitor{Options: o, observations: make(chan incident.Observation, mostQueue), acks: make(chan ack),
		alike: map[likeness]int{}, gpus: map[host.PCI]incident.Entity{}, ports: map[string]incident.Entity{}, up: map[incident.Entity]bool{}, firing: map[string]Alert{}}
	m.Configure(s)
	m.view.Store(&view{verdict: Verdict{Node: o.Node, Status: incident.Unknown, Reason: "the agent is starting"}})
	return m
}

// Configure replaces the settings, from the next judgement on.
func (m *Monitor) Configure(s Settings) { m.settings.Store(&s) }

// Event takes an event of the driver.
func (m *Monitor) Event(e collectors.Event) {
	if s, ok := incident.ParseEvent(e); ok {
		m.sight(s)
	}
}

// line takes a record of the kernel's log.
func (m *Monitor) line(r host.Record) {
	if s, ok := incident.ParseLine(r, m.DriverTask); ok {
		m.sight(s)
	}
}

// A likeness is what observations of the same fault of the same entity by the same source have in common.
type likeness struct {
	incident.Entity
	source, what string
	code         int
}

func likenessOf(s incident.Observation) likeness { return likeness{s.Entity, s.Source, s.What, s.Code} }

// sight takes an observation. A flood of one fault leaves room for all others.
func (m *Monitor) sight(s incident.Observation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of := likenessOf(s); m.alike[of] < mostAlike {
		select {
		case m.observations <- s:
			m.alike[of]++
			return
		default:
		}
	}
	m.dropped.Add(1)
}

// takes returns an observation that waited.
func (m *Monitor) takes(s incident.Observation) incident.Observation {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := likenessOf(s)
	if m.alike[of]--; m.alike[of] <= 0 {
		delete(m.alike, of)
	}
	return s
}

// Samples returns the samples that health adds to the readings.
func (m *Monitor) Samples() []collectors.Sample { return m.view.Load().samples }

// Run judges until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	m.begin(time.Now())
	group, ctx := errgroup.WithContext(ctx)
	if m.Kernel != nil {
		group.Go(func() error { m.follow(ctx); return nil })
	}
	group.Go(func() error {
		tick := time.NewTimer(m.wait())
		defer tick.Stop()
		for {
			var seen []incident.Observation
			select {
			case <-ctx.Done():
				m.save(time.Now())
				return nil
			case a := <-m.acks:
				a.result <- m.acknowledge(a)
			case s := <-m.observations:
				seen = m.more(ctx, m.takes(s))
			case <-tick.C:
				tick.Reset(m.wait())
			}
			m.judge(seen, time.Now())
		}
	})
	return group.Wait()
}

// wait returns the time until the next judgement, which comes as soon as news
// is likely.
func (m *Monitor) wait() time.Duration {
	if m.Beat == nil {
		return beat
	}
	return min(max(m.Beat(), beat), slowest)
}

// more waits a moment for the companions of s: incidents come in groups.
func (m *Monitor) more(ctx context.Context, s incident.Observation) []incident.Observation {
	all := []incident.Observation{s}
	t := time.NewTimer(company)
	defer t.Stop()
	for len(all) < mostQueue {
		select {
		case s := <-m.observations:
			all = append(all, m.takes(s))
		case <-t.C:
			return all
		case <-ctx.Done():
			return all
		}
	}
	return all
}

// waiting returns the observations that have not been judged yet.
func (m *Monitor) waiting() (all []incident.Observation) {
	for {
		select {
		case s := <-m.observations:
			all = append(all, m.takes(s))
		default:
			return all
		}
	}
}

// begin restores the state that the last agent left.
func (m *Monitor) begin(now time.Time) {
	checks := m.Checks
	if checks == nil {
		checks = Checks()
	}
	m.engine = NewEngine(checks, now)
	m.tune(now)
	m.correlator = incident.NewCorrelator(incident.CorrelatorOptions{Boot: m.Boot, Node: m.Node,
		GPU:     func(at host.PCI) (incident.Entity, bool) { e, ok := m.gpus[at]; return e, ok },
		Port:    func(at string) (incident.Entity, bool) { e := m.ports[at]; return e, e.UUID != "" },
		Process: m.Process,
		Stays:   m.Stays,
		Self:    m.Self,
		Foreign: m.Foreign,
		Works:   m.works,
	}, now)
	m.record(incident.Event{Kind: incident.KindAgent, ID: fmt.Sprintf("agent-%d", now.UnixNano()), Time: now,
		Message: "The agent started."})
	var kept kept
	if err := m.Store.Load(&kept); err != nil {
		m.Log.Warn("the state of health cannot be read: latched faults are forgotten", "err", err)
		m.record(incident.Event{Kind: incident.KindAgent, ID: fmt.Sprintf("state-%d", now.UnixNano()), Time: now,
			Severity: incident.Warning, Message: "The state of health was lost: " + err.Error()})
		return
	}
	m.cursor = kept.Cursor
	for _, g := range kept.GPUs {
		m.gpus[g.At] = g.Entity
	}
	changes, err := m.engine.Restore(kept.Engine, m.Boot, now)
	if err != nil {
		m.Log.Warn("statistics start again", "err", err)
	}
	m.blame(m.engine.memory.incidents...)
	for _, e := range changes {
		m.record(e)
	}
}

// follow reads the kernel's log, once the addresses of the GPUs are known.
func (m *Monitor) follow(ctx context.Context) {
	for end := time.Now().Add(warmUp); len(m.view.Load().verdict.GPUs) == 0 && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(beat / 10):
		}
	}
	read := func(ctx context.Context, each func(host.Record)) error {
		m.following.Store(true)
		defer m.following.Store(false)
		return m.Kernel(ctx, each)
	}
	host.FollowLog(ctx, read, m.line, func(err error, first bool) {
		if first {
			m.Log.Warn("the kernel's log cannot be read: XIDs come from the driver alone", "err", err)
		}
	})
}

// works reports whether a source sees the faults of a GPU.
func (m *Monitor) works(source string, gpu incident.Entity) bool {
	switch source {
	case incident.SourceNVML:
		return m.up[gpu]
	case incident.SourceKernel:
		return m.following.Load()
	}
	return false
}

// judge takes the waiting observations and the present readings.
func (m *Monitor) judge(seen []incident.Observation, now time.Time) {
	s := derived.NewSnapshot(m.Options.Samples())
	m.meet(s)
	var incidents []incident.Event
	for _, observation := range seen {
		if observation.Source != incident.SourceKernel ||
			m.cursor.Pass(m.Boot, host.Record{Sequence: observation.Sequence}) {
			incidents = append(incidents, m.correlator.Add(observation, now)...)
		}
	}
	incidents = append(incidents, m.correlator.Tick(now)...)
	s.Add(m.account(now)...)
	changes := append(m.tune(now), m.engine.Eval(s, incidents, now)...)
	m.blame(incidents...)
	m.blame(changes...)
	m.show(s, now)
	m.tell(now)
	for _, e := range incidents {
		m.record(e)
	}
	for _, e := range changes {
		m.record(e)
		m.say(e)
	}
	if m.dirty = m.dirty || len(incidents)+len(changes) > 0; m.dirty && now.Sub(m.saved) > beat ||
		m.unsaved && now.Sub(m.saved) > saveAgain || now.Sub(m.saved) > saveEach {
		m.save(now)
	}
}

// tune gives the engine the settings if they are others, and returns the changes.
func (m *Monitor) tune(now time.Time) []incident.Event {
	s := m.settings.Load()
	if s == m.tuned {
		return nil
	}
	m.tuned = s
	return m.engine.Tune(*s, now)
}

// meet records the addresses of the GPUs, and which of them answer.
func (m *Monitor) meet(s *derived.Snapshot) {
	for _, metric := range []*collectors.Metric{links.PCIDevicePresent, device.Info} {
		at := slices.Index(metric.Labels, "pci_bus_id")
		for _, sample := range s.Of(metric) {
			if pci, ok := host.ParsePCI(sample.Labels[at]); ok && sample.Labels[1] != "" &&
				(len(m.gpus) < derived.MostGPUs || m.gpus[pci] != incident.Entity{}) {
				m.gpus[pci] = incident.EntityOf(sample, nil)
			}
		}
	}
	for _, sample := range s.Of(links.PCIPort) {
		gpu, port := incident.EntityOf(sample, nil), sample.Labels[2]
		if at, known := m.ports[port]; known && at != gpu {
			gpu = incident.Entity{}
		}
		if len(m.ports) < mostPorts {
			m.ports[port] = gpu
		}
	}
	clear(m.up)
	for _, sample := range s.Of(collectors.Up) {
		m.up[incident.EntityOf(sample, nil)] = sample.Value == 1
	}
}

// record completes an event and passes it on.
func (m *Monitor) record(e incident.Event) {
	e.Version, e.Boot, e.Node, e.Injected = incident.EventVersion, m.Boot, m.Node, m.Simulated
	if m.Record != nil {
		m.Record(e)
	}
}

// say logs a change of state, as a warning if somebody should act on it.
func (m *Monitor) say(e incident.Event) {
	level, more := slog.LevelInfo, []any(nil)
	if e.Severity >= incident.Warning && e.To != incident.Recovering && !e.Shadow {
		level = slog.LevelWarn
	}
	if e.Shadow {
		more = []any{"shadow", true}
	}
	m.Log.Log(context.Background(), level, "health changed",
		append([]any{"check", e.Check, "entity", e.Entity.String(), "from", e.From.String(), "to", e.To.String(),
			"finding", e.Message}, more...)...)
}

// show publishes the judgement.
func (m *Monitor) show(s *derived.Snapshot, now time.Time) {
	m.view.Store(&view{samples: s.Added(), verdict: m.verdict(s, now)})
}

// tell passes on the alerts that fire, and those that ended.
func (m *Monitor) tell(now time.Time) {
	settings := m.settings.Load()
	labels := maps.Clone(settings.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels["node"] = m.Node
	firing := map[string]Alert{}
	var all []Alert
	told := func(a Alert) bool { return m.firing[a.Identity()].Labels != nil }
	for _, a := range unsilenced(m.engine.Alerts(labels), told) {
		if id := a.Identity(); firing[id].Labels == nil {
			firing[id] = a
			all = append(all, a)
		}
	}
	for id, a := range m.firing {
		if firing[id].Labels == nil {
			a.Ends = now
			all = append(all, a)
		}
	}
	m.firing = firing
	if m.Tell != nil && len(all) > 0 {
		m.Tell(all)
	}
}

// An ack is an operator's acknowledgement.
type ack struct {
	check  string
	entity incident.Entity
	who    string
	result chan error
}

// Ack clears a latched fault, or accepts a setting or a missing GPU as the
// normal state. Only root may call it: the caller checks that, and passes the
// name of the user.
func (m *Monitor) Ack(ctx context.Context, check string, entity incident.Entity, who string) error {
	a := ack{check, entity, who, make(chan error, 1)}
	select {
	case m.acks <- a:
		return <-a.result
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Monitor) acknowledge(a ack) error {
	now := time.Now()
	e, err := m.engine.Ack(a.check, a.entity, now)
	if err != nil {
		return err
	}
	if e.Check == missingCheck && m.Forget != nil && e.Entity.UUID != "" {
		m.Forget(e.Entity.UUID)
	}
	e.Message = "Acknowledged by " + a.who + "."
	m.record(e)
	m.dirty = true
	m.Log.Info("acknowledged", "check", e.Check, "entity", e.Entity.String(), "by", a.who)
	return nil
}
