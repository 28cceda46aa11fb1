package health

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// A site is a host with healthy GPUs and rough days, like those of fleets. A row of testdata/world/styles.tsv describes
// it. The same style and seed make the same site.
type site struct {
	r      *rand.Rand
	style  worldRow
	boards []*board
	slots  []*slot
	gauges []gauge
	out    []collectors.Sample

	clock  time.Duration // never set
	shift  time.Duration // of the wall clock
	boot   int
	booted time.Duration // time of the boot
	later  []timer
	fine   time.Duration // until then the agent passes every 2 s

	driver, drained bool
	generation      float64
	starved         time.Duration // until then the agent hardly runs
	warm            float64       // degrees, of the aisle
	starts          []string      // what ended the agent before this pass: "upgrade" or "reboot"

	seen     []func(*Monitor) // events until the next pass
	sequence uint64
	pid      int
	jobs     int
	people   map[int]*person // by PID
	profiled bool            // another tool has the counters of the pipes

	enforces  bool // an enforcer gives tenants their quotas
	shadow    float64
	tenancies []*tenancy

	ports  []port
	broken []*breakage
	blocks float64
	one    float64
}

// A port is a port of an RDMA adapter.
type port struct{ up, downed float64 }

// A person is a user's process, remembered for a while after its end.
type person struct {
	host.Process
	boards []*board
	until  time.Time // when it left the boards; zero while it has them
}

// stays returns the processes on a board.
func (s *site) stays(uuid string) (all []collectors.Stay) {
	for _, p := range s.people {
		if slices.ContainsFunc(p.boards, func(b *board) bool { return b.uuid == uuid }) {
			all = append(all, collectors.Stay{Process: p.Process, Until: p.until})
		}
	}
	slices.SortFunc(all, func(a, b collectors.Stay) int { return a.Process.PID - b.Process.PID })
	return all
}

// A timer is a planned event.
type timer struct {
	at time.Duration
	do func()
}

// sitesBegin is the beginning of every site.
var sitesBegin = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// newSite returns a site before its first pass.
func newSite(style worldRow, seed uint64) *site {
	s := &site{r: rand.New(rand.NewPCG(seed, 17)), style: style, driver: true, generation: 1, pid: 2000,
		people: map[int]*person{}, one: 1}
	s.clock = time.Duration(s.r.IntN(24)) * time.Hour
	kinds := strings.Fields(style["boards"])
	row := worldRowOf("boards", "board", kinds[seed%uint64(len(kinds))])
	for i := range 8 {
		s.boards = append(s.boards, newBoard(s.r, row, i, seed))
	}
	if row.has("ib") {
		s.ports = make([]port, 8)
		for i := range s.ports {
			s.ports[i] = port{1, float64(s.r.IntN(5))}
		}
	}
	s.shown()
	s.employ(style["work"])
	for _, habits := range []string{worldTable("styles")[0]["habits"], style["habits"]} {
		for habit := range strings.FieldsSeq(habits) {
			name, rate, _ := strings.Cut(habit, "=")
			weekly, err := strconv.ParseFloat(rate, 64)
			if err != nil || habitsOf[name] == nil {
				panic("health: styles.tsv: " + habit)
			}
			if weekly == 0 { // permanent
				habitsOf[name](s)
				continue
			}
			s.often(weekly, habitsOf[name])
		}
	}
	return s
}

// now returns the time of the wall clock.
func (s *site) now() time.Time { return sitesBegin.Add(s.clock + s.shift) }

// bootID returns the kernel's.
func (s *site) bootID() string { return fmt.Sprintf("boot-%d", s.boot) }

// after plans an event.
func (s *site) after(d time.Duration, do func()) { s.later = append(s.later, timer{s.clock + d, do}) }

// often plans an event with a weekly rate.
func (s *site) often(weekly float64, do func(*site)) {
	s.after(time.Duration(s.r.ExpFloat64()/weekly*float64(7*day)), func() {
		do(s)
		s.often(weekly, do)
	})
}

