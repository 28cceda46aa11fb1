package exporter

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/internal/fixture"
)

// using returns a GPU with a known power and no other value.
func using(index int, watts float64) GPU {
	return GPU{Index: index, UUID: fmt.Sprint("GPU-", index), Power: &watts}
}

// wantPoints fails unless these are the last points of the series.
func wantPoints(t *testing.T, p Points, want ...float64) {
	t.Helper()
	fixture.Need(t, len(p), historyPoints, "points")
	fixture.Equal(t, fmt.Sprint([]float32(p[len(p)-len(want):])), fmt.Sprint(want), "the last points")
}

func TestHistoryKeepsTheLastQuarterOfAnHour(t *testing.T) {
	var h history
	nan := math.NaN()
	h.add(noon, []GPU{using(0, 100)}, nil)
	h.add(noon.Add(4*time.Second), []GPU{using(0, 999)}, nil) // the same step: the last reading counts
	h.add(noon.Add(5*time.Second), []GPU{using(0, 101)}, nil)
	h.add(noon.Add(20*time.Second), []GPU{using(0, 102), using(1, 50)}, nil) // the steps between are unknown
	all := h.all()
	fixture.Stop(t, len(all.GPUs) != 2 || !all.End.Equal(noon.Add(20*time.Second)) || all.Step != 5,
		"the history is %d GPUs until %v", len(all.GPUs), all.End)
	wantPoints(t, all.GPUs[0].Series["power_watts"], nan, 999, 101, nan, nan, 102)
	wantPoints(t, all.GPUs[1].Series["power_watts"], nan, nan, 50)
	wantPoints(t, all.GPUs[0].Series["sm_ratio"], nan, nan, nan, nan)
	for i := range historyPoints * 2 { // around the ring, twice
		h.add(noon.Add(20*time.Second+time.Duration(i+1)*historyStep), []GPU{using(0, float64(i))}, nil)
	}
	all = h.all()
	fixture.Equal(t, len(all.GPUs), 1, "a GPU that is gone for half an hour is kept: %v", all.GPUs)
	p := all.GPUs[0].Series["power_watts"]
	for i, v := range p {
		fixture.Need(t, v, float32(historyPoints+i), "point %d is", i)
	}
	h.add(all.End.Add(time.Hour), []GPU{using(0, 7)}, nil) // a host that slept
	wantPoints(t, h.all().GPUs[0].Series["power_watts"], nan, nan, 7)
	for _, v := range h.all().GPUs[0].Series["power_watts"][:historyPoints-1] {
		fixture.Need(t, math.IsNaN(float64(v)), true, "the value before an hour of sleep is %v: it is none", v)
	}
	h.add(noon.Add(-time.Hour), []GPU{using(0, 2)}, nil) // the clock is set back: times come twice
	wantPoints(t, h.all().GPUs[0].Series["power_watts"], nan, 2)
	fixture.Equal(t, h.all().End, noon.Add(-time.Hour), "it ends at")
}

// The memory of the history is bounded, even if GPUs come and go.
func TestHistoryIsBounded(t *testing.T) {
	var h history
	for i := range 100 {
		var gpus []GPU
		for n := range 8 {
			gpus = append(gpus, using(8*i+n, 1))
		}
		h.add(noon.Add(time.Duration(i)*historyStep), gpus, nil)
	}
	fixture.Equal(t, len(h.all().GPUs), historyGPUs, "GPUs kept")
	h.add(noon.Add(time.Hour), []GPU{using(900, 1)}, nil)
	if all := h.all().GPUs; len(all) != 1 || all[0].Index != 900 || len(h.gpus) != historyGPUs {
		t.Errorf("GPUs that are gone leave no room: %d are shown, %d are kept", len(all), len(h.gpus))
	}
	h.add(noon.Add(26*time.Hour), []GPU{using(900, 1)}, nil)
	fixture.Equal(t, len(h.gpus), 1, "GPUs kept that are gone for a day")
}

