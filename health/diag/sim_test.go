package diag

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/worker"
)

// A host is a simulated host in the form in which a child receives it. Its GPUs
// are healthy except for the listed faults.
type host struct {
	Real bool // no simulation

	Count    int
	Name     string
	NoDriver bool
	NoCUDA   bool
	Unfit    map[int]string
	Alone    bool
	Users    map[int][]int
	Brief    bool // users are gone at the second reading
	Taken    map[int]uint64
	Full     map[int]bool // no memory is free
	Old      map[int]bool // of a capability below the kernels'
	Lost     map[int]string

	WrongSM    map[int]int    // GPU: SM with a wrong sum
	WrongUnit  string         // the kind of arithmetic; empty: all
	StuckBit   map[int]uint64 // GPU: a word with bit 0 stuck at 1
	SlowPair   [2]int         // from, to
	NoPeer     bool
	SlowMemory map[int]bool
	SlowHost   map[int]bool
	Narrow     map[int]bool // half its PCIe lanes
	Deaf       bool         // XIDs are not reported
	LowClock   map[int]float64
	Hangs      map[int]Step
	Dies       map[int]Step
	Killed     map[int]Step
	XIDs       map[int][]uint64
	New        map[string]uint64 // errors that are counted during the test
}

// h200s returns a host of n GPUs.
func h200s(n int) host { return host{Count: n, Name: "NVIDIA H200"} }

// hostVariable tells a child which host to simulate.
const hostVariable = "GPUSTEWARD_TEST_DIAG_HOST"

func init() {
	worker.Register("simulate", func([]string) error {
		var h host
		if err := json.Unmarshal([]byte(os.Getenv(hostVariable)), &h); err != nil {
			return err
		}
		return follow(h.open)
	})
	worker.Register("parent", func([]string) error { // its children hold its tether
		Run(context.Background(), Options{Patience: time.Hour, children: does("simulate"),
			files: []*os.File{os.NewFile(3, "tether")}})
		return nil
	})
}

// does returns children that do registered work.
func does(work string) *worker.Kind {
	return &worker.Kind{Command: worker.Begins(work), Running: maxChildren, Children: maxChildren, Parting: parting}
}

// tether connects a child and its test on request: the test learns from it when
// a GPU hangs, and when all children have ended.
var tether = os.NewFile(5, "tether")

// options returns those of a test on the host.
func (h host) options(t testing.TB) Options {
	t.Helper()
	text := fixture.Value(json.Marshal(h))(t)
	return Options{Node: "node7", after: really, children: does("simulate"), environment: []string{hostVariable + "=" + string(text)}}
}

func (h host) open() (Driver, error) {
	if h.Real {
		return openDriver()
	}
	if h.NoDriver {
		return nil, errors.New("nvmlInit: library_not_found (install the NVIDIA driver)")
	}
	return &simulated{host: h}, nil
}

// simulated is the host's driver.
type simulated struct {
	host
	looks int
}

func (s *simulated) GPUs() (all []GPU, err error) {
	for i := range s.Count {
		g := GPU{
			Index: i, UUID: fmt.Sprint("GPU-", i), PCI: fmt.Sprintf("00000000:%02X:00.0", i), Name: s.Name,
			Unfit: s.Unfit[i], Alone: s.Alone, Taken: s.Taken[i], Fault: s.Lost[i],
		}
		if !s.Brief || s.looks == 0 {
			g.Users = s.Users[i]
		}
		all = append(all, g)
	}
	s.looks++
	return all, nil
}

// simulatedGPU has 4 SMs, and memory of a few words.
type simulatedGPU struct {
	*simulated
	i     int
	words []uint64
	told  bool
}

const (
	simulatedSMs   = 4
	simulatedAt    = 0x7f0000000000
	simulatedWords = 1000
)

func (s *simulated) Open(uuid string) (Device, error) {
	var i int
	if _, err := fmt.Sscanf(uuid, "GPU-%d", &i); err != nil {
		return nil, err
	}
	if s.NoCUDA {
		return nil, errNoCUDA
	}
	g := &simulatedGPU{simulated: s, i: i}
	g.in(Open)
	return g, nil
}

