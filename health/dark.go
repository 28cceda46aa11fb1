package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// dark reports a loss of data, and its end, once for each cause instead of once for
// each check and entity. A cause is GPUs that do not answer, or a reading that
// several checks use.
type dark struct {
	changes []incident.Event         // of this step: the loss of data, or its return
	gpus    map[incident.Entity]bool // GPUs without data that were reported; true: they answer again
}

// onlyData reports whether a change of state is a loss of data or its return,
// and no fault begins or ends by it.
func onlyData(j *judge, st *status, from incident.State) bool {
	return st.severity(j.Check) == incident.None && (st.state == incident.Unknown ||
		from == incident.Unknown && !st.levels[st.told(j.Check)].isLeft())
}

// tell returns the changes to report.
func (d *dark) tell(e *Engine, s *derived.Snapshot) (told []incident.Event) {
	var all [4][]incident.Event // GPUs cease to answer, answer again; readings end, begin again
	fresh := map[incident.Entity]bool{}
	for _, c := range d.changes {
		gpu := c.Entity.Parent()
		back, known := d.gpus[gpu]
		switch lost := c.To == incident.Unknown; {
		case lost && s.Answers(gpu):
			all[2] = append(all[2], c)
		case lost && (!known || back || fresh[gpu]):
			all[0] = append(all[0], c)
			d.gpus[gpu], fresh[gpu] = false, true
		case !lost && !known:
			all[3] = append(all[3], c)
		case !lost && (!back || fresh[gpu]):
			all[1] = append(all[1], c)
			d.gpus[gpu], fresh[gpu] = true, true
		}
	}
	if len(d.changes) > 0 {
		d.forget(e)
	}
	for i, group := range all {
		if len(group) > 0 {
			told = append(told, together(group, i >= 2))
		}
	}
	d.changes = d.changes[:0]
	return told
}

// forget drops the GPUs that have all their data again.
func (d *dark) forget(e *Engine) {
	maps.DeleteFunc(d.gpus, func(gpu incident.Entity, back bool) bool {
		return back && !slices.ContainsFunc(e.judges, func(j *judge) bool {
			return slices.ContainsFunc(j.order,
				func(st *status) bool { return st.Parent() == gpu && st.state == incident.Unknown })
		})
	})
}

// together returns one change in place of several with the same cause. The cause may
// lie in the readings instead of the GPUs.
func together(all []incident.Event, ofReadings bool) incident.Event {
	c := all[0]
	if len(all) == 1 {
		return c
	}
	var checks, of []string
	for _, x := range all {
		if !slices.Contains(checks, x.Check) {
			checks = append(checks, x.Check)
		}
		if name := x.Entity.Parent().Name(); !slices.Contains(of, name) {
			of = append(of, name)
		}
	}
	if c.Entity = c.Entity.Parent(); len(of) > 1 {
		c.Entity = incident.Entity{}
	}
	if len(checks) > 1 {
		c.Check, c.Class = "", ""
	}
	c.ID = fmt.Sprintf("data/%s/%s", c.To, c.ID)
	what := listed(of)
	if ofReadings {
		what = listed(checks) + " of " + what
	}
	c.Message = "There is data again to judge " + what + " by."
	if c.To == incident.Unknown {
		c.Message = "There is no more data to judge " + what + " by."
	}
	return c
}

// listed names the first of many: "a, b, c and 5 more".
func listed(names []string) string {
	const most = 9 // the GPUs of most hosts, and the node
	if n := len(names); n > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return strings.Join(names, ", ")
}
