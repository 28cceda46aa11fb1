package collectors_test

import (
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
)

// An smiRow maps one of nvidia-smi's elements to one of our series.
type smiRow struct {
	path      string
	series    seriesRef         // without a metric: the note gives the reason
	scale     float64           // one of nvidia-smi's units in ours
	words     map[string]string // instead of scale: a word's value in ours; "absent": no series; "*": any other word
	tolerance float64           // in our unit
	note      string
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

// smiTable reads testdata/nvidia-smi.tsv.
func smiTable(t testing.TB) []smiRow {
	t.Helper()
	var rows []smiRow
	for _, c := range readTable(t, "nvidia-smi.tsv", "path", "series", "scale", "tolerance", "note") {
		r := smiRow{path: c[0], note: c[4]}
		if c[1] != "" {
			var err error
			if r.series, err = parseRef(c[1]); err != nil {
				t.Errorf("nvidia-smi.tsv: %s: %v", r.path, err)
				continue
			}
			if r.scale, err = strconv.ParseFloat(c[2], 64); err != nil && c[2] != "" {
				r.words = map[string]string{}
				for pair := range strings.SplitSeq(c[2], ",") {
					word, ours, ok := strings.Cut(pair, "=")
					if !ok {
						t.Errorf("nvidia-smi.tsv: %s: %q is neither a scale nor word=value", r.path, pair)
					}
					r.words[word] = ours
				}
			} else if (c[2] == "") != (r.series.label != "") {
				t.Errorf("nvidia-smi.tsv: %s: a value has a scale, a label has none or words: %q", r.path, c[2])
			}
			if r.tolerance, err = strconv.ParseFloat(c[3], 64); err != nil || r.tolerance < 0 {
				t.Errorf("nvidia-smi.tsv: %s: the tolerance is %q", r.path, c[3])
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// An smiGPU is nvidia-smi's output for one GPU: the texts of each leaf.
type smiGPU struct {
	uuid   string
	values map[string][]string
}

type smiNode struct {
	XMLName xml.Name
	Text    string    `xml:",chardata"`
	Nodes   []smiNode `xml:",any"`
}

func (n smiNode) leaves(path string, into map[string][]string) {
	for _, c := range n.Nodes {
		at := strings.TrimPrefix(path+"/"+c.XMLName.Local, "/")
		if len(c.Nodes) == 0 {
			into[at] = append(into[at], strings.TrimSpace(c.Text))
		}
		c.leaves(at, into)
	}
}

// parseSMI parses the output of "nvidia-smi -q -x". Elements above the GPUs are
// part of each GPU.
func parseSMI(text []byte) ([]smiGPU, error) {
	var root smiNode
	if err := xml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("parse nvidia-smi's XML: %w", err)
	}
	isGPU := func(n smiNode) bool { return n.XMLName.Local == "gpu" }
	above := smiNode{Nodes: slices.DeleteFunc(slices.Clone(root.Nodes), isGPU)}
	var gpus []smiGPU
	for _, n := range root.Nodes {
		if isGPU(n) {
			g := smiGPU{values: map[string][]string{}}
			above.leaves("", g.values)
			n.leaves("", g.values)
			g.uuid = strings.Join(g.values["uuid"], "")
			gpus = append(gpus, g)
		}
	}
	if len(gpus) == 0 {
		return nil, fmt.Errorf("nvidia-smi's XML has no GPU")
	}
	return gpus, nil
}

// compareSMI returns where our readings disagree with nvidia-smi. A value of it
// must be one of ours, or lie between the lowest and the highest of ours, give
// or take the tolerance. If nvidia-smi has N/A, our series must be absent, or
// the label empty, unless the row's words map N/A.
func compareSMI(text []byte, rows []smiRow, readings ...[]collectors.Sample) ([]difference, error) {
	all, err := evaluateSMI(text, rows, readings...)
	return slices.DeleteFunc(all, func(d difference) bool { return d.agrees }), err
}

// evaluateSMI returns every mapped row of every GPU, whether it agrees or not.
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

// agrees reports whether want is one of ours, or lies between them, within the
// tolerance.
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

func recordedSMI(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/nvidia-smi-h100.xml")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const recordedUUID = "GPU-00000000-0000-0000-0000-000000000001"

// TestCompareSMI compares a recording of nvidia-smi (a clock of 1410 MHz, capped
// by power, no fan) with readings of ours, of which the last came after it.
func TestCompareSMI(t *testing.T) {
	rows := map[string]smiRow{}
	for _, r := range smiTable(t) {
		rows[r.path] = r
	}
	of := func(m *collectors.Metric, v float64, labels ...string) []collectors.Sample {
		return []collectors.Sample{{Metric: m, Labels: append([]string{"0", recordedUUID}, labels...), Value: v}}
	}
	clock := func(hertz float64) []collectors.Sample { return of(device.Clock, hertz, "sm") }
	info := func(architecture string) []collectors.Sample {
		return of(device.Info, 1, append([]string{"", "", architecture}, make([]string, 10)...)...)
	}
	for _, c := range []struct {
		path     string
		readings [][]collectors.Sample
		want     string // of the difference; "": none
	}{
		{"clocks/sm_clock", [][]collectors.Sample{clock(1.41e9)}, ""},
		{"clocks/sm_clock", [][]collectors.Sample{clock(1410)}, "should be 1.41e+09; it is 1410"},
		{"clocks/sm_clock", [][]collectors.Sample{nil}, "it is absent"},
		{"clocks/sm_clock", [][]collectors.Sample{clock(1.2e9), clock(1.8e9)}, ""}, // it may have risen
		{"clocks/sm_clock", [][]collectors.Sample{clock(1.5e9), clock(1.8e9)}, "it is 1.5e+09 to 1.8e+09"},
		{"fb_memory_usage/used", [][]collectors.Sample{of(device.MemoryBytes, 1139.9*(1<<20), "used")}, ""},
		{"fb_memory_usage/used", [][]collectors.Sample{of(device.MemoryBytes, 1141*(1<<20), "used")}, "it is 1.196425216e+09"},
		{"fan_speed", [][]collectors.Sample{nil}, ""},
		{"fan_speed", [][]collectors.Sample{of(device.FanSpeed, 0, "0")}, "should be absent; it is 0"},
		{"product_architecture", [][]collectors.Sample{info("Hopper")}, ""},
		{"product_architecture", [][]collectors.Sample{info("Ampere")}, "should be Hopper; it is Ampere"},
		{"cc_protected_memory_usage/total",
			[][]collectors.Sample{append(of(device.CCMemory, 3<<20, "used"), of(device.CCMemory, 5<<20, "free")...)},
			"it is 8.388608e+06"},
		{"c2c_mode", [][]collectors.Sample{of(links.C2CUp, 1, "0")}, "should be absent; it is 1"},
	} {
		found, err := compareSMI(recordedSMI(t), []smiRow{rows[c.path]}, c.readings...)
		if err != nil || (len(found) == 0) != (c.want == "") || !strings.Contains(fmt.Sprint(found), c.want) {
			t.Errorf("%s: differs by %v, want %q: %v", c.path, found, c.want, err)
		}
	}
	if _, err := compareSMI([]byte("<nvidia_smi_log></nvidia_smi_log>"), nil); err == nil {
		t.Error("an answer without a GPU agrees")
	}
}