// in hangs or dies in the step in which the GPU must.
func (g *simulatedGPU) in(s Step) {
	switch s {
	case g.Hangs[g.i]:
		_, _ = tether.Write([]byte{1})
		time.Sleep(time.Hour)
	case g.Dies[g.i]:
		panic("the driver crashed")
	case g.Killed[g.i]:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

func (g *simulatedGPU) Facts() Facts {
	if g.Old[g.i] {
		return Facts{SMs: simulatedSMs, Capability: 61, Memory: 8 * simulatedWords}
	}
	return Facts{SMs: simulatedSMs, Capability: 90, Memory: 8 * simulatedWords}
}

func (g *simulatedGPU) Reserve() (uint64, error) {
	if g.Full[g.i] {
		return 0, unable("only 12 MiB of its memory are free")
	}
	g.words = make([]uint64, simulatedWords)
	return 8 * simulatedWords, nil
}

func (g *simulatedGPU) Release() error { g.words = nil; return nil }

func (g *simulatedGPU) Pattern(p Pattern, injure bool) (m misread, err error) {
	g.in(Memory)
	address := func(i int) uint64 { return simulatedAt + 8*uint64(i) }
	for i := range g.words {
		g.words[i] = p.Word(uint64(i), address(i))
	}
	if stuck, ok := g.StuckBit[g.i]; ok {
		g.words[stuck] |= 1
	}
	if injure {
		g.words[len(g.words)/2] ^= 4
	}
	m.Bytes = 8 * simulatedWords
	for i, got := range g.words {
		if want := p.Word(uint64(i), address(i)); got != want {
			if m.Errors++; len(m.First) < shownMisreads {
				m.First = append(m.First, badWord{address(i), want, got})
			}
		}
	}
	return m, nil
}

func (g *simulatedGPU) Products(u Unit, seed uint64, rounds, injured int) (t Tally, err error) {
	if g.in(Compute); rounds == math.MaxUint32 {
		_, _ = tether.Write([]byte{1})
		time.Sleep(time.Hour) // practically for ever
	}
	_, want := u.Numbers(seed)
	right := uint64(binary.LittleEndian.Uint32(want))
	t = Tally{Took: launch, Of: map[int]Sums{}}
	for sm := range simulatedSMs {
		s := Sums{Tiles: 16}
		if bad, ok := g.WrongSM[g.i]; sm == injured || ok && bad == sm && (g.WrongUnit == "" || g.WrongUnit == u.Name) {
			s.Wrong, s.Got, s.Want = 1, right^1, right
		}
		t.Of[sm] = s
	}
	time.Sleep(time.Millisecond) // work takes time
	return t, nil
}

// rate returns a rate of bytes per second.
func rate(bytes float64) Rate { return Rate{uint64(bytes), time.Second} }

func (g *simulatedGPU) Copy(way Way, _ time.Duration) (Rate, error) {
	g.in(map[bool]Step{true: Bandwidth, false: Copies}[way == Within])
	switch {
	case way == Within && g.SlowMemory[g.i]:
		return rate(1.5e12), nil
	case way == Within:
		return rate(2.15e12), nil
	case g.SlowHost[g.i]:
		return rate(12e9), nil
	}
	return rate(54e9), nil
}

func (s *simulated) Between(from, to Device, _ time.Duration) (Rate, error) {
	from.(*simulatedGPU).in(Pairs)
	f, t := from.(*simulatedGPU).i, to.(*simulatedGPU).i
	switch {
	case s.NoPeer:
		return Rate{}, errNoPeer
	case s.SlowPair == [2]int{f, t} && f != t:
		return rate(120e9), nil
	}
	return rate(370e9), nil
}

func (g *simulatedGPU) Vitals() Vitals {
	v := Vitals{
		Clock: 1.98e9, MostClock: 1.98e9, Power: 600, Limit: 700, Celsius: 55,
		Generation: 5, MostGeneration: 5, Width: 16, MostWidth: 16,
	}
	if low, ok := g.LowClock[g.i]; ok {
		v.Clock = low
	}
	if g.Narrow[g.i] {
		v.Width = 8
	}
	return v
}

func (g *simulatedGPU) Record() Record {
	r := Record{Deaf: g.Deaf, Counters: map[string]uint64{"uncorrected ECC errors": 3, "corrected ECC errors": 100}}
	for range 18 {
		r.Links = append(r.Links, Link{Rate: 25e9})
	}
	if g.told {
		r.XIDs = g.XIDs[g.i]
		for name, n := range g.New {
			r.Counters[name] += n
		}
	}
	g.told = true
	return r
}