// The bytes of a GPU and of a job with a whole day are those that the documentation has.
func TestHistoryTakesItsBytes(t *testing.T) {
	ring := int(unsafe.Sizeof([historyPoints]float32{}) + unsafe.Sizeof([dayHours]*[60]float32{}) +
		dayHours*unsafe.Sizeof([60]float32{}))
	size := func(series int) int { return series*ring + int(unsafe.Sizeof([dayHours]int64{})) }
	gpu, job := size(len(historySeries)), size(len(jobSeries))
	t.Logf("a GPU takes %d bytes, a job %d, and the most of both %d", gpu, job, historyGPUs*gpu+historyJobs*job)
	fixture.If(t, gpu > 82<<10 || job > 48<<10 || historyGPUs*gpu+historyJobs*job > 81<<20/10,
		"a GPU takes %d bytes and a job %d", gpu, job)
}

// wantDay fails unless these are the last minutes.
func wantDay(t *testing.T, d Day, end time.Time, want ...float64) {
	t.Helper()
	p := d.Series["power_watts"]
	fixture.Stop(t, len(p) != dayMinutes || !d.End.Equal(end) || d.Step != 60,
		"the day has %d points until %v", len(p), d.End)
	fixture.Need(t, fmt.Sprint([]float32(p[len(p)-len(want):])), fmt.Sprint(want), "the last minutes")
}

// A minute is the mean of its known steps. A gap stays one, also if the host slept, and the day turns around.
func TestHistoryKeepsADay(t *testing.T) {
	h, nan := new(history), math.NaN()
	at := func(d time.Duration, watts float64) { h.add(noon.Add(d), []GPU{using(0, watts)}, nil) }
	at(0, 100)
	at(30*time.Second, 200)
	at(time.Minute, 40)
	wantDay(t, h.ofDay("GPU-0", ""), noon, nan, 150)
	at(40*time.Minute, 7) // it slept
	at(41*time.Minute, 8)
	d := h.ofDay("GPU-0", "")
	wantDay(t, d, noon.Add(40*time.Minute), nan, nan, 7)
	if p := d.Series["power_watts"]; p[dayMinutes-1-40] != 150 || p[dayMinutes-1-39] != 40 || p[dayMinutes-1-38] == p[dayMinutes-1-38] {
		t.Errorf("before it slept: %v", p[dayMinutes-1-41:])
	}
	for m := range 2 * dayMinutes {
		at(42*time.Minute+time.Duration(m)*time.Minute, float64(m))
	}
	last := 42*time.Minute + time.Duration(2*dayMinutes-1)*time.Minute
	d = h.ofDay("GPU-0", "")
	for i, v := range d.Series["power_watts"] {
		fixture.Need(t, v, float32(dayMinutes-1+i), "minute %d is", i)
	}
	at(last-2*time.Hour, 5) // the clock was set back: earlier hours stay
	d = h.ofDay("GPU-0", "")
	wantDay(t, d, noon.Add(last-2*time.Hour-time.Minute), nan)
	p := d.Series["power_watts"]
	fixture.If(t, p[dayMinutes-120] != p[dayMinutes-120], "the hours before a clock was set back are forgotten")
	if d := h.ofDay("GPU-1", ""); len(d.Series) != 0 {
		t.Errorf("an unknown GPU has %v", d.Series)
	}
}

// listsGPU0 lists GPU 0 under the UUID GPU-0.
func listsGPU0(o *Options) {
	o.Samples = func() []collectors.Sample {
		return []collectors.Sample{{Metric: collectors.Up, Labels: []string{"0", "GPU-0"}}}
	}
}