// some returns a random time between two.
func (s *site) some(least, most time.Duration) time.Duration {
	return least + time.Duration(s.r.Float64()*float64(most-least))
}

// chance reports true in percent of its calls.
func (s *site) chance(percent float64) bool { return 100*s.r.Float64() < percent }

// any returns one of the boards.
func (s *site) any() *board { return s.boards[s.r.IntN(len(s.boards))] }

// aisle returns the warmth of the air above its base, by the hour and by the state of the hall's cooling.
func (s *site) aisle() float64 {
	return s.warm + math.Sin(2*math.Pi*(s.hour()-9)/24)
}

// hour returns the time of the day.
func (s *site) hour() float64 { return math.Mod(s.clock.Hours(), 24) }

// pass advances to the agent's next pass, and returns its samples, which are valid until the next pass. An agent passes
// each second; without events each tenth pass is enough.
func (s *site) pass() []collectors.Sample {
	gap := step - s.clock%step
	switch {
	case s.clock < s.starved:
		gap = s.some(3*time.Second, 14*time.Second)
	case s.clock < s.fine:
		gap = min(gap, 2*time.Second)
	}
	end := s.clock + gap
	for {
		at, n := end, -1
		for i, t := range s.later {
			if t.at <= at {
				at, n = t.at, i
			}
		}
		if n < 0 {
			break
		}
		do := s.later[n].do
		s.later = append(s.later[:n], s.later[n+1:]...)
		s.goOn(max(at, s.clock))
		do()
		end = max(end, s.clock)
	}
	s.goOn(end)
	return s.show()
}

// goOn advances to at.
func (s *site) goOn(at time.Duration) {
	dt := at - s.clock
	if dt <= 0 {
		return
	}
	s.clock = at
	for _, b := range s.boards {
		b.want, b.held, b.residents = need{}, 0, 0
	}
	for _, l := range s.slots {
		l.work(s, dt)
	}
	for _, b := range s.boards {
		b.advance(s, dt)
	}
	if s.enforces && s.driver {
		s.enforce(dt)
	}
}

// attend makes the agent pass often for a while, for events that are over within seconds.
func (s *site) attend(d time.Duration) { s.fine = max(s.fine, s.clock+d) }

// log adds the lines of a name to the kernel's log. They may name an owner.
func (s *site) log(name string, b *board, words ...string) {
	for _, row := range worldTable("lines") {
		if row["lines"] == name {
			s.line(row["text"], b, words...)
		}
	}
}

// line adds a line to the kernel's log.
func (s *site) line(text string, b *board, words ...string) {
	if b != nil {
		words = append(words, "{pci}", b.pci, "{port}", strings.Replace(b.pci, ":00", ":01", 1)+".0")
	}
	s.sequence++
	r := host.Record{Priority: 4, Sequence: s.sequence, Time: s.now(), Text: strings.NewReplacer(words...).Replace(text)}
	s.seen = append(s.seen, func(m *Monitor) { m.line(r) })
}

// xid makes a board report an XID, to the driver's listeners and in the kernel's log.
func (s *site) xid(code int, b *board, pid int, comm string) {
	name := fmt.Sprint("xid ", code)
	words := []string{"{pid}", fmt.Sprint(pid), "{comm}", comm, "{code}", fmt.Sprint(code)}
	if worldLines[name] {
		s.log(name, b, words...)
	} else {
		s.log("xid", b, words...)
	}
	s.event("xid", uint64(code), b)
}

// worldLines are the names of lines.
var worldLines = func() map[string]bool {
	all := map[string]bool{}
	for _, row := range worldTable("lines") {
		all[row["lines"]] = true
	}
	return all
}()

// event sends an event to the driver's listeners, if the agent is one.
func (s *site) event(kind string, code uint64, b *board) {
	index, _ := strconv.Atoi(b.gpu)
	e := collectors.Event{Time: s.now(), GPU: gpu.ID{Index: index, UUID: b.uuid, PCI: b.pci}, Type: kind, Code: code}
	if s.driver && b.silent == "" && b.away == "" {
		s.seen = append(s.seen, func(m *Monitor) { m.Event(e) })
	}
}
