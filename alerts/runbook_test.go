package alerts

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"gpusteward/health"
	"gpusteward/health/incident"
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
		fixture.If(t, !pointed[s], "no alert points to the section %s of the runbook", s)
	}
	for _, c := range health.Checks() { // the agent's alerts point there, too
		fixture.If(t, c.Alert != "" && sections[strings.ToLower(c.Alert)] != 1, "%s is not in the runbook", c.Alert)
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
		fixture.If(t, r.description == "", "%s of %v lacks a sentence of its own: Rule", r.alert, r.severity)
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

// TestGolden compares the generated files with the checks, or writes them with -update. make
// generate does that.
func TestGolden(t *testing.T) { fixture.GoldenFiles(t, "*.yml", Files()) }

// TestServiceLevelsPageNobody holds that alerts about service levels stay below the severities
// that page, because checks page for the faults behind them.
func TestServiceLevelsPageNobody(t *testing.T) {
	t.Parallel()
	for _, r := range sloRules() {
		fixture.If(t, r.severity != incident.Warning || r.window == "" || r.check != "",
			"%s of %s is %v", r.alert, r.window, r.severity)
	}
}

// TestAlertmanagerKnowsRacks compares the shipped configuration of Alertmanager with the rules
// about racks: each alert about a rack silences those of its hosts, whose pages wait for it.
func TestAlertmanagerKnowsRacks(t *testing.T) {
	t.Parallel()
	text := fixture.Value(os.ReadFile("../deploy/alertmanager.yml"))(t)
	type route struct {
		Matchers []string `yaml:"matchers"`
		Wait     string   `yaml:"group_wait"`
		Routes   []route  `yaml:"routes"`
	}
	var shipped struct {
		Route route `yaml:"route"`
		Rules []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
			Equal  []string `yaml:"equal"`
		} `yaml:"inhibit_rules"`
	}
	fixture.Must(t, yaml.Unmarshal(text, &shipped))
	silenced := map[string]string{}
	for _, r := range shipped.Rules {
		if slices.Equal(r.Equal, []string{"cluster", "rack"}) {
			silenced[strings.Join(r.Source, ",")] += strings.Join(r.Target, ",")
		}
	}
	var hosts []string
	for _, f := range rackFaults {
		hosts = append(hosts, f.hosts...)
		want := fmt.Sprintf(`alertname =~ "%s"`, strings.Join(f.hosts, "|"))
		fixture.Contains(t, silenced[fmt.Sprintf("alertname = %q", f.alert)], want, "%s silences", f.alert)
	}
	fixture.Equal(t, silenced[`alertname = "RackDown"`], `alertname = "GPUStewardDown"`, "RackDown silences")
	waits := 0
	all := slices.Clone(shipped.Route.Routes)
	for _, r := range shipped.Route.Routes {
		all = append(all, r.Routes...)
	}
	for _, r := range all {
		if slices.Contains(r.Matchers, fmt.Sprintf(`alertname =~ "%s"`, strings.Join(hosts, "|"))) && r.Wait == "90s" {
			waits++
		}
	}
	fixture.Equal(t, waits, 2, "… routes wait for the alert about a rack")
}
