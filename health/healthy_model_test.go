package health

import (
	_ "embed"
	"encoding/json"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// healthyModels are the values of healthy GPUs: levels of
// collectors/gpu/sim/models/models.json, which come from recordings, and the number
// of hosts in a hundred with the model.
//
//go:embed testdata/healthy.tsv
var healthyModels string

// A healthyModel is a row of healthyModels: numbers by column, and texts.
type healthyModel struct {
	number map[string]float64
	text   map[string]string
}

func (m *healthyModel) has(feature string) bool {
	return strings.Contains(" "+m.text["features"]+" ", " "+feature+" ")
}

// pickModel returns the model for a number from 0 to 1.
func pickModel(at float64) *healthyModel {
	lines := strings.Split(strings.TrimSpace(healthyModels), "\n")
	columns := strings.Split(lines[0], "\t")
	var m *healthyModel
	for _, line := range lines[1:] {
		m = &healthyModel{number: map[string]float64{}, text: map[string]string{}}
		for i, v := range strings.Split(line, "\t") {
			m.text[columns[i]] = v
			m.number[columns[i]], _ = strconv.ParseFloat(v, 64)
		}
		if at -= m.number["share"] / 100; at < 0 {
			break
		}
	}
	return m
}

// TestHealthyModelsAreTheSimulators compares the levels of healthy GPUs with
// those of the simulated host, which are compared with recordings.
func TestHealthyModelsAreTheSimulators(t *testing.T) {
	text, err := os.ReadFile("../collectors/gpu/sim/models/models.json")
	if err != nil {
		t.Fatal(err)
	}
	var profiles map[string]map[string]any
	if err := json.Unmarshal(text, &profiles); err != nil {
		t.Fatal(err)
	}
	for _, at := range []float64{0.1, 0.4, 0.6, 0.85, 0.95} {
		m := pickModel(at)
		for column, want := range m.number {
			group, name, nested := strings.Cut(column, ".")
			own, ok := profiles[m.text["model"]][column]
			if nested {
				in, _ := profiles[m.text["model"]][group].(map[string]any)
				own, ok = in[name]
			}
			if number, is := own.(float64); ok && is && number != want {
				t.Errorf("%s: %s is %g, the simulator has %g", m.text["model"], column, want, number)
			}
		}
	}
}

// recordedLevels returns the answers of NVML calls on a real H100, idle and
// loaded.
func recordedLevels(t *testing.T) map[string][2]float64 {
	t.Helper()
	text, err := os.ReadFile("../collectors/gpu/sim/testdata/nvml-calls-h100.tsv")
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string][2]float64{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == 8 {
			idle, err := strconv.ParseFloat(f[6], 64)
			loaded, lerr := strconv.ParseFloat(f[7], 64)
			if err == nil && lerr == nil {
				recorded[f[0]] = [2]float64{idle, loaded}
			}
		}
	}
	return recorded
}

// TestHealthyLevelsAreTheRecordings compares eight GPUs, idle and loaded, with
// the values of a real H100.
func TestHealthyLevelsAreTheRecordings(t *testing.T) {
	recorded := recordedLevels(t)
	for loaded, work := range []demand{{}, {busy: 1, sm: 0.95, tensor: 0.93, dram: 0.258}} {
		h := busyHost(false)
		h.jobs, h.era, h.hall = nil, 1<<40, 0
		j := h.job(func(h *healthyHost, j *job) { j.ask(h, work, 0.014) }, "unit", h.gpus...)
		for i := range j.bias {
			j.bias[i] = 1
		}
		var watts, clock, celsius float64
		for i := range 3 * 60 {
			h.step()
			for _, g := range h.gpus {
				if i >= 2*60 {
					watts, clock, celsius = watts+g.seen.average/480, clock+g.seen.clock/480e6, celsius+g.seen.core/480
				}
			}
		}
		for _, c := range []struct {
			what, call   string
			got, per, by float64
		}{{"W", "PowerUsage", 1000 * watts, 0.03, 0}, {"MHz", "ClockSM", clock, 0.04, 600 * float64(1-loaded)}, {"C",
			"Temperature", celsius, 0, 5}} {
			if want := recorded[c.call][loaded]; want == 0 || math.Abs(c.got-want) > c.per*want+c.by {
				t.Errorf("loaded %d: %g %s, a real one has %g", loaded, c.got, c.what, want)
			}
		}
	}
}
