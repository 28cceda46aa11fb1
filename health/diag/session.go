package diag

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// An Order tells a child what to do next.
type Order struct {
	Step  Step
	GPU   string        // UUID
	Peer  string        // of a pair
	For   time.Duration // for each kind, approximately
	Fault Fault
}

// A Fault is injected on purpose. Tests check that it is found.
type Fault string

// The faults.
const (
	WrongSM  Fault = "wrong-sm"  // SM 1 computes wrong sums
	WrongBit Fault = "wrong-bit" // a word of memory changes
	LowClock Fault = "low-clock" // clocks are read as half of what they are
	Hang     Fault = "hang"      // Compute never ends
)

// injuredSM is the number of the SM that WrongSM injures.
const injuredSM = 1

// A Reading is the result of a step on one GPU.
type Reading struct {
	GPUs    []GPU                 `json:",omitempty"`
	Facts   *Facts                `json:",omitempty"`
	Record  *Record               `json:",omitempty"`
	Memory  *memoryReading        `json:",omitempty"`
	Units   map[string]*unitTally `json:",omitempty"` // by name
	Load    []Vitals              `json:",omitempty"` // over time
	Rates   map[Way]Rate          `json:",omitempty"`
	Link    *Vitals               `json:",omitempty"` // under load
	Skipped string                `json:",omitempty"` // why it could not be done, which is nobody's fault
	Between *Rate                 `json:",omitempty"`
	Error   string                `json:",omitempty"`
}

// failure returns the reason why the step failed, as an error.
func (r Reading) failure() error {
	if r.Error == "" {
		return nil
	}
	return errors.New(r.Error)
}

// memoryReading is the result of all patterns.
type memoryReading struct {
	Bytes  uint64 // of memory
	Passes int
	Errors uint64
	First  []badWord
	In     Pattern // of First
}

// A unitTally is the result of a kind of arithmetic on a GPU.
type unitTally struct {
	Took       time.Duration
	Operations float64
	Of         map[int]Sums
}

// Work carries out orders until there are no more, and answers each with a Reading. Each order is
// a line of JSON. Work runs in a child: if the driver hangs or crashes, the parent goes on.
func Work(orders io.Reader, answers io.Writer, open func() (Driver, error)) error {
	runtime.LockOSThread() // a CUDA context belongs to a thread
	// A thread that ends with its goroutine would take the children with it that it has started.
	defer runtime.UnlockOSThread()
	s := session{open: open, devices: map[string]Device{}}
	in, out := json.NewDecoder(orders), json.NewEncoder(answers)
	for {
		var o Order
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an order: %w", err)
		}
		r, err := s.do(o)
		switch {
		case errors.As(err, new(unable)):
			r.Skipped = err.Error()
		case err != nil:
			r.Error = err.Error()
		}
		if err := out.Encode(r); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

// A session is a process's use of the driver.
type session struct {
	open    func() (Driver, error)
	driver  Driver
	devices map[string]Device
}

func (s *session) do(o Order) (r Reading, err error) {
	if s.driver == nil {
		if s.driver, err = s.open(); err != nil {
			return r, err
		}
	}
	if o.Step == Survey {
		r.GPUs, err = s.driver.GPUs()
		return r, err
	}
	d, ok := s.devices[o.GPU]
	if !ok {
		if d, err = s.driver.Open(o.GPU); err != nil {
			return r, err
		}
		s.devices[o.GPU] = d
	}
	switch o.Step {
	case Open:
		facts, record := d.Facts(), d.Record()
		r.Facts, r.Record = &facts, &record
		if facts.Capability < oldest {
			err = unable(fmt.Sprintf("its compute capability is %d.%d, the kernels need %d.%d",
				facts.Capability/10, facts.Capability%10, oldest/10, oldest%10))
		}
	case Memory:
		r.Memory, err = patterns(d, o)
	case Compute:
		r.Units = map[string]*unitTally{}
		for _, u := range Units {
			if u.Capability <= d.Facts().Capability {
				tally, wrong := sums(d, u, o)
				r.Units[u.Name], err = tally, errors.Join(err, wrong)
			}
		}
	case Load:
		r.Units = map[string]*unitTally{}
		r.Load, r.Units[Units[0].Name], err = load(d, o)
	case Bandwidth:
		r.Rates, _, err = copies(d, o.For, Within)
	case Copies:
		r.Rates, r.Link, err = copies(d, o.For, FromHost, ToHost)
	case Pairs:
		var rate Rate
		rate, err = s.between(d, o)
		r.Between = &rate
	case Close:
		record := d.Record()
		r.Record = &record
	}
	return r, err
}

// oldest is the lowest compute capability on which the kernels run.
const oldest = 70

// between copies from one GPU to another.
func (s *session) between(from Device, o Order) (Rate, error) {
	to, ok := s.devices[o.Peer]
	if !ok {
		return Rate{}, fmt.Errorf("%s was not opened", o.Peer)
	}
	return s.driver.Between(from, to, o.For)
}

// patterns writes and reads cycles of patterns until the time is over. It always completes one.
func patterns(d Device, o Order) (m *memoryReading, err error) {
	m = new(memoryReading)
	if m.Bytes, err = d.Reserve(); err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, d.Release()) }()
	begin := time.Now()
	for n := uint64(0); n == 0 || time.Since(begin) < o.For; n++ {
		for _, p := range cycle(n) {
			found, err := d.Pattern(p, o.Fault == WrongBit && n == 0 && p.Kind == Walking)
			if err != nil {
				return m, err
			}
			m.Passes++
			if m.Errors += found.Errors; len(m.First) == 0 && len(found.First) > 0 {
				m.First, m.In = found.First, p
			}
		}
	}
	return m, nil
}

