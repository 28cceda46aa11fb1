package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"gpusteward/internal/fixture"
)

const add = "_ZN2at3addILi4EEEvi"

func constructed() *Profile {
	return &Profile{PID: 4711, Comm: "python3", Tenant: "a", Workload: "slurm:1.0", Began: time.Unix(100, 5), Seconds: 2.5,
		Launches: 160, Lost: 7, Kernels: []Kernel{
			{Name: add, GPU: "GPU-a", Launches: 100, Samples: 9, Mean: 0.012, P99: 0.02, Total: 1.2, Share: 0.75},
			{Name: add, GPU: "GPU-b", Launches: 50, Samples: 3, Mean: 0.008, P99: 250e-6, Total: 0.4, Share: 0.25},
			{Name: "graph 0000002a", Graph: true, GPU: "GPU-a", Launches: 10},
		}}
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
	text := table(p)
	fixture.Contains(t, text, "160 launches no launch was timed, and the times are unknown", "too few launches")
	fixture.Contains(t, text, "P99 KERNEL - - 10 0", "one GPU")
	for i := range mostRows + 2 {
		p.Kernels = append(p.Kernels, Kernel{Name: fmt.Sprint("k", i), Launches: 2, Samples: 1, Total: 1, Share: 0.04})
	}
	text = table(p)
	fixture.Contains(t, text, "k18 12.0 % 3.00 s 6 3 - - - 3 more", "the rest")
	p.Launches, p.Kernels = 0, nil
	fixture.Equal(t, strings.HasSuffix(table(p), "timed: the program launched nothing in this time"), true, "without a launch")
}

func TestPprof(t *testing.T) {
	var b bytes.Buffer
	fixture.Must(t, constructed().Pprof(&b))
	p := fixture.Value(pprof.Parse(&b))(t)
	fixture.Must(t, p.CheckValid())
	fixture.Equal(t, fmt.Sprintln(*p.SampleType[0], *p.SampleType[1], p.DefaultSampleType, p.TimeNanos, p.DurationNanos),
		"{launches count 0 0} {gpu nanoseconds 0 0} gpu 100000000005 2500000000\n", "types and times")
	fixture.EqualSlices(t, p.Comments, []string{"7 events were lost: their launches are missing"}, "comments")
	var all []string
	for _, s := range p.Sample {
		leaf, root := s.Location[0].Line[0].Function, s.Location[1].Line[0].Function
		all = append(all, fmt.Sprint(s.Value, " ", root.Name, " ", leaf.Name, " ", leaf.SystemName, s.Label))
	}
	const labels = "map[pid:[4711] workload:[slurm:1.0]]"
	fixture.EqualSlices(t, all, []string{"[100 1200000000] GPU-a at::add<4> " + add + labels,
		"[50 400000000] GPU-b at::add<4> " + add + labels, "[10 0] GPU-a graph 0000002a graph 0000002a" + labels}, "samples")
	fixture.Equal(t, len(p.Location), 4, "locations")
	fixture.Must(t, (&Profile{}).Pprof(&b))
}

func TestTrace(t *testing.T) {
	p := constructed()
	p.Spans = []Span{
		{Kind: SpanLaunch, Name: add, Start: 0.5, Thread: 3, GPU: "GPU-a"},
		{Kind: SpanKernel, Name: add, Start: 0.5, Seconds: 0.25, GPU: "GPU-a"},
		{Kind: SpanBusy, Start: 0.5, Seconds: 0.5, GPU: "GPU-a"},
		{Kind: SpanWait, Name: "stream", Start: 0.6, Seconds: 0.0015, Thread: 3},
		{Kind: SpanKernel, Name: "overlapping", Start: 0.7, Seconds: 0.1, GPU: "GPU-a"},
		{Kind: SpanKernel, Name: "later", Start: 0.8, Seconds: 0.1, GPU: "GPU-a"},
	}
	var b bytes.Buffer
	fixture.Must(t, p.Trace(&b))
	var got struct {
		TraceEvents []event
	}
	fixture.Must(t, json.Unmarshal(b.Bytes(), &got))
	rows, all := map[int]string{}, []string(nil)
	for _, e := range got.TraceEvents {
		fixture.Equal(t, e.PID, 4711, "%s: the process", e.Name)
		switch {
		case e.Name == "thread_name":
			rows[e.TID] = e.Args["name"].(string)
		case e.Name == "process_name":
			fixture.Equal(t, e.Args["name"], any("python3"), "the program")
		case e.Phase != "M":
			all = append(all, fmt.Sprint(e.Phase, e.Scope, " ", rows[e.TID], ": ", e.Category, " ", e.Name, " ", e.At, " ", e.Duration))
		}
	}
	slices.Sort(all)
	fixture.EqualSlices(t, all, []string{"X GPU-a (2): kernel overlapping 700000 100000", "X GPU-a: busy busy 500000 500000",
		"X GPU-a: kernel at::add<4> 500000 250000", "X GPU-a: kernel later 800000 100000",
		"X thread 3: wait stream 600000 1500", "it thread 3: launch at::add<4> 500000 0"}, "events")
	fixture.Contains(t, b.String(), `"args":{"gpu":"GPU-a","name":"`+add+`"}`, "the mangled name")
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestFormatsTellErrors(t *testing.T) {
	p := constructed()
	for _, err := range []error{p.Table(full{}), p.Pprof(full{}), p.Trace(full{})} {
		fixture.Fails(t, err, "no space", "on a full disk")
	}
}
