package diag

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

// A lab is the driver of a simulated host that takes time for its calls, and records them.
type lab struct {
	simulated
	facts   Facts
	pattern time.Duration // duration of a pass over memory
	product time.Duration // duration of a launch
	took    time.Duration // reported duration of a launch
	look    time.Duration // duration of reading vitals
	fails   map[string]error
	calls   []string
}

// newLab returns a lab of two GPUs.
func newLab() *lab {
	return &lab{
		simulated: simulated{host: h200s(2)}, facts: Facts{SMs: simulatedSMs, Capability: 90},
		pattern: time.Millisecond, product: 7 * time.Millisecond, took: launch, fails: map[string]error{},
	}
}

type labGPU struct {
	*simulatedGPU
	*lab
}

// call records a call, and returns its error.
func (l *lab) call(name, format string, args ...any) error {
	l.calls = append(l.calls, name+fmt.Sprintf(format, args...))
	return l.fails[name]
}

func (l *lab) Open(uuid string) (Device, error) {
	if err := l.call("open", " %s", uuid); err != nil {
		return nil, err
	}
	d, err := l.simulated.Open(uuid)
	if err != nil {
		return nil, err
	}
	return &labGPU{d.(*simulatedGPU), l}, nil
}

func (l *lab) Between(from, to Device, most time.Duration) (Rate, error) {
	return Rate{100, most}, l.call("between", " %d %d", from.(*labGPU).i, to.(*labGPU).i)
}

func (g *labGPU) Facts() Facts { return g.facts }

func (g *labGPU) Reserve() (uint64, error) {
	n, _ := g.simulatedGPU.Reserve()
	return n, g.call("reserve", "")
}

func (g *labGPU) Release() error { return g.call("release", "") }

func (g *labGPU) Pattern(p Pattern, injure bool) (misread, error) {
	time.Sleep(g.pattern)
	m, _ := g.simulatedGPU.Pattern(p, injure)
	return m, g.call("pattern", "")
}

func (g *labGPU) Products(u Unit, seed uint64, rounds, injured int) (Tally, error) {
	time.Sleep(g.product)
	t, _ := g.simulatedGPU.Products(u, seed, min(rounds, math.MaxInt32), injured)
	t.Took = g.took
	return t, g.call("products", " %s %d %d %d", u.Name, seed, rounds, injured)
}

func (g *labGPU) Copy(way Way, most time.Duration) (Rate, error) {
	return Rate{uint64(len(way)), most}, g.call("copy", " %s", way)
}

func (g *labGPU) Vitals() Vitals {
	time.Sleep(g.look)
	return g.simulatedGPU.Vitals()
}

func (g *labGPU) Record() Record { return g.simulatedGPU.Record() }

// work lets a child carry out orders.
func (l *lab) work(t *testing.T, orders ...Order) (readings []Reading) {
	t.Helper()
	var in, out bytes.Buffer
	for _, o := range orders {
		fixture.Must(t, json.NewEncoder(&in).Encode(o))
	}
	fixture.Must(t, Work(&in, &out, func() (Driver, error) { return l, l.call("driver", "") }))
	for d := json.NewDecoder(&out); ; {
		var r Reading
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			return readings
		} else if err != nil {
			t.Fatal(err)
		}
		readings = append(readings, r)
	}
}

func TestWorkerOpens(t *testing.T) {
	l := newLab()
	l.XIDs = map[int][]uint64{0: {94}}
	order := func(s Step) Order { return Order{Step: s, GPU: "GPU-0", For: time.Second, Peer: "GPU-1"} }
	all := l.work(t, Order{Step: Survey}, order(Open), order(Bandwidth), order(Copies), order(Pairs),
		Order{Step: Open, GPU: "GPU-1"}, order(Pairs), order(Close))
	got := all[0].GPUs
	fixture.If(t, len(got) != 2 || got[1].UUID != "GPU-1", "survey: %+v", got)
	if r := all[1]; r.Facts == nil || *r.Facts != l.facts || r.Record == nil || r.Record.XIDs != nil || r.Error != "" {
		t.Errorf("open: %+v", r)
	}
	if r := all[2]; !reflect.DeepEqual(r.Rates, map[Way]Rate{Within: {6, time.Second}}) || r.Link != nil {
		t.Errorf("bandwidth: %+v", r)
	}
	if r := all[3]; !reflect.DeepEqual(r.Rates, map[Way]Rate{FromHost: {11, time.Second}, ToHost: {11, time.Second}}) ||
		r.Link == nil || r.Link.Width != 16 {
		t.Errorf("copies: %+v", r)
	}
	fixture.Equal(t, all[4].Error, "GPU-1 was not opened", "a pair with a GPU that is not open")
	r := all[6]
	fixture.If(t, r.Error != "" || *r.Between != (Rate{100, time.Second}), "pairs: %+v", r)
	r = all[7]
	fixture.If(t, r.Record == nil || !slices.Equal(r.Record.XIDs, []uint64{94}), "close: %+v", r)
	want := "driver,open GPU-0,copy memory,copy host to GPU,copy GPU to host,open GPU-1,between 0 1"
	fixture.Equal(t, strings.Join(l.calls, ","), want, "calls")
}

