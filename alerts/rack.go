package alerts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/health"
	"gpusteward/health/incident"
)

// A rackFault is a fault of a rack, its switches, its power or its cooling, that most of the
// rack's hosts have. deploy/alertmanager.yml has its alert silence those of the hosts, so that
// one fault pages once.
type rackFault struct {
	alert      string
	hosts      []string // alerts of the hosts
	severities string   // of those alerts, as a regular expression
	fault      string   // what the hosts have: "have a link down"
	summary    string
	action     string
	cause      string
}

var rackFaults = []rackFault{
	{
		alert: "RackInterconnectDown", hosts: []string{"IBPortDown", "NVLinkDown", "GPUFabricUnhealthy"},
		severities: "critical|emergency", fault: "have an InfiniBand port, an NVLink or the fabric down",
		summary: "Most hosts of a rack have a broken link: a switch has failed.",
		action:  "Look at the switch that these hosts share, and at its power and firmware.",
		cause: "Cables do not break together. Behind an InfiniBand leaf, each host loses one port; in an NVLink rack, " +
			"each tray loses the links to the same switch tray.",
	},
	{
		alert: "RackPowerBrake", hosts: []string{"GPUPowerBrake"},
		severities: "warning|critical", fault: "have their power brake on",
		summary: "Most hosts of a rack are slowed down by their power supplies.",
		action:  "Look at the power feed and the power shelf of the rack.",
		cause:   "Supplies do not fail together: a feed was lost, or the rack draws more than it has.",
	},
	{
		alert: "RackOverheating", hosts: []string{"GPUThermalMargin", "GPUThermalThrottle"},
		severities: "critical", fault: "overheat",
		summary: "Most hosts of a rack overheat: the cooling has failed.",
		action:  "Call the data centre. Drain the hosts before they shut down.",
		cause:   "Heat sinks do not fail together: a pump, a door or a cooling unit stands still.",
	},
}

// most adds to an expression that counts hosts of racks the condition that they are three and
// more than half of the hosts there.
func most(count, of string) string {
	return fmt.Sprintf("%s >= 3\nand\n%[1]s / count by (job, cluster, rack) (%s) > 0.5", count, of)
}

// rackDown is the one fault of a rack that its hosts cannot tell.
var rackDown = fleetRule{
	rule: rule{
		alert: "RackDown", severity: incident.Critical, wait: 10 * time.Minute, // before GPUStewardDown
		expr: most(fmt.Sprintf("count by (job, cluster, rack) (up{job=%q} == 0)", job),
			fmt.Sprintf("up{job=%q}", job)),
		summary:     "Most hosts of a rack do not answer.",
		description: "{{ $value }} hosts{{ with $labels.rack }} of rack {{ . }}{{ end }} cannot be scraped.",
		action:      "Check the power of the rack, and its switch for management.",
	},
	cause: "They failed together, so the cause is what they share. GPUStewardDown of each is silenced.",
	scenes: []scene{{
		shows: slices.Concat(ofRack("up", "", "a", 4, 3), ofRack("up", "", "b", 5, 2), ofRack("up", "", "c", 8, 4)),
		want:  [][2]string{{"job", job}, {"rack", "a"}},
		says:  "3 hosts of rack a cannot be scraped.",
	}},
}

// ofRack returns a series of all hosts of a rack, of which so many fall to 0.
func ofRack(name, labels, rack string, all, fall int) (shows []shown) {
	first := 10 * int(rack[0]-'a')
	for n := range all {
		s := shown{name, labels + fmt.Sprintf("rack=%q,", rack), first + n, 1, 1}
		if n < fall {
			s.after = 0
		}
		shows = append(shows, s)
	}
	return shows
}

// fleetRule returns the rule, and a scene in which three of four hosts of rack a have the fault,
// two of rack b, and four of eight of rack c.
func (f rackFault) fleetRule() fleetRule {
	firing := fmt.Sprintf("%s{alert=~%q,severity=~%q}", health.AlertFiring, strings.Join(f.hosts, "|"), f.severities)
	severity, _, _ := strings.Cut(f.severities, "|")
	var shows []shown
	for rack, n := range map[string][2]int{"a": {4, 3}, "b": {2, 2}, "c": {8, 4}} {
		shows = append(shows, ofRack("up", "", rack, n[0], 0)...)
		labels := fmt.Sprintf("alert=%q,severity=%q,", f.hosts[0], severity)
		for _, s := range ofRack(health.AlertFiring.Name, labels, rack, n[0], n[1]) {
			s.before, s.after = 0, 1-s.after
			shows = append(shows, s)
		}
		// An info, which does not count.
		labels = fmt.Sprintf("alert=%q,severity=%q,", f.hosts[0], "info")
		shows = append(shows, ofRack(health.AlertFiring.Name, labels, rack, n[0], 0)...)
	}
	slices.SortFunc(shows, func(a, b shown) int {
		return strings.Compare(fmt.Sprint(a.name, a.labels, a.host), fmt.Sprint(b.name, b.labels, b.host))
	})
	return fleetRule{
		rule: rule{
			alert: f.alert, severity: incident.Critical,
			expr: most(fmt.Sprintf("count by (job, cluster, rack) (max by (job, cluster, rack, instance) (%s) > 0)", firing),
				fmt.Sprintf("up{job=%q} == 1", job)),
			summary:     f.summary,
			description: "{{ $value }} hosts{{ with $labels.rack }} of rack {{ . }}{{ end }} " + f.fault + ".",
			action:      f.action,
		},
		cause: f.cause,
		scenes: []scene{{shows: shows, want: [][2]string{{"job", job}, {"rack", "a"}},
			says: "3 hosts of rack a " + f.fault + "."}},
	}
}

// ofRacks returns the rules about racks.
func ofRacks() []fleetRule {
	all := []fleetRule{rackDown}
	for _, f := range rackFaults {
		all = append(all, f.fleetRule())
	}
	return all
}
