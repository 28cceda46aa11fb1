package alerts

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

// TestRunbookAnchors compares the URLs in alerts with the runbook's headings, in both
// directions. GitHub derives an anchor from each heading.
func TestRunbookAnchors(t *testing.T) {
	t.Parallel()
	text := fixture.Value(os.ReadFile("RUNBOOK.md"))(t)
	sections := map[string]int{}
	for _, heading := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(text), -1) {
		sections[strings.ToLower(heading[1])]++
	}
	pointed := map[string]bool{}
	for _, r := range allRules() {
		_, at, _ := strings.Cut(r.annotations()[3][1], "#")
		if r.annotations()[3][0] != "runbook_url" || sections[at] != 1 {
			t.Errorf("%s points to #%s; the runbook has %d of it", r.alert, at, sections[at])
		}
		pointed[at] = true
	}
	for s := range sections {
		if !pointed[s] {
			t.Errorf("no alert points to the section %s of the runbook", s)
		}
	}
	for _, c := range health.Checks() { // the agent's alerts point there, too
		if c.Alert != "" && sections[strings.ToLower(c.Alert)] != 1 {
			t.Errorf("%s is not in the runbook", c.Alert)
		}
	}
}

// TestTextsDoNotRepeat holds that an alert does not say the same thing twice: its annotations,
// and the cause in the runbook. A description may say the summary again with a value in it.
func TestTextsDoNotRepeat(t *testing.T) {
	t.Parallel()
	causes := map[string]string{straggler.alert: straggler.cause}
	for _, f := range fleetRules() {
		causes[f.alert] = f.cause
	}
	for _, s := range serviceLevels {
		causes[s.alert] = s.cause
	}
	for _, r := range allRules() {
		summary := unplaced.ReplaceAllString(r.summary, "")
		texts := [][]string{{summary, r.action, causes[r.alert]}, {r.description, r.action, causes[r.alert]}}
		if !strings.Contains(r.description, "{{ ") {
			texts = append(texts, []string{summary, r.description})
		}
		for _, together := range texts {
			for _, pair := range fixture.Repeats(together...) {
				t.Errorf("%s says twice: %q", r.alert, pair)
			}
		}
	}
}

// TestRunbookSections looks into a section of each kind.
func TestRunbookSections(t *testing.T) {
	t.Parallel()
	text := runbook()
	for alert, want := range map[string][]string{
		"GPULost": {"**What it means.**", "**What to do.**", "**How to look.** Check `gpu_lost`.",
			"gpusteward ack gpu_lost", "| emergency |", "nvgpu_pci_device_present"},
		"GPUMemoryLeak": {"nvgpu_workload_memory_exhaustion_seconds` below 3600 | 6 of 6 in 1m",
			"at 7200"},
		"GPUSlowOutlier":   {"judgement", "20 of 24 in 4m"},
		"GPUStewardDown":   {"up{job=\"gpusteward\"} == 0", "| critical | for 15m |"},
		"FleetGPUsMissing": {"`nvgpu_devices`", "`nvgpu_devices_expected`", "`gpusteward_drained`"},
	} {
		_, section, _ := strings.Cut(text, "## "+alert+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, w := range want {
			fixture.Contains(t, section, w, "the section %s", alert)
		}
	}
}
