//go:build bench

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestFigures prints the cost of the agent on simulated hosts, by the number of
// GPUs and by the rate of scrapes. It includes the cost of the simulation.
func TestFigures(t *testing.T) {
	path := binary(t)
	if info, err := os.Stat(path); err != nil {
		t.Fatal(err)
	} else {
		fmt.Printf("binary %.1f MB stripped (goal 24)\n", float64(info.Size())/1e6)
		fixture.AtMost(t, info.Size(), 25e6, "the bytes of the binary")
	}
	for _, gpus := range []int{1, 2, 4, 8, 16} {
		file := filepath.Join(t.TempDir(), "scenario.yml")
		text := fmt.Sprintf("gpus: [{model: h100, load: training, count: %d}]\n", gpus)
		fixture.Must(t, os.WriteFile(file, []byte(text), 0o644))
		f := startMeasured(t, path, "--demo="+file).run(500*time.Millisecond, 15*time.Second)
		fmt.Printf("%2d GPUs, 2 scrapes/s: %v\n", gpus, f)
		if gpus == 8 && (f.p99 > 10*time.Millisecond || f.peak > 40) {
			t.Errorf("8 GPUs: p99 %v, peak %v MiB; goals 10 ms and 40 MiB", f.p99, f.peak)
		}
	}
	m := startMeasured(t, path, "--demo=mixed")
	for _, every := range []time.Duration{0, time.Second, 200 * time.Millisecond, 50 * time.Millisecond,
		20 * time.Millisecond} {
		rate := "no scrapes"
		if every > 0 {
			rate = fmt.Sprintf("%2.0f scrapes/s", 1/every.Seconds())
		}
		fmt.Printf(" 8 GPUs, %s: %v, %d driver calls/s\n", rate, m.run(every, 10*time.Second), m.calls())
	}
}

// calls returns how many NVML calls the agent made per second, over a medium
// tier.
func (m *measured) calls() int {
	count := func() (n int) {
		for line := range strings.Lines(m.scrape()) {
			if strings.HasPrefix(line, "gpusteward_nvml_calls_total{") {
				v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
				fixture.Must(m.t, err)
				n += int(v)
			}
		}
		return n
	}
	before := count()
	time.Sleep(10 * time.Second)
	return (count() - before) / 10
}