// TestDayIsServed answers for a GPU or a workload, and for nothing else.
func TestDayIsServed(t *testing.T) {
	s := server(t, listsGPU0)
	half := .5
	job := Workload{Name: "a b", Steps: &Steps{Seconds: 2, Goodput: &half}}
	for m := range 3 {
		s.live.history.add(noon.Add(time.Duration(m)*time.Minute), []GPU{using(0, float64(m))}, []Workload{job})
	}
	for query, want := range map[string]string{
		"?gpu=GPU-0":      `"power_watts":[null,`,
		"?gpu=0":          `"power_watts":[null,`,
		"?workload=a%20b": `,2,2]`,
	} {
		wantAnswer(t, request(s, http.MethodGet, "/api/v1/history/day"+query), http.StatusOK, want)
	}
	for _, query := range []string{"?gpu=9", "?gpu=GPU-9"} {
		wantAnswer(t, request(s, http.MethodGet, "/api/v1/history/day"+query), http.StatusNotFound, `"; the host has 0`)
	}
	for _, query := range []string{"", "?gpu=", "?gpu=a&gpu=b", "?gpu=a&workload=b", "?node=a"} {
		fixture.Equal(t, request(s, http.MethodGet, "/api/v1/history/day"+query).Code, http.StatusBadRequest,
			"%q is answered with", query)
	}
}

// TestHistoryOfJobs keeps the steps of workloads that have some, and of no more than fit.
func TestHistoryOfJobs(t *testing.T) {
	var h history
	half, nan := .5, math.NaN()
	one := func(name string, seconds float64) Workload {
		return Workload{Name: name, Steps: &Steps{Seconds: seconds, Parts: byLabel{"host": seconds / 4}, Goodput: &half}}
	}
	h.add(noon, nil, []Workload{one("b", 2), one("a", 1), {Name: "server"}})
	h.add(noon.Add(2*historyStep), nil, []Workload{one("b", 0)})
	all := h.all().Jobs
	fixture.Stop(t, len(all) != 2 || all[0].Workload != "a" || all[1].Workload != "b",
		"the history has the jobs %+v", all)
	wantPoints(t, all[1].Series["step_seconds"], nan, 2, nan, nan)
	wantPoints(t, all[1].Series["host_seconds"], nan, .5, nan, 0)
	wantPoints(t, all[1].Series["waiting_seconds"], nan, nan, nan, nan)
	wantPoints(t, all[1].Series["goodput_ratio"], nan, .5, nan, .5)
	wantPoints(t, all[0].Series["step_seconds"], nan, 1, nan, nan)
	var many []Workload
	for i := range historyJobs + 9 {
		many = append(many, one(fmt.Sprint(i), 1))
	}
	h.add(noon.Add(time.Hour), nil, many)
	fixture.Equal(t, len(h.all().Jobs), historyJobs, "jobs kept")
	none, inf := float32(math.NaN()), float32(math.Inf(1))
	text, err := json.Marshal(Points{none, 0, .87596, 658.856, 70135906304, inf, -3})
	want := `[null,0,0.876,658.9,7.014e+10,null,-3]`
	fixture.If(t, err != nil || string(text) != want, "%s, %v; want %s", text, err, want)
}

// The server keeps the history with or without viewers, and takes samples no more often than needed.
func TestHistoryIsKeptByTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		s := server(t, func(o *Options) {
			o.Samples = func() []collectors.Sample {
				n := asked.Add(1)
				return []collectors.Sample{{Metric: device.Power, Labels: []string{"0", "GPU-0", "average", "gpu"},
					Value: float64(n)}}
			}
		})
		fixture.Running(t, s.live.run)
		time.Sleep(20*historyStep + historyStep/2)
		synctest.Wait()
		n := asked.Load()
		fixture.If(t, n < 20 || n > 21, "asked for samples %d times in 20 steps", n)
		w := request(s, http.MethodGet, "/api/v1/history")
		if want := fmt.Sprintf(`%d,%d]`, n-1, n); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("the history, answered with %d, lacks %s", w.Code, want)
		}
		if h := w.Header(); h.Get("Content-Type") != "application/json" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("the history has the headers %v", h)
		}
		fixture.Contains(t, w.Body.String(), `"sm_ratio":[null,null,`, "an unknown value is not null: %s", w.Body)
	})
}