// launch is the intended duration of a launch of products: long enough to be measured well, and
// short enough to wait for.
const launch = 20 * time.Millisecond

// sums lets a unit work until the time is over. Each launch has its own numbers.
func sums(d Device, u Unit, o Order) (*unitTally, error) {
	t := &unitTally{Of: map[int]Sums{}}
	injured := -1
	if o.Fault == WrongSM {
		injured = injuredSM
	}
	rounds, begin := 256, time.Now()
	if o.Fault == Hang {
		rounds = math.MaxUint32
	}
	for n := uint64(0); n < 3 || time.Since(begin) < o.For; n++ {
		one, err := d.Products(u, n, rounds, injured)
		if err != nil {
			return t, err
		}
		t.add(u, one, rounds)
		if one.Took > 0 {
			rounds = max(1, min(1<<24, int(float64(rounds)*float64(launch)/float64(one.Took))))
		}
	}
	return t, nil
}

// add counts a launch. The speed of a short launch, such as the first one, says nothing.
func (t *unitTally) add(u Unit, one Tally, rounds int) {
	for _, sm := range slices.Sorted(maps.Keys(one.Of)) {
		s := one.Of[sm]
		all := t.Of[sm]
		if all.Wrong == 0 {
			all.Got, all.Want = s.Got, s.Want
		}
		all.Tiles, all.Wrong = all.Tiles+s.Tiles, all.Wrong+s.Wrong
		t.Of[sm] = all
		if one.Took > launch/4 {
			t.Operations += float64(s.Tiles) * u.operations(rounds)
		}
	}
	if one.Took > launch/4 {
		t.Took += one.Took
	}
}

// glances is the least number of looks at a GPU under load. slowly is the longest time between
// two of them.
const (
	glances = 8
	slowly  = time.Second / 4
)

// load lets the tensor cores work, and reads clocks and power meanwhile.
func load(d Device, o Order) (seen []Vitals, t *unitTally, err error) {
	ended, enough, looked := make(chan struct{}), make(chan struct{}), make(chan struct{})
	every, low := min(slowly, o.For/glances), o.Fault == LowClock
	go func() {
		defer close(looked)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				v := d.Vitals()
				if low {
					v.Clock /= 2
				}
				if seen = append(seen, v); len(seen) == glances {
					close(enough)
				}
			}
		}
	}()
	for done := false; !done && err == nil; {
		var more *unitTally
		more, err = sums(d, Units[0], o)
		t = t.and(more)
		select {
		case <-enough:
			done = true
		default:
			o.For /= glances
		}
	}
	close(ended)
	<-looked
	return seen, t, err
}

// copies measures copies each way, and the link during the last one.
func copies(d Device, most time.Duration, ways ...Way) (map[Way]Rate, *Vitals, error) {
	rates := map[Way]Rate{}
	var link Vitals
	for _, way := range ways {
		rate, err := d.Copy(way, most)
		if err != nil {
			return rates, nil, fmt.Errorf("copy, %s: %w", strings.ToLower(string(way)), err)
		}
		rates[way] = rate
		link = d.Vitals() // a link that saves power has not slowed down yet
	}
	return rates, &link, nil
}
