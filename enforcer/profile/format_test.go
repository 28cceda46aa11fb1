package profile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"gpusteward/internal/fixture"
)

const add = "_ZN2at3addILi4EEEvi"

func constructed() *Profile {
	return &Profile{PID: 4711, Comm: "python3", Tenant: "a", Workload: "slurm:1.0", Began: time.Unix(100, 5), Seconds: 2.5,
		Launches: 160, Lost: 7, Kernels: []Kernel{{add, false, "GPU-a", 100, 9, 0.012, 0.02, 1.2, 0.75},
			{add, false, "GPU-b", 50, 3, 0.008, 250e-6, 0.4, 0.25}, {Name: "graph 0000002a", GPU: "GPU-a", Launches: 10}}}
}

func TestTable(t *testing.T) {
	table := func(p *Profile) string {
		var b bytes.Buffer
		fixture.Must(t, p.Table(&b))
		return strings.Join(strings.Fields(b.String()), " ")
	}
	p := constructed()
	fixture.Equal(t, table(p), "python3 (pid 4711), tenant a, workload slurm:1.0: 2.5 s, 160 launches 7 events were lost before "+
		"they were read: their launches are missing SHARE TIME LAUNCHES SAMPLES MEAN P99 GPU KERNEL 75.0 % 1.20 s 100 9 "+
		"12.00 ms 20.00 ms GPU-a at::add<4> 25.0 % 400.00 ms 50 3 8.00 ms 250.0 µs GPU-b at::add<4> "+
		"- - 10 0 - - GPU-a graph 0000002a", "the table")
	p.Lost, p.Kernels = 0, p.Kernels[2:]
	fixture.Contains(t, table(p), "160 launches no launch was timed, and the times are unknown", "too few launches")
	for i := range mostRows + 2 {
		p.Kernels = append(p.Kernels, Kernel{Name: fmt.Sprint("k", i), GPU: "GPU-a", Launches: 2, Samples: 1, Total: 1, Share: 0.04})
	}
	fixture.Contains(t, table(p), "P99 KERNEL - - 10 0", "one GPU")
	fixture.Contains(t, table(p), "k18 12.0 % 3.00 s 6 3 - - 3 more", "the rest")
	p.Launches, p.Kernels = 0, nil
	fixture.Contains(t, table(p), "timed: the program launched nothing in this time", "without a launch")
}

func TestPprof(t *testing.T) {
	var b bytes.Buffer
	fixture.Must(t, constructed().Pprof(&b))
	p := fixture.Value(pprof.Parse(&b))(t)
	fixture.Must(t, p.CheckValid())
	got := fmt.Sprintln(*p.SampleType[0], *p.SampleType[1], p.DefaultSampleType, p.TimeNanos, p.DurationNanos, p.Comments)
	for _, s := range p.Sample {
		leaf, root := s.Location[0].Line[0].Function, s.Location[1].Line[0].Function
		got += fmt.Sprintln(s.Value, root.Name, leaf.Name, leaf.SystemName, s.Location[0].ID, s.Label)
	}
	const labels = " map[pid:[4711] workload:[slurm:1.0]]\n"
	fixture.Equal(t, got, "{launches count 0 0} {gpu nanoseconds 0 0} gpu 100000000005 2500000000 "+
		"[7 events were lost: their launches are missing]\n[100 1200000000] GPU-a at::add<4> "+add+" 1"+labels+
		"[50 400000000] GPU-b at::add<4> "+add+" 1"+labels+"[10 0] GPU-a graph 0000002a graph 0000002a 4"+labels, "the profile")
}

func TestTrace(t *testing.T) {
	p := constructed()
	p.Spans = []Span{{SpanLaunch, add, 0.5, 0, 3, "GPU-a"}, {SpanKernel, add, 0.5, 0.25, 0, "GPU-a"},
		{SpanBusy, "", -0.1, 0.5, 0, "GPU-a"}, {SpanBusy, "", 0.3, 0.2, 0, "GPU-a"}, {SpanWait, "", 0.6, 0.0015, 3, ""},
		{SpanKernel, "overlapping", 0.7, 0.1, 0, "GPU-a"}, {SpanKernel, "later", 0.8, 0.1, 0, "GPU-a"}}
	var b bytes.Buffer
	fixture.Must(t, p.Trace(&b))
	var got struct{ TraceEvents []event }
	fixture.Must(t, json.Unmarshal(b.Bytes(), &got))
	tracks, all := map[int]any{}, ""
	for _, e := range got.TraceEvents {
		if e.Name == "thread_name" || e.Name == "process_name" {
			tracks[e.TID] = e.Args["name"]
		} else if e.Phase != "M" {
			all += fmt.Sprintln(e.PID, tracks[0], tracks[e.TID], e.Phase+e.Scope, e.Category, e.Name, e.At, e.Duration)
		}
	}
	fixture.Equal(t, strings.ReplaceAll(all, "4711 python3 ", ""), `GPU-a busy X busy busy 0 400000
GPU-a busy X busy busy 400000 100000
GPU-a X kernel at::add<4> 500000 250000
thread 3 it launch at::add<4> 500000 0
thread 3 X wait wait 600000 1500
GPU-a (2) X kernel overlapping 700000 100000
GPU-a X kernel later 800000 100000
`, "events")
	fixture.Contains(t, b.String(), `"args":{"gpu":"GPU-a","name":"`+add+`"}`, "the mangled name")
	full := fixture.Value(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	for _, err := range []error{p.Table(full), p.Pprof(full), p.Trace(full)} {
		fixture.Fails(t, err, "no space", "on a full disk")
	}
}
