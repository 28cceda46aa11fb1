//go:build gpu

package collectors_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/host"
	"gpusteward/internal/fixture"
)

// TestGPUParity compares our readings of this host's GPUs with nvidia-smi, idle and under load.
func TestGPUParity(t *testing.T) {
	h := realHost(t)
	t.Run("idle", func(t *testing.T) { holdAgainstSMI(t, h) })
	t.Run("loaded", func(t *testing.T) {
		load(t)
		fixture.Until(t, time.Minute, "a GPU is busy", func() bool {
			return slices.ContainsFunc(h.Samples(), func(s collectors.Sample) bool {
				return s.Metric == activity.Utilization && s.Labels[2] == "gpu" && s.Value > .9
			})
		})
		holdAgainstSMI(t, h)
	})
}

// realHost reads this machine's GPUs with every collector that nvidia-smi can check, once a second.
func realHost(t *testing.T) *collectors.Host {
	t.Helper()
	config := collectors.Config{Fast: time.Second, Medium: time.Second, Slow: time.Second,
		Enable: []string{"clocks_app", "pcie_throughput"}}
	fixture.Must(t, config.Validate())
	proc := fixture.Value(host.ProcFS("/proc"))(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	h := collectors.NewHost(collectors.Options{NVML: nvml.New(), Config: config, Log: log,
		Processes: host.NewTable(host.Options{Proc: proc, Log: log})})
	fixture.Running(t, h.Run)
	fixture.Until(t, 30*time.Second, "the host is ready", func() bool { return h.Ready() == nil })
	// GPM needs two samples, and the first window is short.
	read := time.Now()
	fixture.Until(t, 30*time.Second, "three seconds of GPM have been read", func() bool {
		return time.Since(read) > 3*time.Second && slices.ContainsFunc(h.Samples(), func(s collectors.Sample) bool {
			return s.Metric == activity.GPMWindow || s.Metric == collectors.Unsupported && s.Labels[2] == activity.GPMWindow.Name
		})
	})
	return h
}

// lookAtSMI returns the output of nvidia-smi, and what we read from before it
// looked until every collector has read again.
func lookAtSMI(t *testing.T, h *collectors.Host) (text []byte, readings [][]collectors.Sample) {
	t.Helper()
	readings = append(readings, h.Samples())
	ended := make(chan error, 1)
	go func() {
		var err error
		text, err = exec.Command("nvidia-smi", "-q", "-x").Output()
		ended <- err
	}()
	var looked time.Time
	fixture.Until(t, time.Minute, "nvidia-smi has looked, and we have read since", func() bool {
		readings = append(readings, h.Samples())
		if !looked.IsZero() {
			return !slices.ContainsFunc(h.Passes(), func(p collectors.Pass) bool {
				return p.Collector.Tier != collectors.Static && p.Began.Before(looked)
			})
		}
		select {
		case err := <-ended:
			fixture.Need(t, err != nil, false, "run nvidia-smi: %v", err)
			looked = time.Now()
		default:
		}
		return false
	})
	return text, append(readings, h.Samples())
}

// holdAgainstSMI compares what nvidia-smi shows with our readings around it.
func holdAgainstSMI(t *testing.T, h *collectors.Host) {
	t.Helper()
	rows := smiTable(t)
	text, readings := lookAtSMI(t, h)
	all := fixture.Value(evaluateSMI(text, rows, readings...))(t)
	slices.SortFunc(all, func(a, b difference) int { return strings.Compare(a.uuid+a.path, b.uuid+b.path) })
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, d := range all {
		fmt.Fprintf(w, "%v\t%s\t%s\t%s\t%s\t%s\n", map[bool]string{true: "ok", false: "DIFFERS"}[d.agrees], d.path,
			d.smi, d.want, d.ours, d.series)
		fixture.Equal(t, d.agrees, true, "%s %v", d.uuid, d)
	}
	w.Flush()
	t.Logf("nvidia-smi's path, its text, the same in our unit, ours, our series:\n%s", table.String())
	logUnmapped(t, text, rows)
	fixture.If(t, len(all) == 0, "nothing was compared")
}

// logUnmapped logs what nvidia-smi shows and the table does not mention.
func logUnmapped(t *testing.T, text []byte, rows []smiRow) {
	t.Helper()
	known := map[string]bool{}
	for _, r := range rows {
		for p := r.path; p != "." && !known[p]; p = path.Dir(p) {
			known[p] = true // and its parent, which can be empty
		}
	}
	gpus := fixture.Value(parseSMI(text))(t)
	for _, g := range gpus {
		for p := range g.values {
			if !known[p] {
				t.Logf("nvidia-smi shows %s, for which nvidia-smi.tsv has no row", p)
				known[p] = true
			}
		}
	}
}

// matmul keeps the first GPU at its power limit.
const matmul = `
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.time() + 25
while time.time() < end:
    for _ in range(20): b = a @ a
    torch.cuda.synchronize()
`

// load runs matmul during the test, for at most 25 seconds.
func load(t *testing.T) {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import torch; assert torch.cuda.is_available()").CombinedOutput()
	fixture.Stop(t, err != nil, "the load needs python3 with torch: %v: %s", err, out)
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, "python3", "-c", matmul)
	c.Stdout, c.Stderr = t.Output(), t.Output()
	if err := c.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		c.Wait()
	})
}