// TestWorkerFails expects each failing call to be reported as its kind of failure.
func TestWorkerFails(t *testing.T) {
	t.Parallel()
	for call, step := range map[string]Step{
		"driver": Survey, "open": Open, "reserve": Memory, "pattern": Memory, "release": Memory, "products": Compute,
		"copy": Copies, "between": Pairs,
	} {
		for _, why := range []error{errors.New("no"), fmt.Errorf("here: %w", unable("not here"))} {
			synctest.Test(t, func(t *testing.T) {
				l := newLab()
				l.fails[call] = why
				all := l.work(t, Order{Step: step, GPU: "GPU-0", Peer: "GPU-0"})
				r := all[len(all)-1]
				told, other := r.Error, r.Skipped
				if errors.As(why, new(unable)) {
					told, other = other, told
				}
				fixture.If(t, !strings.Contains(told, why.Error()) || other != "",
					"%s: error %q, skipped %q", call, r.Error, r.Skipped)
				fixture.If(t, call == "copy" && told != "copy, host to gpu: "+why.Error(), "told %q", told)
			})
		}
	}
	l := newLab()
	l.fails["products"] = errors.New("no")
	fixture.Equal(t, l.work(t, Order{Step: Load, GPU: "GPU-0", For: time.Second})[0].Error, "no", "the load's error")
	fixture.Fails(t, Work(strings.NewReader("{"), io.Discard, nil), "read an order: ", "half an order")
	_, full := io.Pipe()
	_ = full.CloseWithError(io.ErrShortWrite)
	fixture.Fails(t, Work(strings.NewReader("{}"), full, func() (Driver, error) { return l, nil }), "answer: ", "unread")
}

func TestOldGPUs(t *testing.T) {
	for capability, want := range map[int]string{70: "", 69: "its compute capability is 6.9, the kernels need 7.0"} {
		l := newLab()
		l.facts.Capability = capability
		fixture.Equal(t, l.work(t, Order{Step: Open, GPU: "GPU-0"})[0].Skipped, want, "%d", capability)
	}
}

// TestMemoryTakesItsTime expects whole cycles until the time is over.
func TestMemoryTakesItsTime(t *testing.T) {
	for _, c := range []struct {
		most   time.Duration
		passes int
	}{{0, 6}, {6 * time.Millisecond, 6}, {6*time.Millisecond + 1, 12}, {18 * time.Millisecond, 18}} {
		synctest.Test(t, func(t *testing.T) {
			r := newLab().work(t, Order{Step: Memory, GPU: "GPU-0", For: c.most})[0]
			want := memoryReading{Bytes: 8 * simulatedWords, Passes: c.passes}
			if !reflect.DeepEqual(*r.Memory, want) {
				t.Errorf("%v: %+v, want %+v", c.most, *r.Memory, want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLab()
		r := l.work(t, Order{Step: Memory, GPU: "GPU-0", Fault: WrongBit, For: 10 * time.Millisecond})[0].Memory
		if r.Passes != 12 || r.Errors != 2 || len(r.First) != 1 || r.In != (Pattern{Kind: Walking}) {
			t.Errorf("a wrong bit: %+v", *r)
		}
		w := r.First[0]
		fixture.If(t, w.Address != simulatedAt+8*simulatedWords/2 || w.Got != w.Want^4, "the wrong word: %+v", w)
		fixture.Equal(t, l.calls[len(l.calls)-1], "release", "calls %q", l.calls)
	})
	synctest.Test(t, func(t *testing.T) {
		l := newLab()
		l.StuckBit = map[int]uint64{0: 500}
		r := l.work(t, Order{Step: Memory, GPU: "GPU-0"})[0].Memory
		if r.Errors != 3 || len(r.First) != 1 || r.In != (Pattern{Kind: OwnAddress}) {
			t.Errorf("a stuck bit: %+v", *r)
		}
	})
}

// TestComputeTakesItsTime expects at least three launches, and then as many as fit into the time.
func TestComputeTakesItsTime(t *testing.T) {
	for _, c := range []struct {
		most     time.Duration
		launches int
	}{{0, 3}, {24 * time.Millisecond, 3}, {24*time.Millisecond + 1, 4}, {80 * time.Millisecond, 10}} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab() // a launch takes 7 ms, and reports 1 ms like any simulated one
			l.facts.Capability = 75
			r := l.work(t, Order{Step: Compute, GPU: "GPU-0", For: c.most})[0]
			fixture.Equal(t, strings.Join(slices.Sorted(maps.Keys(r.Units)), " "), "fma_f32 fma_f64 tensor_f16 tensor_s8", "units")
			u := Units[0]
			want := unitTally{
				Took:       time.Duration(c.launches) * launch,
				Operations: float64(c.launches) * 16 * simulatedSMs * u.operations(256), Of: map[int]Sums{},
			}
			for sm := range simulatedSMs {
				want.Of[sm] = Sums{Tiles: 16 * uint64(c.launches)}
			}
			if got := r.Units[u.Name]; !reflect.DeepEqual(*got, want) {
				t.Errorf("%v: %+v, want %+v", c.most, *got, want)
			}
		})
	}
}

