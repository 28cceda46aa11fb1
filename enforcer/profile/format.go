package profile

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
	"time"

	pprof "github.com/google/pprof/profile"

	"gpusteward/enforcer/symbol"
)

// mostRows is the most kernels that Table has a row for.
const mostRows = 20

// Table writes the kernels for people, those with the most time first.
func (p *Profile) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s (pid %d), tenant %s, workload %s: %.1f s, %d launches\n", cmp.Or(p.Comm, "unknown"), p.PID, p.Tenant,
		cmp.Or(p.Workload, "unknown"), p.Seconds, p.Launches)
	if p.Lost > 0 {
		fmt.Fprintf(w, "%d events were lost before they were read: their launches are missing\n", p.Lost)
	}
	samples, gpus := 0, map[string]bool{}
	for _, k := range p.Kernels {
		samples += k.Samples
		gpus[k.GPU] = true
	}
	switch {
	case samples > 0:
	case p.Launches == 0:
		fmt.Fprintln(w, "no launch was timed: the program launched nothing in this time")
	default:
		fmt.Fprintln(w, "no launch was timed, and the times are unknown: one launch in many is timed, and these were too few; "+
			"a longer --seconds may help")
	}
	if len(p.Kernels) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	gpu := func(name string) string { // a column if there is more than one
		if len(gpus) < 2 {
			return ""
		}
		return cmp.Or(name, "-") + "\t"
	}
	fmt.Fprintf(t, "\nSHARE\tTIME\tLAUNCHES\tSAMPLES\tMEAN\tP99\t%sKERNEL\n", gpu("GPU"))
	row := func(k Kernel, name string) {
		known := func(text string, is bool) string {
			if is {
				return text
			}
			return "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s%s\n", known(percent(k.Share), k.Samples > 0),
			known(span(k.Total), k.Samples > 0), k.Launches, k.Samples, known(span(k.Mean), k.Mean > 0),
			known(span(k.P99), k.P99 > 0), gpu(k.GPU), name)
	}
	var rest Kernel
	for i, k := range p.Kernels {
		if i < mostRows {
			row(k, symbol.Long(k.Name))
			continue
		}
		rest.Share, rest.Total = rest.Share+k.Share, rest.Total+k.Total
		rest.Launches, rest.Samples = rest.Launches+k.Launches, rest.Samples+k.Samples
	}
	if n := len(p.Kernels) - mostRows; n > 0 {
		row(rest, fmt.Sprintf("%d more", n))
	}
	return t.Flush()
}

func percent(part float64) string { return fmt.Sprintf("%.1f %%", 100*part) }

// span returns seconds for people.
func span(seconds float64) string {
	switch {
	case seconds < 1e-3:
		return fmt.Sprintf("%.1f µs", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.2f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.2f s", seconds)
}

// Pprof writes the profile for pprof: a sample for each kernel, which a frame for its GPU has called.
func (p *Profile) Pprof(w io.Writer) error {
	out := &pprof.Profile{
		SampleType:        []*pprof.ValueType{{Type: "launches", Unit: "count"}, {Type: "gpu", Unit: "nanoseconds"}},
		DefaultSampleType: "gpu",
		TimeNanos:         p.Began.UnixNano(),
		DurationNanos:     nanoseconds(p.Seconds),
		// Else pprof looks for a file of this name, and for the names in it.
		Mapping: []*pprof.Mapping{{ID: 1, File: cmp.Or(p.Comm, "unknown"), HasFunctions: true}},
	}
	if p.Lost > 0 {
		out.Comments = append(out.Comments, fmt.Sprintf("%d events were lost: their launches are missing", p.Lost))
	}
	frames := map[string]*pprof.Location{}
	frame := func(name, mangled string) *pprof.Location {
		if l := frames[mangled]; l != nil {
			return l
		}
		id := uint64(len(out.Location) + 1)
		f := &pprof.Function{ID: id, Name: name, SystemName: mangled}
		l := &pprof.Location{ID: id, Mapping: out.Mapping[0], Line: []pprof.Line{{Function: f}}}
		out.Function, out.Location, frames[mangled] = append(out.Function, f), append(out.Location, l), l
		return l
	}
	labels := map[string][]string{"pid": {strconv.Itoa(p.PID)}}
	if p.Workload != "" {
		labels["workload"] = []string{p.Workload}
	}
	for _, k := range p.Kernels {
		gpu := cmp.Or(k.GPU, "unknown GPU")
		out.Sample = append(out.Sample, &pprof.Sample{
			Location: []*pprof.Location{frame(symbol.Long(k.Name), k.Name), frame(gpu, gpu)},
			Value:    []int64{int64(k.Launches), nanoseconds(k.Total)},
			Label:    labels,
		})
	}
	if err := out.CheckValid(); err != nil {
		return fmt.Errorf("write for pprof: %w", err)
	}
	return out.Write(w)
}

func nanoseconds(seconds float64) int64 { return int64(math.Round(seconds * float64(time.Second))) }
