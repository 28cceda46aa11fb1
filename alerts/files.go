package alerts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/health"
)

// job is what Prometheus's scrape configuration calls the agents. The rules
// about the agents themselves look for it.
const job = "gpusteward"

const rulesHead = `# Prometheus's alerting rules for gpusteward: those of the checks that the
# agent makes itself, from the same rows (health/checks_*.go). Written by make
# generate; do not edit. Load it where no Alertmanager is configured in the
# agent, which otherwise sends these alerts itself. Needs Prometheus 2.42, and
# the agents scraped at least once a minute, better every 15 s.
`

var judgementHead = fmt.Sprintf(`# Alerting rules whose thresholds are a judgement: right for many hosts and
# wrong for some. They are off by default: load this file beside
# gpusteward.rules.yml to turn them on, once %s has
# shown that they are right for yours. Written by make generate; do not edit.
# Needs Prometheus 2.42.
`, health.CheckFailing)

const testHead = `# promtool's tests of %s. Written by make generate; do not edit.
# Each rule is silent just before its wait is over and fires just after, and
# stays silent on whatever lacks one of the things that it asks for.
rule_files: [%[1]s]
evaluation_interval: %s
tests:
`

// Files returns the text of all generated files by name.
func Files() map[string]string {
	files := map[string]string{"RUNBOOK.md": runbook()}
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
	return files
}

// testFile writes the tests of a file of rules.
func testFile(rules string, p pace, tests []ruleTest) string {
	var b strings.Builder
	fmt.Fprintf(&b, testHead, rules, promDuration(time.Duration(p)))
	for _, t := range tests {
		t.write(&b)
	}
	return b.String()
}

// ofChecks returns the rules of the checks that alert by themselves, or of
// those that wait for an operator to turn them on, and their tests.
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