// TestLaunches expects launches long enough for a good measurement.
func TestLaunches(t *testing.T) {
	for _, c := range []struct {
		took  time.Duration
		fault Fault
		want  string // seed, rounds and injured SM of each
		timed bool   // they count for the speed
	}{
		{launch, "", "0 256 -1, 1 256 -1, 2 256 -1", true},
		{launch / 2, "", "0 256 -1, 1 512 -1, 2 1024 -1", true},
		{launch/4 + 1, "", "0 256 -1, 1 1023 -1, 2 4091 -1", true},
		{launch / 4, "", "0 256 -1, 1 1024 -1, 2 4096 -1", false},
		{1, "", "0 256 -1, 1 16777216 -1, 2 16777216 -1", false},
		{0, "", "0 256 -1, 1 256 -1, 2 256 -1", false},
		{time.Hour, "", "0 256 -1, 1 1 -1, 2 1 -1", true},
		{launch, WrongSM, "0 256 1, 1 256 1, 2 256 1", true},
		{launch, Hang, "0 4294967295 -1, 1 16777216 -1, 2 16777216 -1", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab()
			l.took = c.took
			d := fixture.Value(l.Open("GPU-0"))(t)
			l.calls = nil
			got, err := sums(d, Units[0], Order{Fault: c.fault})
			text := strings.ReplaceAll(strings.Join(l.calls, ", "), "products tensor_f16 ", "")
			fixture.If(t, err != nil || text != c.want, "%v: %s, %v; want %s", c.took, text, err, c.want)
			if took := map[bool]time.Duration{true: 3 * c.took}[c.timed]; got.Took != took ||
				(got.Operations > 0) != c.timed {
				t.Errorf("%v: took %v, want %v; %v operations", c.took, got.Took, took, got.Operations)
			}
			fixture.If(t, (got.Of[injuredSM].Wrong > 0) != (c.fault == WrongSM) || got.Of[0].Wrong > 0,
				"%v: %+v", c.fault, got.Of)
		})
	}
}

// TestTallyKeepsTheFirst expects the report to show the first wrong sum of an SM.
func TestTallyKeepsTheFirst(t *testing.T) {
	all := &unitTally{Of: map[int]Sums{}}
	for _, s := range []Sums{{Tiles: 1}, {Tiles: 2, Wrong: 1, Got: 3, Want: 4}, {Tiles: 4, Wrong: 2, Got: 5, Want: 6}} {
		all.add(Units[0], Tally{Took: launch, Of: map[int]Sums{7: s}}, 1)
	}
	fixture.Equal(t, all.Of[7], (Sums{Tiles: 7, Wrong: 3, Got: 3, Want: 4}), "it is")
	if want := 7 * Units[0].operations(1); all.Operations != want || all.Took != 3*launch {
		t.Errorf("%v operations in %v, want %v", all.Operations, all.Took, want)
	}
}

// TestLoadLooks expects frequent readings of a GPU while it works.
func TestLoadLooks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most, look time.Duration
		looks      int
		launches   int
	}{
		{90 * time.Millisecond, 0, 8, 12},                     // every 11.25 ms; a launch takes 8 ms
		{4100 * time.Millisecond, 0, 16, 513},                 // every 250 ms
		{1998 * time.Millisecond, 0, 8, 250},                  // every 249.75 ms
		{76 * time.Millisecond, 30 * time.Millisecond, 0, 34}, // readings that take longer than the load
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab()
			l.look = c.look
			r := l.work(t, Order{Step: Load, GPU: "GPU-0", For: c.most})[0]
			tally := r.Units["tensor_f16"]
			if c.looks > 0 && len(r.Load) != c.looks || len(r.Load) < glances || len(r.Units) != 1 ||
				tally.Took != time.Duration(c.launches)*launch {
				t.Errorf("%v: %d looks, %d units, %d launches", c.most, len(r.Load), len(r.Units), tally.Took/launch)
			}
			fixture.Equal(t, r.Load[0].Clock, 1.98e9, "the clock is")
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := newLab().work(t, Order{Step: Load, GPU: "GPU-0", For: 90 * time.Millisecond, Fault: LowClock})[0]
		fixture.Equal(t, r.Load[0].Clock, 0.99e9, "the low clock is")
	})
}