// A difference compares nvidia-smi and our series for one element.
type difference struct {
	uuid, path, series string
	smi, want, ours    string // nvidia-smi's text, its value in our unit, and our value
	agrees             bool   // with one of our readings, or with what lies between them
}

func (d difference) String() string {
	return fmt.Sprintf("%s: nvidia-smi has %q, so %s should be %s; it is %s", d.path, d.smi, d.series, d.want, d.ours)
}

// absentSeries is the value of a missing series.
const absentSeries = "absent"

// evaluateSMI compares every mapped row of every GPU. A value of nvidia-smi must be one of ours, or lie between the
// lowest and the highest of ours, give or take the tolerance. If nvidia-smi has N/A, our series must be absent, or the
// label empty, unless the row's words map N/A.
func evaluateSMI(text []byte, rows []smiRow, readings ...[]collectors.Sample) ([]difference, error) {
	gpus, err := parseSMI(text)
	var all []difference
	for _, g := range gpus {
		for _, r := range rows {
			if texts := g.values[r.path]; r.series.metric != nil && len(texts) > 0 {
				ours := make([]string, len(readings))
				for i, samples := range readings {
					ours[i] = r.series.find(samples, g.uuid)
				}
				d := difference{uuid: g.uuid, path: r.path, series: r.series.text, smi: texts[0], want: r.want(texts[0])}
				d.ours, d.agrees = span(ours), r.agrees(d.want, ours)
				all = append(all, d)
			}
		}
	}
	return all, err
}

var leadingNumber = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?`)

// want converts nvidia-smi's text to our terms.
func (r smiRow) want(smi string) string {
	word, ok := r.words[smi]
	if !ok && smi != "N/A" {
		word, ok = r.words["*"]
	}
	switch {
	case ok:
		return word
	case smi == "N/A":
		return absentSeries
	case r.words != nil:
		return "a word of the table"
	case r.series.label != "":
		return smi
	}
	v, err := strconv.ParseFloat(leadingNumber.FindString(smi), 64)
	if err != nil {
		return "a number"
	}
	return strconv.FormatFloat(v*r.scale, 'g', -1, 64)
}

// agrees reports whether want is one of ours, or lies between them, within the tolerance.
func (r smiRow) agrees(want string, ours []string) bool {
	if slices.Contains(ours, want) {
		return true
	}
	v, err := strconv.ParseFloat(want, 64)
	low, high := bounds(ours)
	margin := r.tolerance + 1e-9*math.Abs(v)
	return err == nil && r.series.label == "" && v >= low-margin && v <= high+margin
}

// bounds returns the lowest and the highest number among values.
func bounds(values []string) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, text := range values {
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			low, high = min(low, v), max(high, v)
		}
	}
	return low, high
}

// span names values that differ by their bounds, or else one by one.
func span(values []string) string {
	distinct := slices.Compact(slices.Sorted(slices.Values(values)))
	if low, high := bounds(values); low < high {
		return fmt.Sprintf("%g to %g", low, high)
	}
	return strings.Join(distinct, " or ")
}

// find returns the value of the series or of its label as text.
func (r seriesRef) find(samples []collectors.Sample, uuid string) string {
	best, found := collectors.Sample{}, 0
	for _, s := range samples {
		if s.Metric != r.metric || r.ofGPU() && s.Labels[1] != uuid || !r.matches(s) {
			continue
		}
		if found++; r.sum && found > 1 {
			best.Value += s.Value
		} else if r.label == "" || found == 1 || s.Value > best.Value {
			best = s
		}
	}
	switch {
	case found == 0:
		return absentSeries
	case r.label == "" && !r.sum && found > 1:
		return fmt.Sprintf("%d series", found)
	case r.label == "":
		return strconv.FormatFloat(best.Value, 'g', -1, 64)
	}
	if v := best.Labels[slices.Index(r.metric.Labels, r.label)]; v != "" {
		return v
	}
	return absentSeries
}

func (r seriesRef) matches(s collectors.Sample) bool {
	for i, name := range r.metric.Labels {
		if want, ok := r.match[name]; ok && s.Labels[i] != want {
			return false
		}
	}
	return true
}
