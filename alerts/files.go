package alerts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/health"
)

// job is the job_name of the agents in Prometheus's scrape configuration. The rules about the
// agents select it.
const job = "gpusteward"

const rulesHead = `# Prometheus alerting rules for gpusteward. Written by make generate from
# health/checks_*.go, the rows that the agent itself evaluates; do not edit.
# Load this file only if no Alertmanager is configured in the agent: with one,
# the agent sends these alerts itself. Requires Prometheus 2.42, and a scrape
# interval of 1 min or less; 15 s is better.
`

var judgementHead = fmt.Sprintf(`# Alerting rules whose thresholds are a matter of judgement: they are right
# for many hosts and wrong for some. They are off by default. To turn them on,
# load this file with gpusteward.rules.yml, after %s
# has shown that the thresholds suit your hosts. Written by make generate; do
# not edit. Requires Prometheus 2.42.
`, health.CheckFailing)

const testHead = `# promtool tests of %s. Written by make generate; do not edit.
# Each rule is silent just before its "for" has elapsed and fires just after.
# It stays silent on series that lack one part of its condition.
rule_files: [%[1]s]
evaluation_interval: %s
tests:
`

// Files returns the text of all generated files by name.
func Files() map[string]string {
	files := map[string]string{"RUNBOOK.md": runbook(), "../exporter/minimal.tsv": minimal()}
	add := func(name, head string, rules []rule, tests []ruleTest) {
		var b strings.Builder
		b.WriteString(head)
		group(&b, name, rules)
		files[name+".rules.yml"] = b.String()
		for suffix, p := range map[string]pace{"": seconds, "-hours": hours} {
			mine := slices.DeleteFunc(slices.Clone(tests), func(t ruleTest) bool { return t.pace != p })
			if len(mine) > 0 {
				files[name+suffix+".rules.test.yml"] = testFile(name+".rules.yml", p, mine)
			}
		}
	}
	rules, tests := ofChecks(false)
	add("gpusteward", rulesHead, rules, tests)
	rules, tests = ofChecks(true)
	add("gpusteward-judgement", judgementHead, rules, tests)
	rules, tests = ofFleet()
	add("fleet", fleetHead, rules, tests)
	files["recording.rules.yml"], files["recording.rules.test.yml"] = recordingFiles()
	files["slo.rules.yml"], files["objectives.rules.yml"], files["slo.rules.test.yml"] = sloFiles()
	files["stragglers.rules.yml"], files["stragglers.rules.test.yml"] = stragglerFiles()
	return files
}

// testFile returns the promtool tests of a rule file.
func testFile(rules string, p pace, tests []ruleTest) string {
	var b strings.Builder
	fmt.Fprintf(&b, testHead, rules, health.PromDuration(time.Duration(p)))
	for _, t := range tests {
		t.write(&b)
	}
	return b.String()
}

// ofChecks returns the rules and tests of the checks that alert by default or, with shadow, of
// those that an operator must turn on.
func ofChecks(shadow bool) (rules []rule, tests []ruleTest) {
	for _, c := range alerting() {
		if c.Shadow != shadow {
			continue
		}
		rules = append(rules, checkRules(c)...)
		for i := range c.Levels {
			tests = append(tests, levelTest(c, i))
		}
		if strings.Contains(c.Detail, "{xids}") {
			tests = append(tests, xidTest(c))
		}
	}
	return rules, tests
}

// alerting returns the checks that have an alert.
func alerting() []*health.Check {
	return slices.DeleteFunc(health.Checks(), func(c *health.Check) bool { return c.Alert == "" || len(c.Levels) == 0 })
}
