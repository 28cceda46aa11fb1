package steps

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/binary"
	"io"
	"math"
	"testing"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

//go:embed testdata/*.trace.gz
var traces embed.FS

// real reads a trace of a real program with the times of the script's own timer. It holds, as varints: the numbers of
// events, of different events and of steps; the different events; of each event the time since the one before, in µs,
// and which of the different ones it is; and the time at which the first step began and each ended.
func real(t *testing.T, name string) *world {
	t.Helper()
	packed := fixture.Value(traces.ReadFile("testdata/" + name + ".trace.gz"))(t)
	z := fixture.Value(gzip.NewReader(bytes.NewReader(packed)))(t)
	all := fixture.Value(io.ReadAll(z))(t)
	raw := bytes.NewReader(all)
	number := func() int64 {
		n := fixture.Value(binary.ReadUvarint(raw))(t)
		return int64(n)
	}
	const began = 1e12
	w := &world{events: make([]wire.Event, number())}
	different, steps := make([]wire.Event, number()), number()
	for i := range different {
		different[i] = wire.Event{Kind: wire.EventKind(number()), GPU: uint8(number()), Thread: uint16(number()),
			ID: uint32(number())}
	}
	now := int64(began)
	for i := range w.events {
		now += us * func() int64 { n := number(); return n>>1 ^ -(n & 1) }()
		w.events[i].At = now
	}
	for i := range w.events {
		at := w.events[i].At
		w.events[i] = different[number()]
		w.events[i].At = at
	}
	now = began + us*number()
	for range steps {
		step := span{begin: now, end: now + us*number()}
		w.truth = append(w.truth, step)
		now = step.end
	}
	return w
}

// TestTraces: the steps of real programs are found, and no others. The traces were recorded on an H100 that five
// programs shared at a time, or, if they are named so, on an H100 or H200 that each had alone. Steps differ much from
// each other there, and so do medians of a few that begin elsewhere: the error of a single step says more.
func TestTraces(t *testing.T) {
	t.Parallel()
	for name, tolerance := range map[string]struct{ median, single float64 }{
		"accumulate": {0.003, 0.001}, "compiled": {0.003, 0.001}, "eager": {0.003, 0.001}, "gpt2": {0.003, 0.001},
		"graph": {0.003, 0.001}, "jax": {0.01, 0.01}, "loader": {0.1, 0.001}, "queue": {0.003, 0.002},
		"tenth": {0.003, 0.0025}, "trainer": {0.02, 0.02}, "triton": {0.003, 0.001}, "gan": {0.003, 0.002},
		"padding": {0.003, 0.001}, "amp": {0.003, 0.01},
		"alone-accumulate": {0.003, 0.001}, "alone-gan": {0.01, 0.002}, "alone-jax": {0.003, 0.01},
		"alone-loader": {0.03, 0.001}, "alone-queue": {0.02, 0.002}, "alone-tenth": {0.003, 0.003},
		"alone-trainer": {0.006, 0.005},

		"endless": {}, "notebook": {}, "requests": {}, "decode": {},
	} {
		w := real(t, name)
		r := judge(w)
		t.Logf("%-16s found after %2d of %4d  median %+6.3f %%  p99 %+6.2f %%  single %.2f %%  counted %.3f  stepping %.2f",
			name, r.found, len(w.truth), 100*r.median, 100*r.p99, 100*r.single, r.counted, r.stepping)
		fixture.If(t, len(w.truth) == 0 && (r.remaining > 0 || r.stepping > 0), "%s: %d steps", name, r.remaining)
		fixture.If(t, len(w.truth) > 0 && (r.found > 20 || math.Abs(r.median) > tolerance.median || r.single > tolerance.single ||
			math.Abs(r.counted-1) > 0.03), "%s: %+v", name, r)
	}
}

// TestTrainerStepsOn: a log each ten steps and a short evaluation each fifty make no longer
// step, however long it goes on, and whatever its kernels are called.
func TestTrainerStepsOn(t *testing.T) {
	t.Parallel()
	const period, periods = 50, 10
	recorded := real(t, "alone-trainer")
	steps := recorded.truth[:period]
	from, length := steps[0].begin, steps[period-1].end-steps[0].begin
	for seed := range uint32(4) {
		var w world
		for k := range int64(periods) {
			for _, s := range steps {
				w.truth = append(w.truth, span{s.begin + k*length, s.end + k*length})
			}
			for _, e := range recorded.events {
				if e.At < from || e.At >= from+length {
					continue
				}
				e.At += k * length
				if e.Kind == wire.EventLaunch {
					e.ID = mix(e.ID ^ seed)
				}
				w.events = append(w.events, e)
			}
		}
		if r := judge(&w); r.found > 20 || math.Abs(r.median) > 0.005 || math.Abs(r.counted-1) > 0.01 {
			t.Errorf("names %d: %+v", seed, r)
		}
	}
}
